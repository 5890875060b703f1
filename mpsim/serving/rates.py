"""Rates that kernels of serving reach on a cluster: shares of the datasheet from a data file, and small all-reduces beside those of the library."""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Callable, Mapping

from mpsim.cost import Board, CollectiveModel, Load
from mpsim.hardware import Calibration, Cluster, shift_of
from mpsim.parallel import GroupShape
from mpsim.result.words import Figures
from mpsim.serving.engines import EnginePreset
from mpsim.shipped import read_shipped
from mpsim.units import Dimension, parse_quantity

__all__ = ["BY_FORMAT", "Rates", "Reductions", "rates_of", "replaced"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one accelerator as kernels of serving reach them.

    Parameters
    ----------
    bandwidth : float
        Of memory, from the datasheet [B/s].
    peaks : mapping of str to float
        Dense peak of each precision [FLOP/s].
    gemm_latency, gemm_bandwidth, gemm_compute : mapping of str to float
        Of skinny products by precision: fixed time [s], share of `bandwidth` at which they read their weights, share of the peak.
    attention_latency, attention_bandwidth, attention_compute : float
        Of the decode kernel: fixed time [s], share of `bandwidth` at which it reads the cache, share of the bf16 peak.
    prompt_share : float
        Share of the bf16 peak that attention of prompts reaches.
    stream_latency, stream_bandwidth : float
        Of norms, rotary, activation: fixed time [s] and share of `bandwidth`.
    reduction_latency, reduction_share : float
        Of an engine's own all-reduces: fixed time [s] and share of the link.
    expert_latency, expert_bandwidth, expert_compute : mapping of str to float
        Of grouped products by format of the weights, ``*`` for the others: fixed time [s], share of `bandwidth`, share of what plain products reach of the peak.
    expert_rows : float
        Rows of an expert at which its products reach half of that.
    """

    bandwidth: float
    peaks: Mapping[str, float]
    gemm_latency: Mapping[str, float]
    gemm_bandwidth: Mapping[str, float]
    gemm_compute: Mapping[str, float]
    attention_latency: float
    attention_bandwidth: float
    attention_compute: float
    prompt_share: float
    stream_latency: float
    stream_bandwidth: float
    reduction_latency: float
    reduction_share: float
    expert_latency: Mapping[str, float]
    expert_bandwidth: Mapping[str, float]
    expert_compute: Mapping[str, float]
    expert_rows: float


# fixed time of two-shot over one-shot: vLLM's kernels on eight H100, 9.7 and 5.5 us
_SECOND_BARRIER = 1.75
BY_FORMAT = (
    *("gemm_latency", "gemm_bandwidth", "gemm_compute"),
    *("expert_latency", "expert_bandwidth", "expert_compute"),
)
"""Rates of which there is one for each precision, or format of weights."""
_TIMES = ("attention_latency", "stream_latency", "reduction_latency")
_SHARES = (
    *("attention_bandwidth", "attention_compute", "prompt_share"),
    *("stream_bandwidth", "reduction_share"),
)


def rates_of(cluster: Cluster) -> Rates:
    """Rates of a cluster's accelerator."""
    chip = cluster.accelerator
    group = _group(chip.family, chip.name)
    peaks = dict(chip.peak_flops)
    # chips from before bfloat16 work in the other format of 16 bits, at its rate
    if "fp16" in peaks:
        peaks.setdefault("bf16", peaks["fp16"])
    latency = {name: _seconds(value) for name, value in group["gemm_latency"].items()}
    rates = Rates(
        bandwidth=chip.memory_bandwidth,
        peaks=peaks,
        gemm_latency=_for_all(latency, peaks),
        gemm_bandwidth=_for_all(group["gemm_bandwidth"], peaks),
        gemm_compute=_for_all(group["gemm_compute"], peaks),
        **{name: _seconds(group[name]) for name in _TIMES},
        **{name: float(group[name]) for name in _SHARES},
        expert_latency={name: _seconds(value) for name, value in group["expert_latency"].items()},
        expert_bandwidth=group["expert_bandwidth"],
        expert_compute=group["expert_compute"],
        expert_rows=float(group["expert_rows"]),
    )
    measured = rates if chip.calibration is None else replaced(rates, chip.calibration)
    return _limited(measured, Board(chip))


def _limited(rates: Rates, board: Board) -> Rates:
    """Rates that a power cap or a lock of the clock leaves."""
    if not board.limited:
        return rates
    products, attention, streams = (
        board.rate(load) for load in (Load.PRODUCTS, Load.ATTENTION, Load.STREAMS)
    )
    return dataclasses.replace(
        rates,
        bandwidth=rates.bandwidth * streams,
        gemm_compute={form: share * products for form, share in rates.gemm_compute.items()},
        attention_compute=rates.attention_compute * attention,
        prompt_share=rates.prompt_share * attention,
    )


def replaced(rates: Rates, measured: Calibration) -> Rates:
    """Rates with the constants that were fitted on a machine: ``serving.rates`` and, by precision or format, ``serving.gemm_bandwidth`` and such."""
    fields: dict[str, object] = {name: at.value for name, at in measured.under("serving.rates")}
    for name in BY_FORMAT:
        found = {form: constant.value for form, constant in measured.under(f"serving.{name}")}
        if found:
            fields[name] = {**getattr(rates, name), **found}
    return dataclasses.replace(rates, **fields)  # type: ignore[arg-type]


def _group(family: str, name: str) -> Figures:
    groups: list[Figures] = read_shipped("mpsim.serving.data", "rates.yaml")["groups"]
    for group in groups:
        named = group.get("names")
        if named is not None and name not in named:
            continue
        if family in group["families"] or "*" in group["families"]:
            return group
    raise AssertionError("the last group takes every accelerator")


def _for_all(given: Mapping[str, float], peaks: Mapping[str, float]) -> dict[str, float]:
    usual = given.get("*", max(given.values()))
    return {precision: float(given.get(precision, usual)) for precision in peaks}


def _seconds(value: str) -> float:
    return parse_quantity(value, Dimension.TIME)


class Reductions:
    """All-reduces of an engine: its own kernel for small tensors where it has one, else the library's.

    Notes
    -----
    Two kernels of the engine's own, of which the faster one is taken: one-shot, where every rank reads all of its peers, takes a fixed time that grows with the ranks that meet, and
    ``(t - 1) S`` at a share of the link; two-shot, a reduce-scatter and an all-gather, has a second barrier and moves ``2 (t - 1) / t S``. They need direct links between all
    ranks, through NVLink or as PCIe peers.
    """

    def __init__(self, cluster: Cluster, ranks: int, rates: Rates, engine: EnginePreset) -> None:
        self._ranks = ranks
        domain = min(cluster.domain_size, ranks)
        self._group = GroupShape(ranks, domain, -(-ranks // domain))
        self._model = CollectiveModel(cluster, loaded=False)
        self._factor = engine.reduction_factor
        link = cluster.node.scale_up
        self._own: Callable[[float], float] | None = None
        inside = self._group.domains == 1
        if engine.reduction == "custom" and inside and ranks > 1:
            shift = shift_of(link)
            fixed = max(0.0, rates.reduction_latency * (0.75 + ranks / 16) + shift.latency)
            rate = rates.reduction_share * shift.rate * link.bandwidth
            self._own = lambda size: min(
                fixed + (ranks - 1) * size / rate,
                _SECOND_BARRIER * fixed + 2 * (ranks - 1) / ranks * size / rate,
            )
        self._sizes = [float(1 << power) for power in range(8, 34)]
        self._times: list[float | None] = [None] * len(self._sizes)

    def seconds(self, size: float) -> float:
        """Time of an all-reduce of so many bytes [s]."""
        if self._ranks <= 1:
            return 0.0
        library = self._factor * self._library(size)
        return min(library, self._own(size)) if self._own else library

    def _library(self, size: float) -> float:
        """Time of the library's all-reduce, between tabulated sizes."""
        at = min(max(bisect.bisect_right(self._sizes, size), 1), len(self._sizes) - 1)
        low, high = self._sizes[at - 1], self._sizes[at]
        below, above = self._at(at - 1), self._at(at)
        return below + (above - below) * max(0.0, size - low) / (high - low)

    def _at(self, place: int) -> float:
        value = self._times[place]
        if value is None:
            value = float(self._model.seconds("all_reduce", self._sizes[place], self._group))
            self._times[place] = value
        return value
