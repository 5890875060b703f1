"""Calibration: fits find the constants that made the times, and say when they cannot."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mpsim.calibrate import calibrate
from mpsim.calibrate.robust import Unknown, fit_robust
from mpsim.cli.app import execute
from mpsim.cost import GemmConstants, gemm_seconds
from mpsim.errors import CalibrationError, MissingExtraError
from mpsim.measured.files import to_line
from mpsim.measured.records import End, Header, Measurement, RankRecord
from mpsim.measured.sources import Source, read_source

PEAK, BANDWIDTH = 90e9, 10e9
TRUE = GemmConstants(compute_fraction=0.9, memory_fraction=0.8, launch=8e-6, knee=2.0)
ALPHA, BETA = 60e-6, 1 / 2e9


def header(**changes):
    ranks = tuple(RankRecord(rank, "host", "cpu", "Some CPU", 1, 16e9) for rank in range(2))
    one = Header(
        schema=1,
        mpsim="0",
        torch="2.13.0",
        python="3.13",
        os="Linux",
        cuda="",
        nccl="",
        driver="",
        created="2026-11-21T08:00:00+00:00",
        backend="gloo",
        world_size=2,
        ranks=ranks,
        cores=2,
        seed=0,
    )
    return dataclasses.replace(one, **changes)


def measurement(op, shape, seconds, *, family="kernels", group=(0, 1), **more):
    values = {
        "id": f"{op}/{sorted(shape.items())}/{sorted(more.get('variant', {}).items())}",
        "family": family,
        "op": op,
        "shape": shape,
        "variant": {},
        "dtype": "float32",
        "group": group,
        "domains": 1,
        "synchronous": family == "collectives",
        "phase": "burst",
        "method": "perf_counter",
        "seconds": tuple((seconds, seconds * 1.002, seconds * 1.004) for _ in group),
    }
    return Measurement(**(values | more))


def gemms(rng, noise=0.01):
    for kind in ("forward", "dgrad", "wgrad"):
        for size in (64, 96, 128, 192, 256, 384, 512, 768, 1024):
            m, n, k = size, 2 * size, size
            moved = 4.0 * (m * k + k * n + m * n)
            exact = float(gemm_seconds(m, n, k, 1, moved, peak=PEAK, bandwidth=BANDWIDTH, c=TRUE))
            yield measurement(
                "gemm",
                {"m": m, "n": n, "k": k},
                exact * float(np.exp(rng.normal(0, noise))),
                variant={"pass": kind},
            )


def copies():
    for size in (1 << 20, 1 << 24, 1 << 27):
        moved = 2.0 * size
        yield measurement(
            "copy", {"bytes": size}, moved / BANDWIDTH, bytes=moved, variant={"way": "device"}
        )


def collectives():
    for size in (1024, 16384, 262144, 4194304, 67108864):
        for op, passes in (("all_reduce", 2.0), ("all_gather", 1.0), ("send_recv", 1.0)):
            steps = 2 if op == "all_reduce" else 1
            moved = size / 2 * passes if op != "send_recv" else size
            yield measurement(
                op, {"bytes": size}, ALPHA * steps + BETA * moved, family="collectives", bytes=size
            )


def source(measurements, **changes):
    one = header(**changes)
    return Source("made.jsonl", "mpsim measure", tuple(measurements), one.device_name, "gloo", one)


def recorded(path, measurements, **end):
    """A file of mpsim measure with these measurements."""
    lines = [header(), *measurements]
    values = {
        "complete": True,
        "elapsed": 1.0,
        "yardstick": (0.002, 0.002),
        "clocks_hz": (0.0, 0.0),
    }
    lines.append(End(measurements=len(lines) - 1, **(values | end)))
    path.write_text("".join(to_line(line) + "\n" for line in lines))
    return path


@pytest.fixture
def files(tmp_path, monkeypatch):
    rng = np.random.default_rng(0)
    monkeypatch.chdir(tmp_path)
    return recorded(tmp_path / "made.jsonl", [*gemms(rng), *copies(), *collectives()])


def test_a_fit_ignores_outliers():
    """A tenth of the points three times too slow moves latency and bandwidth by less than 3 %."""
    rng = np.random.default_rng(1)
    size = np.geomspace(1e3, 1e9, 40)
    times = (2e-5 + size / 3e9) * np.exp(rng.normal(0, 0.02, 40))
    times[::10] *= 3
    unknowns = [Unknown("latency", 1e-6, 1e-9, 1.0), Unknown("rate", 1e8, 1e6, 1e12)]
    (latency, rate) = fit_robust(lambda x: x[0] + size / x[1], unknowns, times)
    assert latency.value == pytest.approx(2e-5, rel=0.03)
    assert rate.value == pytest.approx(3e9, rel=0.03)
    assert latency.low < 2e-5 < latency.high


def test_a_constant_that_no_point_feels_is_not_identified():
    """Its interval is as wide as its bounds, and it stays at the first guess."""
    unknowns = [Unknown("felt", 1.0, 0.1, 10.0), Unknown("unfelt", 2.0, 0.1, 50.0, prior=1.0)]
    found = fit_robust(lambda x: np.full(5, x[0]), unknowns, np.full(5, 3.0))
    assert found[0].value == pytest.approx(3.0, rel=1e-3)
    assert not found[1].identified
    assert (found[1].value, found[1].low, found[1].high) == pytest.approx((2.0, 0.1, 50.0))


def test_without_scipy_the_extra_is_named(monkeypatch):
    """The exact line that installs it."""
    monkeypatch.setitem(sys.modules, "scipy.optimize", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'mpsim\[calibrate\]'"):
        fit_robust(lambda x: x, [Unknown("a", 1.0, 0.1, 10.0)], np.ones(1))


def test_calibrate_finds_the_constants_that_made_the_times(files):
    """Products: fraction of the peak within 2 %; held-out points, which no fit saw, within 3 %."""
    found = calibrate([read_source(files)])
    chip = found.cluster.accelerator
    fraction = found.document["constants"]["kernels.gemm.fp32_burst_fraction"]["value"]
    assert fraction * chip.peak("fp32") == pytest.approx(0.9 * PEAK, rel=0.02)
    assert chip.memory_bandwidth == pytest.approx(BANDWIDTH, rel=0.01)
    fit = next(one for one in found.fit.scores if one.what == "matrix products, fp32")
    assert sum(fit.held_out) >= 3
    assert fit.median(held_out=True) < 0.03


def test_collectives_are_reproduced_by_constants_or_curves(files):
    """All-reduce of 1 MiB, which was not measured, as its two latencies and its bytes over the rate."""
    from mpsim.cost import CollectiveModel
    from mpsim.parallel import GroupShape

    cluster = calibrate([read_source(files)]).cluster
    model = CollectiveModel(cluster)
    assert model.library.name == "gloo"
    expected = 2 * ALPHA + BETA * 2**20
    assert model.seconds("all_reduce", 2.0**20, GroupShape(2, 2, 1)) == pytest.approx(
        expected, rel=0.1
    )


def test_the_same_files_give_the_same_bytes(files, tmp_path):
    """Which points are held out depends on their names alone."""
    for name in ("a.yaml", "b.yaml"):
        calibrate([read_source(files)]).write(tmp_path / name)
    assert (tmp_path / "a.yaml").read_bytes() == (tmp_path / "b.yaml").read_bytes()


def test_of_repeated_measurements_the_quietest_counts(files):
    """A second file from a busy moment changes nothing."""
    once = read_source(files)
    slow = [
        dataclasses.replace(m, seconds=tuple(tuple(2 * s for s in row) for row in m.seconds))
        for m in once.measurements
    ]
    busy = dataclasses.replace(once, measurements=tuple(slow))
    alone, both = calibrate([once]), calibrate([once, busy])
    assert both.document["constants"] == alone.document["constants"]


def test_a_size_that_was_hardly_measured_moves_no_other():
    """Two samples of 8 s, then hundred of 1 s at each larger size: the curve begins at 1.0 to 1.1 s and not at their mean."""
    from mpsim.calibrate.parts import best_curve
    from mpsim.calibrate.points import Point

    def point(size, seconds, samples):
        return Point("x", "s", None, size, seconds, 0.3, "", "burst", samples=samples)

    points = [point(1.0, 8.0, 2), point(4.0, 1.0, 100), point(16.0, 1.0, 100), point(64.0, 3.0, 10)]
    sizes, times = best_curve(points, np.array([one.size for one in points]))
    assert sizes == (1.0, 4.0, 16.0, 64.0)
    assert times[0] == times[1] == times[2] == pytest.approx(8 ** (2 / 202), rel=1e-4)
    assert times[3] == 3.0


def test_the_memory_of_a_cpu_is_as_fast_as_the_fastest_of_copy_and_optimizer(files):
    """A copy that reads what it overwrites is slower than an optimizer step, whose rate then is the memory's."""
    one = read_source(files)
    assert calibrate([one]).cluster.accelerator.memory_bandwidth == pytest.approx(
        BANDWIDTH, rel=0.01
    )
    moved = 28 * 4_000_000
    adam = measurement(
        *("adam", {"parameters": 4_000_000}, moved / (3 * BANDWIDTH)),
        bytes=moved,
        variant={"fused": True},
    )
    more = dataclasses.replace(one, measurements=(*one.measurements, adam))
    found = calibrate([more])
    assert found.cluster.accelerator.memory_bandwidth == pytest.approx(3 * BANDWIDTH, rel=0.01)
    assert found.fit.constants["kernels.optimizer.fraction"].value == pytest.approx(1.0, rel=0.01)


