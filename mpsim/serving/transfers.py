"""Transfers of keys and values to instances that decode: flows on links of the cluster.

An instance sends and receives through the ports of its accelerators: those of the scale-up domain
where both sit in one, else their NICs and the links of the fabric that could be too thin. Flows
that meet share links max-min fairly. Latency is paid first and uses nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import simpy

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.engine.contention import SharedLinks
from mpsim.hardware import Cluster
from mpsim.hardware.routes import routes_of
from mpsim.memo import asked_once
from mpsim.parallel.crossing import load, messages
from mpsim.program.program import TICK
from mpsim.serving.lane import Lane

_OUT, _IN = 0, 1


@structs.dataclass(frozen=True, slots=True)
class CachePath:
    """The way from one instance to another."""

    uses: dict[int, float]  # link to what a flow takes of it per unit of its rate
    rate: float  # of a flow that nobody disturbs [B/s]
    latency: float  # [s]


class CacheNetwork:
    """Links and ways from instances that compute prompts to those that decode; a way is found when
    it is first asked for.

    `pools`: ranks of each instance of either, int64[I, R]. `holders`: how many ranks of the smaller
    side hold cache of one request: fewer than all with attention data parallelism.
    """

    def __init__(self, cluster: Cluster, pools: Sequence[Ints], *, holders: int) -> None:
        node = cluster.node
        self._cluster, self._pools, self._holders = cluster, pools, holders
        self._ports = [node.scale_up.bandwidth * node.scale_up.efficiency]
        if node.nics:
            self._ports.append(node.nic_bandwidth_per_accelerator * node.nic.efficiency)
        sizes = [pool.shape[1] for pool in pools for _ in pool]
        # of every link [B/s]: ports of each instance, out and in, towards its scale-up domain, then
        # towards the network, then links of the fabric
        self.capacity = [size * rate for rate in self._ports for size in sizes for _ in (_OUT, _IN)]
        self._fabric = len(self.capacity)
        self.capacity += (routes_of(cluster).capacity * node.nic.efficiency).tolist()

    @asked_once(lambda source, target: (source, target))
    def path(self, source: int, target: int) -> CachePath:
        """The way from a source to a target, by their numbers."""
        cluster, node, (sources, targets) = self._cluster, self._cluster.node, self._pools
        here, there = sources[source], targets[target]
        ranks = np.concatenate([here, there])
        inside = len(np.unique(cluster.domain_of(ranks))) == 1
        first = 0 if inside else 2 * (len(sources) + len(targets))
        uses = {first + 2 * source + _OUT: 1.0, first + 2 * (len(sources) + target) + _IN: 1.0}
        if not inside:
            uses |= _fabric(cluster, here, there, self._fabric)
        span = int(np.ptp(cluster.node_of(ranks))) + 1
        latency = node.scale_up.hop_latency if inside else cluster.network_latency(span)
        return CachePath(uses, self._holders * self._ports[0 if inside else 1], latency)


def _fabric(cluster: Cluster, source: Ints, target: Ints, first: int) -> dict[int, float]:
    """Links of the fabric that a byte from one instance to another takes."""
    count = math.lcm(len(source), len(target))
    flows = messages(cluster, np.resize(source, count), np.resize(target, count))
    carried = load(cluster, flows) / count
    return {first + link: float(carried[link]) for link in np.flatnonzero(carried > 0).tolist()}


class Transfers:
    """Keys and values of computed prompts, on their way to the batches that decode them.

    `prompt`: tokens of every request. `token_bytes`: keys and values of a token [B].
    """

    def __init__(
        self,
        env: simpy.Environment,
        network: CacheNetwork,
        prompt: Sequence[int],
        token_bytes: float,
    ) -> None:
        self._env, self._network = env, network
        self._prompt, self._token_bytes = prompt, token_bytes
        self._links = SharedLinks(env, network.capacity, self._come, tick=TICK)
        self._computed: dict[int, Lane] = {}  # where each prompt waits
        self._under_way: dict[int, tuple[Lane, Lane, int]] = {}  # source, target, row
        # of each transfer: request, source, target, start and end [s], bytes
        self.rows: list[list[float]] = []

    def offer(self, request: int, source: Lane, target: Lane) -> None:
        """Offer a computed prompt to a batch that decodes."""
        self._computed[request] = source
        target.join().offered.append(request)
        target.wake()

    def take_up(self, lane: Lane) -> None:
        """Let requests decode whose keys and values have come, and fetch those of others."""
        for request in lane.arrived:
            lane.holder(request).land(request)
        lane.arrived.clear()
        for request in [r for engine in lane.engines for r in engine.accept()]:
            self._start(request, self._computed.pop(request), lane)

    def _start(self, request: int, source: Lane, target: Lane) -> None:
        path = self._network.path(source.instance, target.instance)
        size = self._token_bytes * self._prompt[request]
        self._under_way[request] = source, target, len(self.rows)
        self.rows.append([request, source.number, target.number, self._env.now, math.nan, size])
        work = max(1.0, round(size / path.rate / TICK))
        event = self._env.timeout(path.latency)
        assert event.callbacks is not None
        event.callbacks.append(
            lambda _: self._links.start(request, path.uses, cap=path.rate * TICK, work=work)
        )

    def _come(self, request: int) -> None:
        """Keys and values of a request have come."""
        source, target, row = self._under_way.pop(request)
        self.rows[row][4] = self._env.now
        source.holder(request).cache.give_back(request)
        source.wake()
        target.arrived.append(request)
        target.wake()
