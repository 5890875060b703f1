"""Spans: what one rank was recorded to do and when, whichever tool recorded it.

Actions of a pipeline, computations, collectives with their group and size, messages, optimizer
steps and the steps around them; times are seconds of the clock of the host that recorded them.
`mpsim.formats.recorded_step` lays the spans of all ranks on one clock and makes a Timeline of them.
"""

from __future__ import annotations

import array
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final, TypeAlias, TypeGuard

from mpsim import structs
from mpsim.formats.words import DATA, table

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from mpsim.engine.cover import Cover

Array: TypeAlias = "npt.NDArray[np.float64]"
ACTIONS: Final = {"F": "forward", "B": "backward", "I": "input_gradient", "W": "weight_gradient"}
"""Kinds of actions by the letter that tools and schedules write."""
LETTERS: Final = {kind: letter for letter, kind in ACTIONS.items()}
AXIS_WORDS: Mapping[str, list[str]] = table(DATA, "recordings")["axes"]
"""Words of names of groups that say over which axis they communicate, the first that fits."""
_COLLECTIVE_KERNEL = re.compile(
    r"(AllReduce|AllGather|ReduceScatter|AllToAll|Broadcast|Reduce|SendRecv)"
)
_COMMUNICATES = re.compile(r"(nccl|rccl)|.*(ncclkernel|nccldevkernel|msccl)", re.DOTALL)
KERNEL_WORDS: Final = {
    "gemm": ("gemm", "cutlass", "matmul", "nvjet", "cublas"),
    "attention": ("flash", "fmha", "attention"),
}
"""Words in names of kernels that say of which class they are; all others move memory."""
SYNCS = frozenset(
    "cudaDeviceSynchronize cudaStreamSynchronize cudaEventSynchronize "
    "hipDeviceSynchronize hipStreamSynchronize".split()
)
"""Calls in which a host waits for its device."""
_COPIES = ("memcpy", "memset", "[cuda mem", "dma")


@structs.dataclass(frozen=True, slots=True)
class Span:
    """One thing that a rank did."""

    start: float  # start, end: on the clock of its recording [s]
    end: float
    # ``forward``, ``backward``, ``input_gradient``, ``weight_gradient``, ``optimizer``,
    # ``collective``, ``send`` or ``wait``
    kind: str
    name: str
    axis: str = ""  # of communication; empty for the rest
    stage: int = -1  # stage, microbatch: of an action; -1 for the rest
    microbatch: int = -1
    size: int = 0  # elements of a collective; 0 where it is not stated
    ranks: int = 0  # members of its group; 0 where it is not stated

    @classmethod
    def communication(
        cls, start: float, end: float, word: str, *, axis: str, size: int = 0, ranks: int = 0
    ) -> Span:
        """A collective, or a message, whose axis is that of the pipeline."""
        if word in ("send", "recv", "send_recv"):
            return cls(start, end, "send", word, axis="pp", size=size, ranks=ranks)
        return cls(start, end, "collective", word, axis=axis, size=size, ranks=ranks)

    @property
    def token(self) -> str:
        """The action as schedules write it, such as ``2I0``."""
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"

    @property
    def is_action(self) -> bool:
        """Whether it is an action of a pipeline."""
        return self.stage >= 0 and self.kind in LETTERS


@structs.dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Intervals of one kind without anything of their own, of which a trace has millions."""

    kind: str  # ``compute`` or ``copy``
    name: str
    times: Array  # float64[n, 2], start and end of each [s]

    def within(self, window: tuple[float, float] | None) -> Array:
        """Intervals that begin in a window; without one all."""
        if window is None:
            return self.times
        begins = self.times[:, 0]
        chosen: Array = self.times[(begins >= window[0]) & (begins <= window[1])]
        return chosen


@structs.dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Everything that one rank was recorded to do."""

    name: str  # of the rank in messages and pictures
    rank: int | None  # of the job; None where the recording does not say
    spans: tuple[Span, ...]
    dense: tuple[Dense, ...] = ()  # what there are too many of for a span each
    # start and end of every training step that is marked
    steps: tuple[tuple[float, float], ...] = ()
    # members of the groups that the recording lists
    groups: Mapping[str, tuple[int, ...]] = structs.field(default_factory=dict)
    # mapping of str to float64[n, 2], start and end of what explains a step: ``loader`` (the data's
    # iterator), ``recompute`` (forward operators inside the backward), ``sync`` (the host waits for
    # the device or a value), ``gemm``, ``attention`` and ``memory`` (kernels, or operators of the
    # host that computes), these again with the bits of their widest operand such as ``gemm 32`` or
    # as ``attention unfused``, ``host`` (operators of the host that launches), ``sent`` (a host
    # that computes hands over or awaits a message), ``busy`` (all that computes, inside actions
    # too) [s]
    marks: Mapping[str, Array] = structs.field(default_factory=dict)
    # moment from which its times count on its host's clock [ns]; whole, to keep microseconds
    base_ns: int = 0

    @property
    def actions(self) -> list[Span]:
        """Actions of a pipeline, in the order in which they began."""
        return [span for span in self.spans if span.is_action]


