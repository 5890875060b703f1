"""Plans of whole trainings: days, hours, dollars, energy and carbon from one step."""

import collections
import dataclasses
import math
import statistics
import sys

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.shipped import read_shipped
from mpsim.study.facility import Facility, rate_of, read_rates
from mpsim.study.plan import Assumptions, Plans, known_trainings, plan, plan_training
from mpsim.study.reliability import Reliability, expected_share

TOKENS = 3e9


@pytest.fixture(scope="module")
def scenario(scenarios):
    """Eight H100 and a model of 7B."""
    return mpsim.load(scenarios / "quickstart.yaml").with_values({})


@pytest.fixture(scope="module")
def training(scenario):
    """Its plan."""
    return plan(scenario, TOKENS).rows[0]


def test_steps_cover_the_tokens_and_not_a_step_more(scenario, training):
    """The last step may train on less than a batch."""
    step = scenario.training_step
    tokens = step.global_batch * step.sequence_length
    assert training.steps == math.ceil(TOKENS / tokens)
    assert plan(scenario, 7.0 * tokens).rows[0].steps == 7


@pytest.fixture
def searches(scenario, monkeypatch):
    """Outcomes that searches for layouts give one after the other, made of one real one by what is changed of it."""
    over = {"parallelism.tp": [2], "parallelism.pp": [1], "training.micro_batch": [1]}
    found = mpsim.search(scenario, over, top=1)
    changes = []

    def search(*args, **options):
        return dataclasses.replace(found, **changes.pop(0))

    # the package offers the function by the name of the module
    monkeypatch.setattr(sys.modules["mpsim.study.search"], "search", search)
    return changes


def test_an_interrupt_in_the_search_of_a_plan_ends_the_plan(scenario, searches):
    """What was planned before is returned and called interrupted; the search that was cut short has no row."""
    searches += [{"complete": True}, {"interrupted": True}]
    plans = plan(scenario, TOKENS, {"cluster.nodes": [2, 3]}, search=20.0)
    assert plans.interrupted
    assert [row.values["cluster.nodes"] for row in plans.rows] == [2]


def test_a_search_that_ends_early_is_said_in_the_plan(scenario, searches):
    """Its layout comes with a warning; without any layout the reason is the time, not the limits."""
    searches += [{"complete": False}, {"rows": (), "counts": {"unseen": 7}}]
    (row,) = plan(scenario, TOKENS, search=5.0).rows
    assert "search for a layout ended after 5 s" in row.warnings[0]
    with pytest.raises(ScenarioError, match="ended before the first layout was; give it longer"):
        plan(scenario, TOKENS, search=5.0)


def test_days_are_steps_over_goodput(scenario, training):
    """days = steps x step time / goodput / 86400; hours of the allocation are days times accelerators."""
    worked = training.steps * training.step_time_s
    assert training.days * 86400 == pytest.approx(worked / training.goodput)
    assert training.hours == pytest.approx(training.days * 24 * training.accelerators)
    assert training.computing_hours == pytest.approx(worked * training.accelerators / 3600)


def test_goodput_is_dalys_expectation_at_an_interval_that_teams_keep(scenario, training):
    """A quarter of an hour to an hour, however cheap a checkpoint is; another can be asked for."""
    result = mpsim.simulate(scenario)
    reliability = Reliability.of(result.plan.layout.cluster)
    from mpsim.study.reliability import Checkpoint

    checkpoint = Checkpoint.of(
        result.plan.checkpoint_bytes, training.accelerators, in_background=True
    )
    every = training.checkpoint_interval_s
    share = expected_share(reliability, checkpoint, every)
    assert training.goodput == pytest.approx(share / (1 + 100 / 1000 / 3), rel=1e-4)
    assert 900 <= every <= 3600
    asked = Assumptions(facility=Facility.of(), interval=every / 2)
    assert plan_training(result, 1e9, asked).checkpoint_interval_s == every / 2


def test_an_interval_is_as_much_wider_as_published_trainings_show(scenario, training):
    """Hours of trainings lie further from their plans than steps and failures say; a developer does not vouch for itself."""
    known = known_trainings("allocation")
    low, high = training.spread
    assert known.low < 0 < known.high
    assert (known.high - known.low) / 2 > 1.2
    assert known.ends((math.exp(-0.1), math.exp(0.1))) == pytest.approx(
        (math.exp(0.1 * known.low), math.exp(0.1 * known.high))
    )
    assert low < 1 < high
    without = known_trainings("allocation", without="IBM")
    assert without.developers == known.developers - 1
    assert without.high < known.high


