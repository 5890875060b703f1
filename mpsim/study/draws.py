"""Steps whose operations take times that are drawn: factors of durations, and runs with them.

A factor is lognormal and has mean 1; its spread is given as a coefficient of variation. Where every
duration is known beforehand, `mpsim.engine.Structure` replays many steps at once. Where transfers
share links or kernels share devices, one step after the other goes through the engine; what does
not depend on durations is worked out once.

Shapes: N transfers and actions of the unfolded program, X finest rows, L links, R classes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine import Timeline, run, run_interfering
from mpsim.parallel import FOLDED, Mesh
from mpsim.program import Program, Stream
from mpsim.program.expand import expand
from mpsim.program.links import Links, links_of
from mpsim.program.unfold import Unfolding
from mpsim.simulate import Prepared
from mpsim.training.vocabulary import PIPELINE, Kind

COMPUTE = (*PIPELINE, Kind.OPTIMIZER)
"""Kinds of rows whose kernels vary; all others are of the network."""
QUANTILES = 2**16
"""Values of a factor, all equally likely: the tails end at 4.3 standard deviations."""
VALUES = 2**22
"""Durations drawn at a time: arrays of this size are reused instead of being mapped anew."""


def sigma_of(variation: float) -> float:
    """Parameter of the lognormal distribution with this coefficient of variation."""
    return math.sqrt(math.log1p(variation**2))


def factors(sigma: float, peers: int) -> Floats:
    """Equally likely values of the largest of `peers` lognormal factors of mean 1."""
    normal = statistics.NormalDist()
    level = ((np.arange(QUANTILES) + 0.5) / QUANTILES) ** (1 / peers)
    result: Floats = np.exp(
        sigma * np.array([normal.inv_cdf(share) for share in level.tolist()]) - sigma**2 / 2
    )
    return result


def peers_of(program: Program, mesh: Mesh) -> int:
    """Ranks of a class that meet inside actions, over axes of templates' collectives."""
    streams: set[int] = set()
    for template in program.templates:
        streams |= set(np.unique(template.stream).tolist())
    if Stream.EP in streams:  # experts' groups are cut from all ranks of a stage
        return int(program.class_size.max(initial=1))
    return math.prod(mesh.degree(axis.name) for axis in FOLDED if axis.streams[0] in streams)


def folded_actions(program: Program) -> Program:
    """A program in which an action is a row like any other, so that it can be unfolded."""
    nowhere = np.full(len(program), -1, dtype=np.int32)
    return structs.replace(program, templates=(), template=nowhere)


