"""Rates that kernels of serving reach on a cluster, an engine's all-reduces and exchanges."""

from collections.abc import Callable, Mapping

import numpy as np

from mpsim import structs
from mpsim.cost import Board, CollectiveModel, Load
from mpsim.hardware import Calibration, Cluster, shift_of
from mpsim.nouns import Seconds, read
from mpsim.parallel import GroupShape
from mpsim.result.words import Figures
from mpsim.serving.engines import EnginePreset
from mpsim.serving.work import RankWork
from mpsim.shipped import read_shipped
from mpsim.units import Dimension, parse_quantity


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Rates of one accelerator as kernels of serving reach them."""

    bandwidth: float  # of memory, from the datasheet [B/s]
    peaks: Mapping[str, float]  # dense peak of each precision [FLOP/s]
    # of the kernels that quantise what a product reads, by the format of its narrow weights [s]
    cast_latency: Mapping[str, Seconds]
    # product_rate, expert_rate: of products and of grouped ones over `mpsim.cost.KernelModel`'s at
    # the clocks of a short run, by format of the weights, ``*`` for the others
    product_rate: Mapping[str, float]
    expert_rate: Mapping[str, float]
    # arithmetic of grouped products over that model's, by format of the weights
    expert_compute: Mapping[str, float]
    cutlass_rate: Mapping[str, float]  # of CUTLASS's grouped products over those of other kernels
    unpack_rate: Mapping[str, float]  # weights of 4 bits that a multiprocessor widens to 16 [1/s]
    # attention_latency, latent_latency, attention_bandwidth, attention_compute: of the decode
    # kernel: fixed time, and that of latent attention [s], share of `bandwidth` at which it reads
    # the cache, share of the bf16 peak
    attention_latency: Seconds
    latent_latency: Seconds
    attention_bandwidth: float
    attention_compute: float
    attention_narrow: float  # rate of its products over that where the cache has 8 bits
    prompt_share: float  # share of the bf16 peak that attention of prompts reaches
    prompt_narrow: float  # rate of that in 8 bits over it, of engines with `narrow_prompts`
    # of norms, rotary, activation: fixed time [s], and share of `bandwidth`
    stream_latency: Seconds
    stream_bandwidth: float
    # of an engine's own all-reduces: fixed time [s], and share of the link
    reduction_latency: Seconds
    reduction_share: float
    # expert_latency, expert_each: time of kernels that route, permute and combine, and what each
    # expert of a rank adds, by the kernel of the experts [s]
    expert_latency: Mapping[str, Seconds]
    expert_each: Mapping[str, Seconds]
    expert_knee: Mapping[str, float]  # 1: it multiplies after it loads, 3: while it loads
    expert_kernel: str  # that kernel where the engine does not say
    # standard deviation of an expert's tokens over their mean where the model does not say
    expert_spread: float

    @property
    def streamed(self) -> float:
        """Rate of memory-bound kernels [B/s]."""
        return self.stream_bandwidth * self.bandwidth


# fixed time of two-shot over one-shot: vLLM's kernels on eight H100, 9.7 and 5.5 us
_SECOND_BARRIER = 1.75
BY_FORMAT = ("cast_latency", "product_rate", "expert_rate", "unpack_rate")
"""Rates of which there is one for each format of weights."""


def rates_of(cluster: Cluster) -> Rates:
    """Rates of a cluster's accelerator."""
    chip = cluster.accelerator
    groups: list[Figures] = read_shipped("mpsim.serving.data", "rates.yaml")["groups"]
    group = next(group for group in groups if {chip.family, "*"} & {*group["families"]})
    peaks = dict(chip.peak_flops)
    # chips from before bfloat16 work in the other format of 16 bits, at its rate
    if "fp16" in peaks:
        peaks.setdefault("bf16", peaks["fp16"])
    fields = {name: group[name] for name in Rates.__dataclass_fields__ if name in group}
    rates = read(Rates, {**fields, "bandwidth": chip.memory_bandwidth, "peaks": peaks})
    measured = rates if chip.calibration is None else replaced(rates, chip.calibration)
    board = Board(chip)  # a power cap or a lock of the clock leaves less
    attention, streams = board.rate(Load.ATTENTION), board.rate(Load.STREAMS)
    return structs.replace(
        measured,
        bandwidth=measured.bandwidth * streams,
        attention_compute=measured.attention_compute * attention,
        prompt_share=measured.prompt_share * attention,
    )