@pytest.mark.parametrize("hours", ["computing", "allocation"])
def test_errors_of_published_trainings_are_those_of_their_rows(hours):
    """Planned over measured hours less one: the mean, and that of the absolute values; every developer weighs the same in the interval."""
    rows = [
        row
        for row in read_shipped("mpsim.study.data", "trainings.yaml")["trainings"]
        if row["hours"] == hours
    ]
    errors = [1 / float(row["measured_over_planned"]) - 1 for row in rows]
    known = known_trainings(hours)
    assert (known.trainings, known.developers) == (len(rows), len({r["developer"] for r in rows}))
    assert known.bias == pytest.approx(statistics.fmean(errors))
    assert known.error == pytest.approx(statistics.fmean(map(abs, errors)))
    assert known.error > abs(known.bias)
    centre = (known.low + known.high) / 2
    of = collections.defaultdict(list)
    for row in rows:
        off = math.log(float(row["measured_over_planned"])) / float(row["half"])
        of[row["developer"]].append(abs(off - centre))
    scale = statistics.fmean(statistics.fmean(each) for each in of.values())
    assert known.high - known.low == pytest.approx(2 * math.log(5) * scale)


def test_a_plan_carries_the_warnings_of_its_step(scenario):
    """What run warns of is told with the days and the dollars."""
    result = mpsim.simulate(scenario)
    planned = plan_training(result, 1e9, Assumptions(facility=Facility.of()))
    assert planned.to_json()["warnings"] == result.summary["warnings"]
    warned = dataclasses.replace(planned, warnings=("hot",))
    assert "warning: hot" in warned.sheet().text()
    both = Plans((warned, dataclasses.replace(planned, warnings=("cold",), days=99.0)))
    assert "warning of the best row: hot" in both.sheet().text()
    assert "cold" not in both.sheet().text()


def test_energy_goes_from_the_chips_to_the_meter_to_the_grid(scenario):
    """Accelerators, hosts, NICs and switches, times PUE 2, and a tenth of a kilogram for each kilowatt-hour."""
    facility = Facility.of(pue="2.0", region="0.1")
    row = plan(scenario, TOKENS, assumed=Assumptions(facility=facility)).rows[0]
    parts = mpsim.simulate(scenario).summary["meter_parts_j"]
    inside = sum(part for name, part in parts.items() if name != "facility")
    assert row.energy_j == pytest.approx(inside * row.steps / row.goodput * 2.0)
    assert row.carbon_kg == pytest.approx(row.energy_j / 3.6e6 * 0.1)


def test_more_failures_take_longer(scenario):
    """Days grow with the rates of components."""
    days = [
        plan(scenario, TOKENS, assumed=Assumptions(facility=Facility.of(), failures=scale))
        .rows[0]
        .days
        for scale in (0.0, 1.0, 100.0)
    ]
    assert days == sorted(set(days))


def test_a_deadline_takes_the_fewest_accelerators_that_keep_it(scenario):
    """One, two or four nodes: what one cannot do in time two can."""
    over = {"cluster.nodes": [1, 2, 4]}
    every = plan(scenario, TOKENS, over)
    one, two, four = every.rows
    assert one.days > two.days > four.days
    assert every.best is four
    timely = plan(scenario, TOKENS, over, deadline=(one.days + two.days) / 2)
    assert timely.best.accelerators == 16
    assert plan(scenario, TOKENS, over, deadline=four.days / 2).best is None


def test_a_deadline_and_a_budget_are_kept_with_odds(scenario):
    """One time in ten a plan takes longer than the end of its interval of 80 %; a dearer budget never lowers the odds."""
    (row,) = plan(scenario, TOKENS).rows
    late, dear = row.days * row.spread[1], row.cost * row.spread[0]
    answer = plan(scenario, TOKENS, deadline=late, budget=dear)
    assert answer.odds(row) == pytest.approx({"deadline": 0.9, "budget": 0.1}, abs=1e-3)
    assert "kept with odds of 90.0 %" in str(answer)


def test_the_front_has_nothing_that_another_beats_in_days_and_dollars(scenario):
    """Days grow along it and dollars fall."""
    front = plan(scenario, TOKENS, {"cluster.nodes": [1, 2, 4]}).front
    assert [row.days for row in front] == sorted(row.days for row in front)
    costs = [row.cost for row in front]
    assert costs == sorted(costs, reverse=True)


OPEN = "model: llama2-7b\ncluster: {preset: dgx-h100, nodes: 1}\ntraining: {global_batch: 32, sequence_length: 4096}\n"


