"""Dispatch of tokens to the ranks of their experts, and the way back: all-to-alls of rows."""

from __future__ import annotations

from mpsim.hardware import Cluster, shift_of
from mpsim.serving.work import RankWork
from mpsim.shipped import read_shipped
from mpsim.units import Dimension, parse_quantity


class Exchange:
    """Dispatch and combine of one layer of experts, which are divided among `ep` ranks.

    Notes
    -----
    Each takes a fixed time, and the bytes that leave a rank at a share of its link: ``t0 +
    max(inside / (e link), outside / (e' NIC))``. A token leaves once for every one of its experts
    on another rank; ranks are taken as equally likely.
    """

    def __init__(self, cluster: Cluster, work: RankWork) -> None:
        rates = read_shipped("mpsim.serving.data", "rates.yaml")["exchange"]
        ranks = work.ep
        domain = min(cluster.domain_size, ranks)
        self._copies = max((experts.top_k for experts in work.experts), default=0)
        self._width = work.hidden
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
        rows = tokens * self._copies * self._width
        return sum(
            self._fixed + max(rows * each * pace for pace in self._paces) for each in self._bytes
        )
