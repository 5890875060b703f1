"""The search of services, sweeps and comparisons of them: pruning changes nothing, limits hold, results reproduce."""

from __future__ import annotations

import dataclasses
import json
import math

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.plot import service_front_chart
from mpsim.scenario import Scenario
from mpsim.serving.planning import make_service
from mpsim.study.search import rate, search
from mpsim.study.search.given import Clock, Limits, defaults
from mpsim.study.search.rate import Judge, Streams, bounded_rate, confirmed_rate, saturation
from mpsim.study.search.services import ServiceLayouts, Services


def _scenario(model="llama3-8b", *, nodes=1, **serving):
    load = {
        "rate": 6.0,
        "requests": 80,
        "prompt": 600,
        "output": {"kind": "lognormal", "tokens": 80, "spread": 0.5},
    }
    return Scenario.from_mapping(
        {
            "schema": 1,
            "name": "found",
            "model": model,
            "cluster": {"preset": "dgx-h100", "nodes": nodes, "price_per_hour": "3 USD/h"},
            "serving": {
                "slo": {"ttft": "400 ms", "tpot": "12 ms"},
                **serving,
                "workload": {**load, **serving.get("workload", {})},
            },
        }
    )


QUICK = {"requests": 80, "prompt": 400, "output": 8}
"""Short answers: a stream of many requests takes little time to simulate."""


@pytest.fixture
def short_streams(monkeypatch):
    """Few of the requests on which limits are judged: the same search in little time."""
    usual = {**defaults("serving"), "rate_requests": 60}
    monkeypatch.setattr(rate, "defaults", lambda section: usual)


SMALL = {
    "parallelism.tp": [1, 2, 8],
    "parallelism.pp": [1, 2],
    "serving.engine.max_tokens": [512, 8192],
}


@pytest.mark.parametrize("objective", ["goodput", "throughput", "cost"])
def test_a_pruned_search_finds_what_an_exhaustive_one_finds(objective, short_streams):
    """The same leaders in the same order at the same figures, from fewer simulations; every bound is on the right side."""
    scenario = _scenario()
    options = {"objective": objective, "top": 3, "pools": objective != "cost"}
    over = {**SMALL, "serving.engine.max_tokens": [8192]}
    if objective == "cost":
        over |= {"serving.replicas": [1, 2], "parallelism.tp": [1, 2]}
        scenario = _scenario(workload=QUICK)
    pruned = search(scenario, over, **options)
    whole = search(scenario, over, prune=False, **options)
    leaders = [[(row.name, row.objective) for row in found.leaders] for found in (pruned, whole)]
    assert leaders[0] == leaders[1]
    assert len(pruned) < len(whole)
    assert pruned.looked_at == whole.looked_at == sum(pruned.counts.values())
    assert pruned.complete
    sign = -1 if objective == "cost" else 1
    assert all(sign * row.objective <= sign * row.bound * (1 + sign * 1e-9) for row in whole)


def test_layouts_that_cannot_keep_the_limits_are_not_simulated():
    """TPOT of 4 ms is below what one H100 takes to read 16 GB: no layout of one rank is simulated, and the exhaustive search agrees."""
    scenario = _scenario(slo={"tpot": "4 ms"})
    over = {"parallelism.tp": [1, 4], "parallelism.pp": [1], "serving.engine.max_tokens": [8192]}
    pruned = search(scenario, over, objective="goodput")
    assert pruned.counts["slo"] == 1
    assert {row.values["parallelism.tp"] for row in pruned} == {4}
    whole = search(scenario, over, prune=False, objective="goodput")
    assert not any(row.meets_slo for row in whole if row.values["parallelism.tp"] == 1)


def test_pools_of_the_file_are_priced_by_their_own_chips():
    """Eight accelerators at 3 USD/h compute prompts, and eight others at 5 USD/h decode."""
    pools = {"prefill": {"tp": 4, "replicas": 2}, "decode": {"tp": 4, "replicas": 2}}
    pools["decode"] |= {"accelerator": "h200-sxm", "price_per_hour": "5 USD/h"}
    scenario = _scenario(nodes=2, disaggregated=pools, workload=QUICK)
    found = search(scenario, {"parallelism.tp": [8]}, objective="throughput")
    assert found.own.row.price_per_hour == 8 * 3.0 + 8 * 5.0


