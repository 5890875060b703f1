"""Graphs of steps: plans that differ in what their rows cost share one, others do not."""

import numpy as np
import pytest

import mpsim
from mpsim import memo
from mpsim.program import Program
from mpsim.program.program import COLUMNS
from mpsim.simulate import prepare

GRAPH = ("dep_ptr", "dep", "slot_ptr", "slot")


def program_at(**changes: object) -> Program:
    """The program of the quickstart with some values changed; ``__`` stands for a dot."""
    values = {key.replace("__", "."): value for key, value in changes.items()}
    return prepare(mpsim.load("scenarios/quickstart.yaml").with_values(values)).program


@pytest.mark.parametrize(
    "changes",
    [
        {"cluster__nic": "100 Gb/s"},
        {"training__recompute": "full"},
        {"cluster__nodes": 4, "training__global_batch": 64},
    ],
)
def test_plans_of_one_shape_share_their_graph(changes: dict[str, object]) -> None:
    """Rates, recomputation and the number of replicas change prices: rows, order and dependencies are the same arrays."""
    base, other = program_at(), program_at(**changes)
    assert all(getattr(base, name) is getattr(other, name) for name in GRAPH)
    assert not np.array_equal(base.duration, other.duration)


@pytest.mark.parametrize("changes", [{"parallelism__zero": 1}, {"training__global_batch": 64}])
def test_plans_of_other_shapes_do_not(changes: dict[str, object]) -> None:
    """Sharded states are gathered at the end, and more microbatches are more rows."""
    base, other = program_at(parallelism__zero=0), program_at(**changes)
    assert len(base) != len(other)


def test_a_shared_graph_changes_no_program() -> None:
    """A program priced on the graph of another is, column by column, the one that is laid out alone."""
    program_at()
    shared = program_at(cluster__nic="100 Gb/s")
    memo.forget()
    alone = program_at(cluster__nic="100 Gb/s")
    assert shared.dep is not alone.dep
    for name in (*COLUMNS, *GRAPH):
        assert np.array_equal(getattr(shared, name), getattr(alone, name)), name
    assert shared.labels == alone.labels


def test_nobody_writes_into_a_shared_graph() -> None:
    """Columns that programs share refuse to be changed."""
    with pytest.raises(ValueError, match="read-only"):
        program_at().dep[0] = 1
