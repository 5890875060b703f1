"""``mpsim validate``: rows that are scenarios with what was measured, and how they fail."""

from __future__ import annotations

import csv
import io

import pytest

import mpsim
from mpsim.errors import CalibrationError
from mpsim.study import sweep
from mpsim.validate.rows import FIGURES, read_table, served_points, validate_files

SMALL = """schema: 1
name: small
model: {layers: 4, hidden: 256, heads: 4, ffn_hidden: 1024, vocab: 1000}
cluster: {preset: dgx-a100-80gb, nodes: 1}
training: {global_batch: 64, micro_batch: 1, sequence_length: 512}
"""
SERVICE = """schema: 1
model: llama3-8b
cluster: {preset: dgx-h100, nodes: 1}
serving:
  engine: vllm-v1
  replicas: 1
  workload: {arrival: closed, concurrency: 2, requests: 6, prompt: 100, output: 20}
"""


@pytest.fixture
def small(tmp_path):
    """A scenario file of a second's work."""
    file = tmp_path / "small.yaml"
    file.write_text(SMALL)
    return file


@pytest.fixture
def table(tmp_path):
    """Write a table."""

    def write(text, name="rows.csv"):
        file = tmp_path / name
        file.write_text(text)
        return file

    return write


def _rows(outcome, code=0):
    assert outcome.code == code, outcome.err
    return {row["id"]: row for row in outcome.json()["rows"]}


def test_a_row_is_predicted_as_run_predicts_it(mpsim_cli, small, table):
    """Keys of a row lie on its scenario as --set does; time and memory are those of `mpsim run`."""
    file = table("id,scenario,training.micro_batch,step_time,memory\na,small.yaml,2,10 ms,5 GB\n")
    rows = _rows(mpsim_cli("validate", file, "--json"))
    summary = mpsim_cli("run", small, "--set", "training.micro_batch=2", "--json").json()
    assert rows["a"]["predicted"] == summary["step_time_s"]
    assert rows["a"]["error"] == summary["step_time_s"] / 0.01 - 1
    assert rows["a"]["interval"] == summary["interval"]["step_time_s"]
    assert rows["a#memory"]["predicted"] == summary["peak_memory_bytes"]
    assert rows["a#memory"]["measured"] == 5e9


def test_a_row_in_another_unit_is_told(mpsim_cli, small, table):
    """A step of 10 ms written as 10 is 10 s; one that is merely slow says nothing of units."""
    rows = "scenario,step_time\nsmall.yaml,{}\n"
    took = mpsim_cli("run", small, "--json").json()["step_time_s"]
    for measured, is_told in ((1000 * took, True), (2 * took, False)):
        outcome = mpsim_cli("validate", table(rows.format(measured)))
        assert ("are in SI units (s, B) unless" in outcome.out) == is_told


def test_cells_are_read_as_published_ones(mpsim_cli, small, table):
    """Thousands, blanks and the unit that a key has anyway, beside a measured value with them."""
    keys = "training.global_batch,training.sequence_length,parallelism.tp,step_time"
    plain, typed = "small.yaml,1024,2048,2,1200 s", 'small.yaml," 1,024 seqs",2k,TP2,"1,200 s"'
    file = table(f"scenario,{keys}\n{plain}\n{typed}\n")
    rows = _rows(mpsim_cli("validate", file, "--json"))
    assert rows["1"]["predicted"] == rows["2"]["predicted"] > 0
    assert rows["1"]["measured"] == rows["2"]["measured"] == 1200.0


@pytest.mark.parametrize("cell", ["OOM", "out of memory", " CUDA out of memory "])
def test_a_run_out_of_memory_is_beside_its_odds(mpsim_cli, small, table, cell):
    """It is a memory that was predicted, with the odds of `mpsim run`, and no error; words say both."""
    head = "id,scenario,model.layers,model.hidden,step_time"
    file = table(f"{head}\na,small.yaml,4,256,{cell}\nb,small.yaml,200,16384,{cell}\n")
    rows = _rows(mpsim_cli("validate", file, "--json"))
    fits = mpsim.simulate(mpsim.load(small)).summary["fits_probability"]
    assert rows["a#memory"]["ran_out"] == 1 - fits < 0.1
    assert rows["b#memory"]["ran_out"] > 0.9
    told = [(row["error"], row["skipped_because"]) for row in rows.values()]
    assert told == [(None, None)] * 2
    assert "  100%  b#memory: predicted" in mpsim_cli("validate", file).out


