"""A fluid network: flows that share links max-min fairly, each up to a cap of its own.

A flow moves at one rate along all its links; on link l it takes ``use`` times its rate. Rates rise
together until a link is full or a flow reaches its cap; what is held back stays there and the
others rise on (progressive filling). Only flows that are joined by shared links are touched when
one starts or ends.

Work is counted in ticks at the cap: an undisturbed flow ends after the ticks it was given.

Shapes: L links.

References
----------
Bertsekas, Gallager, Data Networks (1992), section 6.5.2: max-min fairness and progressive filling.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Mapping, Sequence

from mpsim import structs
from mpsim.errors import HardwareError

_TOLERANCE = 1e-9  # share of a link's capacity below which it counts as full


@structs.dataclass(slots=True, eq=False)
class _Flow:
    """A flow under way; at `since`, `remaining` ticks at its cap were left, at `speed` of it."""

    key: int
    uses: tuple[tuple[int, float], ...]
    cap: float
    remaining: float
    since: float
    speed: float = 0.0
    end: float = math.inf

    def settle(self, now: float) -> None:
        """Account for what moved until `now`."""
        self.remaining = max(0.0, self.remaining - (now - self.since) * self.speed)
        self.since = now


class Fluid:
    """Flows on links. `capacity`: of each link [B/tick], float[L].

    Examples
    --------
    Two flows on one link take twice as long as one:

    >>> network = Fluid([1.0])
    >>> network.start(0, {0: 1.0}, cap=1.0, work=100.0, now=0.0)
    >>> network.start(1, {0: 1.0}, cap=1.0, work=100.0, now=0.0)
    >>> network.next_end()
    200.0
    """

    changes: list[tuple[int, float, float]]
    """Every change of a rate: flow, time [ticks], rate from then on [B/tick]."""

    def __init__(self, capacity: Sequence[float]) -> None:
        if not all(rate > 0 for rate in capacity):
            raise HardwareError("got a link without capacity; needed more than 0 B/tick")
        self._capacity = [float(rate) for rate in capacity]
        self._flows: dict[int, _Flow] = {}
        self._on_link: list[dict[int, _Flow]] = [{} for _ in self._capacity]
        self._ends: list[tuple[float, int]] = []
        self.changes = []

    def __len__(self) -> int:
        return len(self._flows)

    def start(
        self, key: int, uses: Mapping[int, float], *, cap: float, work: float, now: float
    ) -> None:
        """Let a flow begin.

        `key`: names the flow; also what ties are broken by. `uses`: link to what the flow takes of
        it per unit of its rate (its multiplicity, where one flow stands for several). `cap`: rate
        it never exceeds [B/tick]. `work`: ticks it takes at that rate. `now`: time [ticks]; never
        earlier than at the call before. HardwareError if the flow exists, or its cap or a use is
        not positive.
        """
        if key in self._flows:
            raise HardwareError(f"flow {key} is under way already")
        if not cap > 0 or not all(use > 0 for use in uses.values()):
            raise HardwareError(f"flow {key}: needed a positive cap and positive uses of links")
        flow = _Flow(key, tuple(sorted(uses.items())), cap, work, now)
        self._flows[key] = flow
        for link, _ in flow.uses:
            self._on_link[link][key] = flow
        self._refill([flow], now)

    def finish(self, now: float) -> list[int]:
        """Remove the flows that end at `now`; return their keys in ascending order."""
        ended: set[int] = set()
        while self._ends and self._ends[0][0] <= now:
            end, key = heapq.heappop(self._ends)
            flow = self._flows.get(key)
            if flow is not None and flow.end == end:
                ended.add(key)
        self._remove([self._flows[key] for key in sorted(ended)], now)
        return sorted(ended)

    def next_end(self) -> float:
        """When the next flow ends if nothing else happens [ticks]; infinity if none does."""
        while self._ends:
            end, key = self._ends[0]
            flow = self._flows.get(key)
            if flow is not None and flow.end == end:
                return end
            heapq.heappop(self._ends)
        return math.inf

    def rescale(self, link: int, capacity: float, now: float) -> None:
        """Change a link's capacity [B/tick]: it degrades, fails partly or recovers."""
        if not capacity > 0:
            raise HardwareError(
                f"link {link}: got capacity {capacity:g} B/tick; needed more than 0"
            )
        self._capacity[link] = capacity
        self._refill(list(self._on_link[link].values()), now)

    def rate(self, key: int) -> float:
        """Present rate of a flow [B/tick]."""
        flow = self._flows[key]
        return flow.speed * flow.cap

    def load(self, link: int) -> float:
        """Rate that flows take of a link at present [B/tick]."""
        flows = self._on_link[link].values()
        return math.fsum(flow.speed * flow.cap * dict(flow.uses)[link] for flow in flows)

    def _remove(self, flows: Sequence[_Flow], now: float) -> None:
        for flow in flows:
            self.changes.append((flow.key, now, 0.0))
            del self._flows[flow.key]
            for link, _ in flow.uses:
                del self._on_link[link][flow.key]
        beside = {
            other.key: other
            for flow in flows
            for link, _ in flow.uses
            for other in self._on_link[link].values()
        }
        self._refill(list(beside.values()), now)

    def _refill(self, touched: Iterable[_Flow], now: float) -> None:
        """Give new rates to everything joined to `touched`."""
        flows = self._component(touched)
        for flow, speed in zip(flows, self._speeds(flows), strict=True):
            if speed == flow.speed:
                continue
            flow.settle(now)
            flow.speed = speed
            self.changes.append((flow.key, now, speed * flow.cap))
            flow.end = float(math.ceil(now + flow.remaining / speed))
            heapq.heappush(self._ends, (flow.end, flow.key))

    def _component(self, touched: Iterable[_Flow]) -> list[_Flow]:
        """Flows joined to `touched` by links they share, directly or through others, by key."""
        component = {flow.key: flow for flow in touched}
        queue, seen = list(component.values()), set[int]()
        for flow in queue:  # grows while it is walked
            for link, _ in flow.uses:
                if link in seen:
                    continue
                seen.add(link)
                for key, flow in self._on_link[link].items():
                    if key not in component:
                        component[key] = flow
                        queue.append(flow)
        return [component[key] for key in sorted(component)] if len(queue) > 1 else queue

    def _speeds(self, flows: Sequence[_Flow]) -> list[float]:
        """Max-min fair rates over caps, by progressive filling."""
        if len(flows) == 1:
            return [self._alone(flows[0])]
        filling = _Filling(self._capacity, flows)
        waiting = list(flows)
        while waiting:
            shares = filling.shares()
            level = min(shares.values(), default=math.inf)
            reach = level * (1 + _TOLERANCE)
            # what its cap holds back before any link does is done, up to rounding
            if capped := [flow for flow in waiting if flow.cap <= reach]:
                filling.freeze(dict.fromkeys(capped, 1.0))
            else:
                full = {link for link, share in shares.items() if share <= reach}
                held = [flow for flow in waiting if any(link in full for link, _ in flow.uses)]
                filling.freeze({flow: level / flow.cap for flow in held})
            waiting = [flow for flow in waiting if flow.key not in filling.speeds]
        return [filling.speeds[flow.key] for flow in flows]

    def _alone(self, flow: _Flow) -> float:
        """Rate of a flow that meets no other."""
        level = min((self._capacity[link] / use for link, use in flow.uses), default=math.inf)
        return 1.0 if flow.cap <= level * (1 + _TOLERANCE) else level / flow.cap