def _pools(over=None, **limits):
    """Layouts of both pools that a search looks at: eight H100 at 3 USD/h or more, H20 at 1 USD/h with an engine of their own."""
    pools = {"prefill": {"tp": 4, "replicas": 2}, "decode": {"tp": 4, "replicas": 2}}
    pools["decode"] |= {"accelerator": "h20", "price_per_hour": "1 USD/h", "weights": "fp8"}
    pools["decode"]["engine"] = {"max_sequences": 99}
    pools["first_token"] = "decode"
    scenario = _scenario(nodes=3, disaggregated=pools)
    layouts = ServiceLayouts(scenario, over or {"tp": (4,)}, Limits(**limits), pools=True)
    return [each.plan for each in layouts.layouts() if each.plan.prefill is not None]


def test_a_search_of_pools_keeps_their_chips_formats_and_engines():
    """A pool is laid out anew, on the chips and with the engine that the file gives it; two kinds of chips share no node."""
    plans = _pools()
    assert {plan.prefill.cluster.accelerator.name for plan in plans} == {"h100-sxm"}
    assert {plan.cluster.accelerator.name for plan in plans} == {"h20"}
    assert {(plan.weights, plan.prefill.weights) for plan in plans} == {("fp8", "bf16")}
    assert {plan.engine.max_sequences for plan in plans} == {99}
    assert not any(plan.samples_first is False for plan in plans)
    assert {plan.prefill.pool_accelerators % 8 for plan in plans} == {0}


def test_limits_hold_for_the_chips_of_pools():
    """8 H100 at 3 USD/h leave 8 USD/h of 32 for H20 at 1; DGX H100 are fed 10.2 kW, nodes with H20 10.2 - 8 x 0.3 kW: 4 of these are within 14.2 kW."""
    priced = _pools(max_price=32.0)
    assert {plan.price_per_hour for plan in priced} == {32.0}
    assert {plan.pool_accelerators for plan in priced} == {8}
    assert {plan.pool_accelerators for plan in _pools(max_power=14.2e3)} == {4}


def test_values_of_a_pool_are_those_of_layouts_with_pools_alone():
    """The chip that decodes is varied: instances of one kind run on the cluster's, once, and are not called by another."""
    pools = {"prefill": {"tp": 4, "replicas": 2}, "decode": {"tp": 4, "replicas": 2}}
    scenario = _scenario(nodes=2, disaggregated=pools, workload=QUICK)
    key = "serving.disaggregated.decode.accelerator"
    over = {key: ["h20", "h200-sxm"], "parallelism.tp": [8], "serving.engine.max_tokens": [8192]}
    rows = search(scenario, over, objective="throughput", pools=True, prune=False).rows
    alike = [row for row in rows if "serving.disaggregated.decode" not in row.values]
    assert not any(key in row.values for row in alike)
    assert len({str(row.values) for row in alike}) == len(alike)
    assert {row.values[key] for row in rows if row not in alike} == {"h20", "h200-sxm"}
    with pytest.raises(ScenarioError, match="add --pools"):
        search(scenario, over, objective="throughput")


def test_a_pool_without_a_price_is_not_the_cheapest():
    """Nobody sells the tile of a Max 1550 by the hour: cost cannot be compared."""
    pools = {"prefill": {"tp": 4, "replicas": 2}, "decode": {"tp": 4, "replicas": 2}}
    pools["decode"]["accelerator"] = "max1550-tile"
    scenario = _scenario(nodes=2, disaggregated=pools, workload=QUICK)
    with pytest.raises(ScenarioError, match="max1550-tile has no price"):
        search(scenario, {"parallelism.tp": [8]}, objective="cost", pools=True)


def test_limits_of_price_memory_and_power_hold():
    scenario = _scenario()
    cheap = search(scenario, SMALL, max_price=3 * 3.0 / 3600 * 3600, objective="goodput")
    assert {row.accelerators for row in cheap} <= {1, 2, 3}
    assert all(row.price_per_hour <= 9.0 for row in cheap)
    light = search(scenario, SMALL, max_memory=12e9, objective="goodput")
    assert {row.values["parallelism.tp"] * row.values["parallelism.pp"] for row in light} <= {
        2,
        4,
        8,
        16,
    }
    assert light.counts["memory"] > 0
    weak = search(scenario, SMALL, max_power=3000.0, objective="goodput")
    assert max(row.accelerators for row in weak) < 8


