"""One kernel or one collective: its time beside its floor, with the constants these rest on."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from mpsim import structs
from mpsim.cost.collectives import CollectiveModel
from mpsim.cost.constants import Constant, choose_group, constant_groups
from mpsim.cost.formulas import UPDATES, attention_pairs, update_seconds
from mpsim.cost.kernels import KernelModel
from mpsim.cost.network import ring_passes
from mpsim.cost.quantise import FORMATS, casting, format_bytes, launch_seconds
from mpsim.errors import HardwareError, WorkloadError, nearest
from mpsim.framework import framework
from mpsim.hardware import Accelerator, Cluster, accelerator
from mpsim.parallel import GroupShape
from mpsim.units import Dimension, format_quantity, parse_quantity
from mpsim.workload import (
    Lowering,
    Operator,
    OperatorKind,
    Phase,
    Role,
    Split,
    attention_flops,
    make_attention,
    make_elementwise,
    make_gemm,
)
from mpsim.workload.builders import BACKWARD_ATTENTION, PASSES, streaming

FORMS: Mapping[str, tuple[str, ...]] = {
    "gemm": ("M", "N", "K"),
    "grouped": ("EXPERTS", "M", "N", "K"),
    "attention": ("SEQUENCES", "TOKENS", "HEADS", "HEAD_DIM"),
    **dict.fromkeys(PASSES, ("ROWS", "COLUMNS")),
    "embedding": ("TOKENS", "HIDDEN"),
    "cross_entropy": ("TOKENS", "VOCABULARY"),
    "quantise": ("ROWS", "COLUMNS"),
    "adam": ("PARAMETERS",),
    "bytes": ("'1 GiB'",),
}
"""Kernels with sizes; a batch may follow those of a gemm, a grouped one has mean tokens as M."""

UNFUSED = "unfused"
"""Attention with kernels of its own for scores, softmax and context, in place of a fused one."""

_PRODUCT = {"forward": Phase.FORWARD, "dgrad": Phase.INPUT_GRADIENT, "wgrad": Phase.WEIGHT_GRADIENT}
_WHOLE = {"forward": Phase.FORWARD, "backward": Phase.INPUT_GRADIENT}
_DIRECTIONS: Mapping[str, Mapping[str, Phase]] = {
    "gemm": _PRODUCT,
    "grouped": _PRODUCT,
    "attention": _WHOLE,
    **dict.fromkeys(PASSES, _WHOLE),
}
_ONCE = {"forward": Phase.FORWARD}


@structs.dataclass(frozen=True, slots=True)
class KernelQuestion:
    """A kernel by name, size and options."""

    name: str  # one of `FORMS`
    size: str  # sizes of `FORMS` joined by ``x``; of ``bytes`` a quantity
    # ``forward``; ``dgrad`` or ``wgrad`` of products; ``backward`` of attention and passes over
    # memory
    direction: str = "forward"
    attention_kernel: str = "flash2"  # name of a fused one, or `UNFUSED`
    # kv_heads, value_dim, window: of attention: heads of keys and values, width of a value's head,
    # keys that a query sees
    kv_heads: int | None = None
    value_dim: int | None = None
    window: int | None = None
    full: bool = False  # whether attention has no causal mask

    def __post_init__(self) -> None:
        if self.name not in FORMS:
            raise WorkloadError(f"got kernel {self.name[:60]!r}; {nearest(self.name, FORMS)}")
        known = _DIRECTIONS.get(self.name, _ONCE)
        if self.direction not in known:
            raise WorkloadError(f"got {self.direction!r}; {self.name} runs {', '.join(known)}")
        options = (self.kv_heads, self.value_dim, self.window)
        if self.name != "attention" and (self.full or any(options)):
            raise WorkloadError(
                f"got heads, a window or a mask for {self.name}; they are of attention"
            )

    @property
    def phase(self) -> Phase:
        """Phase that the direction is."""
        return _DIRECTIONS.get(self.name, _ONCE)[self.direction]

    @property
    def sizes(self) -> list[int]:
        """Whole numbers of 1 or more."""
        parts = self.size.split("x")
        sizes = [int(part) for part in parts if re.fullmatch(r"[1-9]\d{0,12}", part)]
        more = len(sizes) - len(FORMS[self.name])
        if len(sizes) != len(parts) or more not in (0, self.name == "gemm"):
            raise WorkloadError(
                f"got {self.name} of {self.size[:60]!r}; needed whole numbers of 1 or more as"
                f" {form_of(self.name)}"
            )
        return sizes

    def operators(self, precision: str, chip: Accelerator) -> tuple[Operator, ...]:
        """The kernels one after the other; none of `adam`, which updates in place."""
        if self.name == "adam":
            return ()
        if self.name in ("gemm", "grouped"):
            return (self._product(_element_bytes(precision)),)
        if self.name == "attention":
            return self._unfused() if self.attention_kernel == UNFUSED else (self._attention(),)
        if self.name == "bytes":
            moved = parse_quantity(self.size, Dimension.BYTES)
            return (_moving(OperatorKind.ELEMENTWISE, moved),)
        rows, columns = self.sizes
        if self.name in PASSES:
            step = streaming(self.name, Split.NONE, elements=rows * columns, lowering=Lowering())
            return (step.forward if self.phase is Phase.FORWARD else step.backward[0],)
        if self.name == "quantise":
            cast = casting(precision, chip)
            if cast is None:
                raise WorkloadError(
                    f"got quantise in {precision}, which casts nothing; add --precision fp8"
                )
            return (_moving(OperatorKind.QUANTISE, cast.moved_bytes(float(rows * columns), 2.0)),)
        # a lookup reads and writes a row a token; a loss passes over the logits
        each, kind = {
            "embedding": (2.0 * Lowering().activation_bytes, OperatorKind.EMBEDDING),
            "cross_entropy": (Lowering().loss_bytes_per_logit / 2, OperatorKind.LOSS),
        }[self.name]
        return (_moving(kind, each * rows * columns),)

    def _product(self, element: float) -> Operator:
        """A product; in `Phase.WEIGHT_GRADIENT` it adds into a float32 buffer."""
        *batch, m, n, k = self.sizes
        grouped = self.name == "grouped"
        return make_gemm(
            Role.KERNEL,
            self.phase,
            m=m,
            n=n,
            k=k,
            batch=(batch or [1])[0],
            element_bytes=element,
            result_bytes=max(2.0, element),
            accumulate_bytes=4 if self.phase is Phase.WEIGHT_GRADIENT else 0,
            kind=OperatorKind.GROUPED_GEMM if grouped else OperatorKind.GEMM,
        )

    def _attention(self) -> Operator:
        """Fused attention with the FLOPs of the pairs worked on, not of all pairs."""
        sequences, tokens, heads, width = self.sizes
        kv_heads = self.kv_heads or heads
        if heads % kv_heads:
            raise WorkloadError(f"got {kv_heads} kv heads for {heads} heads; needed a divisor")
        o = make_attention(
            self.phase,
            sequences=sequences,
            queries=tokens,
            keys=tokens,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=width,
            head_dim_v=self.value_dim or width,
            causal=not self.full,
            window=self.window or 0,
            statistics=False,
            name=self.name,
        )
        pairs = float(attention_pairs(o.queries, o.keys, causal=o.causal, window=o.window))
        flops = attention_flops(o.sequences * o.heads * pairs, o.head_dim, o.head_dim_v)
        times = 1.0 if o.phase is Phase.FORWARD else BACKWARD_ATTENTION
        return structs.replace(o, flops=flops * times)

    def _unfused(self) -> tuple[Operator, ...]:
        """Scores, softmax and context as kernels of their own, or their backward; every pair."""
        sequences, tokens, heads, width = self.sizes
        batch, phase = sequences * heads, self.phase
        shapes = [(tokens, tokens, width), (tokens, width, tokens)]
        products = (
            make_gemm(Role.SCORES, phase, m=m, n=n, k=k, batch=batch, split=Split.TENSOR)
            for m, n, k in (shapes if phase is Phase.FORWARD else shapes * 2)
        )
        elements = batch * tokens * tokens
        softmax = streaming("softmax", Split.TENSOR, elements=elements, lowering=Lowering())
        pointwise = softmax.forward if phase is Phase.FORWARD else softmax.backward[0]
        return (*products, pointwise)


def form_of(name: str) -> str:
    """How a question about a kernel is written."""
    return f"{name}={'x'.join(FORMS[name])}"


def _element_bytes(precision: str) -> float:
    narrow = "nvfp4" if precision == "fp4" else precision
    if narrow in FORMATS:
        return format_bytes(narrow)
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def _moving(kind: OperatorKind, moved: float) -> Operator:
    return make_elementwise(Role.KERNEL, Phase.FORWARD, moved=moved, kind=kind)


_LAUNCHES = ("eager", "compiled", "graph")
_DIMENSIONS: Mapping[str, Dimension] = {
    "time_s": Dimension.TIME,
    "floor_s": Dimension.TIME,
    **{f"launch_{kind}_s": Dimension.TIME for kind in _LAUNCHES},
    "flops_per_s": Dimension.FLOP_RATE,
    "bytes_per_s": Dimension.BANDWIDTH,
    "algbw_bytes_per_s": Dimension.BANDWIDTH,
    "busbw_bytes_per_s": Dimension.BANDWIDTH,
    "bytes": Dimension.BYTES,
}
Answer = tuple[dict[str, object], tuple[Constant, ...]]
"""Figures by name, and every constant that they rest on."""


def figure_text(name: str, value: object) -> str:
    """A figure of an answer with its unit."""
    if name in _DIMENSIONS and isinstance(value, float):
        return format_quantity(value, _DIMENSIONS[name])
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def answer_kernel(
    question: KernelQuestion, chip: Accelerator, *, precision: str, clocks: str
) -> Answer:
    """Time of a kernel beside its floor, and what a launch adds.

    `precision` and `clocks`: as for `mpsim.cost.KernelModel`. WorkloadError if a size is not of the
    kernel's form, or the precision has no such kernel.
    """
    fused = "flash2" if question.attention_kernel == UNFUSED else question.attention_kernel
    model = KernelModel(chip, precision, attention_kernel=fused, clocks=clocks)
    operators = question.operators(precision, chip)
    moved = sum(operator.bytes for operator in operators)
    time = float(model.seconds(operators).sum())
    if not operators:
        moved = framework("megatron-core").optimizer.optimizer_traffic * float(question.sizes[0])
        time = update_seconds(moved, chip.memory_bandwidth, chip.calibration)
    flops = sum(operator.flops for operator in operators)
    figures: dict[str, object] = {
        "accelerator": chip.name,
        "kernel": f"{question.name}={question.size}",
        "precision": precision,
        "clocks": clocks,
        "time_s": time,
        **_rates(flops, moved, time, chip.peak(precision), chip.memory_bandwidth),
        **{f"launch_{kind}_s": launch_seconds(kind, chip) for kind in _LAUNCHES},
    }
    updates = constant_groups("kernels")[UPDATES].values()
    return figures, (*model.provenance(), *(() if operators else updates))


def _rates(
    flops: float, moved: float, time: float, peak: float, bandwidth: float
) -> dict[str, float]:
    """The floor of the roofline, and what was reached of compute or of memory."""
    floor = {"floor_s": max(flops / peak, moved / bandwidth)}
    if flops:
        return floor | {"flops_per_s": flops / time, "fraction_of_peak": flops / time / peak}
    return floor | {"bytes_per_s": moved / time, "fraction_of_bandwidth": moved / time / bandwidth}


def answer_collective(
    model: CollectiveModel, kind: str, size: float, *, group: GroupShape, loaded: bool, system: str
) -> Answer:
    """Time of a collective of `size` bytes on a system beside its floor, and its algorithm."""
    answer = model.answer(kind, size, group)
    rate = size / answer.seconds if answer.seconds else 0.0
    return {
        "system": f"{model.cluster.nodes} x {system}",
        "collective": kind,
        "bytes": size,
        "ranks": group.ranks,
        "network": "loaded" if loaded else "quiet",
        "time_s": answer.seconds,
        "floor_s": answer.floor,
        "algbw_bytes_per_s": rate,
        "busbw_bytes_per_s": rate * ring_passes(kind, group.ranks),
        **structs.named(answer, "library", "algorithm", "protocol", "basis"),
    }, model.provenance()


class MeasuredFigure(NamedTuple):
    """A figure of a machine file beside what counts without it, each as text."""

    name: str
    measured: str
    interval: str = ""
    shipped: str = ""
    unit: str = ""


def measured_figures(cluster: Cluster) -> Iterator[MeasuredFigure]:
    """Every figure of a machine file. `cluster`: of a machine file."""
    measured = cluster.calibration
    assert measured is not None
    chip, sheet = cluster.accelerator, str(measured.document.get("datasheet", ""))
    other = accelerator(sheet) if sheet else None
    for precision, peak in chip.peak_flops.items():
        known = other.peak_flops.get(precision) if other else None
        text = "" if known is None else format_quantity(known, Dimension.FLOP_RATE)
        rate = format_quantity(peak, Dimension.FLOP_RATE)
        yield MeasuredFigure(f"peak, {precision}", rate, shipped=text)
    rate = format_quantity(chip.memory_bandwidth, Dimension.BANDWIDTH)
    text = format_quantity(other.memory_bandwidth, Dimension.BANDWIDTH) if other else ""
    yield MeasuredFigure("memory", rate, shipped=text)
    joined = format_quantity(cluster.node.scale_up.bandwidth, Dimension.BANDWIDTH)
    yield MeasuredFigure("link inside a node", joined)
    for name, constant in sorted(measured.constants.items()):
        shipped = _shipped(name, other.name if other else chip.name, chip.family)
        span = "" if constant.low == constant.high else f"{constant.low:.3g} to {constant.high:.3g}"
        known_text = "" if shipped is None else f"{shipped:.5g}"
        yield MeasuredFigure(name, f"{constant.value:.5g}", span, known_text, constant.unit)
    for field, value in measured.framework.items():
        yield MeasuredFigure(f"framework.{field}", str(value))
    for curve in (*measured.kernels, *measured.collectives):
        what = curve.phase or f"{curve.ranks} ranks"
        yield MeasuredFigure(f"curve of {curve.kind}, {what}", f"{len(curve.sizes)} points")


def _shipped(name: str, chip: str, family: str) -> float | None:
    """The constant that counts without a calibration; None where there is none."""
    stem, _, rest = name.partition(".")
    prefix, _, leaf = rest.rpartition(".")
    groups = constant_groups(stem)
    try:
        group = groups[prefix] if prefix in groups else choose_group(stem, prefix, chip, family)
    except HardwareError:
        return None
    return group.value(leaf) if leaf in group else None