def test_machines_are_not_mixed(files):
    """Another device or another torch: named with both values."""
    one = read_source(files)
    ranks = tuple(dataclasses.replace(rank, device_name="X") for rank in header().ranks)
    for change, text in (
        ({"torch": "2.4.0"}, "torch is '2.4.0'"),
        ({"ranks": ranks}, "device_name is 'X'"),
    ):
        other = source(one.measurements, **change)
        with pytest.raises(CalibrationError, match=text):
            calibrate([one, other])


def test_a_constant_outside_its_physical_range_is_warned_of(tmp_path):
    """Kernels of 5 ms are no launch cost."""
    rng = np.random.default_rng(0)
    late = [
        dataclasses.replace(m, seconds=tuple(tuple(s + 5e-3 for s in row) for row in m.seconds))
        for m in gemms(rng)
    ]
    found = calibrate([read_source(recorded(tmp_path / "late.jsonl", [*late, *copies()]))])
    assert any("launch" in text and "physical range" in text for text in found.warnings)


def run(capsys, *arguments):
    code = execute([str(one) for one in arguments])
    return code, capsys.readouterr()


def test_the_command_writes_a_machine_that_scenarios_name(files, tmp_path, capsys):
    """calibrate, show and run, one after the other."""
    code, printed = run(capsys, "calibrate", files, "-o", "box.yaml", "--plots", "plots", "--json")
    assert code == 0, printed.err
    assert json.loads(printed.out)["machine"] == "some-cpu"
    assert (tmp_path / "plots" / "residuals-kernels.png").stat().st_size > 1000
    code, printed = run(capsys, "show", "system", "box.yaml")
    assert code == 0, printed.err
    assert "kernels.gemm.fp32_sustained_fraction" in printed.out
    (tmp_path / "run.yaml").write_text(
        "schema: 1\nmodel: {layers: 2, hidden: 128, heads: 4, ffn_hidden: 512, vocab: 1024}\n"
        "cluster: box.yaml\nparallelism: {dp: 2}\nframework: torch-ddp\n"
        "training: {global_batch: 2, sequence_length: 64, precision: fp32}\n"
    )
    code, printed = run(capsys, "run", "run.yaml", "--json")
    assert code == 0, printed.err
    assert json.loads(printed.out)["calibration"]["calibrated"] > 5


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda text: text[:-200], "truncated"),
        (lambda text: text.replace('"schema":1', '"schema":7', 1), "7"),
        (lambda text: text.replace('"seconds":[[', '"seconds":[[NaN,', 1), "NaN"),
        (lambda text: text.replace('"rank":1', '"rank":5', 1), "rank"),
        (lambda text: text + text, "two files were joined"),
        (lambda text: text.splitlines()[0] + "\n" + text.splitlines()[-1].replace(str(len(text.splitlines()) - 2), "0", 1) + "\n", "holds no measurement"),
    ],
)  # fmt: skip
def test_spoiled_files_exit_with_2_and_leave_nothing(files, tmp_path, capsys, spoil, message):
    """Truncated, another schema, NaN, a rank missing, joined, empty: a message, and no machine file."""
    files.write_text(spoil(files.read_text()))
    code, printed = run(capsys, "calibrate", files, "-o", "box.yaml")
    assert code == 2
    assert message in " ".join(printed.err.split())
    assert not list(tmp_path.glob("*box.yaml*"))


