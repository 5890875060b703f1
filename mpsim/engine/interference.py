"""The simpy engine with shared devices: kernels and collectives slow each other down.

A kernel is a flow through its device, whose capacity shrinks by what collectives of that rank hold:
processors for a product, memory bandwidth for all other kernels. A collective is a flow through a
link of its own besides the network's, which is narrower while a kernel runs there.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags
from mpsim.engine.contention import Flows
from mpsim.engine.timeline import Timeline
from mpsim.engine.traffic import Traffic
from mpsim.program.devices import Devices, ranks_of
from mpsim.program.links import Links
from mpsim.program.program import Stream


def run_interfering(devices: Devices, links: Links | None = None) -> Timeline:
    """Simulate an expanded program on shared devices, and on shared links where it has any.
    DeadlockError if operations wait for each other.

    Returns Timeline: of the program with the durations that rows turned out to have.

    Notes
    -----
    Where collectives hold nothing and are not dragged, it is bit-equal to the undisturbed run.
    """
    flows = _Shared(devices, links)
    timeline = flows.run()
    traffic = _of_network(flows.traffic(links), devices.computes) if links else None
    return structs.replace(timeline, traffic=traffic)


def _of_network(traffic: Traffic, computes: Flags) -> Traffic:
    """Traffic over links; kernels move nothing."""
    moves = ~computes[traffic.row]
    return structs.replace(
        traffic, row=traffic.row[moves], time=traffic.time[moves], rate=traffic.rate[moves]
    )


def _with_devices(devices: Devices, links: Links | None) -> Links:
    """Links of the network, then one a device, then one for each stream with collectives."""
    program = devices.program
    count, nothing = len(program), np.zeros(0, dtype=np.int64)
    if links is None:
        communicates = devices.drag + devices.held + devices.traffic > 0
        work = np.where(communicates, program.duration, 0.0)
        links = Links((), np.zeros(0), nothing, nothing, np.zeros(0), np.ones(count), work)
    shared = len(links.capacity)
    kernels = np.flatnonzero(devices.computes)
    moving = np.flatnonzero((links.work > 0) & ~devices.computes)
    own = np.concatenate([kernels, moving])
    cap = np.where(devices.computes, 1.0, links.cap)
    row = np.concatenate([links.row, own])
    link = np.concatenate(
        [links.link, shared + program.rank[kernels], shared + program.ranks + program.home[moving]]
    )
    # what loses anyway does not feel a device that is no narrower than that
    use = np.concatenate([links.use, devices.alone[own] / cap[own]])
    order = np.lexsort((link, row))
    return Links(
        names=(),
        capacity=np.concatenate([links.capacity, np.ones(program.ranks * (1 + len(Stream)))]),
        row=row[order],
        link=link[order],
        use=use[order],
        cap=cap,
        work=np.where(devices.computes, program.duration, links.work),
    )


class _Shared(Flows):
    """One simulation under way, in which kernels and collectives share devices too."""

    def __init__(self, devices: Devices, links: Links | None) -> None:
        program = devices.program
        joined = _with_devices(devices, links)
        super().__init__(program, joined)
        self._ranks = ranks_of(program)
        self._device = 0 if links is None else len(links.capacity)
        self._lane = (self._device + program.ranks + program.home).tolist()
        self._level = dict.fromkeys(range(self._device, len(joined.capacity)), 1.0)
        self._computes = devices.computes.tolist()
        self._share = np.where(devices.product, 1, 0).tolist()
        self._taken = list(zip(devices.traffic.tolist(), devices.held.tolist(), strict=True))
        self._drag, self._most = devices.drag.tolist(), devices.most
        self._meets = (devices.drag + devices.held + devices.traffic > 0).tolist()
        self._kernel: dict[int, int] = {}
        self._moving: list[dict[int, None]] = [{} for _ in range(program.ranks)]

    def _begin(self, row: int) -> None:
        if self._computes[row]:
            self._kernel[self._ranks[row][0]] = row
            self._touch(row)
        elif self._meets[row]:
            for rank in self._ranks[row]:
                self._moving[rank][row] = None
            self._touch(row)
        super()._begin(row)

    def _end(self, row: int) -> None:
        if self._computes[row]:
            del self._kernel[self._ranks[row][0]]
            self._touch(row)
        elif self._meets[row]:
            for rank in self._ranks[row]:
                del self._moving[rank][row]
            self._touch(row)
        super()._end(row)

    def _touch(self, row: int) -> None:
        """Give the devices of a row, and the collectives on them, their present speeds."""
        changed = False
        for rank in self._ranks[row]:
            if rank in self._kernel:
                share = self._share[self._kernel[rank]]
                taken = sum(self._taken[row][share] for row in self._moving[rank])
                level = 1.0 - min(taken, self._most)
                changed |= self._set(self._device + rank, level)
            for row in self._moving[rank]:
                beside = any(other in self._kernel for other in self._ranks[row])
                changed |= self._set(self._lane[row], 1.0 / (1.0 + self._drag[row] * beside))
        if self._meets[row] and not any(row in self._moving[rank] for rank in self._ranks[row]):
            changed |= self._set(self._lane[row], 1.0)
        if changed:
            self._links.arm()

    def _set(self, link: int, level: float) -> bool:
        if self._level[link] == level:
            return False
        self._level[link] = level
        self._links.rescale(link, level)
        return True