class _Filling:
    """Links being filled: what is left of each, and what rising flows take per unit of rate."""

    def __init__(self, capacity: Sequence[float], flows: Sequence[_Flow]) -> None:
        self.speeds: dict[int, float] = {}
        self._left: dict[int, float] = {}
        self._rising: dict[int, dict[int, float]] = {}
        for flow in flows:
            for link, use in flow.uses:
                self._left[link] = capacity[link]
                self._rising.setdefault(link, {})[flow.key] = use
        self._weight = {link: math.fsum(uses.values()) for link, uses in self._rising.items()}

    def shares(self) -> dict[int, float]:
        """Rate at which each link that flows still rise on is full."""
        return {link: self._left[link] / weight for link, weight in self._weight.items()}

    def freeze(self, speeds: Mapping[_Flow, float]) -> None:
        """Leave flows at these speeds, as multiples of their caps."""
        left, rising, touched = self._left, self._rising, set[int]()
        for flow, speed in speeds.items():
            self.speeds[flow.key] = speed
            for link, use in flow.uses:
                left[link] = max(0.0, left[link] - use * speed * flow.cap)
                del rising[link][flow.key]
                touched.add(link)
        for link in touched:
            if rising[link]:
                self._weight[link] = math.fsum(rising[link].values())
            else:
                del self._weight[link]
