"""Variation: machines whose parts differ, steps that vary, and who waits for whom."""

from __future__ import annotations

import json

import numpy as np
import pytest

import mpsim
from mpsim.cli import main
from mpsim.errors import ScenarioError
from mpsim.scenario.sections import Variation
from mpsim.study import simulate_variation
from mpsim.study.draws import factors, sigma_of
from mpsim.study.variation import _enclosing

DATA = {
    "schema": 1,
    "name": "small",
    "model": "gpt-1.7b",
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 4},
    "parallelism": {"tp": 4, "pp": 2, "dp": 4},
    "training": {"global_batch": 32, "sequence_length": 2048},
    "framework": {"preset": "megatron-core", "launch_cost": "0 us"},
}


@pytest.fixture(scope="module")
def result():
    """Two stages, four replicas, four ranks each that meet inside actions."""
    return mpsim.simulate(mpsim.Scenario.from_mapping(DATA))


def varied(result, **section):
    """What a ``variation:`` section gives."""
    return simulate_variation(result, Variation.model_validate(section))


def test_without_anything_to_vary_the_step_is_bit_equal(result):
    """An empty section, a speed of 1 and a link with all its bandwidth change nothing, and nobody is to blame."""
    for section in (
        {},
        {"slow": [{"node": 1, "speed": 1.0}]},
        {"links": [{"node": 0, "bandwidth": 1.0}]},
    ):
        one = varied(result, **section)
        assert one.step_times_s.tolist() == [result.timeline.step_time_s]
        assert one.blame.worst() == []


def test_only_the_replica_of_a_slow_rank_is_unfolded(result):
    """One slow rank: two classes a stage, the replica with it and all the others."""
    one = varied(result, slow=[{"ranks": [5], "speed": 0.5}])
    assert one.blame.names == ("pp 0 dp 0,2-3", "pp 0 dp 1", "pp 1 dp 0,2-3", "pp 1 dp 1")
    assert one.slowdown > 1.2


def test_the_slow_one_is_to_blame_and_the_others_wait(result):
    """Rank 5 is in the first stage of replica 1: it alone is late, and every other class waits for it."""
    blame = varied(result, slow=[{"ranks": [5], "speed": 0.5}]).blame
    assert [name for name, _ in blame.worst()] == ["pp 0 dp 1"]
    guilty = blame.names.index("pp 0 dp 1")
    others = [one for one in range(len(blame.names)) if one != guilty]
    assert (blame.suffered[others] > 0).all()
    assert blame.size.sum() == 32
    assert (blame.suffered[others] > 3 * blame.suffered[guilty]).all()


def test_waiting_sums_to_the_idle_time_of_every_class(result):
    """Whoever is blamed: the columns of the matrix are all the time in which nothing runs."""
    one = varied(result, slow=[{"ranks": [5], "speed": 0.7}], jitter=0.05, samples=1)
    timeline = one.timeline
    rank, row = timeline.program.compute_rows
    runs = np.bincount(rank, weights=timeline.program.duration[row])
    idle = timeline.step_time_s - runs * 1e-12
    assert one.blame.waiting.sum(axis=0) == pytest.approx(idle, rel=1e-9)
    assert (one.blame.late <= one.blame.waiting.sum(axis=0) + 1e-12).all()
    assert one.blame.matrix.sum(axis=0) == pytest.approx(one.blame.suffered)


def test_a_slow_device_hides_in_the_waits_for_its_host(result):
    """A rank at half speed costs a step that waits for launches less than one that never does: its host is as fast as ever."""
    slow = {"slow": [{"ranks": [5], "speed": 0.5}]}
    waiting = mpsim.Scenario.from_mapping({**DATA, "framework": "megatron-core"})
    hidden = varied(mpsim.simulate(waiting), **slow)
    assert 1.0 < hidden.slowdown < varied(result, **slow).slowdown - 0.1


def test_everybody_slow_alike_is_a_slower_machine(result):
    """A symmetric fault: all nodes at half speed leave all replicas alike, and the step is between one and two times as long."""
    one = varied(result, slow=[{"node": node, "speed": 0.5} for node in range(4)])
    assert len(set(one.blame.suffered[:4].round(12))) == 1
    assert 1.5 < one.slowdown <= 2.0


def test_a_rank_slower_by_less_costs_less(result):
    """Step time falls as the speed of one rank rises to that of the others."""
    times = [varied(result, slow=[{"ranks": [0], "speed": s}]).mean_s for s in (0.5, 0.8, 0.95, 1)]
    assert times == sorted(times, reverse=True)


def test_a_thin_link_is_to_blame_for_late_transfers(result):
    """A node with a tenth of its NICs: the classes on it are named, not transfers in general."""
    one = varied(result, links=[{"node": 0, "bandwidth": 0.1}])
    assert one.slowdown > 1.0
    assert {name for name, _ in one.blame.worst()} <= {"pp 0 dp 0", "pp 0 dp 1"}


