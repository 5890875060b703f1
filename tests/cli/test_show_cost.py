"""``mpsim show kernel`` and ``mpsim show collective``: one question, one answer."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    "shape", ["gemm=4096x4096x4096", "gemm=8x512x512x128", "attention=2x4096x32x128"]
)
def test_a_kernel_takes_longer_than_its_floor(mpsim_cli, shape: str) -> None:
    """FLOP/s times time is the FLOPs of the shape, and the floor is below."""
    shown = mpsim_cli("show", "kernel", shape, "--on", "h100-sxm", "--json").json()
    assert 0 < shown["floor_s"] < shown["time_s"]
    assert 0 < shown["fraction_of_peak"] < 1
    assert any(one["name"].startswith("kernels.") for one in shown["constants"])


def test_gemm_flops_by_hand(mpsim_cli) -> None:
    """2 x 4096^3 = 137.4 GFLOP; a benchmark is faster than training."""
    times = {}
    for burst in ((), ("--burst",)):
        command = ("show", "kernel", "gemm=4096x4096x4096", "--on", "h100-sxm", "--json", *burst)
        shown = mpsim_cli(*command).json()
        assert shown["flops_per_s"] * shown["time_s"] == pytest.approx(2 * 4096**3)
        times[shown["clocks"]] = shown["time_s"]
    assert times["burst"] < times["sustained"]


def test_a_collective_by_hand(mpsim_cli) -> None:
    """All-reduce over 16 ranks: busbw = algbw x 2 x 15/16; two DGX nodes; an algorithm is named."""
    command = ("show", "collective", "all_reduce=256 MiB", "--on", "dgx-h100", "--ranks", "16")
    shown = mpsim_cli(*command, "--json").json()
    assert shown["system"] == "2 x dgx-h100"
    assert shown["algbw_bytes_per_s"] * shown["time_s"] == pytest.approx(2**28)
    assert shown["busbw_bytes_per_s"] == pytest.approx(shown["algbw_bytes_per_s"] * 2 * 15 / 16)
    assert shown["algorithm"]
    assert "busbw" in mpsim_cli(*command).out


@pytest.mark.parametrize(
    "arguments",
    [
        ("kernel",),
        ("kernel", "gemm=4096x4096", "--on", "h100-sxm"),
        ("kernel", "gemm=0x1x1", "--on", "h100-sxm"),
        ("kernel", "convolution=1x1x1", "--on", "h100-sxm"),
        ("kernel", "gemm=64x64x64"),
        ("kernel", "gemm=64x64x64", "--on", "h900"),
        ("kernel", "bytes=1", "--on", "h100-sxm"),
        ("collective", "all_reduce=1 GiB", "--on", "dgx-h100", "--ranks", "12"),
        ("collective", "all_reduc=1 GiB", "--on", "dgx-h100"),
    ],
)
def test_a_question_that_cannot_be_answered_is_bad_input(mpsim_cli, arguments) -> None:
    """Exit code 2, nothing on stdout, no traceback."""
    outcome = mpsim_cli("show", *arguments)
    assert (outcome.code, outcome.out) == (2, "")
    assert "internal error" not in outcome.err


def test_a_collective_of_another_library(mpsim_cli) -> None:
    """gloo's ring instead of NCCL's choice, and it says so."""
    command = ("show", "collective", "reduce_scatter=64 MiB", "--on", "dgx-h100", "--json")
    shown = mpsim_cli(*command, "--library", "gloo").json()
    plain = mpsim_cli(*command).json()
    assert (plain["library"], shown["library"]) == ("nccl", "gloo")
    assert shown["algorithm"] == "all_reduce_slice"
    assert shown["time_s"] > plain["time_s"]
    assert any(one["name"].startswith("libraries.host.gloo.") for one in shown["constants"])


def test_a_collective_from_a_calibration(mpsim_cli, tmp_path) -> None:
    """The measured time counts, and the answer says what was measured."""
    path = tmp_path / "curves.yaml"
    path.write_text(
        "schema: 1\nname: ours\nsource: us\nas_of: 2026-11-21\ncurves:\n"
        "  - {collective: all_reduce, ranks: 8, bytes: [1048576], seconds: [1.0e-4]}\n",
        encoding="utf-8",
    )
    command = ("show", "collective", "all_reduce=1 MiB", "--on", "dgx-h100")
    shown = mpsim_cli(*command, "--calibration", str(path), "--json").json()
    assert shown["time_s"] == pytest.approx(1e-4)
    assert shown["basis"] == "measured on 8 ranks in one domain"
    path.write_text("schema: 1\n", encoding="utf-8")
    outcome = mpsim_cli(*command, "--calibration", str(path))
    assert (outcome.code, outcome.out) == (2, "")
    assert "needed schema, name, source, as_of and curves" in outcome.err


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        ("gemm=4096x4096x4096 --pass dgrad", "bf16"),
        ("gemm=4096x4096x4096 --pass wgrad", "tf32"),
        ("gemm=4096x4096x4096", "fp32"),
        ("gemm=4096x4096x4096", "fp8-block"),
        ("gemm=4096x4096x4096", "mxfp8"),
        ("gemm=4096x4096x4096", "nvfp4"),
        ("grouped=8x512x4096x2048", "fp8"),
        ("grouped=8x4096x2048x512 --pass wgrad", "bf16"),
        ("attention=1x8192x32x128 --kv-heads 8 --window 1024 --pass backward", "bf16"),
        ("attention=1x4096x128x192 --value-dim 128 --full", "bf16"),
        ("attention=1x2048x16x128 --attention unfused --pass backward", "bf16"),
        *((f"{one}=8192x4096", "bf16") for one in ("norm", "softmax", "dropout", "rotary")),
        *(
            (f"{one}=8192x4096 --pass backward", "bf16")
            for one in ("activation", "bias_dropout_add")
        ),
        ("embedding=8192x4096", "bf16"),
        ("cross_entropy=8192x128256", "bf16"),
        ("adam=1000000000", "bf16"),
        ("quantise=8192x4096", "nvfp4"),
    ],
)
def test_every_kind_of_kernel_is_answered_above_its_floor(
    mpsim_cli, shape: str, precision: str
) -> None:
    """On B200, hot and in a burst: a time, a rate below what the hardware has, constants, and three ways to launch."""
    for burst in ((), ("--burst",)):
        on = ("--on", "b200-sxm", "--precision", precision)
        command = ("show", "kernel", *shape.split(), *on, *burst)
        shown = mpsim_cli(*command, "--json").json()
        assert 0 < shown["floor_s"] < shown["time_s"]
        assert 0 < shown.get("fraction_of_peak", shown.get("fraction_of_bandwidth")) < 1
        assert shown["constants"]
        assert shown["launch_graph_s"] < shown["launch_compiled_s"] < shown["launch_eager_s"]


def test_options_change_the_kernel_as_they_say(mpsim_cli) -> None:
    """A window and a causal mask are faster than the full square, backward slower than forward, unfused slower than fused."""

    def time(*options: str) -> float:
        question = ("show", "kernel", "attention=1x8192x32x128", "--on", "h100-sxm")
        return float(mpsim_cli(*question, *options, "--json").json()["time_s"])

    assert time("--window", "1024") < time() < time("--full")
    assert time("--full") < time("--full", "--pass", "backward")
    assert time() < time("--attention", "unfused")


@pytest.mark.parametrize(
    ("shape", "precision"),
    [
        ("attention=1x4096x32x128 --kv-heads 5", "bf16"),
        ("attention=1x4096x32x128 --window 0", "bf16"),
        ("attention=1x4096x32x128 --pass sideways", "bf16"),
        ("gemm=64x64x64 --window 8", "bf16"),
        ("gemm=64x64x64", "mxfp8"),
        ("grouped=64x64x64", "bf16"),
        ("quantise=64x64", "bf16"),
        ("norm=64", "bf16"),
        ("norm=64x64 --pass wgrad", "bf16"),
    ],
)
def test_a_kernel_that_cannot_be_is_bad_input(mpsim_cli, shape: str, precision: str) -> None:
    """Exit code 2 and no traceback; H100 has no mxfp8."""
    on = ("--on", "h100-sxm", "--precision", precision)
    outcome = mpsim_cli("show", "kernel", *shape.split(), *on)
    assert (outcome.code, outcome.out) == (2, "")
    assert "internal error" not in outcome.err