def test_clocks_that_changed_are_warned_of(tmp_path, capsys, monkeypatch):
    """The same kernel 40 % slower at the end."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    path = recorded(tmp_path / "f.jsonl", [*gemms(rng), *copies()], yardstick=(0.002, 0.0028))
    code, printed = run(capsys, "calibrate", path)
    assert code == 0
    assert "clocks changed" in printed.err
    before = Path("machine.yaml").read_bytes()
    code, printed = run(capsys, "calibrate", path)  # what is there is written over by name only
    assert (code, Path("machine.yaml").read_bytes()) == (2, before)
    assert "--out machine.yaml" in printed.err


def test_products_of_a_trace_alone_are_fitted_as_sustained(tmp_path):
    """In the middle of training nothing runs in a burst: the sustained fraction is what was measured, the burst one what chips of this kind add."""
    points = []
    for size in (2048, 3072, 4096, 6144, 8192, 12288):
        flops = 2.0 * size**3
        points.append(
            measurement(
                *("gemm", {"m": size, "n": size, "k": size}, flops / 600e12),
                dtype="bfloat16",
                phase="sustained",
                variant={"pass": "forward"},
                flops=flops,
            )
        )
    path = tmp_path / "trace.json"
    path.write_text("{}")
    one = Source(str(path), "torch.profiler", tuple(points), "H100 SXM", "", None)
    found = calibrate([one], on="h100-sxm").fit.constants
    hot, cold = (found[f"kernels.gemm.{when}_fraction"].value for when in ("sustained", "burst"))
    assert hot == pytest.approx(600 / 989.5, rel=0.03)
    assert hot < cold < 1.0


def test_an_unknown_accelerator_asks_for_its_name(tmp_path, capsys):
    """nccl-tests on a GPU that the catalog does not have."""
    path = tmp_path / "all_reduce.txt"
    path.write_text(
        "# nThread 1 nGpus 1\n#  Rank  0 Pid  1 on a device  0 [0000] Wonder GPU\n"
        "#  Rank  1 Pid  2 on a device  1 [0001] Wonder GPU\n"
        "  1024  256  float  sum  -1  20.0  0.05  0.05  0  20.0  0.05  0.05  0\n"
        "  4096  1024  float  sum  -1  22.0  0.05  0.05  0  20.0  0.05  0.05  0\n"
        "# Avg bus bandwidth : 1\n"
    )
    code, printed = run(capsys, "calibrate", path, "-o", tmp_path / "m.yaml")
    assert code == 2
    assert "--on" in printed.err
    code, printed = run(capsys, "calibrate", path, "-o", tmp_path / "m.yaml", "--on", "h100-sxm")
    assert code == 0, printed.err


def test_published_products_give_back_the_shipped_constants():
    """70 products of an H100 (aiconfigurator, validation/data/kernels.csv): fraction, memory share and launch as shipped, held-out error below 5 %."""
    from mpsim.cost.constants import constant_groups

    path = Path(__file__).parents[3] / "validation" / "data" / "kernels.csv"
    found = calibrate([read_source(path, only={"gpu": "H100 SXM 80GB"})])
    shipped = constant_groups("kernels")["gemm.h100-sxm"]
    fitted = found.document["constants"]
    for leaf, tolerance in (("burst_fraction", 0.02), ("memory_fraction", 0.03), ("launch", 0.05)):
        value = fitted[f"kernels.gemm.{leaf}"]["value"]
        assert value == pytest.approx(shipped.value(leaf), rel=tolerance)
    (fit,) = (one for one in found.fit.scores if one.what == "matrix products, bf16")
    assert fit.median(held_out=True) < 0.05
    hot = fitted["kernels.gemm.sustained_fraction"]["value"]
    assert hot == pytest.approx(shipped.value("sustained_fraction"), rel=0.02)