def test_a_link_that_flaps_is_somewhere_between(result):
    """Half of the steps are as with the link down for good, half as without; which ones the seed decides."""
    down = varied(result, links=[{"node": 0, "bandwidth": 0.1}]).mean_s
    flaps = varied(result, links=[{"node": 0, "bandwidth": 0.1, "time": 0.5}], samples=200)
    times = flaps.step_times_s
    assert set(times.round(12)) == {round(down, 12), round(result.timeline.step_time_s, 12)}
    assert 0.35 < (times == times.max()).mean() < 0.65


def test_equal_seeds_give_equal_steps(result):
    """Everything on: the same bytes again, others with another seed."""
    section = Variation.model_validate(
        {"speed": 0.02, "jitter": 0.02, "network_jitter": 0.05, "samples": 20,
         "slow": [{"node": 1, "speed": 0.9}], "links": [{"node": 2, "bandwidth": 0.5, "time": 0.5}]}
    )  # fmt: skip
    one, same = (simulate_variation(result, section) for _ in range(2))
    other = simulate_variation(result, section, seed=1)
    assert (one.step_times_s == same.step_times_s).all()
    assert (one.blame.late == same.blame.late).all()
    assert not (one.step_times_s == other.step_times_s).all()


def test_the_slowest_of_many_sets_the_pace(result):
    """Speeds of mean one make steps longer, the more the wider they spread, and every step differs."""
    means = [varied(result, speed=s, samples=30).slowdown for s in (0.01, 0.03, 0.1)]
    assert 1.0 < means[0] < means[1] < means[2]
    steps = varied(result, speed=0.03, samples=30)
    assert len(np.unique(steps.step_times_s)) == 30
    middle = steps.percentile(50)
    assert middle.low_s <= middle.seconds <= middle.high_s


def test_experts_vary_only_where_there_are_some(result, scenarios):
    """No experts: nothing. A mixture: actions with exchanges take longer and shorter."""
    assert set(varied(result, experts=0.2, samples=5).step_times_s) == {result.timeline.step_time_s}
    mixture = mpsim.simulate(mpsim.load(scenarios / "mixtral-8x7b-h100.yaml"))
    one = simulate_variation(mixture, Variation(experts=0.2, samples=5))
    assert len(set(one.step_times_s)) == 5


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"slow": [{"node": 9, "speed": 0.5}]}, "got node 9, but the cluster has 4"),
        ({"slow": [{"ranks": [99], "speed": 0.5}]}, "got rank 99, but the cluster has 32"),
        ({"links": [{"node": 9, "bandwidth": 0.5}]}, "needed 0 to 3"),
    ],
)
def test_parts_that_are_not_there_are_refused(result, section, message):
    """Nodes are 0 to 3, ranks 0 to 31."""
    with pytest.raises(ScenarioError, match=message):
        varied(result, **section)


