"""Seconds of operators on one accelerator: kernel formulas with its constants.

Shapes: N operators, U shapes among them that were never seen before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.attention import ATTENTION_CHARTS, AttentionModel, AttentionWork
from mpsim.cost.constants import (
    Answer,
    Constant,
    ConstantGroup,
    Ledger,
    calibrated_groups,
    choose_group,
    hardware_constant,
)
from mpsim.cost.curves import kernel_class, kernel_reading
from mpsim.cost.formulas import (
    GemmConstants,
    attention_pairs,
    gemm_seconds,
    group_padding,
    memory_seconds,
    read_tiling,
    tiled_gemm_seconds,
)
from mpsim.cost.power import Board, Load
from mpsim.cost.quantise import FORMATS, casting, quantise_seconds
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.components import Accelerator
from mpsim.hardware.lookup import board_power
from mpsim.memo import Memo, remembered
from mpsim.workload.builders import attention_flops
from mpsim.workload.casts import with_casts
from mpsim.workload.expansion import Expansion
from mpsim.workload.operators import Operator, OperatorKind, Phase, Role, Split

_SHAPES = 1 << 16  # remembered with their time
_LENGTHS = 256  # of sequences whose pairs are
_MODELS = 16  # accelerators, precisions and settings whose shapes are

CLOCKS = ("sustained", "burst")
_EAGER_KINDS = (
    OperatorKind.NORM,
    OperatorKind.SOFTMAX,
    OperatorKind.ELEMENTWISE,
    OperatorKind.GATHER,
)
_WIDE = "bf16"  # what stays unquantised when the rest is fp8 or fp4
_ROWS = "fp8_rowwise"
_TENSORS = ("fp8", _ROWS)  # without scales of blocks
_NARROW = (*_TENSORS, "fp8_block", "mxfp8", "fp4", "nvfp4")
_FP4_FORMAT = "nvfp4"
_RELATIVES = {"mxfp8": ("fp8_block", "fp8"), "fp8_block": ("fp8",), "nvfp4": ("fp8",)}
_HALF = ("bf16", "fp16")
_FILLED = np.arange(0, 4097, 64)  # rows that a product of one expert is filled up to

Shape = tuple[object, ...]
_Shapes: TypeAlias = tuple[ArrayLike, ArrayLike, ArrayLike, ArrayLike, ArrayLike]


class Work(NamedTuple):
    """FLOPs that operators really execute, seconds they would take at the dense peak of the format
    that each runs in, and seconds in which memory moves their bytes.
    """

    executed_flops: float
    peak_seconds: float
    memory_seconds: float


@remembered(_MODELS)
def _answers(*content: object) -> Memo[Shape, Answer[float]]:
    """Times of shapes that models of equal content have found [s]."""
    del content
    return Memo(_SHAPES)


class KernelModel:
    """Time of every kind of operator on one accelerator in one precision.

    Parameters
    ----------
    precision : str
        Of matrix products: bf16, fp16, tf32, fp32, or a narrow one: fp8 (a scale a tensor),
        fp8_rowwise (a scale a row), fp8_block (a scale for 128 elements), mxfp8 (a scale for 32),
        fp4 or nvfp4. Then attention and the output projection stay bf16, and casts are kernels of
        their own: operators of kind QUANTISE in training, `quantisation_seconds` in benchmarks.
    attention_kernel : str
        Generation of the fused attention kernel: one of `mpsim.cost.attention.ATTENTION_CHARTS`.
    eager_factor : float
        Time of norm, softmax and elementwise kernels over fused ones: 1.6-1.8 eager, 0.9 compiled.
    clocks : str
        ``sustained`` (training: hot, power-limited) or ``burst`` (a short benchmark).
    few_heads : bool
        Whether attention over few heads and sequences leaves processors waiting; published runs
        show no effect worth it, benchmarks do.
    narrow_head : bool
        Whether the output projection is narrow too.

    Raises
    ------
    HardwareError
        If the accelerator lacks the precision, or a setting is unknown.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        precision: str,
        *,
        attention_kernel: str = "flash2",
        eager_factor: float = 1.0,
        clocks: str = "sustained",
        few_heads: bool = False,
        narrow_head: bool = False,
    ) -> None:
        _check_choice("attention kernel", attention_kernel, ATTENTION_CHARTS)
        _check_choice("clocks", clocks, CLOCKS)
        if not eager_factor > 0:
            raise HardwareError(f"eager_factor is {eager_factor:g}, needed a number above 0")
        self.accelerator = accelerator
        self.precision = precision
        self.eager_factor = eager_factor
        self.ledger = Ledger()
        self._use, self._note = self.ledger.use, self.ledger.note
        chip = accelerator.kind, accelerator.family, accelerator.calibration
        self._rules = calibrated_groups("kernels", accelerator.calibration)
        roles = frozenset(map(Role, self._rules["gemm_precision"].words["wide_roles"]))
        self._wide_roles = roles - {Role.LOGITS} if narrow_head else roles
        self._hot = clocks == "sustained"
        self._board, self._draw = Board(accelerator, use=self._use), self._rules["hot.blackwell"]
        self._level = self._power_level(self._rules["power.h100-low"]) if self._hot else 1.0
        self._wide = _WIDE if precision in _NARROW else precision
        self._products = choose_group("kernels", "gemm", *chip)
        self._gemm = {
            kind: (self._peak(kind), self._gemm_constants(kind))
            for kind in dict.fromkeys((precision, self._wide))
        }
        self._attention = AttentionModel(
            accelerator,
            attention_kernel,
            self._wide,
            hot=self._hot,
            level=self._level,
            few_heads=few_heads,
            use=self._use,
        )
        waves = self._rules.get(f"waves.{accelerator.family}")
        self._waves = waves if waves and waves.matches(accelerator.kind) else None
        self._casting = casting(precision, accelerator, self._use)
        self._tiles = choose_group("kernels", "occupancy", *chip)
        self._bandwidth = accelerator.memory_bandwidth
        self._note(hardware_constant(accelerator, "memory_bandwidth", self._bandwidth, "B/s"))
        self._seen = _answers(
            accelerator, precision, attention_kernel, eager_factor, clocks, few_heads, narrow_head
        )
        self._evaluate: Mapping[OperatorKind, Callable[[Sequence[Operator]], Floats]] = {
            OperatorKind.GEMM: self._gemms,
            OperatorKind.GROUPED_GEMM: self._groups,
            OperatorKind.ATTENTION: self._attentions,
            OperatorKind.SCAN: self._scans,
        }

    def seconds(self, operators: Sequence[Operator]) -> Floats:
        """Time alone of each operator of one rank [s]; a shape is evaluated once by all equal
        models, and remembered with the constants that its time rests on.
        """
        shapes = [_shape(operator) for operator in operators]
        answers: dict[Shape, Answer[float]] = {}
        # operators that rest on the same constants are evaluated together
        fresh: dict[tuple[object, ...], dict[Shape, Operator]] = {}
        for shape, o in zip(shapes, operators, strict=True):
            if (answer := self._seen.get(shape)) is not None:
                answers[shape] = answer
            else:
                rests = kernel_class(o), o.split is Split.EXPERT, self._is_odd(o)
                fresh.setdefault((o.kind, o.phase, *rests), {})[shape] = o
        for group in fresh.values():
            alone = [*group.values()]
            with self.ledger.apart() as used:
                times = self._evaluate.get(alone[0].kind, self._streams)(alone)
            for shape, time in zip(group, times.tolist(), strict=True):
                answers[shape] = self._seen[shape] = Answer(time, used)
        for used in {id(answer.used): answer.used for answer in answers.values()}.values():
            self.ledger.note_all(used)
        return np.array([answers[shape].value for shape in shapes], dtype=np.float64)

    def row_seconds(
        self, product: Operator, rows: Floats, moved: Floats, groups: ArrayLike = 1, knee: float = 0
    ) -> Floats:
        """Time of a product over other numbers of rows that moves so many bytes [s]; of experts
        `rows` is the mean of the `groups` that have any, and `knee` that of their kernel.
        """
        shape = (rows, product.n, product.k, groups, moved)
        if product.kind is OperatorKind.GROUPED_GEMM:
            return self._group_seconds(shape, True, knee=knee)
        return self._product_seconds(shape, *self._gemm[self._precision_of(product)])

    def work(self, operators: Sequence[Operator]) -> Work:
        """Work of operators together."""
        products = [operator for operator in operators if operator.flops > 0]
        flops = executed_flops(products)
        peaks = np.array([self.accelerator.peak(self._format_of(work)) for work in products])
        moved = math.fsum(operator.bytes for operator in operators)
        return Work(float(flops.sum()), float((flops / peaks).sum()), moved / self._bandwidth)

    def quantisation_seconds(self, elements: ArrayLike, *, from_bytes: float = 2.0) -> Floats:
        """Time of casting so many elements to the model's narrow format [s]; 0 in a wide one."""
        narrow = _FP4_FORMAT if self.precision == "fp4" else self.precision
        if narrow not in FORMATS:
            return np.zeros_like(np.asarray(elements, float))
        for leaf in ("element_bytes", "passes", "kernels"):
            self._use(self._rules[f"quantise.{narrow}"], leaf)
        return quantise_seconds(elements, narrow, self._bandwidth, from_bytes=from_bytes)

    @property
    def casts(self) -> bool:
        """Whether linear layers compute in a narrow precision, cast by kernels of their own."""
        return self._casting is not None

    def with_casts(
        self,
        expansion: Expansion,
        wide_bytes: float,
        *,
        gathered: bool = False,
        fused_experts: bool = False,
        casts: str = "separate",
    ) -> Expansion:
        """The same operators with the casts of a narrow precision (`mpsim.workload.with_casts`)."""
        if self._casting is None:
            return expansion
        return with_casts(
            expansion,
            self._casting,
            wide_bytes=wide_bytes,
            wide_roles=self._wide_roles,
            gathered=gathered,
            fused_experts=fused_experts,
            casts=casts if self.precision == "fp8" else "separate",
        )

    def weight_cast_seconds(self, parameters: ArrayLike, wide_bytes: float) -> Floats:
        """Time of casting so many weights once a step [s]; 0 in a wide precision."""
        if self._casting is None:
            return np.zeros_like(np.asarray(parameters, float))
        moved = self._casting.moved_bytes(1.0, wide_bytes) * np.asarray(parameters, float)
        return self._stream_seconds(OperatorKind.QUANTISE, moved)

    @property
    def wide_rate(self) -> float:
        """Rate of large products in the wide precision, 16 bits beside narrower ones [FLOP/s]."""
        peak, constants = self._gemm[self._wide]
        return peak * constants.compute_fraction

    def peak_fraction(self, precision: str) -> float:
        """Share of the dense peak of `precision` that large products reach; None is the model's."""
        return self._gemm[precision][1].compute_fraction

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant used so far, by name; kinds of operators never met have none."""
        return self.ledger.constants()

    def _peak(self, precision: str) -> float:
        peak = self.accelerator.peak(precision)
        stored = FORMATS.get(precision, precision)
        figure = f"peak_flops.{stored}"
        self._note(hardware_constant(self.accelerator, figure, peak, "FLOP/s"))
        return peak

    def _gemm_constants(self, precision: str) -> GemmConstants:
        leaves = "memory_fraction", "launch", "knee"
        shape = {leaf: self._use(self._products, leaf) for leaf in leaves}
        fraction = self._compute_fraction(self._products, precision)
        return GemmConstants(compute_fraction=fraction * self._level, **shape)

    def _compute_fraction(self, group: ConstantGroup, precision: str) -> float:
        """Share of the peak of `precision` that large products reach: its own, or a burst scaled to
        hot clocks as bf16's is, or bf16's; of scales of rows nearly fp8's.
        """
        if precision == _ROWS:
            share = self._use(self._rules["gemm_rowwise"], "rowwise_share")
            return share * self._compute_fraction(group, "fp8")
        if precision in _HALF:
            return self._half_fraction(group)
        leaf = "sustained_fraction" if self._hot else "burst_fraction"
        narrow = _FP4_FORMAT if precision == "fp4" else precision
        if self._hot and leaf not in group and f"{narrow}_gain" in self._draw:
            gain = self._use(self._draw, f"{narrow}_gain") * self.accelerator.peak("bf16")
            return gain / self.accelerator.peak(precision) * self._half_fraction(group)
        for known in (narrow, *_RELATIVES.get(narrow, ())):
            if known != narrow:
                group = group.demoted(f"{known}'s fraction used for {narrow}")
            if f"{known}_{leaf}" in group:
                return self._use(group, f"{known}_{leaf}")
            if f"{known}_burst_fraction" in group:
                group = group.demoted("burst fraction scaled to hot clocks as bf16's")
                hot = self._half_fraction(group) / self._use(group, "burst_fraction")
                return hot * self._use(group, f"{known}_burst_fraction")
        return self._half_fraction(group.demoted(f"bf16's fraction used for {precision}"))

    def _half_fraction(self, group: ConstantGroup) -> float:
        """Share of the 16-bit peak: at the model's clocks, else a burst's at sustained clock."""
        if not self._hot or "sustained_fraction" in group:
            return self._use(group, "sustained_fraction" if self._hot else "burst_fraction")
        return self._use(group, "burst_fraction") * self._board.kept(self._use(self._draw, "draw"))

    def _power_level(self, group: ConstantGroup) -> float:
        """Share of the usual sustained rate that a board's limit, a cap and a clock lock leave."""
        chip = self.accelerator
        if group.matches(chip.kind) and board_power(chip) < group.value("tdp_below"):
            self._use(group, "tdp_below")
            return self._use(group, "level") * self._board.rate(Load.PRODUCTS)
        return self._board.rate(Load.PRODUCTS)

    def _gemms(self, operators: Sequence[Operator]) -> Floats:
        asked = np.array([self._precision_of(operator) for operator in operators])
        times = np.empty(len(operators))
        for precision, (peak, constants) in self._gemm.items():
            rows = np.flatnonzero(asked == precision).tolist()
            chosen = [operators[row] for row in rows]
            m, n, k, batch, moved = _columns(chosen, "m", "n", "k", "batch", "bytes")
            moved = moved + np.array([o.repeated_bytes for o in chosen])
            # attention's scores stream through memory as they do in the kernels around them
            if (scores := batch > 1).any():
                moved = np.where(scores, moved * self._slowdown(), moved)
            if (alone := np.array([o.split is Split.EXPERT for o in chosen])).any():
                weight = np.array([o.phase is Phase.WEIGHT_GRADIENT for o in chosen])
                tokens = np.where(weight, k, m)
                # fewer rows take no longer than more of them: a kernel can fill its tiles
                tokens = np.where(alone, np.maximum(tokens, _FILLED[:, None]), tokens)
                shape = np.where(weight, m, tokens), n, np.where(weight, tokens, k), batch, moved
                each = self._product_seconds(shape, peak, constants) * self._edges(chosen, tokens)
                times[rows] = each.min(axis=0)
            else:
                times[rows] = self._product_seconds((m, n, k, batch, moved), peak, constants)
        return times * self._gemm_factors(operators)

    def _groups(self, operators: Sequence[Operator]) -> Floats:
        """One kernel for a layer's experts; `m` (`k` in weight gradients) is their mean tokens."""
        m, n, k, batch, moved = _columns(operators, "m", "n", "k", "batch", "bytes")
        ragged = np.array([o.phase is not Phase.WEIGHT_GRADIENT for o in operators])
        times = self._group_seconds((m, n, k, batch, moved), ragged)
        rules = self._rules["gemm_rules"]
        slower = 1.0 if ragged.all() else self._use(rules, "grouped_weight_gradient")
        factors = np.where(ragged, 1.0, slower) * self._edges(operators)
        return times * factors * self._promotion(operators)

    def _group_seconds(self, shape: _Shapes, ragged: ArrayLike, *, knee: float = 0.0) -> Floats:
        """Time of grouped products; a knee of its own cuts tiles where experts have few rows."""
        leaves = ("tile", "shared_rows", "processors")
        largest, shared, processors = (self._use(self._tiles, leaf) for leaf in leaves)
        peak, c = self._gemm[self.precision]
        m, n, k, batch, _ = shape
        height: ArrayLike = shared or largest
        if knee:
            few = self._use(self._rules["gemm_rules"], "grouped_rows")
            height = np.minimum(few * np.asarray(m), height)
        if shared:  # experts follow each other in its tiles: both work on the one between them
            padding = 1.0 + height / np.maximum(np.where(ragged, m, k), 1.0)
        else:
            tile = height, largest
            padding = group_padding(m, n, batch, ragged=ragged, tile=tile, processors=processors)
        c = structs.replace(c, knee=knee or c.knee)
        return gemm_seconds(*shape, peak=peak, bandwidth=self._bandwidth, c=c, padding=padding)

    def _product_seconds(self, shape: _Shapes, peak: float, c: GemmConstants) -> Floats:
        if self._waves is None:
            return gemm_seconds(*shape, peak=peak, bandwidth=self._bandwidth, c=c)
        for leaf in self._waves:
            self._use(self._waves, leaf)
        tiling = read_tiling(self._waves)
        return tiled_gemm_seconds(*shape, peak=peak, bandwidth=self._bandwidth, c=c, tiling=tiling)

    def _precision_of(self, operator: Operator) -> str:
        """Narrow precisions are for linear layers; batched products and the head stay wide."""
        wide = operator.batch > 1 or operator.role in self._wide_roles
        return self._wide if wide else self.precision

    def _format_of(self, operator: Operator) -> str:
        """Precision that a product runs in: experts the narrow one, fused attention the wide."""
        if operator.kind is OperatorKind.GROUPED_GEMM:
            return self.precision
        if operator.kind is OperatorKind.SCAN:
            return self._wide
        fused = operator.kind is OperatorKind.ATTENTION
        return self._attention.precision if fused else self._precision_of(operator)

    def _gemm_factors(self, operators: Sequence[Operator]) -> Floats:
        weight = np.array([o.phase is Phase.WEIGHT_GRADIENT for o in operators])
        odd = np.array([self._is_odd(o) for o in operators])
        rules = self._rules["gemm_rules"]
        slower = self._use(rules, Phase.WEIGHT_GRADIENT.value) if weight.any() else 1.0
        misaligned = self._off_matrix_units() if odd.any() else 1.0
        factors = np.where(weight, slower, 1) * np.where(odd, misaligned, 1)
        return factors * self._promotion(operators)

    def _promotion(self, operators: Sequence[Operator]) -> Floats:
        """How much longer products of gradients in fp8 take: sums are promoted on their way."""
        late = [o.phase is not Phase.FORWARD and self._format_of(o) in _TENSORS for o in operators]
        slows = any(late) and "fp8_gradients" in self._products
        return np.where(late, self._use(self._products, "fp8_gradients") if slows else 1.0, 1.0)

    def _is_odd(self, o: Operator) -> bool:
        """Whether matrices of a batched product begin where matrix units cannot load them."""
        if o.batch <= 1:
            return False
        step = int(self._rules["gemm_alignment"].value("alignment"))
        return o.n % step > 0 or o.k % step > 0

    def _edges(self, operators: Sequence[Operator], rows: ArrayLike = np.inf) -> Floats:
        """How much longer a product of one expert takes than as much of a large one: a tile is lost
        along its shortest side, of `rows` only where nothing shares the kernel.
        """
        sides = np.array([_side(o) if o.split is Split.EXPERT else np.inf for o in operators])
        edge = 0.0 if np.isinf(sides).all() else self._use(self._rules["gemm_rules"], "edge")
        return 1.0 + edge / np.where(np.isinf(sides), sides, np.minimum(sides, rows))

    def _off_matrix_units(self) -> float:
        """How much longer a product takes on a GPU's float32 units; 1 where it has none such."""
        if "fp32" not in self.accelerator.peak_flops:
            return 1.0
        rules = self._rules["gemm_alignment"]
        self._use(rules, "alignment")
        plain = self._peak("fp32") * self._use(rules, "plain_fraction")
        return max(1.0, self.wide_rate / plain)

    def _attentions(self, operators: Sequence[Operator]) -> Floats:
        queries, keys, heads, sequences, dim, dim_v, window = _columns(
            operators, "queries", "keys", "heads", "sequences", "head_dim", "head_dim_v", "window"
        )
        work = AttentionWork(
            queries=queries,
            keys=keys,
            heads=heads,
            sequences=sequences,
            head_dim=dim,
            head_dim_v=dim_v,
            window=window,
            causal=np.array([o.causal for o in operators]),
            forward=np.array([o.phase is Phase.FORWARD for o in operators]),
        )
        (moved,) = _columns(operators, "bytes")
        # of a short window queries, keys and values themselves take longest
        result: Floats = np.maximum(self._attention.seconds(work), moved / self._bandwidth)
        return result

    def _streams(self, operators: Sequence[Operator]) -> Floats:
        """Memory-bound kernels of one kind; each class and pass may have a measured curve."""
        (moved,) = _columns(operators, "bytes")
        if self.accelerator.calibration is None:
            return self._stream_seconds(operators[0].kind, moved)
        alone = zip(operators, moved, strict=True)
        return np.array([self._stream_seconds(o.kind, own, o) for o, own in alone])

    def _scans(self, operators: Sequence[Operator]) -> Floats:
        """Time of scans, whose products are small: bound by a share of the peak or memory [s]."""
        flops, moved = _columns(operators, "flops", "bytes")
        rate = self._use(self._rules["scan"], "fraction") * self._peak(self._wide) * self._level
        return np.maximum(flops / rate, self._stream_seconds(OperatorKind.ELEMENTWISE, moved))

    def _stream_seconds(
        self, kind: OperatorKind, moved: Floats, operator: Operator | None = None
    ) -> Floats:
        eager = self.eager_factor if kind in _EAGER_KINDS else 1.0
        curve = kernel_class(operator) if operator else kind.value
        phase = operator.phase if operator else Phase.FORWARD
        reading = kernel_reading(self.accelerator.calibration, curve, phase.value)
        if reading is not None:
            self._note(reading.constant)
            return reading.seconds(moved) * eager
        return memory_seconds(
            moved,
            bandwidth=self._bandwidth,
            fraction=self._use(*self._memory_leaf(kind)),
            slowdown=self._slowdown() * eager,
            floor=self._use(self._rules["memory_rules"], "floor"),
        )

    def _slowdown(self) -> float:
        """Time of what moves bytes in training over that in a benchmark."""
        if not self._hot:
            return 1.0
        return self._use(self._rules["memory_level"], "slowdown") / self._board.rate(Load.STREAMS)

    def _memory_leaf(self, kind: OperatorKind) -> tuple[ConstantGroup, str]:
        """Name of the share of the memory rate of a kind; benchmarks of norms have their own."""
        quiet = not self._hot and kind.value in self._rules["memory_burst"]
        return self._rules["memory_burst" if quiet else "memory_rules"], kind.value


