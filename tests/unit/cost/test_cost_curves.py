"""Measured curves: interpolation, switches, group sizes between, and files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cost import CollectiveCurves, CollectiveModel, Curve, Status, load_curves
from mpsim.cost.curves import kernel_class
from mpsim.errors import CalibrationError
from mpsim.hardware.lookup import system
from mpsim.parallel.crossing import GroupShape
from mpsim.workload import Lowering, expand_layer, model

KIB, MIB = 1024.0, 2.0**20
NODE = GroupShape(8, 8, 1)
FILE = """\
schema: 1
name: ours
source: nccl-tests on our nodes
as_of: 2026-11-21
library: nccl
curves:
  - {collective: all_reduce, ranks: 2, bytes: [1024, 1048576], seconds: [1.0e-5, 2.0e-5]}
  - {collective: all_reduce, ranks: 8, bytes: [1024, 1048576], seconds: [1.6e-5, 3.2e-5]}
  - {collective: all_reduce, ranks: 16, domains: 2, bytes: [1024, 1048576], seconds: [4.0e-5, 8.0e-5]}
  - {collective: all_reduce, ranks: 64, domains: 8, bytes: [1024, 1048576], seconds: [9.0e-5, 1.8e-4]}
"""


def curves_of(tmp_path: Path, text: str = FILE) -> CollectiveCurves:
    path = tmp_path / "curves.yaml"
    path.write_text(text, encoding="utf-8")
    return load_curves(path)


def model_of(tmp_path: Path) -> CollectiveModel:
    return CollectiveModel(system("dgx-h100", nodes=16), curves=curves_of(tmp_path))


def test_between_neighbours_a_curve_is_straight_in_log_log() -> None:
    """1 KiB 10 us, 4 KiB 20 us: 2 KiB takes sqrt(200) us; measured points come back."""
    curve = Curve((KIB, 4 * KIB), (10e-6, 20e-6))
    assert float(curve.seconds(2 * KIB)) == pytest.approx(200**0.5 * 1e-6)
    assert curve.seconds(np.array([KIB, 4 * KIB])) == pytest.approx([10e-6, 20e-6])
    assert curve.switches == ()


def test_outside_the_measured_sizes_it_is_linear_in_bytes() -> None:
    """Slope 10 us over 3 KiB on both sides; latency stays for no bytes."""
    curve = Curve((KIB, 4 * KIB), (10e-6, 20e-6))
    assert float(curve.seconds(7 * KIB)) == pytest.approx(30e-6)
    assert float(curve.seconds(0.0)) == pytest.approx(10e-6 - 10e-6 / 3)
    single = Curve((KIB,), (10e-6,))
    assert single.seconds(np.array([0, KIB, 3 * KIB])) == pytest.approx([10e-6, 10e-6, 30e-6])


def test_a_switch_is_a_step_in_the_middle_and_not_a_slope() -> None:
    """1, 1.1 us, then 8, 8.8 us: time grows 7 times for twice the bytes, so the algorithm changed."""
    sizes, times = (1.0, 2.0, 4.0, 8.0), (1.0, 1.1, 8.0, 8.8)
    curve = Curve(sizes, times)
    middle = 8**0.5
    assert curve.switches == pytest.approx((middle,))
    left, right = curve.seconds(np.array([middle * 0.999, middle * 1.001]))
    assert left < 1.2  # the left line goes on
    assert right > 7.5  # the right line reaches back
    assert Curve(sizes, times, switch_jump=10.0).switches == ()


def test_what_falls_with_size_is_pooled() -> None:
    """23 us at 512 B and 13.7 at 1 KiB (MI300X): both become their geometric mean."""
    curve = Curve((512.0, KIB, 4 * KIB), (23e-6, 13.7e-6, 30e-6))
    assert curve.seconds(np.array([512.0, KIB])) == pytest.approx([(23 * 13.7) ** 0.5 * 1e-6] * 2)


@given(
    points=st.dictionaries(st.floats(1, 1e10), st.floats(1e-7, 10), min_size=1, max_size=40),
    size=st.floats(0, 1e12),
    factor=st.floats(1, 100),
)
@settings(max_examples=200, deadline=None)
def test_a_curve_never_falls(points: dict[float, float], size: float, factor: float) -> None:
    """Whatever was measured, more bytes are not faster, and times are finite and positive."""
    sizes = tuple(sorted(points))
    curve = Curve(sizes, tuple(points[s] for s in sizes))
    less, more = (float(curve.seconds(s)) for s in (size, size * factor))
    assert 0 <= less <= more * (1 + 1e-9)
    assert np.isfinite(more)


def test_leave_one_out_on_a_measured_sweep() -> None:
    """DGX-like sweep t = 16.7 us + S/280 GB/s + 9.2 ns sqrt(S) [communication of NCCL]: middle points within 5 %."""
    sizes = 2.0 ** np.arange(10, 33)
    times = 16.7e-6 + sizes / 280e9 + 9.2e-9 * np.sqrt(sizes)
    for i in range(1, len(sizes) - 1):
        keep = np.arange(len(sizes)) != i
        curve = Curve(tuple(sizes[keep]), tuple(times[keep]))
        assert float(curve.seconds(sizes[i])) == pytest.approx(times[i], rel=0.05)


def test_a_measured_group_is_read_and_said(tmp_path: Path) -> None:
    """The time is the file's, and the answer and the provenance name it."""
    model = model_of(tmp_path)
    assert model.seconds("all_reduce", MIB, NODE) == pytest.approx(3.2e-5)
    assert model.answer("all_reduce", MIB, NODE).basis == "measured on 8 ranks in one domain"
    assert model.answer("all_reduce", 2 * MIB, NODE).basis.endswith("beyond the measured sizes")
    constant = {c.name: c for c in model.provenance()}["calibration.all_reduce.8x1.points"]
    assert (constant.value, constant.status, constant.as_of) == (2, Status.CALIBRATED, "2026-11-21")
    assert "nccl-tests on our nodes (ours)" in constant.source


