"""Axes: the one table of how ranks divide work, and the queues of a rank.

Every other module asks this table: the mesh for the order in which axes are laid on accelerators,
the program for the stream of a communicator, the account for the part that exposed time counts as,
pictures for the colour. Only modules that say what an axis *does* (`mpsim.parallel.context` what
context parallelism does inside a layer) name it.

A scenario stands to the left of this table and keeps its own fields: a key that a person writes has
a documentation, bounds and checks that no table can give it. `mpsim.scenario.sections.AXES` has the
same names, which a test holds to these.
"""

from __future__ import annotations

import enum
from typing import Literal

import numpy as np

from mpsim import structs


class Stream(enum.IntEnum):
    """In-order queues of a rank: kernels, communicators by axis, copies and host."""

    COMPUTE = 0
    TP = 1
    CP = 2
    EP = 3
    DP = 4
    SEND_NEXT = 5  # to the rank of the next stage: activations
    SEND_PREV = 6  # to the rank of the previous stage: what comes back for them
    RECV_PREV = 7
    RECV_NEXT = 8
    SEND_NEXT_BACK = 9  # as above against the usual direction (V-shaped stage maps)
    SEND_PREV_BACK = 10
    RECV_PREV_BACK = 11
    RECV_NEXT_BACK = 12
    REPLICA = 13  # between sharded groups of replicas (HSDP)
    EDP = 14  # data parallelism of experts
    COPY = 15  # device to host and back
    HOST = 16  # work of the host


_MESSAGES = tuple(Stream(number) for number in range(Stream.SEND_NEXT, Stream.RECV_NEXT_BACK + 1))
"""Queues of messages between stages, which the enumeration lists together."""


class Span(enum.IntFlag):
    """Axes over which a class's ranks share a row; 0 where each does its own."""

    NONE = 0
    TP = 1
    CP = 2
    DP = 4


@structs.dataclass(frozen=True, slots=True)
class Communicator:
    """A group of ranks that communicate inside layers."""

    name: str  # as `mpsim.parallel.shard.Communication` names it
    axes: tuple[str, ...]  # axes it extends over, of the mesh or of the experts' mesh
    # all its ranks, those of one scale-up domain, or one of each domain
    part: Literal["all", "inside", "across"] = "all"


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One axis of the mesh."""

    name: str  # key of its degree in a scenario
    label: str  # what legends call its communication
    # queues of its communicators, first that of collectives inside layers, or of replicas
    streams: tuple[Stream, ...]
    colour: str  # of its communication in every picture, ``#RRGGBB``
    accounted: int  # place among the parts of exposed communication in the account of a step
    span: Span = Span.NONE  # ranks of a class that a collective over this axis brings together
    # whether its degree multiplies the ranks; experts are laid over those there are
    multiplies: bool = True
    replicates: bool = False  # whether its ranks hold the same parameters, as replicas do
    of_experts: str = ""  # its name in the experts' mesh; empty where experts do not use it
    communicators: tuple[Communicator, ...] = ()  # groups that communicate inside layers

    @property
    def part(self) -> str:
        """Part of the account that its exposed communication counts as."""
        return f"exposed_{self.name}"


AXES = (
    Axis(
        name="tp",
        label="tensor-parallel comm.",
        streams=(Stream.TP,),
        colour="#C5700B",
        accounted=0,
        span=Span.TP,
        of_experts="etp",
        # experts' tensor-parallel groups are part of the others in all stacks, and queue with them
        communicators=(Communicator("tp", ("tp",)), Communicator("etp", ("etp",))),
    ),
    Axis(
        name="cp",
        label="context-parallel comm.",
        streams=(Stream.CP,),
        colour="#854E82",
        accounted=1,
        span=Span.CP,
        replicates=True,
        communicators=(
            Communicator("cp", ("cp",)),
            Communicator("cp-inside", ("cp",), part="inside"),
            Communicator("cp-across", ("cp",), part="across"),
        ),
    ),
    Axis(
        name="ep",
        label="expert-parallel comm.",
        streams=(Stream.EP,),
        colour="#88CCEE",
        accounted=2,
        # its groups are cut from all ranks of a stage: who waits for one waits for all
        span=Span.TP | Span.CP | Span.DP,
        multiplies=False,
        of_experts="ep",
        communicators=(Communicator("ep", ("ep",)), Communicator("etp-ep", ("etp", "ep"))),
    ),
    Axis(
        name="dp",
        label="data-parallel comm.",
        streams=(Stream.DP, Stream.REPLICA, Stream.EDP),
        colour="#4699F3",
        accounted=4,
        span=Span.DP,
        replicates=True,
        of_experts="edp",
    ),
    Axis(name="pp", label="pipeline send", streams=_MESSAGES, colour="#332288", accounted=3),
)
"""Every axis, in the order of a mesh on accelerators unless told otherwise, fastest first."""

AXIS_NAMES = tuple(axis.name for axis in AXES)  # names of the axes

ACCOUNTED = tuple(sorted(AXES, key=lambda axis: axis.accounted))  # axes in the order of the account

EXPOSED = tuple(axis.part for axis in ACCOUNTED)  # parts of the account that communication takes

FOLDED = tuple(axis for axis in AXES if axis.multiplies and axis.span)
"""Axes whose ranks a rank class stands for: those of one stage, fastest first."""

REPLICATING = tuple(axis.name for axis in reversed(AXES) if axis.replicates)
"""Axes whose ranks hold the same parameters, slowest first."""

COMMUNICATION = {stream: axis.name for axis in AXES for stream in axis.streams}
"""Axis of every stream on which ranks communicate."""

AXIS_OF_STREAM = np.array(
    [
        AXIS_NAMES.index(COMMUNICATION[stream]) if stream in COMMUNICATION else -1
        for stream in Stream
    ]
)
"""Its number in `AXIS_NAMES`, by stream; -1 where none communicates."""