def test_of_columns_that_say_the_same_the_first_is_scored(mpsim_cli, small, table):
    """A step's time and its rate are one record; of two columns of a figure the one that says that it was measured counts."""
    file = table(
        "id,scenario,step_time,tokens_per_s,measured.step_time\na,small.yaml,1 s,5,10 ms\n"
    )
    outcome = mpsim_cli("validate", file, "--json")
    (row,) = _rows(outcome).values()
    assert (row["id"], row["unit"], row["measured"]) == ("a", "s", 0.01)


def test_a_memory_has_the_interval_of_memories(small, table):
    """Its residuals are not those of the step's time."""
    file = table("id,scenario,step_time,memory\na,small.yaml,10 ms,5 GB\n")
    time, memory = validate_files([file]).records
    assert (time.figure, memory.figure) == ("step", "memory")
    step = mpsim.simulate(mpsim.load(small)).summary["interval"]
    assert memory.interval.to_json() == step["peak_memory_bytes"] != time.interval.to_json()


def test_a_row_without_a_file_is_a_whole_scenario(mpsim_cli, table):
    """Sections by name and keys under them make a scenario."""
    head = "model,cluster,cluster.nodes,training.global_batch,training.sequence_length,step_time_s"
    rows = _rows(
        mpsim_cli("validate", table(f"{head}\nbert-large,dgx-a100-80gb,1,64,512,1\n"), "--json")
    )
    assert rows["1"]["predicted"] > 0
    assert rows["1"]["family"] == "rows"


def test_what_a_sweep_wrote_goes_straight_in(mpsim_cli, small, table):
    """Its own figures are predictions; a column beside them is what was measured; the prediction is the sweep's."""
    import mpsim

    swept = sweep(mpsim.load(small), {"training.micro_batch": [1, 2], "parallelism.tp": [1, 2]})
    known = list(csv.DictReader(io.StringIO(swept.to_csv())))
    out = io.StringIO()
    writer = csv.DictWriter(out, [*known[0], "measured.tokens_per_s"])
    writer.writeheader()
    writer.writerows({**row, "measured.tokens_per_s": "1e6"} for row in known)
    outcome = mpsim_cli("validate", table(out.getvalue()), "--scenario", small, "--json")
    rows = _rows(outcome)
    assert [rows[str(n)]["predicted"] for n in (1, 2, 3, 4)] == [
        float(row["tokens_per_s"]) for row in known
    ]
    assert "ignored" not in outcome.err


def test_a_table_of_a_sweep_alone_was_not_measured(mpsim_cli, small, table):
    """Predictions are not scored against themselves."""
    import mpsim

    text = sweep(mpsim.load(small), {"training.micro_batch": [1]}).to_csv()
    outcome = mpsim_cli("validate", table(text), "--scenario", small)
    assert (outcome.code, outcome.out) == (2, "")
    assert "measured.tokens_per_s" in outcome.err


def test_other_columns_are_named_as_ignored(mpsim_cli, small, table):
    """On stderr, so that JSON stays one object."""
    file = table("scenario,step_time,gpu,micro_batch\nsmall.yaml,1,A100,3\n")
    outcome = mpsim_cli("validate", file, "--json")
    assert outcome.err.endswith("ignored columns: gpu, micro_batch\n")


@pytest.mark.parametrize(
    ("column", "cell", "measured"),
    [
        ("step_time", "1.5", 1.5),
        ("step_time_ms", "1500", 1.5),
        ("step_time (ms)", "1500", 1.5),
        ("measured.step_time_s", "1500 ms", 1.5),
        ("mfu", "40 %", 0.4),
        ("mfu_pct", "40", 0.4),
        ("MFU", "0.4", 0.4),
        ("memory_gb", "2", 2e9),
        ("peak_memory [GiB]", "2", 2 * 2.0**30),
        ("peak_memory_bytes", "7", 7.0),
        ("tokens_per_s", "9", 9.0),
        ("ttft_mean_ms", "9", 0.009),
    ],
)
def test_units_stand_in_the_cell_or_in_the_name(table, column, cell, measured):
    """SI where neither says more."""
    read = read_table(table(f"model,{column}\nx,{cell}\n"))
    (figure,) = read.figures(read.rows[0]).values()
    assert figure == pytest.approx(measured, rel=1e-15)
    assert not read.ignored


