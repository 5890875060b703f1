"""Sweeps."""

from __future__ import annotations

import csv
import io
import json
import random
import re
from concurrent.futures import ThreadPoolExecutor

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.study.grid import combinations
from mpsim.study.together import Together

AXES = {"parallelism.tp": [1, 2], "parallelism.pp": [2, 3, 4]}


@pytest.fixture(scope="module")
def scenario(request):
    return mpsim.load(request.config.rootpath / "scenarios" / "quickstart.yaml")


@pytest.fixture(scope="module")
def swept(scenario):
    return mpsim.sweep(scenario, AXES)


def test_rows_are_the_cartesian_product_with_the_last_key_fastest():
    """The order of a table does not depend on who computed what first."""
    rows = combinations(AXES)
    assert [tuple(row.values()) for row in rows] == [(1, 2), (1, 3), (1, 4), (2, 2), (2, 3), (2, 4)]


def test_null_is_called_the_default(scenario):
    """As in comparisons; None is no word of a scenario file."""
    text = mpsim.sweep(scenario, {"training.micro_batch": [None]}).sheet().text()
    assert "micro_batch default" in text
    assert "None" not in text


@pytest.mark.parametrize("values", [{}, {"parallelism.tp": []}])
def test_nothing_to_sweep_over_is_refused(values):
    """An empty table would look like a result."""
    with pytest.raises(ScenarioError, match="sweep over"):
        combinations(values)


def figures(result):
    """What a row keeps of a summary: all but the sources of constants."""
    summary = dict(result.summary)
    summary["calibration"] = {k: v for k, v in summary["calibration"].items() if k != "constants"}
    return summary


def test_a_row_equals_the_simulation_of_its_scenario(scenario, swept):
    """A sweep is nothing but simulations."""
    row = swept.rows[-1]
    assert row.summary == figures(mpsim.simulate(scenario.with_values(row.values)))


def test_rows_that_do_not_divide_are_kept_with_their_reason(swept):
    """pp 3 does not divide 16 accelerators; the other rows do not suffer."""
    broken = [row for row in swept if row.values["parallelism.pp"] == 3]
    assert len(broken) == 2
    assert all(row.summary is None and row.reason for row in broken)
    assert all(row.summary for row in swept if row not in broken)


def test_a_row_that_does_not_fit_is_simulated_but_not_usable(scenario):
    """Ten times the layers are 65 billion parameters on tp 2 x pp 4: over 100 GB a rank of 80."""
    (row,) = mpsim.sweep(scenario, {"model.layers": [320]})
    assert row.summary is not None
    assert not row.usable
    assert "does not fit" in row.reason


def test_what_does_not_fit_is_no_warning_too_and_the_best_has_its_odds(scenario):
    """A row that does not fit has that as its reason; the best of the others, nearly full, says so and how often such cases fit."""
    room = f"{mpsim.simulate(scenario).memory.total.max() * 1.02:.0f} B"
    room = scenario.replace({"cluster.accelerator.memory": room})
    swept = mpsim.sweep(room, {"training.micro_batch": [1, 4]})
    text = str(swept.sheet().text())
    assert "[1] does not fit" in text
    assert re.findall(r"warning of (.*?),", text) == ["1 of 2 rows: memory may be full at its peak"]
    assert re.search(r"most tokens.* training.micro_batch 1 \(\d\d\.\d % of such cases fit\)", text)


def test_the_best_row_has_the_most_tokens_per_accelerator_of_those_usable(swept):
    """A row that does not fit never wins."""
    rates = [row.number("tokens_per_s_per_accelerator") for row in swept if row.usable]
    assert swept.best.number("tokens_per_s_per_accelerator") == max(rates)


def test_an_executor_gives_the_same_rows(scenario, swept):
    """How many compute is a matter of speed."""
    with ThreadPoolExecutor(2) as executor:
        assert mpsim.sweep(scenario, AXES, executor=executor).rows == swept.rows


