"""Spans: what one rank was recorded to do and when, whichever tool recorded it.

Actions of a pipeline, computations, collectives with their group and size, messages, optimizer steps and the steps around them; times are seconds of the clock of the host that recorded
them. `mpsim.formats.recorded_step` lays the spans of all ranks on one clock and makes a Timeline of them.
"""

from __future__ import annotations

import array
import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import TypeGuard

from mpsim.formats.intervals import Array, busy_time, overlap, union

__all__ = [
    "AXIS_WORDS",
    "Dense",
    "Span",
    "Spans",
    "axis_of",
    "busy_facts",
    "is_number",
    "joined",
    "kernel_class",
]

AXIS_WORDS: Mapping[str, tuple[str, ...]] = {
    "ep": ("expert", "ep"),
    "tp": ("tensor", "tp", "model"),
    "cp": ("context", "cp", "sequence", "sp"),
    "pp": ("pipeline", "pipe", "pp"),
    "dp": ("data", "dp", "fsdp", "ddp", "shard", "replicate", "hsdp"),
}
"""Words of names of groups that say over which axis they communicate, the first that fits."""


@dataclasses.dataclass(frozen=True, slots=True)
class Span:
    """One thing that a rank did.

    Parameters
    ----------
    start, end : float
        On the clock of its recording [s].
    kind : str
        ``forward``, ``backward``, ``input_gradient``, ``weight_gradient``, ``optimizer``, ``compute``, ``collective``, ``send``, ``copy`` or ``wait``.
    name : str
    axis : str
        Of communication; empty for the rest.
    stage, microbatch : int
        Of an action; -1 for the rest.
    size : int
        Elements of a collective; 0 where it is not stated.
    ranks : int
        Members of its group; 0 where it is not stated.
    """

    start: float
    end: float
    kind: str
    name: str
    axis: str = ""
    stage: int = -1
    microbatch: int = -1
    size: int = 0
    ranks: int = 0

    @property
    def token(self) -> str:
        """The action as schedules write it, such as ``2I0``."""
        letter = {"forward": "F", "backward": "B", "input_gradient": "I", "weight_gradient": "W"}
        return f"{self.stage}{letter[self.kind]}{self.microbatch}"

    @property
    def is_action(self) -> bool:
        """Whether it is an action of a pipeline."""
        return self.stage >= 0 and self.kind in (
            "forward",
            "backward",
            "input_gradient",
            "weight_gradient",
        )


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """Intervals of one kind without anything of their own, of which a trace has millions.

    Parameters
    ----------
    kind, name : str
        As of a `Span`.
    times : float64[n, 2]
        Start and end of each [s].
    """

    kind: str
    name: str
    times: Array

    def within(self, window: tuple[float, float] | None) -> Array:
        """Intervals that begin in a window; without one all."""
        if window is None:
            return self.times
        chosen: Array = self.times[
            (self.times[:, 0] >= window[0]) & (self.times[:, 0] <= window[1])
        ]
        return chosen


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Spans:
    """Everything that one rank was recorded to do.

    Parameters
    ----------
    name : str
        Of the rank in messages and pictures.
    rank : int or None
        Of the job; None where the recording does not say.
    spans : tuple of Span
        By their start.
    dense : tuple of Dense
        What there are too many of for a span each.
    steps : tuple of (float, float)
        Start and end of every training step that is marked.
    groups : mapping of str to tuple of int
        Members of the groups that the recording lists.
    base_ns : int
        Moment from which its times count, on the clock of its host [ns]; whole, as a float of seconds would lose microseconds.
    """

    name: str
    rank: int | None
    spans: tuple[Span, ...]
    dense: tuple[Dense, ...] = ()
    steps: tuple[tuple[float, float], ...] = ()
    groups: Mapping[str, tuple[int, ...]] = dataclasses.field(default_factory=dict)
    base_ns: int = 0

    @property
    def actions(self) -> list[Span]:
        """Actions of a pipeline, in the order in which they began."""
        return [span for span in self.spans if span.is_action]


def axis_of(description: str) -> str:
    """Axis that the name of a group of ranks speaks of; ``dp`` where it says nothing, as most jobs only divide data.

    Examples
    --------
    >>> axis_of("TENSOR_MODEL_PARALLEL_GROUP"), axis_of("mesh_dp_shard"), axis_of("default_pg")
    ('tp', 'dp', 'dp')
    """
    words = set(re.split(r"[^a-z]+", description.lower()))
    for axis, names in AXIS_WORDS.items():
        if words & set(names):
            return axis
    return "dp"


def joined(pairs: array.array[float], kind: str, name: str, scale: float) -> Dense:
    """Intervals that touch or overlap as one each.

    Parameters
    ----------
    pairs : array of float
        Start and end of each interval, one after the other.
    kind, name : str
    scale : float
        Length of their unit [s].
    """
    return Dense(kind, name, union(pairs) * scale)


def kernel_class(name: str) -> str:
    """``communication``, ``memory`` or ``computation``, by the name of a kernel."""
    low = name.lower()
    if (
        low.startswith(("nccl", "rccl"))
        or "ncclkernel" in low
        or "nccldevkernel" in low
        or "msccl" in low
    ):
        return "communication"
    return "memory" if low.startswith(("memcpy", "memset", "[cuda mem", "dma")) else "computation"


def busy_facts(kernels: Mapping[str, Sequence[float]], scale: float) -> dict[str, float]:
    """Busy times of one device and what overlaps [s]."""
    compute, communication = kernels.get("computation", ()), kernels.get("communication", ())
    return {
        "compute_s": busy_time(compute) * scale,
        "communication_s": busy_time(communication) * scale,
        "overlap_s": overlap(compute, communication) * scale,
    }


def is_number(value: object) -> TypeGuard[int | float]:
    """Whether a value of JSON is a number that a time can be."""
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and abs(value) < 1e18
        and (not isinstance(value, float) or value == value)
    )
