"""Work and traffic of ranks in all, which a graph knows by how many rows have each price."""

import numpy as np

from mpsim.program import SEND, Stream
from mpsim.program.rows import Graph, Totals
from mpsim.training import build
from tests.plans import small_plan


def test_totals_are_sums_over_rows(monkeypatch) -> None:
    """Of what computes, and of bytes that leave each rank and come; collectives of several count for all."""
    found: list[Totals] = []

    def totals(graph: Graph, program) -> Totals:
        found.append(of(graph, program))
        return found[-1]

    of = Graph.totals
    monkeypatch.setattr(Graph, "totals", totals)
    program = build.build_program(small_plan(pp=4, tp=2, dp=2, microbatches=8))
    ranks, sends = program.ranks, program.kind == SEND
    met = ~sends & (np.diff(program.slot_ptr) > 1)
    computes = np.where(program.stream == Stream.COMPUTE, program.duration, 0.0)
    assert np.allclose(found[0].computing, np.bincount(program.rank, computes, ranks), rtol=1e-12)
    for told, sent in (
        (found[0].up_bytes, program.up_bytes),
        (found[0].out_bytes, program.out_bytes),
    ):
        leaves = np.bincount(program.rank, sent, ranks)
        comes = np.bincount(program.peer[sends], sent[sends], ranks)
        assert np.allclose(told, leaves + comes + sent[met].sum(), rtol=1e-12)
    assert found[0].up_bytes.any()