@pytest.mark.parametrize("cell", ["fast", "-1", "0", "nan", "inf", "1e-320", "3 GB", "3 parsecs"])
def test_what_is_no_time_is_the_reason(mpsim_cli, small, table, cell):
    """The row is skipped, its column and cell named; the others are predicted."""
    file = table(f"scenario,step_time\nsmall.yaml,{cell}\nsmall.yaml,1\n")
    rows = _rows(mpsim_cli("validate", file, "--json"))
    assert "step_time: got" in rows["1"]["skipped_because"]
    assert rows["2"]["predicted"]


def test_a_scenario_that_cannot_be_is_the_reason(mpsim_cli, small, table):
    """A wrong key is named with its nearest, as in a file; where no other row was predicted, the command failed."""
    file = table("scenario,training.micro_bach,step_time\nsmall.yaml,1,1\n")
    outcome = mpsim_cli("validate", file, "--json")
    assert "micro_batch" in _rows(outcome, 1)["1"]["skipped_because"]
    assert "no row was predicted" in outcome.err


def test_reasons_of_a_row_are_told_apart(mpsim_cli, small, table):
    """Two mistakes are two sentences."""
    file = table("scenario,parallelism.tp,parallelism.pp,step_time\nsmall.yaml,3,5,1\n")
    told = _rows(mpsim_cli("validate", file, "--json"), 1)["1"]["skipped_because"].split("; ")
    assert sum(reason.startswith("parallelism.") for reason in told) > 1


def test_services_are_scored_by_what_was_measured_of_them(mpsim_cli, table):
    """A record a figure, its id followed by the quantity; a time of a training step is none of a service."""
    table(SERVICE, "service.yaml")
    file = table("id,scenario,ttft_ms,tpot,ttft_p99,step_time\ns,service.yaml,30,10 ms,,1\n")
    rows = _rows(mpsim_cli("validate", file, "--json"))
    assert rows["s#ttft"]["predicted"] > 0
    assert rows["s#tpot"]["interval"][0] <= rows["s#tpot"]["predicted"]
    assert "no such result" in rows["s"]["skipped_because"]
    assert set(rows) == {"s", "s#ttft", "s#tpot"}


def test_measured_services_become_points_of_a_fit(table):
    """Figures as a fit names them; rows that are none keep their reason; other tables are none."""
    table(SERVICE, "service.yaml")
    text = "id,scenario,serving.engine,ttft_ms,output_tokens_per_s\na,service.yaml,,30,90\nb,service.yaml,nobody,30,90\nc,none.yaml,,30,90\n"
    points, skipped = served_points(table(text), only={"scenario": "service.yaml"})
    assert [(point.id, point.measured) for point in points] == [
        ("a", {"ttft": 0.03, "throughput": 90.0})
    ]
    assert [reason.partition(":")[0] for reason in skipped] == ["b"]
    assert served_points(table("gpu,op,time_us\nx,gemm,1\n")) is None
    with pytest.raises(CalibrationError, match="give the scenario that they are runs of"):
        served_points(table("scenario,step_time\nx,1\n"))


def test_plots_and_tables(mpsim_cli, small, table, tmp_path):
    """Two pictures, and a table that says what is furthest off."""
    file = table("id,scenario,step_time\na,small.yaml,1\n")
    outcome = mpsim_cli("validate", file, "--plots", tmp_path / "plots")
    names = sorted(picture.name for picture in (tmp_path / "plots").iterdir())
    assert names == ["training-agreement.png", "training-error.png"]
    assert "furthest off:" in outcome.out


@pytest.mark.parametrize("content", ["a,b\n1,2\n", ""])
def test_a_file_that_is_no_table_of_rows_is_bad_input(mpsim_cli, table, content):
    """Exit code 2, the file's name, nothing on stdout."""
    outcome = mpsim_cli("validate", table(content, "odd.csv"), "--json")
    assert (outcome.code, outcome.out) == (2, "")
    assert "odd.csv" in outcome.err.replace("\n", "").replace("│", "").replace(" ", "")


def test_a_missing_file_is_bad_input(mpsim_cli, tmp_path):
    """Exit code 2 and no traceback."""
    outcome = mpsim_cli("validate", tmp_path / "none.csv")
    assert (outcome.code, outcome.out) == (2, "")
    assert "Traceback" not in outcome.err


def test_every_figure_is_one_that_a_summary_has(mpsim_cli, small, table):
    """Places of the table of figures exist in a run's summary of its job."""
    step = mpsim_cli("run", small, "--json").json()
    service = mpsim_cli("run", table(SERVICE, "service.yaml"), "--json").json()
    for name, figure in FIGURES.items():
        summary, head = (service if figure.point else step), figure.place.partition(".")[0]
        assert head in summary, name