def test_group_sizes_between_are_interpolated_and_say_so(tmp_path: Path) -> None:
    """4 ranks are half way from 2 to 8 in log; 4 nodes two thirds... half way from 2 to 8 nodes."""
    model = model_of(tmp_path)
    four = GroupShape(4, 4, 1)
    assert model.seconds("all_reduce", MIB, four) == pytest.approx((2e-5 * 3.2e-5) ** 0.5)
    assert model.answer("all_reduce", MIB, four).basis == "interpolated between 2 and 8 ranks"
    nodes = GroupShape(32, 8, 4)
    assert model.seconds("all_reduce", MIB, nodes) == pytest.approx((8e-5 * 1.8e-4) ** 0.5)
    assert model.answer("all_reduce", MIB, nodes).basis == "interpolated between 16 and 64 ranks"
    constants = {c.name: c.status for c in model.provenance()}
    assert constants["calibration.all_reduce.32x4.points"] is Status.FAMILY_DEFAULT


def test_where_nobody_measured_near_the_model_answers(tmp_path: Path) -> None:
    """Other collectives, larger groups, and groups that fill domains differently."""
    model, plain = model_of(tmp_path), CollectiveModel(system("dgx-h100", nodes=16))
    for kind, group in (
        ("all_gather", NODE),
        ("all_reduce", GroupShape(128, 8, 16)),
        ("all_reduce", GroupShape(4, 1, 4)),
    ):
        assert model.seconds(kind, MIB, group) == plain.seconds(kind, MIB, group)
        assert model.answer(kind, MIB, group).basis == "model"
    assert model.seconds("all_reduce", MIB, GroupShape(1, 1, 1)) == 0


def test_a_measurement_faster_than_the_links_does_not_beat_the_floor(tmp_path: Path) -> None:
    """1 GiB in 33 ms is fine, in 1 us it is not."""
    model = model_of(tmp_path)
    sizes = np.array([1e3, 1e6, 1e12])
    assert np.all(
        model.seconds("all_reduce", sizes, NODE) >= model.floor("all_reduce", sizes, NODE)
    )