@pytest.mark.parametrize("layout", ["", "parallelism: {tp: 2, zero: 1}\n"])
def test_rows_say_what_was_settled_where_the_file_leaves_it_open(layout, tmp_path):
    """Sizes of a cluster may have layouts of their own; what the file writes is not called settled."""
    (tmp_path / "open.yaml").write_text(f"schema: 1\nname: open\n{OPEN}{layout}")
    left = mpsim.load(tmp_path / "open.yaml")
    for row in plan(left, TOKENS, {"cluster.nodes": [1]}).rows:
        settled = row.values.keys() - {"cluster.nodes"}
        assert not (layout and settled & {"parallelism.tp", "parallelism.zero"})
        assert any("settled here" in text for text in row.warnings) == bool(settled)
        assert settled or layout


def test_a_kind_of_offer_that_nobody_has_is_priced_on_demand_with_its_range(scenarios):
    """What counts instead has its level and its offers, and words on what was asked."""
    cluster = mpsim.load(scenarios / "gpt3-175b-a100.yaml").hardware
    asked, demand = (rate_of(cluster, offer=offer) for offer in ("reserved-3y", "on-demand"))
    assert dataclasses.replace(asked, beside="") == demand
    assert "no reserved-3y offer" in asked.beside


def test_prices_are_medians_of_public_offers_or_the_users_own(scenario, tmp_path):
    """Spot is cheaper than on demand; a file wins over both."""
    cluster = scenario.hardware
    spot, demand = (rate_of(cluster, offer=offer) for offer in ("spot", "on-demand"))
    assert spot.low <= spot.usd_per_hour <= spot.high < demand.usd_per_hour
    own = tmp_path / "prices.yaml"
    own.write_text(f"{cluster.accelerator.name}: 1.25 USD/h\n")
    assert rate_of(cluster, rates=read_rates(own)).usd_per_hour == 1.25


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"tokens": 0.0}, "tokens"),
        ({"tokens": math.nan}, "tokens"),
        ({"deadline": -1.0}, "deadline"),
        ({"budget": 0.0}, "budget"),
        ({"assumed": ("spt", None, None)}, "spot"),
        ({"assumed": ("spot", "0.5", None)}, "pue"),
        ({"assumed": ("spot", None, "atlantis")}, "region"),
    ],
)
def test_what_cannot_be_planned_is_refused(scenario, change, text):
    """With the key and what is needed."""

    def ask():
        given = {"tokens": TOKENS, **change}
        if "assumed" in given:
            offer, pue, region = given["assumed"]
            facility = Facility.of(pue=pue, region=region)
            given["assumed"] = Assumptions(facility=facility, offer=offer)
        return plan(scenario, given.pop("tokens"), **given)

    with pytest.raises(mpsim.ScenarioError, match=text):
        ask()


def test_a_mixed_cluster_costs_what_its_accelerators_do():
    """Eight H100 and eight A100 by stage: the plan's dollars are the step's, and without a price of one of them there are none."""
    stages = [{"count": 1}, {"count": 1, "accelerator": "a100-sxm-80"}]
    data = {
        "schema": 1,
        "model": {"preset": "llama2-7b", "layers": 2},
        "cluster": {"preset": "dgx-h100", "nodes": 2, "stages": stages},
        "parallelism": {"tp": 8, "pp": 2, "sequence_parallel": True},
        "training": {"global_batch": 2, "sequence_length": 512},
    }
    (row,) = plan(mpsim.Scenario.from_mapping(data), TOKENS).rows
    assert row.rate.usd_per_hour == pytest.approx((3.42 + 1.95) / 2)
    stages[:] = [{"count": 1, "price_per_hour": f"{price} USD/h"} for price in (4, 2)]
    (row,) = plan(mpsim.Scenario.from_mapping(data), TOKENS).rows
    assert row.rate.usd_per_hour == pytest.approx(3.0)
    stages[1] = {"count": 1, "accelerator": "h20"}
    (row,) = plan(mpsim.Scenario.from_mapping(data), TOKENS).rows
    assert row.cost is None


def test_a_price_that_is_none_is_named_with_its_line(tmp_path):
    """All at once."""
    wrong = tmp_path / "prices.yaml"
    wrong.write_text("h100-sxm: cheap\na100-sxm-80: 2 USD\nb200: 1e308 USD/h\n")
    with pytest.raises(mpsim.ScenarioError) as error:
        read_rates(wrong)
    assert "prices.yaml:1" in str(error.value)
    assert "prices.yaml:2" in str(error.value)
    assert "prices.yaml:3:1 b200: got '1e308 USD/h'; needed a quantity from" in str(error.value)