def test_run_reports_it_and_draws_it(tmp_path, capsys):
    """The section of a scenario shows in the JSON, in the table and among the plots, and survives being resolved."""
    data = {**DATA, "variation": {"slow": [{"ranks": [5], "speed": 0.5}]}}
    scenario = mpsim.Scenario.from_mapping(data)
    again = mpsim.Scenario.from_mapping(scenario.resolved())
    assert again.variation == scenario.variation
    assert again.digest == scenario.digest != mpsim.Scenario.from_mapping(DATA).digest
    file = tmp_path / "one.json"
    file.write_text(json.dumps(data), encoding="utf-8")
    file = file.rename(file.with_suffix(".yaml"))
    assert main(["run", str(file), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["variation"]["slowdown"] > 1.2
    assert shown["variation"]["blame"]["caused_rank_s"]["pp 0 dp 1"] > 0
    assert main(["run", str(file)]) == 0
    assert "pp 0 dp 1" in capsys.readouterr().out
    path = tmp_path / "blame.png"
    mpsim.simulate(scenario).plot.blame().save(path)
    assert path.read_bytes().startswith(b"\x89PNG")


def test_every_study_takes_the_varied_step():
    """A rank at half its speed costs the same in the headline, a row, a size, a plan and a comparison; the account still sums."""
    plain = mpsim.Scenario.from_mapping(DATA)
    slow = mpsim.Scenario.from_mapping(
        {**DATA, "variation": {"slow": [{"ranks": [5], "speed": 0.5}]}}
    )
    result, undisturbed = mpsim.simulate(slow), mpsim.simulate(plain).summary
    summary = result.summary
    step = summary["step_time_s"]
    assert step == summary["variation"]["mean_s"] > 1.2 * undisturbed["step_time_s"]
    assert sum(summary["breakdown_s"].values()) == pytest.approx(step)
    assert summary["mfu"] == pytest.approx(undisturbed["mfu"] * undisturbed["step_time_s"] / step)
    assert summary["meter_energy_j_per_step"] > undisturbed["meter_energy_j_per_step"]
    low, high = summary["interval"]["step_time_s"]
    assert low <= step <= high
    (row,) = mpsim.sweep(slow, {"training.global_batch": [32]}).rows
    assert row.summary["step_time_s"] == step
    assert mpsim.scale(slow, [32], modes=["strong"]).rows[0].figure("step_time_s") == step
    stated = {"training.micro_batch": 1, "training.recompute": "none", "parallelism.zero": 0}
    assert mpsim.plan(slow.with_values(stated), 1e9).rows[0].step_time_s == step
    ratio = mpsim.compare(mpsim.simulate(plain), result).ratio
    assert ratio.value == pytest.approx(step / undisturbed["step_time_s"], rel=1e-6)


def test_a_search_refuses_a_variation():
    """What would be drawn for no layout is not left out in silence."""
    slow = mpsim.Scenario.from_mapping({**DATA, "variation": {"jitter": 0.05}})
    with pytest.raises(ScenarioError, match="does not draw for each layout; leave it out"):
        mpsim.search(slow)


def test_variation_shows_in_the_summary_under_flow():
    """Steps whose transfers share links vary as those whose transfers do not."""
    data = {
        **DATA,
        "variation": {"jitter": 0.1, "samples": 3},
        "simulation": {"network": "flow"},
    }
    varied = mpsim.simulate(mpsim.Scenario.from_mapping(data)).summary["variation"]
    assert varied["slowdown"] > 1.0


def test_replicas_that_differ_do_not_vary_yet():
    """Each of their classes would have to fall apart by itself: it says so."""
    parts = [{"count": 2}, {"count": 2, "nic": "ib-hdr", "price_per_hour": "1 USD/h"}]
    cluster = {**DATA["cluster"], "replicas": parts}
    data = {**DATA, "cluster": cluster, "variation": {"jitter": 0.1}}
    with pytest.raises(ScenarioError, match=r"variation: got a variation where .* alike"):
        mpsim.Scenario.from_mapping(data)
    result = mpsim.simulate(mpsim.Scenario.from_mapping({**DATA, "cluster": cluster}))
    with pytest.raises(ScenarioError, match="alike"):
        varied(result, jitter=0.1)


def test_ranks_that_meet_in_their_experts_are_named_together():
    """Rank 11 of pp 1 is in replica 3, but all eight replicas meet in the experts: one class, which is not called after its first."""
    experts = {"experts": 8, "top_k": 2, "ffn_hidden": 512}
    data = {
        **DATA,
        "model": {"layers": 4, "hidden": 1024, "heads": 16, "vocab": 32000, "moe": experts},
        "cluster": {"preset": "dgx-h100", "nodes": 2},
        "parallelism": {"pp": 2, "ep": 4},
        "variation": {"slow": [{"ranks": [11], "speed": 0.5}], "samples": 1},
    }
    blame = mpsim.simulate(mpsim.Scenario.from_mapping(data)).variation.blame
    assert blame.names == ("pp 0", "pp 1")
    assert blame.worst(1)[0][0] == "pp 1"


def test_factors_have_mean_one_and_the_variation_asked_for():
    """Alone; the largest of several is larger, and as the maximum of that many draws."""
    alone = factors(sigma_of(0.1), 1)
    assert alone.mean() == pytest.approx(1, abs=1e-4)
    assert alone.std() == pytest.approx(0.1, rel=1e-2)
    draws = np.random.default_rng(0).choice(alone, (20000, 8)).max(axis=1)
    assert factors(sigma_of(0.1), 8).mean() == pytest.approx(draws.mean(), rel=2e-3)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_the_interval_of_a_percentile_covers_it_as_often_as_it_says(share):
    """Uniform samples: the true quantile lies between the two order statistics in 95 % of 4,000 trials or a little more."""
    low, high = _enclosing(100, share)
    draws = np.sort(np.random.default_rng(3).random((4000, 100)), axis=1)
    above = draws[:, low] <= share if low is not None else np.ones(4000, dtype=bool)
    below = draws[:, high] >= share if high is not None else np.ones(4000, dtype=bool)
    assert 0.94 < (above & below).mean() < 0.99


def test_a_sample_too_small_for_a_percentile_says_so(result):
    """Ten steps cannot bound the 99th percentile from above."""
    few = varied(result, jitter=0.05, samples=10)
    assert few.percentile(99).high_s is None
    assert "?" in repr(few)


def test_steps_are_slower_the_more_operations_vary(result):
    """Maxima over ranks grow with the variation."""
    slowdowns = [varied(result, jitter=cv, samples=40).slowdown for cv in (0.02, 0.1)]
    assert 1 < slowdowns[0] < slowdowns[1]
