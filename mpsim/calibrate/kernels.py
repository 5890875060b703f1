"""Fits of kernels: matrix products, attention, memory-bound kernels, the optimizer."""

from __future__ import annotations

import functools
from collections.abc import Collection, Iterator, Mapping, Sequence

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.calibrate.parts import Fit, best_curve, fitted, merged, prefers_curve, score, unknown
from mpsim.calibrate.points import Point
from mpsim.calibrate.robust import Estimate, Unknown, fit_robust
from mpsim.cost import KernelModel, attention_pairs, attention_seconds, gemm_seconds, memory_seconds
from mpsim.cost.curves import Curve, kernel_class
from mpsim.cost.formulas import GemmConstants
from mpsim.hardware import Accelerator, Calibration, Fitted, MeasuredCurve
from mpsim.shipped import say
from mpsim.workload import OperatorKind, Phase, attention_flops

_HALF = ("bf16", "fp16")
# FLOPs of forward and backward over those of forward (Dao 2023, FlashAttention-2, section 4.1)
_PASSES = 3.5
_SHAPE = ("launch", "memory_fraction", "knee")
_FEWEST = 4


def fit_gemm(points: Sequence[Point], chip: Accelerator, main: str) -> Fit:
    """Matrix products: shape constants of the `main` precision, a fraction of every peak.

    Where all of them ran in the middle of something else, as in a trace, they count as sustained.
    """
    products = [p for p in points if p.operator and p.operator.kind is OperatorKind.GEMM]
    burst = [p for p in products if p.phase == "burst" and p.precision in chip.peak_flops]
    hot_only = not burst
    if hot_only:
        burst = [p for p in products if p.precision in chip.peak_flops]
    own = [p for p in burst if p.precision == main]
    if len([p for p in own if not p.held_out]) < _FEWEST:
        if not burst:
            return Fit()
        return Fit(warnings=(f"fewer than {_FEWEST} matrix products in {main}: none were fitted",))
    shape = _gemm(own, chip, main)
    constants = {
        f"kernels.gemm.{leaf}": fitted(shape[leaf], "s" if leaf == "launch" else "1")
        for leaf in _SHAPE
    }
    constants["kernels.gemm_rules.weight_gradient"] = fitted(shape["weight_gradient"], "1")
    fits = []
    for precision in dict.fromkeys(p.precision for p in burst):
        mine = [p for p in burst if p.precision == precision]
        hot = [p for p in products if p.phase == "sustained" and p.precision == precision]
        level = functools.partial(_gemm_level, chip, precision, shape)
        fits.append(level(mine, () if hot_only else hot, hot_only=hot_only))
    return merged([Fit(constants), *fits])


def _gemm_times(
    points: Sequence[Point], chip: Accelerator, precision: str, values: Mapping[str, float]
) -> Floats:
    constants = GemmConstants(**{leaf: values[leaf] for leaf in ("compute_fraction", *_SHAPE)})
    rows = [p.operator for p in points if p.operator]
    m, n, k, batch, moved = (
        np.array([getattr(o, name) for o in rows], dtype=float)
        for name in ("m", "n", "k", "batch", "bytes")
    )
    peak, bandwidth = chip.peak(precision), chip.memory_bandwidth
    times = gemm_seconds(m, n, k, batch, moved, peak=peak, bandwidth=bandwidth, c=constants)
    weight = np.array([o.phase is Phase.WEIGHT_GRADIENT for o in rows])
    result: Floats = times * np.where(weight, values.get("weight_gradient", 1.0), 1.0)
    return result


def _gemm(points: Sequence[Point], chip: Accelerator, precision: str) -> Mapping[str, Estimate]:
    train = [p for p in points if not p.held_out]
    leaves = ("compute_fraction", *_SHAPE, "weight_gradient")
    of = {
        "compute_fraction": _level_name(precision),
        "weight_gradient": "kernels.gemm_rules.weight_gradient",
    }
    unknowns = [
        unknown(leaf, known=chip.calibration, of=of.get(leaf, f"kernels.gemm.{leaf}"))
        for leaf in leaves
    ]
    fastest = min(p.seconds for p in train)
    bounded = [
        structs.replace(u, high=min(u.high, fastest), start=min(u.start, fastest / 2))
        if u.name == "launch"
        else u
        for u in unknowns
    ]
    estimates = fit_robust(
        lambda x: _gemm_times(train, chip, precision, dict(zip(leaves, x.tolist(), strict=True))),
        bounded,
        np.array([p.seconds for p in train]),
    )
    return {estimate.name: estimate for estimate in estimates}