def test_the_largest_rate_keeps_the_limits_and_a_larger_one_does_not(short_streams):
    """More accelerators carry a higher rate; the interval around it is narrow."""
    scenario = _scenario(workload=QUICK)
    rates = []
    for replicas in (1, 4):
        one = scenario.with_values({"serving.replicas": replicas})
        plan = make_service(one)
        judge = Judge(one, plan, Streams(plan))
        most = saturation(plan, judge.streams)
        found = confirmed_rate(judge, bounded_rate(judge, most), most)
        assert found.summary["slo"]["met"]
        assert found.summary["steady_state"]["reached"]
        assert found.rate < found.above < 1.06 * found.rate
        rates.append(found.rate)
    assert rates[1] > 2 * rates[0]


def test_the_search_for_the_largest_rate_ranks_by_it(short_streams):
    """What leads is confirmed by long streams; of the others it is known that they are no better."""
    over = {"parallelism.tp": [1, 8], "parallelism.pp": [1], "serving.engine.max_tokens": [8192]}
    scenario = _scenario(workload=QUICK)
    found = search(scenario, over, objective="rate", top=1)
    whole = search(scenario, over, objective="rate", top=2, prune=False)
    assert found.best.name == whole.best.name
    assert found.best.objective == whole.best.objective > 6.0
    assert found.best.meets_slo
    assert found.complete
    assert [row.meets_slo for row in whole] == [True, None]
    assert whole.rows[1].objective <= whole.best.objective


def test_no_number_of_replicas_is_cheaper_than_the_cheapest(short_streams):
    """At a stated rate the fewest instances that keep the limits for long are found, not as many as there is room for."""
    scenario = _scenario(workload={**QUICK, "rate": 90.0})
    over = {"parallelism.tp": [1], "parallelism.pp": [1], "serving.engine.max_tokens": [8192]}
    found = search(scenario, over, objective="cost", top=1)
    count = found.best.values["serving.replicas"]
    assert found.best.meets_slo
    assert 1 < count == found.best.accelerators < 8
    for replicas in (count - 1, count, 8):
        given = {**over, "serving.replicas": [replicas]}
        other = search(scenario, given, objective="cost", top=1, prune=False)
        assert (other.best is None) == (replicas < count)
        assert other.best is None or found.best.objective <= other.best.objective


def test_the_default_answer_is_the_fewest_accelerators(short_streams):
    """At a stated rate and limits fewer accelerators than those of the best never keep them, and the best of each kind stands beside it."""
    scenario = _scenario(workload={**QUICK, "rate": 90.0})
    over = {"parallelism.tp": [1, 2], "parallelism.pp": [1], "serving.engine.max_tokens": [8192]}
    found = search(scenario, over, top=1)
    assert found.objective == "gpus"
    assert found.best.objective == found.best.accelerators < 8
    fewer = {**over, "serving.replicas": [*range(1, found.best.accelerators)]}
    refused = search(scenario, fewer, top=1, prune=False)
    assert all(row.misses for row in refused if row.accelerators < found.best.accelerators)
    assert {row.kind for row in found.rows} == {"TP"}
    assert "TP" in str(found.sheet())


@pytest.mark.parametrize(
    ("over", "objective"),
    [
        ({"cluster.preset": ["dgx-h100", "dgx-b200"]}, "cost"),
        ({"cluster.preset": ["dgx-h100", "dgx-a100-80gb"]}, "cost"),  # which has no fp8
        ({"cluster.nodes": [1, 2]}, "gpus"),
    ],
)
def test_chips_compared_without_an_objective_are_ranked_by_price(over, objective):
    """Fewest B200s are not better than fewest H100s: each costs more. Of one chip fewer are."""
    given = {"objective": "", "pools": False, "limits": Limits(), "clock": Clock(None)}
    services = Services(
        scenario=_scenario(weights="fp8").replace({"cluster.price_per_hour": None}),
        over=over,
        **given,
    )
    assert services.objective == objective


