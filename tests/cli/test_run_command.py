"""``mpsim run``, ``check``, ``compare``, ``sweep`` and ``new`` on the scenario that ships."""

from __future__ import annotations

import csv
import json
import re

import pytest

import mpsim
from mpsim.result.words import summary_sheet

PARTS = (
    "forward backward weight_gradient recompute exposed_tp exposed_cp exposed_ep exposed_pp exposed_dp "
    "bubble straggling optimizer host other"
).split()
BROKEN = "schema: 1\nmodel: gpt3-175b\nclutser: {preset: dgx-a100-80gb, nodes: 16}\nparallelism: {tp: 8, pp: -1}\n"


@pytest.fixture
def quickstart(scenarios):
    return scenarios / "quickstart.yaml"


def test_json_is_one_object_a_scenario_and_nothing_else(mpsim_cli, quickstart, scenarios):
    """Two scenarios, two lines, in the order they were given."""
    outcome = mpsim_cli("run", quickstart, scenarios / "nics-4.yaml", "--json")
    assert outcome.code == 0, outcome.err
    names = [json.loads(line)["scenario"] for line in outcome.out.splitlines()]
    assert names == ["quickstart", "nics-4"]


def test_the_breakdown_has_the_parts_of_the_contract(mpsim_cli, quickstart):
    """Programs depend on the names."""
    assert list(mpsim_cli("run", quickstart, "--json").json()["breakdown_s"]) == PARTS


def test_the_same_scenario_gives_the_same_bytes(mpsim_cli, quickstart):
    """No wall clock, no random state, no order of a hash in a result."""
    assert mpsim_cli("run", quickstart, "--json").out == mpsim_cli("run", quickstart, "--json").out


def test_both_engines_print_the_same_figures(mpsim_cli, quickstart):
    """The engine is a matter of speed."""
    simpy, replay = (
        mpsim_cli("run", quickstart, "--json", "--engine", engine).json()
        for engine in ("simpy", "replay")
    )
    assert (simpy.pop("engine"), replay.pop("engine")) == ("simpy", "replay")
    assert simpy == replay


def test_set_changes_a_key(mpsim_cli, quickstart):
    """Recomputing everything is more work than the model asks for."""
    plain = mpsim_cli("run", quickstart, "--json").json()
    full = mpsim_cli("run", quickstart, "--json", "--set", "training.recompute=full").json()
    assert full["hardware_flops_per_step"] > plain["hardware_flops_per_step"]
    assert full["model_flops_per_step"] == plain["model_flops_per_step"]


def test_a_person_gets_ten_lines_with_units(mpsim_cli, quickstart):
    """What the README promises."""
    text = mpsim_cli("run", quickstart, "--long").out
    for words in (
        "step time",
        "tokens/s",
        "MFU",
        "exposed",
        "bubble",
        "memory",
        "GB",
        "USD",
        "engine",
    ):
        assert words in text


def test_plots_and_trace_are_written(mpsim_cli, quickstart, tmp_path):
    """The files are named on stderr, not on stdout."""
    trace = tmp_path / "trace.json.gz"
    outcome = mpsim_cli("run", quickstart, "--json", "--plots", tmp_path, "--trace", trace)
    assert outcome.code == 0, outcome.err
    assert list(tmp_path.glob("*.png"))
    assert trace.stat().st_size > 200
    assert str(trace) in outcome.err
    outcome.json()


def test_one_trace_file_for_two_scenarios_is_a_usage_error(mpsim_cli, quickstart, tmp_path):
    """The second would overwrite the first."""
    outcome = mpsim_cli("run", quickstart, quickstart, "--trace", tmp_path / "t.json")
    assert (outcome.code, outcome.out) == (2, "")


def test_every_mistake_is_reported_at_once_with_its_line(mpsim_cli, tmp_path):
    """One run of check finds what three runs would."""
    file = tmp_path / "bad.yaml"
    file.write_text(BROKEN)
    for command in ("run", "check"):
        outcome = mpsim_cli(command, file, "--json")
        assert (outcome.code, outcome.out) == (2, "")
        assert f"{file}:3" in outcome.err
        assert f"{file}:4" in outcome.err
        assert "'cluster'" in outcome.err
        assert "Traceback" not in outcome.err


def test_check_says_what_was_derived(mpsim_cli, quickstart):
    """16 accelerators / (tp 2 x pp 4) = dp 2; 32 sequences / 2 = 16 microbatches."""
    derived = mpsim_cli("check", quickstart, "--json").json()["derived"]
    assert (derived["dp"], derived["microbatches"]) == (2, 16)
    assert "ok" in mpsim_cli("check", quickstart).out