def _gemm_level(
    chip: Accelerator,
    precision: str,
    shape: Mapping[str, Estimate],
    burst: Sequence[Point],
    hot: Sequence[Point],
    *,
    hot_only: bool,
) -> Fit:
    """Fraction of a precision's peak; `hot_only` where those of `burst` ran at low clocks too."""
    fixed = {leaf: estimate.value for leaf, estimate in shape.items()}
    train = [p for p in burst if not p.held_out]

    def times(points: Sequence[Point], fraction: float) -> Floats:
        return _gemm_times(points, chip, precision, {**fixed, "compute_fraction": fraction})

    (level,) = fit_robust(
        lambda x: times(train, float(x[0])),
        [unknown("compute_fraction", known=chip.calibration, of=_level_name(precision))],
        np.array([p.seconds for p in train]),
    )
    hot_share, warnings = _kept_when_hot(burst, hot)
    if not hot and chip.family != "cpu":
        hot_share, warnings = _usually_kept(chip, precision)
    cold = 1.0
    if hot_only:
        cold, hot_share, warnings = 1.0 / hot_share, 1.0, ()
    constants = {
        _level_name(precision, "burst"): fitted(level, "1", scale=cold),
        _level_name(precision): fitted(level, "1", scale=hot_share),
    }
    what = f"matrix products, {precision}"
    scored = score(what, "constants", burst, times(burst, level.value))
    return Fit(constants, scores=(scored,), warnings=warnings)


def _level_name(precision: str, clocks: str = "sustained") -> str:
    """Constant that is the share of a precision's peak."""
    head = "" if precision in _HALF else f"{precision}_"
    return f"kernels.gemm.{head}{clocks}_fraction"


def _kept_when_hot(burst: Sequence[Point], hot: Sequence[Point]) -> tuple[float, tuple[str, ...]]:
    """Share of the rate that is left after running for long, by products measured both ways."""
    cold = {p.operator: p for p in burst}
    ratios = [(cold[p.operator].seconds / p.seconds, p) for p in hot if p.operator in cold]
    if not ratios:
        return 1.0, ()
    share = float(np.median([ratio for ratio, _ in ratios]))
    noise = max(max(p.noise, cold[p.operator].noise) for _, p in ratios)
    if abs(share - 1.0) <= 2 * noise:
        return 1.0, ()
    if share > 1.0:
        return 1.0, (say("calibrate.clocks_rose", share=share - 1),)
    return share, ()


def _usually_kept(chip: Accelerator, precision: str) -> tuple[float, tuple[str, ...]]:
    """Share of a burst's rate that training keeps on chips of this kind, if not measured."""
    known = [KernelModel(chip, precision, clocks=clocks) for clocks in ("burst", "sustained")]
    burst, hot = (model.peak_fraction(precision) for model in known)
    text = say("calibrate.not_hot", precision=precision, hot=hot / burst, family=chip.family)
    return hot / burst, (text,)


def _burst(points: Sequence[Point], precision: str, kinds: Collection[OperatorKind]) -> list[Point]:
    rows = [p for p in points if p.precision == precision and p.phase == "burst"]
    return [p for p in rows if p.operator and p.operator.kind in kinds]


def fit_attention(points: Sequence[Point], chip: Accelerator, main: str) -> Fit:
    """Fused attention: rate and half-way sequence of every mask and width, share of the forward."""
    mine = _burst(points, main, [OperatorKind.ATTENTION])
    fits = []
    for backend in dict.fromkeys(p.backend for p in mine):
        group = [p for p in mine if p.backend == backend]
        if len([p for p in group if not p.held_out]) >= _FEWEST:
            fits.append(_attention_of(group, chip, main, backend))
    return merged(fits)


