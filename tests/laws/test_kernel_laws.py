"""Laws of kernels in every format and at both clocks, on shapes drawn at random."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.cost import KernelModel
from mpsim.cost.quantise import FORMATS, format_bytes, quantise_seconds
from mpsim.hardware.lookup import accelerator
from mpsim.workload import (
    Operator,
    OperatorKind,
    Phase,
    Role,
    Split,
    make_attention,
    make_elementwise,
    make_gemm,
)
from tests.nightly import examples

CHIPS = ("a100-sxm-80", "h100-sxm", "b200-sxm", "l40s", "mi300x", "v100-sxm2-32", "tpu-v5p")
NARROW = [("h100-sxm", "fp8"), ("h100-sxm", "fp8_block"), ("b200-sxm", "nvfp4"), ("l40s", "fp8")]
sizes = st.integers(1, 20_000)


def product(m: int, n: int, k: int, batch: int = 1, element: float = 2.0) -> Operator:
    shape = {"m": m, "n": n, "k": k, "batch": batch}
    return make_gemm(Role.UP, Phase.FORWARD, element_bytes=element, result_bytes=2.0, **shape)


def attend(kernel: str, sequence: int, heads: int, phase: Phase, window: int = 0) -> Operator:
    return make_attention(
        phase,
        sequences=1,
        queries=sequence,
        keys=sequence,
        heads=heads,
        head_dim=128,
        window=window,
        name=kernel,
    )


def half(chip: str) -> str:
    return "bf16" if "bf16" in accelerator(chip).peak_flops else "fp16"


@given(
    chip=st.sampled_from(CHIPS),
    shape=st.tuples(sizes, sizes, sizes),
    axis=st.integers(0, 2),
    more=sizes,
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_a_larger_product_is_never_faster_in_a_burst(
    chip: str, shape: tuple[int, int, int], axis: int, more: int
) -> None:
    """Monotone in m, n and k where tiles and waves count too."""
    larger = list(shape)
    larger[axis] += more
    model = KernelModel(accelerator(chip), half(chip), clocks="burst")
    small, large = model.seconds([product(*shape), product(*larger)])
    assert large >= small * (1 - 1e-12)


@given(
    case=st.sampled_from(NARROW),
    shape=st.tuples(sizes, sizes, sizes),
    clocks=st.sampled_from(("burst", "sustained")),
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_no_narrow_product_beats_its_peak_or_the_memory(
    case: tuple[str, str], shape: tuple[int, int, int], clocks: str
) -> None:
    """time >= FLOPs / peak of the format and >= bytes / bandwidth; the cast no faster than its bytes."""
    board, narrow = accelerator(case[0]), case[1]
    work = product(*shape, element=format_bytes(narrow))
    model = KernelModel(board, narrow, clocks=clocks)
    time = model.seconds([work])[0]
    assert time >= 2.0 * shape[0] * shape[1] * shape[2] / board.peak(FORMATS[narrow])
    assert time >= work.bytes / board.memory_bandwidth
    elements = float(shape[0]) * shape[2]
    least = elements * (2.0 + format_bytes(narrow)) / board.memory_bandwidth
    assert float(model.quantisation_seconds(elements)) >= least


@given(
    chip=st.sampled_from(CHIPS),
    shape=st.tuples(sizes, sizes, sizes),
    faster=st.floats(1.0, 8.0),
    what=st.sampled_from(("memory_bandwidth", "peak_flops")),
    clocks=st.sampled_from(("burst", "sustained")),
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_a_faster_board_is_never_slower(
    chip: str, shape: tuple[int, int, int], faster: float, what: str, clocks: str
) -> None:
    """Monotone in the memory's rate and in the peak, for products, attention and memory-bound kernels."""
    board, precision = accelerator(chip), half(chip)
    better = (
        {"memory_bandwidth": board.memory_bandwidth * faster}
        if what == "memory_bandwidth"
        else {"peak_flops": {key: rate * faster for key, rate in board.peak_flops.items()}}
    )
    work = [
        product(*shape),
        attend("attention", shape[0], 8, Phase.INPUT_GRADIENT),
        make_elementwise(
            Role.NORM, Phase.FORWARD, moved=float(shape[1]) ** 2, kind=OperatorKind.NORM
        ),
    ]
    plain, quick = (
        KernelModel(one, precision, clocks=clocks).seconds(work)
        for one in (board, dataclasses.replace(board, **better))
    )
    assert (quick <= plain * (1 + 1e-12)).all()