def test_experts_may_be_divided_and_attention_ranks_apart():
    """Mixtures are searched with experts inside tensor parallelism, divided, and with attention of their own."""
    scenario = _scenario("mixtral-8x7b", slo={})
    over = {"parallelism.tp": [4], "parallelism.pp": [1], "serving.engine.max_tokens": [8192]}
    found = search(scenario, over)
    shapes = {(row.values["parallelism.ep"], row.values["serving.attention_dp"]) for row in found}
    assert shapes == {(1, 1), (1, 4), (4, 1), (4, 4)}
    assert found.objective == "throughput"


def test_a_search_that_goes_on_simulates_nothing_twice(tmp_path):
    journal = tmp_path / "found.jsonl"
    first = search(_scenario(), SMALL, resume=journal, objective="goodput")
    size = journal.stat().st_size
    again = search(_scenario(), SMALL, resume=journal, objective="goodput")
    assert journal.stat().st_size == size
    assert json.dumps(first.to_json()) == json.dumps(again.to_json())
    assert len(first.to_csv().splitlines()) == len(first) + 1


def test_a_result_of_the_search_is_that_of_its_values():
    """The values of a row, set in the scenario, give its summary."""
    scenario = _scenario()
    row = search(scenario, SMALL, top=2, objective="goodput").rows[1]
    alone = mpsim.simulate(scenario.with_values(row.values)).summary
    assert alone == row.summary


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"objective": "time"}, "got objective 'time'"),
        ({"top": 0}, "top is 0"),
        ({"over": {"parallelism.tp": []}}, "no values to search over for parallelism.tp"),
        ({"over": {"parallelism.tp": [3]}}, r"no layout can be served.*; the first: .*tp"),
        ({"max_price": 1.0}, "not one accelerator"),
        ({"budget": -1.0}, "budget is -1.0"),
    ],
)
def test_wrong_arguments_are_named(options, words):
    over = options.pop("over", SMALL)
    with pytest.raises(ScenarioError, match=words):
        search(_scenario(), over, **options)


def test_an_unknown_engine_is_named_where_it_stands(tmp_path):
    """The search says file, line and the nearest, as a run does; a server's own name is one."""
    file = tmp_path / "service.yaml"
    text = "schema: 1\nmodel: llama3-8b\ncluster: dgx-h100\nserving:\n  engine: {}\n"
    file.write_text(text.format("vlm"), encoding="utf-8")
    with pytest.raises(ScenarioError, match=r"service.yaml:5:3 serving.engine: .*'vllm' or"):
        search(mpsim.load(file))
    for name, preset in (("vllm", "vllm-async"), ("trtllm", "tensorrt-llm-1.x")):
        file.write_text(text.format(name), encoding="utf-8")
        assert make_service(mpsim.load(file)).engine.name == preset


def test_goodput_and_rate_need_limits_and_a_rate():
    with pytest.raises(ScenarioError, match="got no limits"):
        search(_scenario(slo={}), SMALL, objective="goodput")
    closed = _scenario(workload={"arrival": "closed", "rate": None, "concurrency": 4})
    with pytest.raises(ScenarioError, match="which has no rate"):
        search(closed, SMALL, objective="rate")


def test_a_sweep_of_services_has_their_figures():
    over = {"serving.workload.rate": [2.0, 8.0], "parallelism.tp": [1, 3]}
    found = mpsim.sweep(_scenario(), over)
    table = found.table()
    assert [row["parallelism.tp"] for row in table] == [1, 3, 1, 3]
    assert len({tuple(row) for row in table}) == 1
    assert "ttft_p99_s" in table[0]
    assert "step_time_s" not in table[0]
    assert "does not divide 32 heads" in table[1]["reason"]
    assert found.best.values == {"serving.workload.rate": 8.0, "parallelism.tp": 1}