@structs.dataclass(frozen=True, slots=True)
class _Charts:
    """Attention points with the chart (mask and width) each belongs to."""

    labels: tuple[str, ...]
    chart: Ints
    flops: Floats
    keys: Floats
    forward: Flags

    @classmethod
    def of(cls, points: Sequence[Point]) -> _Charts:
        rows = [p.operator for p in points if p.operator]
        names = [f"{'causal' if o.causal else 'full'}_{o.head_dim}" for o in rows]
        labels = tuple(dict.fromkeys(names))
        pairs = [attention_pairs(o.queries, o.keys, causal=o.causal, window=0) for o in rows]
        flops = [
            attention_flops(o.sequences * o.heads * float(p), o.head_dim, o.head_dim)
            for o, p in zip(rows, pairs, strict=True)
        ]
        return cls(
            labels,
            np.array([labels.index(name) for name in names]),
            np.array(flops),
            np.array([o.keys for o in rows], dtype=float),
            np.array([o.phase is Phase.FORWARD for o in rows]),
        )

    def seconds(self, values: Floats, peak: float) -> Floats:
        """Times with a rate and a half of every chart, and the share of the forward pass last."""
        count = len(self.labels)
        rate, half, share = values[:count] * peak, values[count : 2 * count], values[-1]
        part = _PASSES * np.where(self.forward, share, 1.0 - share)
        return attention_seconds(
            self.flops,
            self.keys,
            rate=rate[self.chart],
            half=half[self.chart],
            share=part,
            launch=0.0,
        )


def _attention_of(points: Sequence[Point], chip: Accelerator, main: str, backend: str) -> Fit:
    charts = _Charts.of(points)
    train = [i for i, p in enumerate(points) if not p.held_out]
    peak = chip.peak(main)
    known = chip.calibration
    name = "cudnn" if backend == "cudnn" else "flash2"  # of torch's scaled_dot_product_attention
    unknowns = [unknown("attention_fraction", name=f"rate_{label}") for label in charts.labels]
    unknowns += [
        _half_of(charts, train, index, known, f"kernels.attention_{name}.half_")
        for index in range(len(charts.labels))
    ]
    unknowns.append(
        unknown("forward_share", known=known, of="kernels.attention_rules.forward_share")
    )
    times = np.array([points[i].seconds for i in train])
    estimates = fit_robust(lambda x: charts.seconds(x, peak)[train], unknowns, times)
    constants = {"kernels.attention_rules.forward_share": fitted(estimates[-1], "1")}
    constants |= {
        f"kernels.attention_{name}.{leaf}": constant
        for leaf, constant in _chart_constants(estimates, charts.labels, peak)
    }
    values = np.array([estimate.value for estimate in estimates])
    scored = score(
        f"attention, {main}, {backend}", "constants", points, charts.seconds(values, peak)
    )
    return Fit(constants, scores=(scored,))


def _half_of(
    charts: _Charts, train: Sequence[int], index: int, known: Calibration | None, stem: str
) -> Unknown:
    """The half-way sequence; what was known where one length alone was measured."""
    name, of = f"half_{charts.labels[index]}", stem + charts.labels[index]
    lengths = {float(charts.keys[i]) for i in train if charts.chart[i] == index}
    asked = unknown("half", name=name, known=known, of=of)
    if len(lengths) > 1:
        return asked
    held = asked.start if known is not None and of in known.constants else asked.low
    return Unknown(name, held, held, held * (1 + 1e-9))


def _chart_constants(
    estimates: Sequence[Estimate], labels: Sequence[str], peak: float
) -> Iterator[tuple[str, Fitted]]:
    """Leaves of an attention chart; a mask not measured at a width borrows the other's rate."""
    by_name = {estimate.name: estimate for estimate in estimates}
    yield "peak", Fitted(peak, peak, peak, "FLOP/s")
    yield "chart_share", Fitted(1.0, 1.0, 1.0, "1")
    for width in sorted({label.rpartition("_")[2] for label in labels}, key=int):
        for mask in ("causal", "full"):
            other = "full" if mask == "causal" else "causal"
            label = f"{mask}_{width}" if f"{mask}_{width}" in labels else f"{other}_{width}"
            yield (f"rate_{mask}_{width}", fitted(by_name[f"rate_{label}"], "FLOP/s", scale=peak))
            yield f"half_{mask}_{width}", fitted(by_name[f"half_{label}"], "tokens")