@given(
    chip=st.sampled_from(("a100-sxm-80", "h100-sxm", "b200-sxm")),
    kernel=st.sampled_from(("flash2", "flash3", "cudnn", "trtllm", "te")),
    sequence=st.integers(1, 100_000),
    heads=st.integers(1, 64),
    more=st.integers(1, 1000),
    phase=st.sampled_from((Phase.FORWARD, Phase.INPUT_GRADIENT)),
    few=st.booleans(),
)
@settings(max_examples=examples(20, 50), deadline=None)
def test_attention_in_a_burst_is_bounded_by_the_peak_and_grows(
    chip: str, kernel: str, sequence: int, heads: int, more: int, phase: Phase, few: bool
) -> None:
    """At least the FLOPs over the peak; longer sequences and more heads take longer; a window never."""
    board = accelerator(chip)
    model = KernelModel(board, "bf16", attention_kernel=kernel, clocks="burst", few_heads=few)
    here, longer, wider, windowed = model.seconds(
        [
            attend(kernel, sequence, heads, phase),
            attend(kernel, sequence + more, heads, phase),
            attend(kernel, sequence, heads + more, phase),
            attend(kernel, sequence, heads, phase, window=1 + sequence // 3),
        ]
    )
    passes = 1.0 if phase is Phase.FORWARD else 2.5
    assert here >= passes * 4.0 * heads * sequence**2 * 128 / 2 / board.peak("bf16")
    assert min(longer, wider) >= here * (1 - 1e-12)
    assert windowed <= here * (1 + 1e-12)


@given(
    narrow=st.sampled_from(sorted(FORMATS)), elements=st.floats(0, 1e12), more=st.floats(0, 1e12)
)
@settings(max_examples=examples(12, 30), deadline=None)
def test_casting_more_is_never_faster_and_more_bandwidth_never_slower(
    narrow: str, elements: float, more: float
) -> None:
    """Monotone in elements and in the memory's rate."""
    here = float(quantise_seconds(elements, narrow, 3e12))
    assert float(quantise_seconds(elements + more, narrow, 3e12)) >= here
    assert float(quantise_seconds(elements, narrow, 8e12)) <= here


@pytest.mark.parametrize("chip", CHIPS)
def test_a_burst_is_never_slower_than_training_for_large_products(chip: str) -> None:
    """Cool clocks reach more: 8192 cubed."""
    burst, hot = (
        KernelModel(accelerator(chip), half(chip), clocks=clocks).seconds(
            [product(8192, 8192, 8192)]
        )
        for clocks in ("burst", "sustained")
    )
    assert burst[0] <= hot[0]


@pytest.mark.parametrize("chip", CHIPS)
@pytest.mark.parametrize("phase", [Phase.FORWARD, Phase.WEIGHT_GRADIENT])
def test_an_expert_with_more_tokens_is_never_faster(chip: str, phase: Phase) -> None:
    """A kernel of its own fills tiles with few rows; 4 tokens took up to 20 times as long as 256."""
    model = KernelModel(accelerator(chip), half(chip))
    tokens = [1, 4, 32, 100, 128, 256, 512, 1000, 4000, 16_000]
    products = [
        make_gemm(Role.UP, phase, m=m, n=4096, k=k, split=Split.EXPERT)
        for m, k in ((7168, t) if phase is Phase.WEIGHT_GRADIENT else (t, 7168) for t in tokens)
    ]
    times = model.seconds(products)
    assert (times[1:] >= times[:-1] * (1 - 1e-3)).all()
    assert times[1] <= 1.01 * times[5]
