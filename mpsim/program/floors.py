"""Floors: the least time for links to carry what a program puts on them.

Where nobody follows how transfers share links, each takes the time that it has alone, and two of
different communicators may run beside each other at full rate each: a step of which communication
is most could then be shorter than its links need for the bytes. `link_floors` says how long they
need; a program that knows it (`Program.least`) ends no sooner on any engine.

Shapes: R rank classes, D directions (out, in), M templates, Q kernels of one, E links.
"""

from __future__ import annotations

import numpy as np

from mpsim import structs
from mpsim.arrays import Flags, Floats, Ints
from mpsim.hardware import Cluster
from mpsim.hardware.routes import routes_of
from mpsim.memo import remembered
from mpsim.program.links import Deployment, links_of, port_rates
from mpsim.program.program import COLUMNS, SEND, Program, Stream, Template
from mpsim.program.rows import Totals

_KEPT = 512  # templates whose transfers stay known: points of a sweep share them


@structs.dataclass(frozen=True, slots=True)
class Floor:
    """Least time of what a program puts on links of one kind."""

    name: str  # ``scale_up``, ``nic`` or ``fabric``
    ticks: float  # that its busiest link needs
    where: str = ""  # the busiest link, such as ``pp 3 NIC out``
    rank: int = -1  # rank class whose port that is; -1 for a link of the fabric


def link_floors(program: Program, deployment: Deployment) -> tuple[Floor, ...]:
    """Floors of ports towards scale-up domain and NICs, and of links of the fabric.

    Notes
    -----
    A transfer counts as at most the time it has: a measured rate above what the link's figures say
    counts as a full link, as it does under ``network: flow``.
    """
    busy_ports = port_ticks(program, deployment.class_clusters)
    ports = [_port_floor(program, busy_ports[:, int(far)].T, far=far) for far in (False, True)]
    busy, names = fabric_ticks(program, deployment)
    most = int(busy.argmax()) if len(busy) else -1
    fabric = Floor("fabric", float(busy[most]), names[most]) if len(busy) else Floor("fabric", 0.0)
    return (*ports, fabric)


def held_to_links(program: Program, deployment: Deployment) -> Program:
    """The same program, which ends no sooner than its links can carry what it sends."""
    floor = max(link_floors(program, deployment), key=lambda each: each.ticks)
    if floor.ticks <= _shortest(program):
        return program
    least = float(np.ceil(floor.ticks))
    return structs.replace(program, least=least, least_part=_most_of(program, floor))


def may_be_held(totals: Totals, deployment: Deployment) -> bool:
    """Whether `held_to_links` may hold a program: a quick bound says no of most."""
    shortest = totals.computing.max(initial=0.0)
    for far, amount in ((False, totals.up_bytes), (True, totals.out_bytes)):
        rate = _rates(deployment.class_clusters, far=far)
        some = rate > 0
        if (amount[some] / rate[some]).max(initial=0.0) > shortest:
            return True
    return bool(routes_of(deployment.layout.cluster).names)


def _shortest(program: Program) -> float:
    """Ticks that no program is shorter than: what a rank does one after the other."""
    busy = np.where(program.stream == Stream.COMPUTE, program.duration, 0.0)
    return float(np.bincount(program.rank, weights=busy, minlength=1).max())


def _rates(clusters: tuple[Cluster, ...], *, far: bool) -> Floats:
    """Usable rate of a port of each rank class, 0 where there is none [B/tick]."""
    return np.array(
        [port_rates(cluster).get("NIC" if far else "scale-up", 0.0) for cluster in clusters]
    )


def _port_floor(program: Program, busy: Floats, *, far: bool) -> Floor:
    """The busiest port of any rank class [D, R], towards NICs (`far`) or the scale-up domain."""
    name = "nic" if far else "scale_up"
    if not busy.any():
        return Floor(name, 0.0)
    direction, most = divmod(int(busy.argmax()), program.ranks)
    label = "NIC" if far else "scale-up"
    return Floor(
        name,
        float(busy[direction, most]),
        f"{program.rank_name[most]} {label} {('out', 'in')[direction]}",
        most,
    )


def port_ticks(program: Program, clusters: tuple[Cluster, ...]) -> Floats:
    """How long ports of each rank class are busy, of domains and NICs, by direction [R, 2, D]."""
    ports = [_port_ticks(program, clusters, far=far) for far in (False, True)]
    return np.stack(ports).transpose(2, 0, 1)


