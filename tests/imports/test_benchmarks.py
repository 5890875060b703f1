"""Benchmarks: nccl-tests, rccl-tests, OSU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mpsim.errors import CalibrationError, FormatError
from mpsim.formats import registry as formats

SAMPLES = Path(__file__).parent / "samples"
RCCL = """# nThread 1 nGpus 1 minBytes 1048576 maxBytes 2097152 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1 graph: 0
rccl-tests: Version develop:abc
# Using devices
#  Rank  0 Group  0 Pid 1 on host0 device  0 [0000:01:00] AMD Instinct MI300X
#  Rank  1 Group  0 Pid 1 on host0 device  1 [0000:02:00] AMD Instinct MI300X
# all_reduce_perf
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
     1048576        262144     float     sum      -1    50.00   20.97   20.97      0    51.00   20.56   20.56      0
     2097152        524288     float     sum      -1    90.00   23.30   23.30      0    91.00   23.05   23.05      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 21.97
"""


def test_rccl_tests_are_told_from_nccl_tests(tmp_path):
    """The same table with a line of its own."""
    path = tmp_path / "all_reduce.txt"
    path.write_text(RCCL)
    read = formats.read(path)
    assert (read.tool, read.library, read.device_name) == (
        "rccl-tests",
        "rccl",
        "AMD Instinct MI300X",
    )
    assert read.rows[1]["busbw_Bps"] == pytest.approx(23.30e9)
    assert read.rows[1]["in_place_time_s"] == pytest.approx(91e-6)


def test_the_environment_of_a_json_report_is_dropped():
    """Nothing of env is in what is read."""
    read = formats.read(SAMPLES / "nccl-tests" / "layout-only.json")
    assert "A=B" not in str(read)


def test_osu_asks_for_the_number_of_ranks():
    """It stands nowhere in the file."""
    with pytest.raises(FormatError, match="--ranks"):
        formats.read(SAMPLES / "osu" / "osu_allreduce.txt")


def test_all_columns_of_osu_are_read():
    """Mean, least and most of the ranks, and how often."""
    row = formats.read(SAMPLES / "osu" / "osu_allreduce_full.txt", ranks=2).rows[0]
    assert row == {
        "collective": "all_reduce", "ranks": 2, "bytes": 4, "time_s": pytest.approx(0.56e-6), "min_s": pytest.approx(0.55e-6),
        "max_s": pytest.approx(0.56e-6), "iterations": 100, "busbw_Bps": pytest.approx(4 / 0.56e-6), "dtype": "MPI_CHAR",
    }  # fmt: skip


def test_sizes_of_an_alltoall_count_all_peers():
    """OSU states what goes to one peer, mpsim what a rank sends."""
    read = formats.read(SAMPLES / "osu" / "osu_alltoall.txt", ranks=4)
    assert (read.rows[3]["bytes"], read.points[3].shape["bytes"]) == (8, 32)


@pytest.mark.parametrize(
    ("text", "word"),
    [
        ("# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n4\n", "1 of 2 columns"),
        ("# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n", "holds no row"),
        ("# OSU MPI Allreduce Latency Test v7.4\n4 0.5\n", "before the names"),
        (
            "# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)  Validation\n4 0.5 Fail\n",
            "failed its check",
        ),
        (
            "# OSU MPI Allreduce Latency Test v7.4\n# Size  Avg Latency(us)\n4 x\n",
            "needed a number",
        ),
    ],
)
def test_a_cut_table_of_osu_is_refused(text, word, tmp_path):
    """Killed runs leave half a table."""
    path = tmp_path / "osu.txt"
    path.write_text(text)
    with pytest.raises(FormatError, match=word):
        formats.read(path, ranks=2)


@pytest.mark.parametrize(
    "text",
    [
        "# OSU MPI Barrier Latency Test v5.6.3\n# Avg Latency(us)\n             1.50\n",
        "\n# OSU MPI Latency Test v5.6\n# Size          Latency (us)\n0 0.2\n1 0.2\n",
        "# OSU MPI-CUDA Allreduce Latency Test v6.1\n# Size       Avg Latency(us)   P50 Tail Lat(us)  P90 Tail Lat(us)  P99 Tail Lat(us)\n4 1 1 1 1\n",
        "# OSU MPI Bi-Directional Bandwidth Test v7.4\n# Size      Bandwidth (MB/s)\n1 2.0\n",
    ],
)
def test_older_and_other_headers_of_osu(text, tmp_path):
    """A barrier has no size, versions 5 and 6 no datatype, tails have columns of their own."""
    path = tmp_path / "osu.txt"
    path.write_text(text)
    assert formats.read(path, ranks=2).rows


def test_points_are_written_as_a_table_that_calibrate_reads(tmp_path, mpsim_cli):
    """What import writes, the reader of tables takes back."""
    out = tmp_path / "points.csv"
    done = mpsim_cli(
        "import", "osu", SAMPLES / "osu" / "osu_allreduce.txt", "--ranks", 2, "-o", out, "--json"
    )
    assert (done.code, len(done.json()["points"])) == (0, 19)
    again = formats.read(out, format="table")
    assert [point.shape["bytes"] for point in again.points] == [
        row["bytes"] for row in done.json()["points"]
    ]


def test_a_broken_report_is_refused(tmp_path):
    """JSON without its end."""
    path = tmp_path / "a.json"
    data = json.loads((SAMPLES / "nccl-tests" / "layout-only.json").read_text())
    del data["end_time"]
    path.write_text(json.dumps(data))
    with pytest.raises(CalibrationError, match="end_time"):
        formats.read(path)


TABLES = SAMPLES / "nccl-tests"


def test_columns_of_the_spread_are_passed_over():
    """With -I each run has four columns more; the in-place time is still the in-place time."""
    rows = formats.read(TABLES / "all_gather_spread.txt").rows
    assert [row["in_place_time_s"] for row in rows] == pytest.approx([61e-6, 119e-6])
    assert rows[1]["time_s"] == pytest.approx(120e-6)  # 1.2e+02
    assert {row["ranks"] for row in rows} == {4}


def test_a_table_of_before_the_root_column_is_read():
    """Reports of 2020 have no root, and an error in place of a count of wrong elements; the name of the file says the collective."""
    points = formats.read(TABLES / "all_reduce_perf_old.txt")
    assert [row["bytes"] for row in points.rows] == [8, 16]
    assert points.rows[0]["collective"] == "all_reduce"
    assert points.rows[1]["in_place_time_s"] == pytest.approx(21.07e-6)


def test_cycles_of_rccl_tests_without_the_in_place_run():
    """Sizes come once a cycle, and half of the columns are absent."""
    points = formats.read(TABLES / "rccl_alltoall_cycles.txt")
    assert points.tool == "rccl-tests"
    assert [row["bytes"] for row in points.rows] == [1024, 2048] * 2
    assert not [key for row in points.rows for key in row if key.startswith("in_place")]


@pytest.mark.parametrize(
    ("name", "collective"),
    [("h100_all_reduce_16n", "all_reduce"), ("rccl-allgather", "all_gather"), ("reduce_scatter.2024", "reduce_scatter")],
)  # fmt: skip
def test_the_name_of_a_file_may_say_its_collective(name, collective, tmp_path):
    """Anywhere in it, the longest name that fits."""
    path = tmp_path / f"{name}.txt"
    path.write_text((TABLES / "all_reduce_perf_old.txt").read_text())
    assert formats.read(path).rows[0]["collective"] == collective