def test_a_stored_result_of_another_mpsim_says_so(mpsim_cli, quickstart, tmp_path):
    """`run --json` carries the mpsim that made it; one that this mpsim made, or nobody knows who, says nothing."""
    stored = tmp_path / "a.json"
    made = json.loads(mpsim_cli("run", quickstart, "--json").out)
    for version, said in (
        (made["mpsim"], []),
        ("0.0.9", ["'0.0.9'"]),
        (["x"], ["a list"]),
        (None, []),
    ):
        stored.write_text(
            json.dumps(
                {**made, "mpsim": version}
                if version
                else {k: v for k, v in made.items() if k != "mpsim"}
            )
        )
        told = json.loads(mpsim_cli("compare", stored, quickstart, "--json").out)["warnings"]
        assert [
            f"a.json is of mpsim {word}, this is {made['mpsim']}" in line
            for word, line in zip(said, told, strict=True)
        ] == [True] * len(said)


def test_compare_accepts_a_stored_result(mpsim_cli, quickstart, tmp_path):
    """What run --json printed last week, against the scenario today."""
    stored = tmp_path / "before.json"
    stored.write_text(mpsim_cli("run", quickstart, "--json").out)
    outcome = mpsim_cli("compare", stored, quickstart, "--set", "training.recompute=full", "--json")
    assert "slower" in outcome.json()["explanation"]
    assert (
        "recompute"
        in mpsim_cli("compare", stored, quickstart, "--set", "training.recompute=full").out
    )


def test_sweep_prints_the_table_and_writes_csv_and_picture(mpsim_cli, quickstart, tmp_path):
    """Rows that cannot run keep their reason, and the exit code is still 0."""
    table, picture = tmp_path / "t.csv", tmp_path / "t.png"
    over = ("--over", "parallelism.tp=2,3")
    outcome = mpsim_cli("sweep", quickstart, *over, "--csv", table, "--plot", picture, "--jobs", 1)
    assert outcome.code == 0, outcome.err
    assert len(table.read_text().splitlines()) == 3
    assert picture.stat().st_size > 1000
    assert "1 of 2 rows" in outcome.err
    assert [
        row["values"] for row in mpsim_cli("sweep", quickstart, *over, "--json").json()["rows"]
    ] == [
        {"parallelism.tp": 2},
        {"parallelism.tp": 3},
    ]


@pytest.mark.parametrize("over", ["parallelism.tp", "=1,2", "parallelism.tp="])
def test_a_malformed_over_is_a_usage_error(mpsim_cli, quickstart, over):
    """The message shows one that works."""
    outcome = mpsim_cli("sweep", quickstart, "--over", over)
    assert (outcome.code, outcome.out) == (2, "")


def test_new_writes_a_scenario_that_runs_and_never_overwrites(mpsim_cli, tmp_path):
    """Every template passes its own check."""
    for template in mpsim_cli("new", "--list", "--json").json()["templates"]:
        file = tmp_path / f"{template}.yaml"
        assert mpsim_cli("new", file, "--template", template).code == 0
        assert mpsim_cli("check", file).code == 0
    again = mpsim_cli("new", file)
    assert (again.code, again.out) == (2, "")
    assert "exists" in again.err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("", "is not one JSON object"),
        ("[]", "is not a JSON object"),
        ("[" * 100_000, "is not one JSON object"),
        ("{}", "is not a result: it lacks scenario, step_time_s, breakdown_s"),
        ('{"scenario": "x", "step_time_s": "1", "breakdown_s": {}}', "step_time_s: got '1'"),
        ('{"scenario": "x", "step_time_s": -1, "breakdown_s": {}}', "step_time_s: got -1; needed"),
        ('{"scenario": "x", "step_time_s": NaN, "breakdown_s": {}}', "step_time_s: got 'nan'"),
        ('{"scenario": "x", "step_time_s": 1, "breakdown_s": 3}', "breakdown_s: got '3'"),
        (
            '{"scenario": "x", "step_time_s": 1, "breakdown_s": {"host": -1}}',
            "breakdown_s.host: got -1",
        ),
    ],
)
def test_compare_says_which_file_is_no_result_and_why(mpsim_cli, tmp_path, content, words):
    """The file, the key, what was got and where results come from."""
    file = tmp_path / "stored.json"
    file.write_text(content)
    outcome = mpsim_cli("compare", file, file)
    assert (outcome.code, outcome.out) == (2, "")
    assert str(file) in outcome.err
    assert words in outcome.err
    assert "mpsim run --json" in outcome.err