def _port_ticks(program: Program, clusters: tuple[Cluster, ...], *, far: bool) -> Floats:
    """How long the port of each rank class is busy in each direction [D, R]."""
    rate = _rates(clusters, far=far)
    sent = program.out_bytes if far else program.up_bytes
    rows = np.flatnonzero((sent > 0) & (rate[program.rank] > 0))
    if not len(rows):
        return np.zeros((2, program.ranks))
    home, template = program.rank[rows], program.template[rows]
    took = np.minimum(sent[rows] / rate[home], program.duration[rows])
    if program.templates:
        tiled = np.flatnonzero(template >= 0)
        rates = list(dict.fromkeys(rate.tolist()))
        number = np.array([*map(rates.index, rate.tolist())])
        place = template[tiled] * len(rates) + number[home[tiled]]
        inside = np.zeros(len(program.templates) * len(rates))
        # each template at the rate of ports of ranks that have it
        for pair in np.flatnonzero(np.bincount(place)).tolist():
            which, at = divmod(pair, len(rates))
            inside[pair] = _inside(program.templates[which], rates[at], far=far)
        took[tiled] = inside[place]
    took *= program.times_of(rows)
    sends = program.kind[rows] == SEND
    ends = [np.where(sends, end[rows], home) for end in (program.rank, program.peer)]
    # few collectives are of several classes: they count for the others too, each in its turn
    several = np.zeros(len(program), dtype=bool)
    several[rows] = ~sends & (program.slot_ptr[rows + 1] - program.slot_ptr[rows] > 1)
    if several.any():
        row, others = _ranks(program, several)
        away = others != program.rank[row]
        place = np.searchsorted(rows, row[away], side="right")
        took = np.insert(took, place, took[place - 1])
        ends = [np.insert(end, place, others[away]) for end in ends]
    return np.stack([np.bincount(end, took, program.ranks) for end in ends])


@remembered(_KEPT)
def _inside(template: Template, rate: float, *, far: bool) -> float:
    """Time that transfers inside a template keep a port of some rate busy [ticks]."""
    sent = template.out_bytes if far else template.up_bytes
    moving = sent > 0
    return float(np.minimum(sent[moving] / rate, template.duration[moving]).sum())


def _ranks(program: Program, chosen: Flags) -> tuple[Ints, Ints]:
    """Pairs of a chosen row and a rank class that it occupies a stream of, each pair once."""
    mine = chosen[program.slots.row]
    row, rank = program.slots.row[mine], program.slots.rank[mine]
    # slots of a row ascend, so that streams of one rank stand next to each other
    first = np.ones(len(row), dtype=bool)
    first[1:] = (row[1:] != row[:-1]) | (rank[1:] != rank[:-1])
    return row[first], rank[first]


def _most_of(program: Program, floor: Floor) -> int:
    """Part that most bytes on a floor's link count as: of its rank class, or of all."""
    far = floor.name != "scale_up"
    sent = program.out_bytes if far else program.up_bytes
    row, rank = _ranks(program, sent > 0)
    mine = row if floor.rank < 0 else row[rank == floor.rank]
    width = len(program.vocabulary.parts)
    plain = mine[program.template[mine] < 0]
    parts = np.bincount(program.part[plain], weights=sent[plain], minlength=width)
    times = np.bincount(program.template[mine] + 1, minlength=len(program.templates) + 1)[1:]
    for count, template in zip(times.tolist(), program.templates, strict=True):
        if count:
            inside = template.out_bytes if far else template.up_bytes
            parts += count * np.bincount(template.part, weights=inside, minlength=width)
    return int(parts.argmax())


def fabric_ticks(program: Program, deployment: Deployment) -> tuple[Floats, tuple[str, ...]]:
    """How long each link of a fabric that could be too thin is busy [E], and its name."""
    nothing = np.zeros(0), ()
    if not routes_of(deployment.layout.cluster).names:
        return nothing
    few, count = _distinct_rows(program)
    if not len(few):
        return nothing
    times = np.array([len(template.stream) for template in few.templates] + [1])[few.template]
    from mpsim.program.expand import expand

    fine = expand(few)
    links = links_of(fine, deployment)
    chosen = links.link >= links.ports
    if not chosen.any():
        return nothing
    row, link = links.row[chosen], links.link[chosen]
    carried = links.use[chosen] * links.cap[row] * links.work[row] * np.repeat(count, times)[row]
    busy = np.bincount(link, weights=carried, minlength=len(links.names)) / links.capacity
    return busy, links.names


def _distinct_rows(program: Program) -> tuple[Program, Floats]:
    """A program of rows over NICs, one of each template on a rank class, and their counts."""
    inside = np.array([template.out_bytes.any() for template in program.templates] + [False])
    tiled = np.flatnonzero(inside[program.template])
    plain = np.flatnonzero((program.template < 0) & (program.out_bytes > 0))
    key = (
        program.rank[tiled].astype(np.int64) * (len(program.templates) + 1)
        + program.template[tiled]
    )
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    rows = np.concatenate([plain, tiled[first]])
    times = np.ones(len(program)) * program.times_of()
    count = np.concatenate([times[plain], np.bincount(which, times[tiled])])
    order = np.argsort(rows, kind="stable")
    rows, count = rows[order], count[order]
    columns = {name: getattr(program, name)[rows] for name in COLUMNS}
    slot = program.rank[rows] * np.int32(len(Stream)) + program.stream[rows]
    return (
        structs.replace(
            program,
            **columns,
            dep_ptr=np.zeros(len(rows) + 1, dtype=np.int64),
            dep=np.zeros(0, dtype=np.int32),
            slot_ptr=np.arange(len(rows) + 1, dtype=np.int64),
            slot=slot.astype(np.int32),
            times=None,
        ),
        count,
    )