def test_json_is_read_too(tmp_path: Path) -> None:
    """A calibration written by a program."""
    path = tmp_path / "curves.json"
    entry = {"collective": "barrier", "ranks": 8, "bytes": [1], "seconds": [1e-5]}
    data = {"schema": 1, "name": "a", "source": "b", "as_of": "2026-11", "curves": [entry]}
    path.write_text(json.dumps(data), encoding="utf-8")
    assert load_curves(path).curves[("barrier", 8, 1)].times == (1e-5,)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("schema: 1", "schema: 2", "curves.yaml:1:1 schema: got 2; this version reads schema 1"),
        ("name: ours", "nmae: ours", "did you mean 'name'"),
        ("as_of: 2026-11-21", "as_of: lately", "needed a date"),
        ("ranks: 2,", "ranks: 1,", "curves.0.ranks: got 1; needed 2 or more"),
        ("all_reduce, ranks: 2", "allreduce, ranks: 2", "did you mean 'all_reduce'"),
        (
            "[1024, 1048576], seconds: [1.0e-5",
            "[1024], seconds: [1.0e-5",
            "got 1 sizes and 2 times",
        ),
        ("[1024, 1048576], seconds: [1.0e-5", "[9, 9], seconds: [1.0e-5", "sizes have to rise"),
        ("seconds: [1.0e-5", "seconds: [-1.0", "finite numbers above 0"),
        ("seconds: [1.0e-5", "seconds: [10 us", "needed a list of plain numbers"),
        ("ranks: 2,", "ranks: 8,", "was given before"),
        ("ranks: 16, domains: 2", "ranks: 16, domains: 3", "do not fill 3 domains"),
        ("curves:", "curves: 3 #", "needed a list of one curve"),
    ],
)
def test_a_mistake_in_a_file_is_told_with_its_place(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    """Strict: what cannot be meant is not guessed."""
    text = FILE.replace(old, new, 1)
    if new.endswith("#"):
        text = text[: text.index("\n  - ")] + "\n"
    with pytest.raises(CalibrationError) as error:
        curves_of(tmp_path, text)
    assert message in str(error.value)


def test_a_missing_file_says_so(tmp_path: Path) -> None:
    """No traceback of the operating system."""
    with pytest.raises(CalibrationError, match="cannot be read"):
        load_curves(tmp_path / "none.yaml")


def test_curves_of_another_library_or_accelerator_are_refused(tmp_path: Path) -> None:
    """Times of NCCL are not gloo's."""
    cluster = system("dgx-h100", nodes=2)
    with pytest.raises(CalibrationError, match="measured with library nccl, but gloo"):
        CollectiveModel(cluster, library="gloo", curves=curves_of(tmp_path))
    other = curves_of(tmp_path, FILE.replace("library: nccl", "accelerator: a100-sxm-80"))
    with pytest.raises(CalibrationError, match="accelerator a100-sxm-80, but h100-sxm"):
        CollectiveModel(cluster, curves=other)


def test_the_file_of_the_reference_page_can_be_read(tmp_path: Path) -> None:
    """docs/reference/calibration.md, as printed."""
    page = Path(__file__).parents[3] / "docs" / "reference" / "calibration.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    text = "\n".join(line[4:] for line in lines if line.startswith("    "))
    assert set(curves_of(tmp_path, text).curves) == {("all_reduce", 8, 1), ("all_reduce", 16, 2)}


@pytest.mark.parametrize(("fused", "curves"), [(True, {"activation"}), (False, {"gate"})])
def test_experts_read_the_measured_curves_of_a_plain_mlp(fused: bool, curves: set[str]) -> None:
    """An activation is the same kernel in routed and in shared experts; its curve hangs on what it computes, not on where."""
    layer = expand_layer(
        model("deepseek-v2"),
        Lowering(fused_bias_activation=fused),
        sequences=1,
        sequence_length=512,
        kind="moe",
    )
    between = [
        operator
        for operator in layer.forward
        if operator.name.startswith(("experts_", "shared_")) and not operator.flops
    ]
    read = {kernel_class(operator) for operator in between if operator.name != "shared_add"}
    assert len(between) >= 3
    assert read == curves