def replaced(rates: Rates, measured: Calibration) -> Rates:
    """Rates with the constants that were fitted on a machine, those by format among them."""
    fields: dict[str, object] = {name: at.value for name, at in measured.under("serving.rates")}
    for name in BY_FORMAT:
        found = {form: constant.value for form, constant in measured.under(f"serving.{name}")}
        if found:
            fields[name] = {**getattr(rates, name), **found}
    return structs.replace(rates, **fields)  # type: ignore[arg-type]


class Reductions:
    """All-reduces of an engine: its own kernel for small tensors if it has one, or the library's.

    Two kernels of the engine's own, of which the faster one is taken: one-shot, where every rank
    reads all of its peers, takes a fixed time that grows with the ranks that meet, and ``(t - 1)
    S`` at a share of the link; two-shot, a reduce-scatter and an all-gather, has a second barrier
    and moves ``2 (t - 1) / t S``. They need direct links between all ranks, through NVLink or as
    PCIe peers.
    """

    def __init__(self, cluster: Cluster, ranks: int, rates: Rates, engine: EnginePreset) -> None:
        domain = min(cluster.domain_size, ranks)
        group = GroupShape(ranks, domain, -(-ranks // domain))
        inside, link = group.domains == 1, cluster.node.scale_up
        self._own: Callable[[float], float] | None = None
        if engine.reduction == "custom" and inside and ranks > 1:
            shift = shift_of(link)
            fixed = max(0.0, rates.reduction_latency * (0.75 + ranks / 16) + shift.latency)
            rate = rates.reduction_share * shift.rate * link.bandwidth
            self._own = lambda size: min(
                fixed + (ranks - 1) * size / rate,
                _SECOND_BARRIER * fixed + 2 * (ranks - 1) / ranks * size / rate,
            )
        self._sizes = np.array([float(1 << power) for power in range(8, 38)])
        model = CollectiveModel(cluster, loaded=False)
        self._times = engine.reduction_time + model.seconds("all_reduce", self._sizes, group)
        self._times *= ranks > 1

    def seconds(self, size: float) -> float:
        """Time of an all-reduce of so many bytes [s]."""
        library = float(np.interp(size, self._sizes, self._times))
        return min(library, self._own(size)) if self._own else library


class Exchange:
    """Dispatch and combine of one layer of experts, which are divided among `ep` ranks.

    Each takes a fixed time, and the bytes that leave a rank at a share of its link: ``t0 +
    max(inside / (e link), outside / (e' NIC))``. A token leaves once for every one of its experts
    on another rank; ranks are taken as equally likely.
    """

    def __init__(self, cluster: Cluster, work: RankWork) -> None:
        rates = read_shipped("mpsim.serving.data", "rates.yaml")["exchange"]
        ranks, domain = work.ep, min(cluster.domain_size, work.ep)
        copies = max((experts.top_k for experts in work.experts), default=0)
        self._elements = copies * work.hidden
        self._bytes = float(rates["dispatch_bytes"]), float(rates["combine_bytes"])
        reach = "inside" if ranks <= domain else "outside"
        up, nic = cluster.node.scale_up, cluster.node.nic
        shift = shift_of(up if reach == "inside" else nic).latency
        self._fixed = max(0.0, parse_quantity(rates[f"{reach}_latency"], Dimension.TIME) + shift)
        share = float(rates["inside_share"]) * shift_of(up).rate
        self._paces = [(domain - 1) / ranks / (share * up.bandwidth)]
        if ranks > domain:
            share = float(rates["outside_share"]) * shift_of(nic).rate
            rate = share * cluster.node.nic_bandwidth_per_accelerator
            self._paces.append((ranks - domain) / ranks / rate)

    def seconds(self, tokens: float) -> float:
        """Time of both ways for so many tokens of a rank [s]."""
        rows = tokens * self._elements
        return sum(
            self._fixed + max(rows * each * pace for pace in self._paces) for each in self._bytes
        )