def test_spawned_processes_give_the_same_rows(scenario, swept):
    """Scenarios survive the trip to another process."""
    few = {"parallelism.tp": [2], "parallelism.pp": [2, 4]}
    wanted = [row for row in swept if row.values["parallelism.tp"] == 2 and row.summary]
    assert list(mpsim.sweep(scenario, few, jobs=2)) == wanted


def test_an_interrupted_sweep_resumes_where_it_was(scenario, swept, tmp_path, monkeypatch):
    """Rows on disk are not computed again, and a line cut off in the middle is."""
    journal = tmp_path / "rows.jsonl"

    def interrupt(done, total):
        if done == 3:
            raise KeyboardInterrupt

    assert mpsim.sweep(scenario, AXES, resume=journal, progress=interrupt).interrupted
    assert len(journal.read_text().splitlines()) == 3
    with journal.open("a") as file:
        file.write('{"digest": "cut o')
    computed = counted(monkeypatch)
    resumed = mpsim.sweep(scenario, AXES, resume=journal)
    assert resumed.rows == swept.rows
    assert len(computed) <= 3
    assert len(journal.read_text().splitlines()) == 6


def counted(monkeypatch):
    """Every scenario that is simulated from now on."""
    computed = []
    simulated = Together.simulate
    monkeypatch.setattr(
        Together,
        "simulate",
        lambda self, scenarios: computed.extend(scenarios) or simulated(self, scenarios),
    )
    return computed


def test_a_resumed_sweep_names_only_what_is_not_on_disk(scenario, tmp_path, monkeypatch):
    """Points of the same scenario with the same numbers are known by them; of another scenario, or by names of presets, they are not."""
    journal = tmp_path / "rows.jsonl"
    axes = {"parallelism.tp": [1, 2], "cluster.nic.bandwidth": ["100 Gb/s", "200 Gb/s"]}
    whole = mpsim.sweep(scenario, axes, resume=journal).rows
    before = journal.read_bytes()
    built = []
    with_values = type(scenario).with_values
    monkeypatch.setattr(
        type(scenario),
        "with_values",
        lambda self, values, **how: built.append(values) or with_values(self, values, **how),
    )
    assert mpsim.sweep(scenario, axes, resume=journal).rows == whole
    assert (built, journal.read_bytes()) == ([], before)
    other = with_values(scenario, {"training.global_batch": 64})
    assert mpsim.sweep(other, axes, resume=journal).rows != whole
    assert len(built) == 4  # a point is made once, to be named and to be computed
    for _ in range(2):
        built.clear()
        mpsim.sweep(scenario, {"model": ["llama2-7b"]}, resume=journal)
        assert built


def test_points_that_are_the_same_scenario_are_computed_once(scenario, monkeypatch):
    """dp left out is the dp that is left: four rows, two simulations."""
    computed = counted(monkeypatch)
    axes = {"parallelism.tp": [2, 4], "parallelism.dp": [None, 2, 1]}
    rows = mpsim.sweep(scenario, axes).rows
    assert [row.summary is None for row in rows] == [False, False, True, False, True, False]
    assert rows[0].summary == rows[1].summary
    assert len(computed) == 2


def test_points_together_are_the_same_as_alone(scenario):
    """Programs of one structure are replayed at once, and nobody can tell."""
    bandwidths = ["100 Gb/s", "200 Gb/s", "300 Gb/s", "400 Gb/s"]
    points = [
        scenario.with_values({"cluster.nic": {"bandwidth": one, "preset": "ib-ndr"}})
        for one in bandwidths
    ]
    for point, result in zip(points, Together().simulate(points), strict=True):
        assert result.summary == mpsim.simulate(point).summary


