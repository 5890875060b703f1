"""Rows that a step has once: its start, the sum of shared weights, clipping, the optimizer, the
gather of what it updated.

`Ending` says which these are, and `StepEnd` what they cost.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

import numpy as np

from mpsim.arrays import Floats, Ints
from mpsim.cost import COLLECTIVES, update_seconds
from mpsim.hardware import host_of
from mpsim.program.program import TICK, Span, Stream
from mpsim.program.rows import Prices, Rows
from mpsim.program.template import ticks
from mpsim.schedule import Orders
from mpsim.training.memory.account import account_memory
from mpsim.training.pipeline import PipelineRows
from mpsim.training.plan import Plan, PlanCosts
from mpsim.training.replicas.exchanges import host_optimizer
from mpsim.training.replicas.groups import (
    GATHERS,
    STREAMS,
    ReplicaGroup,
    collective_link,
    collective_prices,
)
from mpsim.training.replicas.residency import matrices
from mpsim.training.vocabulary import PARTS, Kind, Link
from mpsim.workload import Phase, orthogonal_products

_NORM_BYTES = 4.0  # one float32
_OVERHEAD, _SHARED, _NORM, _LINKS = "overhead", "shared weights", "norm", "ending"


def host_overhead(plan: Plan) -> float:
    """Serial host time of a step, before its first action [s]."""
    host = plan.layout.framework.host
    return host.step_overhead + host.step_rank_time * plan.layout.mesh.world


class Shared(NamedTuple):
    """Weights that two ranks hold, whose gradients are summed."""

    first: int
    last: int
    label: str


class Ending(NamedTuple):
    """Rows at the end of a step; links are rows of every rank, each after its last there."""

    shared: tuple[Shared, ...]
    norm: Span | None  # of the communicator of the gradients' norm; None where nothing asks for it
    # before, device, host, after: around the update, which runs on device, host or both
    before: tuple[Link, ...]
    device: tuple[Link, ...]
    host: tuple[Link, ...]
    after: tuple[Link, ...]


class _Adder:
    """Appends the rows of an ending, with one price a link and rank."""

    def __init__(self, rows: Rows, ending: Ending, ranks: int) -> None:
        self._rows, self._ending, self._ranks = rows, ending, np.arange(ranks)
        self._links = 0  # appended so far

    def add(self, reduced: Ints) -> None:
        """Clip by the global norm, update, and gather what was updated unless a forward does."""
        ending, waits = self._ending, reduced
        if ending.norm is not None:
            waits = self._norm(ending.norm, reduced)
        waits = self._chain(ending.before, waits)
        last = device = self._chain(ending.device, waits)
        if ending.host:
            first, *others = map(self._row, ending.host)
            last = others[-1] if others else first
            if (
                ending.host[-1].stream is Stream.COPY
            ):  # the steps before follow each other in a stream of the host
                self._rows.depend(last, [first, *others][-2])
            if ending.device:
                self._rows.depend(last, device)
            self._after(waits, first)
        self._chain(ending.after, last)

    def _chain(self, links: tuple[Link, ...], ready: Ints) -> Ints:
        for link in links:
            ready = self._after(ready, self._row(link))
        return ready

    def _after(self, ready: Ints, rows: Ints) -> Ints:
        """The same rows, one a rank, each after what it takes part in of what is ready."""
        row, rank = self._rows.ranks_of(ready)
        self._rows.depend(rows[rank], row)
        return rows

    def _row(self, link: Link) -> Ints:
        ranks = len(self._ranks)
        place = self._links * ranks + self._ranks
        self._links += 1
        columns = link._asdict() | {"part": PARTS.index(link.part)}
        return self._rows.add(ranks, rank=self._ranks, price=_LINKS, place=place, **columns)

    def _norm(self, span: Span, reduced: Ints) -> Ints:
        """All-reduce of the gradient norm: every stage waits for the last."""
        row = self._rows.add(
            1,
            rank=0,
            stream=Stream.COMPUTE,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("other"),
            span=span,
            collective=COLLECTIVES.index("all_reduce"),
            label="all-reduce gradient norm",
            price=_NORM,
        )
        self._rows.occupy(row, self._ranks, Stream.COMPUTE)
        if len(reduced):
            self._rows.depend(row, reduced)
        return row


def add_overhead(rows: Rows, ranks: int) -> Ints:
    """Append the serial host time at the start of every rank."""
    return rows.add(
        ranks,
        rank=np.arange(ranks),
        stream=Stream.COMPUTE,
        kind=Kind.COLLECTIVE,
        part=PARTS.index("host"),
        label="step overhead",
        price=_OVERHEAD,
    )


def add_shared_sums(rows: Rows, ending: Ending, orders: Orders, placed: PipelineRows) -> Ints:
    """Append sums of gradients of weights that two ranks hold: tied embedding, copies of stages."""
    ids = [np.zeros(0, dtype=np.int64)]
    for place, (first, last, label) in enumerate(ending.shared):
        row = rows.add(
            1,
            rank=first,
            stream=Stream.DP,
            kind=Kind.COLLECTIVE,
            part=PARTS.index("exposed_dp"),
            peer=last,
            collective=COLLECTIVES.index("all_reduce"),
            label=label,
            price=_SHARED,
            place=np.array([place]),
        )
        rows.occupy(row, last, Stream.DP)
        for rank in (first, last):
            rows.depend(row, placed.last[orders.rank_ptr[rank + 1] - 1])
        ids.append(row)
    return np.concatenate(ids)


def add_ending(rows: Rows, ending: Ending, ranks: int, reduced: Ints) -> None:
    """Append the rows behind those after which all gradients are `reduced`."""
    _Adder(rows, ending, ranks).add(reduced)


Priced: TypeAlias = list[tuple[Link, Prices]]
"""Links with what they cost on each rank."""


class StepEnd:
    """Prices the rows that a plan has once a step: `ending` says which, `prices` what they cost."""

    def __init__(
        self,
        plan: Plan,
        costs: PlanCosts,
        groups: Sequence[ReplicaGroup],
        busy: Callable[[], Floats],
    ) -> None:
        """`busy`: gives the time that the actions of each rank take, float64[R] [ticks]."""
        self._plan = plan
        self._costs = costs
        self._groups = groups
        ranks = plan.layout.mesh.pp
        self.prices = {_OVERHEAD: Prices(np.full(ranks, ticks(host_overhead(plan))))}
        owned = plan.layout.trained_kinds
        divided = [group.sharers if plan.zero else 1 for group in self._groups]
        share = owned[0] / divided[0] + owned[1] / divided[1]
        on_host = 0.0 if plan.offload == "none" else plan.offload_fraction
        before = [*self._stragglers(), *self._pages(share), *self._prepared(busy)]
        device = [self._update((1.0 - on_host) * share)] if on_host < 1 else []
        host = host_optimizer(plan, on_host * share) if on_host else []
        after = [*self._gathers(owned), *self._casts()]
        parts = (before, device, host, after)
        table = np.zeros((len(Prices._fields), sum(map(len, parts)), ranks))
        for place, (_, price) in enumerate(itertools.chain(*parts)):
            for row, column in enumerate(price):
                table[row, place] = column
        self.prices[_LINKS] = Prices(*table.reshape(len(table), -1))
        links = (tuple(link for link, _ in part) for part in parts)
        self.ending = Ending(self._shared(), self._norm(), *links)

    def _shared(self) -> tuple[Shared, ...]:
        plan = self._plan
        shared: list[tuple[Shared, float]] = []  # with the parameters of each
        if plan.layout.embedding_ends is not None and plan.layout.tuning.trains_all:
            table = plan.layout.padded_vocab * plan.layout.model.hidden / plan.layout.mesh.tp
            weights = Shared(*plan.layout.embedding_ends, "all-reduce tied embedding")
            shared.append((weights, table))
        for pair in plan.layout.stage_copies:
            first, last = (stage.rank for stage in pair)
            counts = plan.layout.trained_parameters(pair[0]).values()
            held = sum(plan.layout.held(count) for count in counts)
            if first != last:
                shared.append((Shared(first, last, "all-reduce weight copies"), held))
        prices = [self._between(weights.first, weights.last, held) for weights, held in shared]
        columns = np.array(prices).reshape(-1, 4).T
        self.prices[_SHARED] = Prices(*columns)
        return tuple(weights for weights, _ in shared)

    def _between(self, first: int, last: int, parameters: float) -> tuple[float, ...]:
        """All-reduce between two ranks: each sends half of its gradients, then half of the sums."""
        plan = self._plan
        size = parameters * plan.layout.framework.optimizer.gradient_bytes
        crosses = self._costs.places.crosses(plan.layout.mesh, first, last)
        slower, models = self._costs.slowdown(first, last), self._costs.models((first, last))
        up, out = models[0].send_wire_bytes(size, crosses=crosses)
        seconds = max(model.send(size, crosses=crosses, slowdown=slower) for model in models)
        return float(ticks(seconds)), up, out, size

    def _norm(self) -> Span | None:
        """All-reduce of the gradient norm among all that share gradients; None if unasked."""
        plan, mesh = self._plan, self._plan.layout.mesh
        alone = mesh.pp == mesh.tp == 1 and not plan.shares_gradients
        if alone or not plan.layout.framework.optimizer.gradient_norm:
            return None
        everyone, places = plan.shares_gradients, self._costs.places
        groups = "everyone" if everyone else "each replica"
        shape = places.spread(
            mesh, groups, lambda: mesh.ranks.reshape(1, -1) if everyone else mesh.model_groups()
        )
        models = self._costs.models(range(mesh.pp))
        seconds = max(model.seconds("all_reduce", _NORM_BYTES, shape) for model in models)
        self.prices[_NORM] = Prices(np.atleast_1d(ticks(seconds)), size=_NORM_BYTES)
        return Span.TP | (Span.DP | Span.CP if everyone else Span.NONE)

    def _stragglers(self) -> Priced:
        """Wait of every rank for slower accelerators and links; nothing where nothing is lost."""
        if not (seconds := self._costs.straggling()):
            return []
        link = Link("wait for stragglers", Kind.COLLECTIVE, "straggling")
        return [(link, Prices(ticks(np.full(self._plan.layout.mesh.pp, seconds))))]

    def _pages(self, share: Floats) -> Priced:
        """Pages of states that come and go where none has room for all, both ways at once.

        The driver evicts what was used longest ago (NVIDIA/open-gpu-kernel-modules, uvm_pmm_gpu.c),
        which of states that are passed through once a step is what comes next.
        """
        plan = self._plan
        states = plan.layout.framework.optimizer.paged_bytes * share
        if not states.any():
            return []
        memory = account_memory(plan)
        states *= states > memory.capacities - memory.total
        return [_step("move pages of states", states / host_of(plan.layout.cluster).link_bandwidth)]

    def _prepared(self, busy: Callable[[], Floats]) -> Priced:
        """An optimizer's work before it updates: its estimates, orthogonal updates."""
        plan, optimizer = self._plan, self._plan.layout.framework.optimizer
        links: Priced = []
        if optimizer.repeated_share:
            again = optimizer.repeated_share * busy()
            links.append(_step("optimizer's own passes", again * TICK))
        if optimizer.orthogonal_iterations:
            divided = self._groups[0].sharers if plan.zero else 1
            if divided > 1 and optimizer.orthogonal_gather:
                size = matrices(plan) * optimizer.orthogonal_gather
                links.append(self._gathered(self._groups[0], size))
            links.append(_step("orthogonal updates", self._orthogonal() / divided))
        return links

    def _orthogonal(self) -> Floats:
        """Time of Newton and Schulz on each rank's matrices, whole over tensor parallelism [s]."""
        plan, seconds = self._plan, np.zeros(self._plan.layout.mesh.pp)
        each = plan.layout.framework.optimizer.orthogonal_iterations
        alone = {
            kind: [
                product
                for weight in plan.weights[kind].backward
                if weight.phase is Phase.WEIGHT_GRADIENT and weight.flops
                for product in orthogonal_products(weight)
            ]
            for kind in dict.fromkeys(plan.layout.model.layer_kinds)
        }
        for stage in plan.layout.stages:
            costs = self._costs.stage(stage.rank)
            for kind in plan.layout.layer_kinds(stage):
                seconds[stage.rank] += each * float(costs.kernels(alone[kind]).sum())
        return seconds

    def _update(self, share: Floats) -> tuple[Link, Prices]:
        seconds, moved = [], share * self._plan.layout.framework.optimizer.optimizer_traffic
        for rank, size in enumerate(moved.tolist()):
            chip = self._plan.layout.cluster_of(rank).accelerator
            seconds.append(update_seconds(size, chip.memory_bandwidth, chip.calibration))
        return _step("optimizer step", np.array(seconds))

    def _gathers(self, owned: Sequence[Floats]) -> Priced:
        """Gathers of what others have updated, where the step ends with them."""
        plan = self._plan
        if plan.sharers == 1 or plan.gathers_units or plan.gathers_beside:
            return []
        return [
            self._gathered(group, parameters * plan.gathered_bytes)
            for group, parameters in zip(self._groups, owned, strict=True)
            if parameters.any()
        ]

    def _gathered(self, group: ReplicaGroup, size: Floats) -> tuple[Link, Prices]:
        """A gather of so many bytes of every rank."""
        kind, ranks = GATHERS[self._plan.layout.framework.data.parameter_gather], len(size)
        link = collective_link(kind, group.name, STREAMS[group.name])
        kinds = np.full(ranks, kind)
        return link, collective_prices(self._costs, group, kinds, size, np.arange(ranks))

    def _casts(self) -> Priced:
        """Casts of linear layers' weights to a narrow precision, for all microbatches."""
        if not self._costs.casts_weights or self._plan.layout.tuning.base == "fp8":
            return []
        seconds = self._costs.cast_weights(self._plan.layout.rank_linear_weights)
        return [_step("quantise weights", seconds)]


def _step(label: str, seconds: Floats) -> tuple[Link, Prices]:
    """A link of the optimizer."""
    return Link(label, Kind.OPTIMIZER, "optimizer"), Prices(ticks(seconds))