class Steps:
    """Runs of one step.

    `prepared`: it shares links or devices (`Prepared.replays` is false). `replicas`: how many
    data-parallel copies of each rank class there are. `touched`: copies that differ from the
    others, which stay together; all by default.
    """

    program: Program  # unfolded, every kernel a row where kernels meet anything
    row: Ints  # int64[X], row of the folded program (`Prepared.program`) that each stems from
    coarse: Ints  # the same, counted in rows of the unfolded program with actions as rows

    def __init__(
        self, prepared: Prepared, replicas: int, touched: Iterable[int] | None = None
    ) -> None:
        program, plan = prepared.program, prepared.plan
        self._devices = prepared.devices() if plan.interference else None
        fine = program
        if self._devices is not None:
            fine = self._devices.program
        elif any(template.out_bytes.any() for template in program.templates):
            fine = expand(program)
        links = None if plan.network == "analytic" else links_of(fine, plan)
        alone = None if touched is None else {"dp": list(touched)}
        unfolding = Unfolding(folded_actions(fine), {"dp": replicas}, touched=alone)
        each = Unfolding(folded_actions(program), {"dp": replicas}, touched=alone).count
        self.program = structs.replace(
            unfolding.program(),
            templates=fine.templates,
            template=np.repeat(fine.template, unfolding.count),
        )
        self.row = np.repeat(_actions(program, fine), unfolding.count)
        # copies of a kernel are those of its action, in the same order
        copy = np.arange(len(self.row)) - np.repeat(
            np.cumsum(unfolding.count) - unfolding.count, unfolding.count
        )
        self.coarse = (np.cumsum(each) - each)[self.row] + copy
        self.links = None if links is None else _unfolded(links, fine, self.program, unfolding)
        if (held := self._devices) is not None:
            self._devices = structs.replace(
                held,
                program=self.program,
                computes=np.repeat(held.computes, unfolding.count),
                product=np.repeat(held.product, unfolding.count),
                held=np.repeat(held.held, unfolding.count),
                traffic=np.repeat(held.traffic, unfolding.count),
                drag=np.repeat(held.drag, unfolding.count),
                alone=np.repeat(held.alone, unfolding.count),
            )

    def timeline(self, scale: Floats, narrow: Floats | None = None) -> Timeline:
        """Simulate one step.

        `scale` (float64[X]): how many times longer each row takes alone: its latency and its
        transfer. `narrow` (float64[L], optional): how many times narrower each link is.
        """
        links, devices = self.links, self._devices
        duration = np.rint(self.program.duration * scale)
        program = structs.replace(self.program, duration=duration)
        if links is not None:
            # a transfer holds its links as long as it takes, at the rate that it had
            work = np.minimum(np.rint(links.work * scale), duration)
            capacity = links.capacity if narrow is None else links.capacity / narrow
            links = structs.replace(links, work=work, capacity=capacity)
        if devices is not None:
            return run_interfering(structs.replace(devices, program=program), links)
        return run(program, "simpy", links)

    def thinned(self, thin: Floats) -> Floats:
        """How narrow links are if a class's NICs are `thin` times slower [R] to [L]."""
        assert self.links is not None
        narrow = np.ones(len(self.links.capacity))
        ports = narrow[: self.links.ports].reshape(len(thin), -1)
        ports[:, 2:] = thin[:, None]  # the first two are those of the scale-up domain
        return narrow


def _actions(program: Program, fine: Program) -> Ints:
    """Row of the program that each row of its finer form stems from."""
    if fine is program:
        return np.arange(len(program))
    kernels = np.array([*(len(template.stream) for template in program.templates), 1])
    return np.repeat(np.arange(len(program)), kernels[program.template])  # -1: a row alone


def _unfolded(links: Links, folded: Program, program: Program, unfolding: Unfolding) -> Links:
    """Links of the unfolded program.

    Notes
    -----
    Every copy of a rank class has ports of its own. A row in which all copies take part uses the
    ports of all; of what a class puts on links of the fabric each copy has the part of its ranks.
    """
    copies, count = unfolding.copies, unfolding.count
    size = program.class_size[:copies]
    share = size / size.sum()
    per = links.ports // folded.ranks
    is_port = links.link < links.ports
    joint = count[links.row] == 1
    many = np.where(is_port, copies, np.where(joint, 1, copies))
    use = np.repeat(np.arange(len(links.row)), many)
    copy = np.arange(len(use)) - np.repeat(np.cumsum(many) - many, many)
    row, link, is_port, joint = links.row[use], links.link[use], is_port[use], joint[use]
    # ports of a class lie side by side: all of its first copy, then all of the next
    owner, port = np.divmod(link, per)
    beyond = link + links.ports * (copies - 1)
    new = np.where(is_port, (owner * copies + copy) * per + port, beyond)
    new_row = (np.cumsum(count) - count)[row] + np.where(joint, 0, copy)
    order = np.lexsort((new, new_row))
    amount = np.where(is_port | joint, 1.0, share[copy]) * links.use[use]
    kinds = [name.removeprefix(folded.rank_name[0]) for name in links.names[:per]]
    names = [f"{rank}{kind}" for rank in program.rank_name for kind in kinds]
    ports = links.capacity[: links.ports].reshape(folded.ranks, per)
    return Links(
        names=(*names, *links.names[links.ports :]),
        capacity=np.concatenate(
            [np.repeat(ports, copies, axis=0).ravel(), links.capacity[links.ports :]]
        ),
        row=new_row[order],
        link=new[order],
        use=amount[order],
        cap=np.repeat(links.cap, count),
        work=np.repeat(links.work, count),
        ports=links.ports * copies,
    )