def test_two_services_are_compared_by_the_time_of_a_token():
    """Parts sum to the accelerator's seconds a token takes, which are the inverse of tokens/s of an accelerator."""
    results = [mpsim.simulate(_scenario().with_values({"parallelism.tp": tp})) for tp in (1, 8)]
    found = mpsim.compare(*results)
    whole = next(f for f in found.figures if f.name == "accelerator_s_per_output_token")
    for side in ("a", "b"):
        total = math.fsum(getattr(part, side) for part in found.parts)
        assert total == pytest.approx(getattr(whole, side), rel=1e-9)
    each = results[0].summary["output_tokens_per_s_per_accelerator"]
    assert whole.a == pytest.approx(1 / each)
    assert "of an accelerator" in found.explanation
    training = mpsim.simulate(mpsim.load("scenarios/quickstart.yaml"))
    with pytest.raises(ScenarioError, match="needed two of a kind"):
        mpsim.compare(results[0], training)


def test_the_answer_has_ten_lines_and_the_file_s_own_layout():
    """What the best gains over the file's own layout, which is simulated unless it is among the rows; the ranking is longer."""
    scenario = _scenario().with_values({"parallelism.tp": 2, "serving.replicas": 1})
    over = {**SMALL, "serving.engine.max_tokens": [8192], "parallelism.pp": [1]}
    found = search(scenario, over, objective="goodput")
    lines = found.sheet().text().splitlines()
    assert lines[0] == f"best: {found.best.name}"
    assert (
        sum(line.startswith(("the file's own layout: ", "second against")) for line in lines) == 2
    )
    assert len(lines) <= 20
    assert found.own.row.accelerators == 2
    whole = mpsim.simulate(scenario).summary
    assert found.own.row.objective == whole["goodput_per_s"]
    data = json.loads(json.dumps(found.to_json(), allow_nan=False))
    assert data["own"]["row"]["objective"] == whole["goodput_per_s"]
    assert "TTFT p99" in found.sheet(long=True).text().splitlines()[1]
    faster = dataclasses.replace(found.own.row, objective=2 * found.best.objective)
    outside = dataclasses.replace(found, own=dataclasses.replace(found.own, row=faster))
    assert "+100.0 % against the best of what was searched" in outside.sheet().text()


def test_the_front_is_drawn():
    found = search(_scenario(), SMALL, objective="goodput")
    front = found.front
    assert [row.per_user for row in front] == sorted((r.per_user for r in front), reverse=True)
    assert [row.per_accelerator for row in front] == sorted(r.per_accelerator for r in front)
    chart = service_front_chart(found)
    assert sum(len(series.x) for series in chart.series[:-1]) == len(found)
    assert chart.series[-1].x == [row.per_user for row in front]
    chart.plot()


@dataclasses.dataclass
class _Cliff:
    """A service that keeps its limits below a rate and misses them at and above it."""

    edge: float

    def judged(self, rate):
        return {"kept": rate < self.edge}

    def fails(self, summary):
        return not summary["kept"]

    def confirmed(self, rate, *, final=False):
        return self.judged(rate) if rate < self.edge else None


@pytest.mark.parametrize("edge", [0.5, 0.99, 1.0, 2.0])
def test_a_rate_is_found_where_the_bound_itself_misses_or_keeps_the_limits(edge):
    """The search ends, below the edge and within its width, also where the closed form's most is tried and refused."""
    judge, most = _Cliff(edge * 40.0), 40.0
    bound = bounded_rate(judge, most)
    assert bound.rate <= min(most, judge.edge) <= bound.above * (1 + 1e-12)
    assert bound.above <= 1.1 * bound.rate
    found = confirmed_rate(judge, bound, most)
    assert found.rate < judge.edge
    assert found.above <= 1.1 * found.rate


def test_a_bound_that_short_streams_keep_and_long_ones_refuse_is_left():
    """Where short streams keep the most a service could do, long ones still go down from there."""
    judge = _Cliff(30.0)
    found = confirmed_rate(judge, rate.Rate(40.0, 40.0, {}, confirmed=False), 40.0)
    assert 28.0 < found.rate < 30.0


def test_layouts_without_a_cache_are_told_from_those_that_are_none():
    """Weights of 70 B in 16 bits leave no cache on one rank, and three divide no heads: two budgets of each."""
    over = {"parallelism.tp": [1, 3, 4], "parallelism.pp": [1], "serving.weights": ["bf16"]}
    found = search(_scenario("llama3-70b"), over, top=1, prune=False)
    assert (found.counts["room"], found.counts["refused"]) == (2, 2)
