"""Words of a training step: kinds of rows, and parts of the time of its ranks."""

from __future__ import annotations

import enum
from typing import NamedTuple

from mpsim.parallel import Compute
from mpsim.parallel.axes import EXPOSED, Span, Stream
from mpsim.program.program import COLLECTIVE, SEND, Vocabulary
from mpsim.workload import Phase


class Kind(enum.IntEnum):
    """Kinds of the rows of a training step."""

    SEND = SEND  # point to point between stages
    COLLECTIVE = COLLECTIVE  # gradient reduction, parameter gather, norm
    FORWARD = 2
    BACKWARD = 3  # input and weight gradient together
    INPUT_GRADIENT = 4
    WEIGHT_GRADIENT = 5
    OPTIMIZER = 6


PIPELINE = (Kind.FORWARD, Kind.BACKWARD, Kind.INPUT_GRADIENT, Kind.WEIGHT_GRADIENT)
"""Kinds that are the actions of a schedule."""

PARTS = (
    "forward",
    "backward",
    "weight_gradient",
    "recompute",
    *EXPOSED,
    "bubble",
    "straggling",
    "optimizer",
    "host",
    "other",
)
"""Parts of the account; those of every rank sum to the step time."""

TRAINING = Vocabulary(
    kinds=tuple(kind.name.lower() for kind in Kind),
    actions=tuple(kind.name.lower() for kind in PIPELINE),
    parts=PARTS,
    computing=("forward", "backward", "weight_gradient", "recompute", "optimizer"),
)
"""The vocabulary of every program of a training step."""


class Link(NamedTuple):
    """Columns of a row of every rank, a link of the chain at the end of a step."""

    label: str
    kind: Kind
    part: str
    stream: Stream = Stream.COMPUTE
    span: Span = Span.NONE
    collective: int = -1


_PART_OF_PHASE = {
    Phase.FORWARD: PARTS.index("forward"),
    Phase.INPUT_GRADIENT: PARTS.index("backward"),
    Phase.WEIGHT_GRADIENT: PARTS.index("weight_gradient"),
}
_RECOMPUTE = PARTS.index("recompute")


def part_of(kernel: Compute) -> int:
    """Part of the account that a kernel's time counts as."""
    return _RECOMPUTE if kernel.repeated else _PART_OF_PHASE[kernel.operator.phase]