def fit_memory(points: Sequence[Point], chip: Accelerator, main: str) -> Fit:
    """Memory-bound kernels: a fraction of the memory rate by kind, or curves by kernel and pass."""
    compute = (OperatorKind.GEMM, OperatorKind.ATTENTION)
    mine = _burst(points, main, [kind for kind in OperatorKind if kind not in compute])
    train = [p for p in mine if not p.held_out]
    if len(train) < _FEWEST:
        return Fit()
    kinds = list(dict.fromkeys(p.operator.kind.value for p in train if p.operator))
    known = [p for p in mine if p.operator and p.operator.kind.value in kinds]

    def times(rows: Sequence[Point], values: Floats) -> Floats:
        pick = [kinds.index(p.operator.kind.value) for p in rows if p.operator]
        moved = np.array([p.operator.bytes for p in rows if p.operator])
        return memory_seconds(
            moved, bandwidth=chip.memory_bandwidth, fraction=values[pick], floor=float(values[-1])
        )

    unknowns = [
        *(
            unknown(
                "memory_fraction",
                name=kind,
                known=chip.calibration,
                of=f"kernels.memory_rules.{kind}",
            )
            for kind in kinds
        ),
        unknown("floor", known=chip.calibration, of="kernels.memory_rules.floor"),
    ]
    measured = np.array([p.seconds for p in train])
    estimates = fit_robust(lambda x: times(train, x), unknowns, measured)
    values = np.array([estimate.value for estimate in estimates])
    units = {**dict.fromkeys(kinds, "1"), "floor": "s"}
    constants = {
        f"kernels.memory_rules.{estimate.name}": fitted(estimate, units[estimate.name])
        for estimate in estimates
        if estimate.identified
    }
    constants |= {
        f"kernels.memory_burst.{kind}": constants[f"kernels.memory_rules.{kind}"]
        for kind in ("norm",)
        if f"kernels.memory_rules.{kind}" in constants
    }
    # a fitted kernel already takes as long as it was measured: no slowdown on top
    constants["kernels.memory_level.slowdown"] = Fitted(1.0, 1.0, 1.0, "1")
    curves = _memory_curves(known, times(known, values))
    return merged([Fit(constants), *curves])


def _memory_curves(points: Sequence[Point], by_form: Floats) -> Iterator[Fit]:
    """The form of every kernel and pass, or a curve where it does not hold for all of a kind."""
    groups: dict[tuple[OperatorKind, str, Phase], list[int]] = {}
    for index, p in enumerate(points):
        if p.operator:
            o = p.operator
            groups.setdefault((o.kind, kernel_class(o), o.phase), []).append(index)
    formed = {
        key: score(_title(key), "constants", [points[i] for i in rows], by_form[rows])
        for key, rows in groups.items()
    }
    missed = {
        key[0]
        for key, by_form in formed.items()
        if prefers_curve(by_form, *_sized(points, groups[key]))
    }
    for key, rows in groups.items():
        mine, sizes = _sized(points, rows)
        curve = best_curve(mine, sizes) if key[0] in missed else None
        if curve is None:
            yield Fit(scores=(formed[key],))
            continue
        measured = MeasuredCurve(key[1], key[2].value, 0, 1, *curve)
        read = Curve(*curve).seconds(sizes)
        yield Fit(kernels=(measured,), scores=(score(_title(key), "curve", mine, read),))


def _sized(points: Sequence[Point], rows: Sequence[int]) -> tuple[list[Point], Floats]:
    """Some of the points, and the bytes that each moves."""
    mine = [points[i] for i in rows]
    return mine, np.array([p.operator.bytes for p in mine if p.operator])


def _title(key: tuple[OperatorKind, str, Phase]) -> str:
    return f"{key[1]}, {key[2].value}"


def fit_optimizer(points: Sequence[Point], chip: Accelerator, main: str) -> Fit:
    """Adam: the share of the memory rate at which it moves its tensors, which lie in no cache."""
    mine = [p for p in points if p.series.startswith("adam/") and p.precision == main]
    return _fit_stream("optimizer", mine, chip)


def fit_copy(points: Sequence[Point], chip: Accelerator) -> Fit:
    """Copies within memory: the fraction of its rate at which the largest move, past any cache."""
    mine = [p for p in points if p.series.startswith("copy/") and p.phase == "burst"]
    return _fit_stream("copy", mine, chip)


def _fit_stream(name: str, mine: Sequence[Point], chip: Accelerator) -> Fit:
    """The fraction of the memory rate of what only moves memory."""
    largest = max((p.size for p in mine), default=0.0)
    train = [p for p in mine if p.size == largest]
    if not train:
        return Fit()
    rate = chip.memory_bandwidth
    (level,) = fit_robust(
        lambda x: np.array([p.size for p in train]) / (x[0] * rate),
        [unknown(name)],
        np.array([p.seconds for p in train]),
    )
    predicted = np.array([p.size for p in mine]) / (level.value * rate)
    return Fit(
        {f"kernels.{name}.fraction": fitted(level, "1")},
        scores=(score(name, "constants", mine, predicted),),
    )