def _side(o: Operator) -> float:
    """Shorter side of a product's weights."""
    return float(min(o.n, o.m if o.phase is Phase.WEIGHT_GRADIENT else o.k))


def _check_choice(what: str, given: str, known: Iterable[str]) -> None:
    names = tuple(known)
    if given not in names:
        raise HardwareError(f"{what} {given!r}: {nearest(given, names)}")


def _columns(operators: Sequence[Operator], *fields: str) -> list[Floats]:
    return [np.array([getattr(o, field) for o in operators], dtype=np.float64) for field in fields]


def _shape(o: Operator) -> Shape:
    """Key of an operator's time: all that it depends on."""
    if o.kind in (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM):
        return (o.kind, o.role, o.split, o.phase, o.m, o.n, o.k, o.batch, o.bytes, o.weights)
    if o.kind is OperatorKind.ATTENTION:
        shape = (o.heads, o.head_dim, o.head_dim_v, o.queries, o.keys, o.sequences)
        return (o.kind, o.phase, *shape, o.causal, o.window)
    if o.kind is OperatorKind.SCAN:
        return (o.kind, o.phase, o.flops, o.bytes)
    return (o.kind, o.phase, kernel_class(o), o.bytes)


def executed_flops(operators: Sequence[Operator]) -> Floats:
    """FLOPs of each operator that really run: of fused attention the pairs that mask and window
    leave, all else as it is counted [FLOP].

    Never above `Operator.flops`. Attention with scores of its own computes every pair.
    """
    return np.array([_executed(operator) for operator in operators], dtype=np.float64)


def _executed(o: Operator) -> float:
    if o.kind is not OperatorKind.ATTENTION:
        return o.flops
    worked_on = o.sequences * o.heads * _pairs(o.queries, o.keys, o.causal, o.window)
    return attention_flops(worked_on, o.head_dim, o.head_dim_v, o.phase)


@remembered(_LENGTHS)
def _pairs(queries: float, keys: float, causal: bool, window: float) -> float:
    return float(attention_pairs(queries, keys, causal=causal, window=window, diagonal=True))