HARDWARE = {
    "cluster.accelerator": [
        {"preset": "h100-sxm", "memory_bandwidth": "2.5 TB/s"},
        {"preset": "h100-sxm", "peak_flops": {"bf16": "800 TFLOP/s"}},
    ],
    "cluster.scale_up": [
        "nvlink4",
        {"preset": "nvlink4", "latency": "3 us"},
        {"preset": "nvlink4", "bandwidth": "300 GB/s"},
    ],
    "cluster.nic": [
        "ib-ndr",
        {"preset": "ib-ndr", "bandwidth": "200 Gb/s"},
        {"preset": "ib-ndr", "latency": "5 us"},
        {"preset": "ib-ndr", "efficiency": 0.5},
    ],
    "cluster.fabric": [
        {"kind": "rail-optimized"},
        {"kind": "fat-tree", "oversubscription": 2},
    ],
    "framework": ["megatron-core", "fsdp2"],
    "parallelism.tp": [1, 2, 8],
    "training.micro_batch": [1, 2],
}


@pytest.mark.parametrize("seed", range(3))
def test_rows_of_a_large_sweep_are_what_a_run_gives(scenario, seed):
    """Points share what they can, whatever the axes; the JSON of a random sample of them is that of `run`, byte for byte."""
    draw = random.Random(seed)
    axes = draw.sample(sorted(HARDWARE), 4)
    rows = mpsim.sweep(scenario, {key: HARDWARE[key] for key in axes}).rows
    assert any(row.summary for row in rows)
    for row in draw.sample(rows, 6):
        try:
            alone = figures(mpsim.simulate(scenario.with_values(row.values)))
        except mpsim.MpsimError:
            alone = None
        assert json.dumps(row.summary) == json.dumps(alone)


def test_points_that_differ_in_their_price_are_simulated_once(scenario, monkeypatch):
    """Rows are those of runs byte for byte, a price that makes no sense and none at all included; four rates are four steps."""
    steps: list[int] = []
    whole = Together.simulate

    def count(self, scenarios):
        steps.append(len(scenarios))
        return whole(self, scenarios)

    monkeypatch.setattr(Together, "simulate", count)
    prices = ["1 USD/h", None, "2.5 USD/h", "-1 USD/h"]
    rates = [f"{rate} Gb/s" for rate in (100, 200, 300, 400)]
    rows = mpsim.sweep(scenario, {"cluster.nic": rates, "cluster.price_per_hour": prices}).rows
    assert sum(steps) == 4
    assert [row.summary is None for row in rows] == [False, False, False, True] * 4
    for row in rows[:3]:
        alone = figures(mpsim.simulate(scenario.with_values(row.values)))
        assert json.dumps(row.summary) == json.dumps(alone)


def test_threads_do_not_share_what_points_share(scenario):
    """Two threads compute points of one kind at once."""
    axes = {key: HARDWARE[key] for key in ("cluster.scale_up", "cluster.nic")}
    with ThreadPoolExecutor(2) as executor:
        rows = mpsim.sweep(scenario, axes, executor=executor, jobs=2).rows
    assert rows == mpsim.sweep(scenario, axes).rows


def test_points_of_one_kind_share_their_templates(scenario):
    """Only the network differs, and nothing inside an action meets it: every kernel is timed once for all of them."""
    values = [
        {"cluster.nic": {"preset": "ib-ndr", "bandwidth": f"{rate} Gb/s"}}
        for rate in (100, 200, 300, 400)
    ]
    deep = scenario.with_values({"parallelism.pp": 8})  # one replica, so no gradients beside it
    points = [deep.with_values(one) for one in values]
    results = Together().simulate(points)
    assert len({id(one) for result in results for one in result.program.templates}) == len(
        results[0].program.templates
    )
    assert len({result.summary["step_time_s"] for result in results}) == 4


