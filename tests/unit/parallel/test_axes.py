"""The table of axes: every stream, part and colour once, and the same names as in a scenario."""

from __future__ import annotations

import itertools

from mpsim.parallel import (
    ACCOUNTED,
    AXES,
    AXIS_NAMES,
    EXPERT_AXES,
    FOLDED,
    REPLICATING,
    Mesh,
    Stream,
)
from mpsim.plot.palette import EVENTS
from mpsim.scenario import sections
from mpsim.training.vocabulary import PARTS

_OWN = {Stream.COMPUTE, Stream.COPY, Stream.HOST}


def test_every_stream_belongs_to_one_axis_or_to_the_rank_itself() -> None:
    """Kernels, copies and the host have queues of their own."""
    streams = list(itertools.chain(*(axis.streams for axis in AXES)))
    assert len(streams) == len(set(streams))
    assert set(streams) | _OWN == set(Stream)
    assert not set(streams) & _OWN


def test_a_scenario_has_the_degrees_of_the_table() -> None:
    """The schema keeps its own fields; their names, and what each axis does to ranks and parameters, are the same."""
    assert sections.AXES == AXIS_NAMES
    assert set(sections.AXES) <= set(sections.Parallelism.model_fields)
    assert set(sections.REPLICATING) == set(REPLICATING)
    dividing = {axis.name for axis in AXES if axis.multiplies} - {"dp"}
    assert set(sections.DIVIDING) == dividing
    assert tuple(axis.name for axis in FOLDED) == sections.OF_STAGE


def test_every_axis_has_its_part_of_the_account_and_its_colour() -> None:
    """Parts follow the order of the account, and no other kind of event has an axis's colour."""
    assert [part for part in PARTS if part.startswith("exposed_")] == [a.part for a in ACCOUNTED]
    assert [axis.accounted for axis in ACCOUNTED] == list(range(len(AXES)))
    colours = [EVENTS[axis.name] for axis in AXES]
    assert all(list(EVENTS.values()).count(colour) == 1 for colour in colours)


def test_communicators_extend_over_axes_that_are_there() -> None:
    """Names are unique, and experts' groups extend over the experts' axes."""
    groups = [group for axis in AXES for group in axis.communicators]
    assert len({group.name for group in groups}) == len(groups)
    for group in groups:
        own = set(AXIS_NAMES) - set(EXPERT_AXES)
        assert set(group.axes) <= set(EXPERT_AXES) or set(group.axes) <= own


def test_replicas_of_a_mesh_are_ranks_over_those_of_one_model() -> None:
    """2 x 3 replicas of 5 x 7 ranks."""
    mesh = Mesh(tp=5, cp=3, dp=2, pp=7)
    assert mesh.replicas == 6
    assert mesh.model_groups().shape == (6, 35)
