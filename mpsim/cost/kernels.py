"""Seconds of operators on one accelerator: the kernel formulas with the constants of that accelerator.

Shapes: N operators, U shapes among them that were never seen before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mpsim.cost.constants import (
    Constant,
    ConstantGroup,
    choose_group,
    constant_groups,
    hardware_constant,
)
from mpsim.cost.formulas import (
    Floats,
    GemmConstants,
    attention_pairs,
    attention_seconds,
    device_power,
    gemm_seconds,
    memory_seconds,
    optimizer_seconds,
)
from mpsim.errors import HardwareError, nearest
from mpsim.framework.framework import ATTENTION_KERNELS
from mpsim.hardware.components import Accelerator
from mpsim.workload.operators import Operator, OperatorKind, Phase

__all__ = [
    "CLOCKS",
    "GemmConstants",
    "KernelModel",
    "attention_seconds",
    "device_power",
    "gemm_seconds",
    "memory_seconds",
    "optimizer_seconds",
]

CLOCKS = ("sustained", "burst")
_EAGER_KINDS = (OperatorKind.NORM, OperatorKind.SOFTMAX, OperatorKind.ELEMENTWISE)
_WIDE = "bf16"  # what stays unquantised when the rest is fp8 or fp4
_NARROW = ("fp8", "fp4")
_HALF = ("bf16", "fp16")

Shape = tuple[object, ...]


class KernelModel:
    """Time of every kind of operator on one accelerator in one precision.

    Parameters
    ----------
    accelerator : Accelerator
    precision : str
        Of matrix products: bf16, fp16, tf32, fp32, or fp8 (then attention and the output projection stay bf16).
    attention_kernel : str
        Generation of the fused attention kernel: one of `mpsim.framework.framework.ATTENTION_KERNELS`.
    eager_factor : float
        Time of norm, softmax and elementwise kernels over that of fused ones: 1.6-1.8 eager, 0.9 compiled.
    clocks : str
        ``sustained`` (training: hot, power-limited) or ``burst`` (a short benchmark).

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
    ) -> None:
        _check_choice("attention kernel", attention_kernel, ATTENTION_KERNELS)
        _check_choice("clocks", clocks, CLOCKS)
        if not eager_factor > 0:
            raise HardwareError(f"eager_factor is {eager_factor:g}, needed a number above 0")
        self.accelerator = accelerator
        self.precision = precision
        self.eager_factor = eager_factor
        self._used: dict[str, Constant] = {}
        self._rules = constant_groups("kernels")
        self._hot = clocks == "sustained"
        self._level = self._power_level(self._rules["power.h100-low"]) if self._hot else 1.0
        wide = _WIDE if precision in _NARROW else precision
        self._gemm = {
            kind: (self._peak(kind), self._gemm_constants(kind))
            for kind in dict.fromkeys((precision, wide))
        }
        self._wide = wide
        self._attention = _AttentionRates(accelerator, attention_kernel, wide, self._use)
        self._bandwidth = accelerator.memory_bandwidth
        self._note(hardware_constant(accelerator, "memory_bandwidth", self._bandwidth, "B/s"))
        self._seen: dict[Shape, float] = {}
        self._evaluate: Mapping[OperatorKind, Callable[[Sequence[Operator]], Floats]] = {
            OperatorKind.GEMM: self._gemms,
            OperatorKind.ATTENTION: self._attentions,
        }

    def seconds(self, operators: Sequence[Operator]) -> NDArray[np.float64]:
        """Time alone of each operator of one rank [s]; a shape is evaluated once and remembered."""
        shapes = [_shape(operator) for operator in operators]
        fresh = {s: o for s, o in zip(shapes, operators, strict=True) if s not in self._seen}
        by_kind: dict[OperatorKind, list[Shape]] = {}
        for shape, operator in fresh.items():
            by_kind.setdefault(operator.kind, []).append(shape)
        for kind, group in by_kind.items():
            evaluate = self._evaluate.get(kind, self._streams)
            times = evaluate([fresh[shape] for shape in group])
            self._seen.update(zip(group, times.tolist(), strict=True))
        return np.array([self._seen[shape] for shape in shapes], dtype=np.float64)

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant that was used so far, by name; those of a kind of operator never met are left out."""
        return tuple(self._used[name] for name in sorted(self._used))

    def _use(self, group: ConstantGroup, leaf: str) -> float:
        self._note(group[leaf])
        return group.value(leaf)

    def _note(self, constant: Constant) -> None:
        self._used[constant.name] = constant

    def _peak(self, precision: str) -> float:
        peak = self.accelerator.peak(precision)
        figure = f"peak_flops.{precision}"
        self._note(hardware_constant(self.accelerator, figure, peak, "FLOP/s"))
        return peak

    def _gemm_constants(self, precision: str) -> GemmConstants:
        group = choose_group("kernels", "gemm", self.accelerator.name, self.accelerator.family)
        leaf = "sustained_fraction" if self._hot else "burst_fraction"
        if precision == "fp8" and f"fp8_{leaf}" in group:
            leaf = f"fp8_{leaf}"
        elif precision not in _HALF:
            group = group.demoted(f"bf16's fraction used for {precision}")
        return GemmConstants(
            compute_fraction=self._use(group, leaf) * self._level,
            memory_fraction=self._use(group, "memory_fraction"),
            launch=self._use(group, "launch"),
            knee=self._use(group, "knee"),
        )

    def _power_level(self, group: ConstantGroup) -> float:
        """Share of the usual sustained rate that a board with a low power limit keeps."""
        chip = self.accelerator
        if group.matches(chip.name) and chip.tdp_w < group.value("tdp_below"):
            self._use(group, "tdp_below")
            return self._use(group, "level")
        return 1.0

    def _gemms(self, operators: Sequence[Operator]) -> Floats:
        asked = np.array([self._precision_of(operator) for operator in operators])
        times = np.empty(len(operators))
        for precision, (peak, constants) in self._gemm.items():
            rows = np.flatnonzero(asked == precision).tolist()
            m, n, k, batch, moved = _columns(
                [operators[row] for row in rows], "m", "n", "k", "batch", "bytes"
            )
            times[rows] = gemm_seconds(
                m, n, k, batch, moved, peak=peak, bandwidth=self._bandwidth, c=constants
            )
        return times * self._gemm_factors(operators)

    def _precision_of(self, operator: Operator) -> str:
        """Narrow precisions are for linear layers; batched attention products and the output projection stay wide."""
        wide_names = self._rules["gemm_precision"].words["wide_operators"]
        return self._wide if operator.batch > 1 or operator.name in wide_names else self.precision

    def _gemm_factors(self, operators: Sequence[Operator]) -> Floats:
        weight = np.array([o.phase is Phase.WEIGHT_GRADIENT for o in operators])
        step = int(self._rules["gemm_alignment"].value("alignment"))
        odd = np.array([o.batch > 1 and (o.n % step > 0 or o.k % step > 0) for o in operators])
        slower = self._use(self._rules["gemm_rules"], "weight_gradient") if weight.any() else 1.0
        misaligned = 1.0
        if odd.any():
            self._use(self._rules["gemm_alignment"], "alignment")
            misaligned = self._use(self._rules["gemm_alignment"], "misaligned")
        return np.where(weight, slower, 1.0) * np.where(odd, misaligned, 1.0)

    def _attentions(self, operators: Sequence[Operator]) -> Floats:
        rules = self._rules["attention_rules"]
        queries, keys, heads, sequences, dim, dim_v, window = _columns(
            operators, "queries", "keys", "heads", "sequences", "head_dim", "head_dim_v", "window"
        )
        causal = np.array([o.causal for o in operators])
        pairs = attention_pairs(queries, keys, causal=causal, window=window)
        forward_flops = 2.0 * sequences * heads * pairs * (dim + dim_v)
        rate, half = self._attention.of(np.maximum(dim, dim_v), causal)
        total = 1.0 + self._use(rules, "backward_flops")
        share = self._use(rules, "forward_share")
        forward = np.array([o.phase is Phase.FORWARD for o in operators])
        return attention_seconds(
            forward_flops,
            keys,
            rate=rate * self._level * (self._attention.share() if self._hot else 1.0),
            half=half,
            share=total * np.where(forward, share, 1.0 - share),
            launch=self._use(self._rules["memory_rules"], "floor"),
        )

    def _streams(self, operators: Sequence[Operator]) -> Floats:
        (moved,) = _columns(operators, "bytes")
        kind = operators[0].kind
        slowdown = self._use(self._rules["memory_level"], "slowdown")
        return memory_seconds(
            moved,
            bandwidth=self._bandwidth,
            fraction=self._use(self._rules["memory_rules"], kind.value),
            slowdown=slowdown * (self.eager_factor if kind in _EAGER_KINDS else 1.0),
            floor=self._use(self._rules["memory_rules"], "floor"),
        )


class _AttentionRates:
    """Saturated rate and half-rate sequence of one attention kernel on one accelerator, by head_dim and mask."""

    def __init__(
        self,
        accelerator: Accelerator,
        kernel: str,
        precision: str,
        use: Callable[[ConstantGroup, str], float],
    ) -> None:
        name, family = accelerator.name, accelerator.family
        group = choose_group("kernels", f"attention_{kernel}", name, family)
        if precision not in _HALF:
            group = group.demoted(f"16-bit rates scaled to the peak of {precision}")
        self._group, self._use = group, use
        self._dims = [int(dim) for dim in group.words["head_dims"]]
        self._peak = accelerator.peak(precision)

    def of(self, head_dim: Floats, causal: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Rate [FLOP/s] and half-rate sequence [tokens]; head_dims between the measured ones are interpolated in log."""
        scale = self._peak / self._use(self._group, "peak")
        return self._between("rate", head_dim, causal) * scale, self._between(
            "half", head_dim, causal
        )

    def share(self) -> float:
        """What real training keeps of the rates, which are those of a benchmark."""
        return self._use(self._group, "chart_share")

    def _between(self, what: str, head_dim: Floats, causal: NDArray[np.bool_]) -> Floats:
        curves = {
            mask: np.interp(
                np.log2(np.maximum(head_dim, 1.0)),
                np.log2(self._dims),
                [self._use(self._group, f"{what}_{mask}_{dim}") for dim in self._dims],
            )
            for mask in ("causal", "full")
        }
        return np.where(causal, curves["causal"], curves["full"])


def _check_choice(what: str, given: str, known: Iterable[str]) -> None:
    names = tuple(known)
    if given not in names:
        raise HardwareError(f"{what} {given!r}: {nearest(given, names)}")


def _columns(operators: Sequence[Operator], *fields: str) -> list[Floats]:
    return [np.array([getattr(o, field) for o in operators], dtype=np.float64) for field in fields]


def _shape(o: Operator) -> Shape:
    """What the time of an operator depends on."""
    if o.kind is OperatorKind.GEMM:
        return (o.kind, o.name, o.phase, o.m, o.n, o.k, o.batch, o.bytes)
    if o.kind is OperatorKind.ATTENTION:
        shape = (o.heads, o.head_dim, o.head_dim_v, o.queries, o.keys, o.sequences)
        return (o.kind, o.phase, *shape, o.causal, o.window)
    return (o.kind, o.bytes)