def test_shards_are_the_sweep_in_parts(scenario, swept, tmp_path):
    """Three machines, three files; put together they are the whole sweep without computing anything."""
    whole = tmp_path / "whole.jsonl"
    for part in (1, 2, 3):
        file = tmp_path / f"{part}.jsonl"
        mpsim.sweep(scenario, AXES, resume=file, shard=(part, 3))
        with whole.open("a") as all_of_it:
            all_of_it.write(file.read_text())
    size = whole.stat().st_size
    assert mpsim.sweep(scenario, AXES, resume=whole).rows == swept.rows
    assert whole.stat().st_size == size


@pytest.mark.parametrize("shard", [(0, 3), (4, 3)])
def test_a_shard_that_does_not_exist_is_refused(scenario, shard):
    """Counting starts at 1."""
    with pytest.raises(ScenarioError, match="1/4"):
        mpsim.sweep(scenario, AXES, shard=shard)


def test_rows_of_another_scenario_are_not_taken_for_ones_of_this(scenario, tmp_path):
    """The digest covers everything that a row depends on."""
    journal = tmp_path / "rows.jsonl"
    axes = {"parallelism.tp": [2]}
    mpsim.sweep(scenario, axes, resume=journal)
    changed = scenario.with_values({"training.recompute": "full"})
    (row,) = mpsim.sweep(changed, axes, resume=journal)
    assert row.summary == figures(mpsim.simulate(changed))


def test_a_file_that_is_no_journal_is_refused(scenario, tmp_path):
    """Nobody's data are overwritten."""
    file = tmp_path / "notes.txt"
    file.write_text("dear diary\nno rows here\n")
    with pytest.raises(ScenarioError, match=r"notes\.txt:1"):
        mpsim.sweep(scenario, {"parallelism.tp": [2]}, resume=file)


def test_csv_has_one_line_a_row_and_units_in_its_header(swept, tmp_path):
    """What a spreadsheet opens."""
    text = swept.to_csv(tmp_path / "table.csv")
    assert (tmp_path / "table.csv").read_text() == text
    rows = list(csv.DictReader(io.StringIO(text)))
    assert len(rows) == len(swept)
    assert {"parallelism.tp", "step_time_s", "peak_memory_bytes", "bubble_s", "reason"} <= set(
        rows[0]
    )


def test_json_is_plain_data(swept):
    """Everything that --json prints can be printed."""
    assert json.loads(json.dumps(swept.to_json()))["keys"] == list(AXES)


def test_warnings_that_differ_in_percentages_are_one(scenarios):
    """With the range of each: what is not measured of a machine is another share of every row's step."""
    base = mpsim.load(scenarios / "quickstart.yaml", set=["cluster.accelerator=mi300x"])
    told = mpsim.sweep(base, {"training.micro_batch": [1, 2, 4]}).warnings
    (kernels,) = (text for text in told if "not measured" in text and "kernels" in text)
    assert re.search(r"on which \d+\.\d to \d+\.\d % of the step rests", kernels)
    assert told[kernels] == 3


def test_warnings_of_rows_are_told_with_the_table(scenarios):
    """Each once, with the number of its rows, and in a column of the CSV."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    over = {"training.micro_batch": [1, 2], "framework.attention_kernel": ["flash3"]}
    found = mpsim.sweep(scenario, over)
    for row in found:
        assert row.warnings == tuple(row.summary["warnings"])
    told = found.warnings
    assert sum(told.values()) == sum(len(row.warnings) for row in found)
    assert "warnings" in found.to_csv().splitlines()[0].split(",")


def test_a_step_below_the_floor_of_its_links_says_so(scenarios):
    """Links a thousand times thinner than messages need: analytic transfers that do not meet may go below the floor, never in silence."""
    scenario = mpsim.load(scenarios / "quickstart.yaml")
    for bandwidth in ("100 Gb/s", "1 Gb/s"):
        result = mpsim.simulate(scenario.with_values({"cluster.nic.bandwidth": bandwidth}))
        use = max(result.utilisation.scale_up.max(), result.utilisation.scale_out.max())
        told = any("links can carry" in warning for warning in result.summary["warnings"])
        assert told == (use > 1.001)