class Busy:
    """Intervals of one device by what it did, in a recording's `unit` [s]."""

    def __init__(self, unit: float) -> None:
        self.unit = unit
        # 16 B an interval: traces have millions of kernels
        self.times: dict[str, array.array[float]] = {}
        self._computed = self.times.setdefault("computation", array.array("d"))

    def add(self, kernel: str, start: float, end: float) -> str:
        """Take a kernel by its name; the class that it is of."""
        kind, low = "computation", kernel.lower()
        if _COMMUNICATES.match(low):
            kind = "communication"
        elif low.startswith(_COPIES):
            kind = "memory"
        self.times.setdefault(kind, array.array("d")).extend((start, end))
        return kind

    def compute(self, start: float, end: float) -> None:
        """Take a host's operator that computes, of which there are too many to look at names."""
        self._computed.extend((start, end))

    def _cover(self, *kinds: str) -> Cover:
        import numpy as np

        from mpsim.engine.cover import Cover

        found = [np.frombuffer(self.times[kind]) for kind in kinds if kind in self.times]
        pairs = np.concatenate([np.zeros(0), *found]).reshape(-1, 2)
        return Cover(pairs[:, 0], pairs[:, 1])

    def _seconds(self, *kinds: str) -> float:
        cover = self._cover(*kinds)
        return float((cover.end - cover.start).sum())

    def facts(self) -> dict[str, float]:
        """Busy times of the device and what overlaps [s]."""
        compute, communication = self._seconds("computation"), self._seconds("communication")
        together = self._seconds("computation", "communication")
        return {
            "compute_s": compute * self.unit,
            "communication_s": communication * self.unit,
            "overlap_s": max(0.0, compute + communication - together) * self.unit,
        }

    def dense(self, kind: str, becomes: str, name: str) -> Iterator[Dense]:
        """Intervals of a class joined where they touch or overlap; nothing where there are none."""
        import numpy as np

        if self.times.get(kind):
            cover = self._cover(kind)
            yield Dense(becomes, name, np.column_stack([cover.start, cover.end]) * self.unit)


def dense_of(busy: Busy, name: str, *, has_actions: bool) -> Iterator[Dense]:
    """Kernels and copies of a device; actions stand for what computes."""
    if not has_actions:
        yield from busy.dense("computation", "compute", name)
    yield from busy.dense("memory", "copy", "copies")


def kernel_class(kernel: str) -> str:
    """Class of a kernel that computes, by its name: ``gemm``, ``attention`` or ``memory``."""
    low = kernel.lower()
    return next(
        (kind for kind, words in KERNEL_WORDS.items() if any(word in low for word in words)),
        "memory",
    )


def kernel_word(kernel: str) -> str:
    """Collective in a kernel's name such as ``ncclDevKernel_AllReduce_Sum_f32_RING_LL(...)``."""
    match = _COLLECTIVE_KERNEL.search(kernel)
    return match[1] if match else kernel


def axis_of(description: str) -> str:
    """Axis of the name of a group of ranks; ``dp`` where it says nothing, as most jobs have.

    Examples
    --------
    >>> axis_of("TENSOR_MODEL_PARALLEL_GROUP"), axis_of("mesh_dp_shard"), axis_of("default_pg")
    ('tp', 'dp', 'dp')
    """
    words = set(re.split(r"[^a-z]+", description.lower()))
    return next((axis for axis, names in AXIS_WORDS.items() if words & set(names)), "dp")


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number that a time can be."""
    # a comparison with what is no number is false
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e18
