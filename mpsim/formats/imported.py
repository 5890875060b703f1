"""Values of importers: a scenario or measured points, and what became of the file's words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from mpsim import structs
from mpsim.errors import CalibrationError
from mpsim.scenario import Scenario

if TYPE_CHECKING:
    from mpsim.formats.execution import ImportedProgram
    from mpsim.formats.spans import Spans

_SHORTEST, _LONGEST = 1e-12, 1e9  # s, of a kernel or collective that somebody timed
_NOTHING: Mapping[str, str] = MappingProxyType({})
Words: TypeAlias = "Mapping[str, str | int | float | bool]"

_COLLECTIVES = {
    word: name
    for name, words in {
        "all_reduce": "allreduce",
        "all_gather": "allgather allgatherbase allgatherintotensor",
        "reduce_scatter": "reducescatter reducescatterbase reducescattertensor",
        "all_to_all": "alltoall alltoallbase alltoallv",
        "send_recv": "sendrecv send recv",
        **{name: name for name in ("broadcast", "reduce", "barrier")},
    }.items()
    for word in words.split()
}
"""Our names of collectives, by what tools call them without case and marks."""


@structs.dataclass(frozen=True, slots=True)
class Assumed:
    """A value that the file does not state."""

    to: str  # the key that got it, in the words of the file or of the scenario
    value: object  # empty where the sentence in `why` says all
    why: str
    text: str = ""  # the whole sentence, where ``to = value (why)`` does not say it

    def __str__(self) -> str:
        """The assumption as one sentence."""
        if self.text:
            return self.text
        if self.value == "":
            return f"{self.to}: {self.why}"
        return f"{self.to} = {self.value} ({self.why})"


@structs.dataclass(frozen=True, slots=True)
class Mapped:
    """A key of the file that became a value of the scenario."""

    source: str  # in the words of the file
    to: str  # dotted key of the scenario
    value: object  # as the scenario has it


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A scenario read from somebody else's words, and what became of every key of the file.

    Every key is in exactly one of `mapped` and `ignored`.
    """

    # as a scenario file would hold it; sections that the source says nothing about are absent
    scenario: Mapping[str, Any]
    # what the source leaves open, or asks for and is not simulated
    assumed: tuple[Assumed, ...] = ()
    ignored: tuple[str, ...] = ()  # keys of the source that change nothing here
    # where each value comes from, by dotted key, such as ``config.json:12 hidden_size``
    lines: Mapping[str, str] = structs.field(default_factory=dict)
    format: str = ""  # name of the format, as commands take it
    # tool, version: what wrote the file, and which era of it, in words
    tool: str = ""
    version: str = ""
    files: tuple[str, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    # dotted keys of the scenario that the file cannot hold or leaves to its user
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()  # what moves time or memory and is not simulated
    # values that a service has and a training does not, each with the warning of one without it
    served: Mapping[str, tuple[object, str]] = structs.field(default_factory=dict)
    # exact count of the model that the file describes: embeddings once where tied, no padding, no
    # multi-token prediction
    model_parameters: int | None = None

    def build(self) -> Scenario:
        """The scenario, checked: ScenarioError if a section is missing or values contradict."""
        return Scenario.from_mapping(dict(self.scenario))


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Samples of one kernel or one collective of one size."""

    id: str  # unique in its file
    family: str  # ``kernels`` or ``collectives``
    op: str  # ``gemm``, ``all_reduce``, ...
    seconds: tuple[float, ...]  # samples of the slowest rank [s]
    shape: Mapping[str, int]  # sizes, such as ``m n k``, or ``bytes`` of a collective
    variant: Words = structs.field(default_factory=dict)  # words and switches
    dtype: str = ""  # as torch names it; empty for a collective
    # ranks, domains: how many took part, and on how many nodes
    ranks: int = 1
    domains: int = 1
    phase: str = "burst"  # ``burst`` or ``sustained``
    # flops, bytes: of one execution [FLOP], memory traffic or payload [B]; 0 if unknown
    flops: float = 0.0
    bytes: float = 0.0


@structs.dataclass(frozen=True, slots=True)
class Points:
    """Measured points of one file."""

    file: str
    tool: str  # name of the tool that wrote the file, in words
    points: tuple[MeasuredPoint, ...]
    device_name: str = ""  # as the file names the accelerator; empty where it does not
    library: str = ""  # communication library; empty where there is none
    warnings: tuple[str, ...] = ()
    # format, version: name of the format, as commands take it, and the era of the tool
    format: str = ""
    version: str = ""
    # every row in SI units, as ``mpsim import`` prints it, kernels of ours or not
    rows: tuple[Mapping[str, object], ...] = ()


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Facts of one step that a recording or a compiled program states, in SI units."""

    # format, tool, version: name of the format, as commands take it, and what wrote the file
    format: str
    tool: str
    files: tuple[str, ...]
    facts: Mapping[str, object]  # such as ``rank``, ``actions``, ``compute_s``, ``collectives``
    version: str = ""
    warnings: tuple[str, ...] = ()
    # what it runs, priced on the cluster that was named; None where none was
    program: ImportedProgram | None = None
    spans: tuple[Spans, ...] = ()  # what each rank did and when, where this was asked for


def collective_name(word: str) -> str | None:
    """Our name of a collective that another tool calls `word`; None where it is none of ours."""
    return _COLLECTIVES.get("".join(letter for letter in word.lower() if letter.isalnum()))


def _check_times(seconds: Sequence[float], place: str) -> None:
    """Refuse times that no machine takes, such as what is left of 1e-320 us."""
    for time in seconds:
        if not _SHORTEST <= time <= _LONGEST:
            raise CalibrationError(f"{place}: a time of {time:g} s; needed more than 0")


def collective_point(
    name: str, size: int, seconds: Sequence[float], *, ranks: int, domains: int, place: str
) -> MeasuredPoint:
    """A collective of `ranks` ranks on `domains` nodes; `place` makes its id unique."""
    _check_times(seconds, place)
    return MeasuredPoint(
        id=f"{name}/{size}/{ranks}x{domains}/{place}",
        family="collectives",
        op=name,
        seconds=tuple(seconds),
        shape={"bytes": size},
        ranks=ranks,
        domains=domains,
        bytes=float(size),
    )


def kernel_point(
    op: str,
    shape: Mapping[str, int],
    seconds: Sequence[float],
    *,
    dtype: str,
    place: str,
    variant: Words = _NOTHING,
    phase: str = "burst",
    flops: float = 0.0,
) -> MeasuredPoint:
    """A kernel on one accelerator; `place` makes its id unique."""
    _check_times(seconds, place)
    words = ",".join(f"{key}={value}" for key, value in {**shape, **variant}.items())
    return MeasuredPoint(
        id=f"{op}/{dtype}/{words}/{place}",
        family="kernels",
        op=op,
        seconds=tuple(seconds),
        shape=shape,
        variant=variant,
        dtype=dtype,
        phase=phase,
        flops=flops,
    )
