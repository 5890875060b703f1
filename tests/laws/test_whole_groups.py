"""Groups inside stages lie whole in scale-up domains where ranks are free, and where they do not somebody says so."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from mpsim import simulate
from mpsim.hardware import system
from mpsim.parallel import Mesh, straddling, whole_groups
from mpsim.scenario import Scenario
from mpsim.serving.planning import make_service
from mpsim.simulate import resolve
from mpsim.study.search import search
from tests.nightly import examples

_EXPERTS = {
    "schema": 1,
    "model": "qwen3-30b-a3b",
    "cluster": {"preset": "gb200-nvl72", "nodes": 32},
    "parallelism": {"ep": 32},
    "training": {"global_batch": 256, "sequence_length": 4096, "recompute": "full"},
    "framework": {
        "preset": "megatron-core",
        "launch_cost": "0 us",
    },  # Grace issues kernels too slowly to see links
}


def _experts(nodes: int, batch: int, *, ep: int = 32, **cluster: Any) -> Scenario:
    given = {"preset": "gb200-nvl72", "nodes": nodes, **cluster}
    training = {**_EXPERTS["training"], "global_batch": batch}  # type: ignore[dict-item]
    return Scenario.from_mapping(
        {**_EXPERTS, "cluster": given, "training": training, "parallelism": {"ep": ep}}
    )


@given(
    st.sampled_from([1, 2, 4, 8, 16]),
    st.sampled_from([1, 2, 4, 8, 16, 32, 64]),
    st.sampled_from([1, 2, 3, 4]),
    st.integers(1, 6),
)
@settings(deadline=None, max_examples=examples(24, 60))
def test_nothing_straddles_where_ranks_are_free(tp: int, ep: int, pp: int, groups: int) -> None:
    """Blocks of powers of two fill 64 of 72 or more; an even number of whole nodes is all that is asked."""
    stage = max(tp, ep) * groups
    assume(stage * pp % 4 == 0 and stage % ep == 0)
    nodes = stage * pp // 4
    assume(nodes % 18)
    mesh = Mesh(tp=tp, ep=ep, etp=1, dp=stage // tp, pp=pp)
    placed = whole_groups(system("gb200-nvl72", nodes=nodes), mesh)
    assert placed.node.domain in (64, 68, 72) or nodes <= 18
    aligned = all(size % max(tp, ep) == 0 for size in (stage,))
    assert not aligned or not straddling(placed, mesh)


def test_a_job_takes_64_of_72_for_groups_of_32() -> None:
    """Half a group in the next rack would send nearly everything over NICs."""
    free = _experts(32, 256)
    plan = resolve(free)
    assert plan.layout.cluster.node.domain == 64
    assert free.hardware.node.domain == 72
    listed = _experts(32, 256, placement=list(range(128)))
    whole, packed = (simulate(each).summary["step_time_s"] for each in (free, listed))
    assert whole < 0.7 * packed


@pytest.mark.parametrize("preset", ["dgx-h100", "gb200-nvl72"])
def test_whole_domains_are_used_wholly(preset: str) -> None:
    """Who asks for whole domains has no other accelerators, and a node that is a domain has nothing to leave."""
    cluster = system(preset, nodes=36)
    mesh = Mesh(ep=16, dp=cluster.accelerators)
    assert whole_groups(cluster, mesh) is cluster


def test_what_straddles_is_told_with_its_cost() -> None:
    """36 trays are two racks of 72, which hold nine groups of 16, the fifth in both."""
    scenario = _experts(36, 288, ep=16)
    summary = simulate(scenario).summary
    told = summary["straddling"]
    assert told in summary["warnings"]
    assert "1 of 9 ep groups of 16 straddle scale-up domains of 72" in told
    assert "with 64 accelerators of each; set cluster.nodes to 32" in told
    assert "straddling" not in simulate(_experts(32, 256)).summary


_SERVICE = {
    "schema": 1,
    "model": "llama3-70b",
    "cluster": {"preset": "gb200-nvl72", "nodes": 36},
    "parallelism": {"tp": 16},
    "serving": {"workload": {"rate": 1, "requests": 4}},
}


def test_instances_that_straddle_are_told_and_whole_ones_are_not() -> None:
    """Two racks of 72 hold nine instances of 16, the fifth in both; eight of 8 or 32 trays do not."""
    summary = simulate(Scenario.from_mapping(_SERVICE)).summary
    (told,) = (warning for warning in summary["warnings"] if "straddle" in warning)
    assert told.startswith("1 of 9 tp groups of 16 straddle scale-up domains of 72")
    for change in ({"parallelism": {"tp": 8}}, {"cluster": {"preset": "gb200-nvl72", "nodes": 32}}):
        assert not make_service(Scenario.from_mapping({**_SERVICE, **change})).straddles


def test_a_search_times_every_layout_with_its_own_groups_whole() -> None:
    """Groups of 8 fill a rack, groups of 32 leave 8 of it: both are timed as they are simulated."""
    over = {
        **{f"parallelism.{axis}": [1] for axis in ("tp", "cp", "pp")},
        "parallelism.ep": [8, 32],
        "training.micro_batch": [1],
        "parallelism.zero": [1],
        "training.recompute": ["full"],
        "parallelism.sequence_parallel": [False],
    }
    base = _experts(32, 256)
    rows = search(base, over, front=False).rows
    assert len(rows) == 2
    for row in rows:
        alone = simulate(base.with_values(row.values)).summary["step_time_s"]
        assert row.step_time_s == alone