@pytest.mark.parametrize("command", ["sweep", "search"])
def test_keys_and_values_that_fit_no_scenario_end_a_study_before_it_begins(
    mpsim_cli, quickstart, command, monkeypatch
):
    """All of them at once, each with the nearest name, and exit code 2."""

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("work began")

    monkeypatch.setattr(f"mpsim.study.{command}", fail)
    over = {
        "parallelism.tpp=1,2": "parallelism.tpp: unknown key 'tpp'; did you mean 'tp'",
        "parallelism.tp=1,0": "parallelism.tp: got 0; needed 1 or more",
        "framework.launch_cots=1 us": "framework.launch_cots: unknown field; did you mean 'launch_cost'",
        "model=gpt3-175b,gpt3-157b": "unknown model 'gpt3-157b'; did you mean 'gpt3-175b'",
        "cluster.variation=3": "unknown key 'variation'; it stands at the top level",
        "name=a,b": "name cannot be swept",
    }
    given = [part for one in over for part in ("--over", one)]
    outcome = mpsim_cli(command, quickstart, *given)
    assert (outcome.code, outcome.out) == (2, "")
    lines = outcome.err.splitlines()
    assert len(lines) == len(over)
    for line, words in zip(lines, over.values(), strict=True):
        assert line.startswith("--over")
        assert words in line


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("cluster.variation=3", "--set cluster.variation: unknown key 'variation'; it stands at"),
        ("cluster.tp=3", "--set cluster.tp: unknown key 'tp'; did you mean 'parallelism.tp'?"),
        ("paralelsm.tp=3", "--set paralelsm: unknown key 'paralelsm'; did you mean"),
        ("cluster.stages=[]", "--set cluster.stages: got 0 entries; needed 1 or more"),
    ],
)
def test_a_setting_that_does_not_fit_says_where_it_would(mpsim_cli, quickstart, setting, words):
    """A mistake of the command line is not blamed on the file."""
    outcome = mpsim_cli("check", quickstart, "--set", setting)
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "training and serving" not in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("compare", "a.json", "b.json", "--set", "parallelism.tp=2"), "--set"),
        (("compare", "a.json", "b.json", "--override", "small"), "--override"),
        (("new", "mine.yaml", "--list"), "nothing is written"),
        (("sweep", "{}", "--cluster", "tcp://localhost:1", "--jobs", "2"), "--jobs"),
    ],
)
def test_what_would_not_count_is_refused(mpsim_cli, quickstart, arguments, words):
    """A stored result cannot be changed, a list is not written, workers elsewhere are not processes here."""
    outcome = mpsim_cli(*(one.format(quickstart) for one in arguments))
    assert (outcome.code, outcome.out) == (2, "")
    assert words in outcome.err
    assert "leave" in outcome.err


def test_compare_asks_what_if_without_a_second_file(mpsim_cli, quickstart):
    """The same scenario with a value changed is the other side, in the units of run."""
    changed = ("--vs", "training.recompute=full")
    found = json.loads(mpsim_cli("compare", quickstart, *changed, "--json").out)
    own = mpsim_cli("run", quickstart, "--set", "training.recompute=full", "--json")
    assert found["figures"]["step_time_s"]["b"] == json.loads(own.out)["step_time_s"]
    text = mpsim_cli("compare", quickstart, *changed).out
    assert "training.recompute none to full" in text
    assert re.search(r"peak memory +[\d.]+ GB", text)
    assert "e+" not in text


def test_compare_sets_several_results_against_the_first(mpsim_cli, quickstart):
    """One table each; in JSON the others are a list."""
    found = json.loads(mpsim_cli("compare", quickstart, quickstart, quickstart, "--json").out)
    assert len(found["others"]) == 1
    assert mpsim_cli("compare", quickstart).code == 2


def test_compare_takes_one_value_of_a_key(mpsim_cli, quickstart):
    """Of two the last would count, and neither the table nor its title would say so."""
    twice = [f"--vs=training.micro_batch={size}" for size in (1, 2)]
    outcome = mpsim_cli("compare", quickstart, *twice)
    assert (outcome.code, outcome.out) == (2, "")
    assert "got training.micro_batch twice" in outcome.err


def test_a_sweep_warns_of_what_run_warns_of(mpsim_cli, quickstart, tmp_path):
    """Under the table with the number of rows, and in the CSV beside each row: links that the network does not share."""
    thin = (
        *("--set", "cluster.fabric={kind: fat-tree, oversubscription: 4}"),
        *("--set", "cluster.nodes=64", "--set", "training.global_batch=512"),
    )
    warned = [
        line.removeprefix("warning: ")
        for line in mpsim_cli("run", quickstart, *thin).out.splitlines()
        if line.startswith("warning: ")
    ]
    assert any("network: analytic" in warning for warning in warned)
    table = tmp_path / "rows.csv"
    over = ("--over", "parallelism.tp=2", "--csv", table, "--jobs", 1)
    outcome = mpsim_cli("sweep", quickstart, *thin, *over)
    with table.open(newline="") as rows:
        written = next(csv.DictReader(rows))["warnings"]
    for warning in warned:
        assert f"warning of 1 of 1 row: {warning}" in outcome.out
        assert warning in written


def test_a_step_is_seven_results_unless_all_are_asked_for(mpsim_cli, quickstart):
    """What a newcomer needs, without a warning of interference where it is off; --long has every result."""
    summary = mpsim.simulate(mpsim.load(quickstart)).summary
    assert len(summary_sheet(summary, long=False).sections[0].rows) == 7
    short = mpsim_cli("run", quickstart).out
    assert "interference" not in short
    assert len(short.splitlines()) < len(mpsim_cli("run", quickstart, "--long").out.splitlines())
