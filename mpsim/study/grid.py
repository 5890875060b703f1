"""Sweeps: the same scenario at every combination of some values.

A row that cannot be simulated (degrees that do not divide, a batch that does not multiply) stays in
the table with its reason, and so does one that does not fit into memory. Rows come in the order of
the Cartesian product, the last key fastest, however many processes computed them.

Points that are the same scenario in other words are computed once. Points whose programs are likely
to have the same structure are computed together, and a journal gets its lines in that order whoever
finishes first, so its bytes do not depend on interruptions.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError
from mpsim.limits import is_unlimited, refuse_large
from mpsim.scenario import Scenario
from mpsim.scenario.extent import refuse_large_scenario
from mpsim.shipped import read_shipped
from mpsim.study.executors import computed, executor_for
from mpsim.study.journal import Journal
from mpsim.study.rows import Lazy, StoredRows, Sweep, reason_of
from mpsim.study.together import compute_rows, points_of

_QUANTITY = re.compile(r"[0-9][0-9.eE+-]* [^ .]+")


class Product(Lazy[Mapping[str, object]]):
    """Every combination of some values, the last key fastest, each made when it is asked for."""

    def __init__(self, values: Mapping[str, Sequence[object]]) -> None:
        self._values = {key: tuple(choices) for key, choices in values.items()}
        self._length = math.prod(len(choices) for choices in self._values.values())

    def __len__(self) -> int:
        return self._length

    def made(self, place: int) -> Mapping[str, object]:
        """The combination at a place."""
        left, chosen = place, list[tuple[str, object]]()
        for key, choices in reversed(self._values.items()):
            left, which = divmod(left, len(choices))
            chosen.append((key, choices[which]))
        return dict(reversed(chosen))


def combinations(values: Mapping[str, Sequence[object]]) -> Product:
    """Every combination of `values`, the last key fastest.

    Raises ScenarioError: if there is no key, or a key without values. Raises TooLargeError: if
    there are more than anybody computes by accident.

    Examples
    --------
    >>> list(combinations({"parallelism.tp": [1, 2], "parallelism.pp": [4]}))
    [{'parallelism.tp': 1, 'parallelism.pp': 4}, {'parallelism.tp': 2, 'parallelism.pp': 4}]
    """
    if not values:
        raise ScenarioError("nothing to sweep over: give a sweep: block or keys with values")
    empty = [key for key, choices in values.items() if not choices]
    if empty:
        raise ScenarioError(f"no values to sweep over for {', '.join(empty)}; give at least one")
    grid, each = Product(values), read_shipped("mpsim.scenario.data", "extent.yaml")["point"]
    sizes = " x ".join(f"{len(choices)} of {key}" for key, choices in values.items())
    refuse_large(
        f"sweep over {sizes}: {len(grid):,} points",
        memory_bytes=len(grid) * each["memory"],
        seconds=len(grid) * each["time"],
        points=len(grid),
        smaller=("fewer values", "mpsim search, which prices only what is promising"),
    )
    return grid


@structs.dataclass(frozen=True, slots=True, eq=False)
class Points:
    """Points of a sweep."""

    scenario: Scenario
    values: Sequence[Mapping[str, object]]
    names: list[str]  # the same for points that are the same scenario
    wrong: Mapping[int, str]  # why points are none
    order: list[int]  # first point of each name, those of like structure next to each other

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        values: Sequence[Mapping[str, object]],
        shard: tuple[int, int] | None,
        known: Mapping[str, str],
        journal: Journal,
    ) -> Points:
        """Name and order the points of a `journal`.

        `shard`: which part of how many is asked for. `known`: names that are known already, see
        `named`.

        Raises ScenarioError: if there is no such part.
        """
        names: list[str] = []
        wrong: dict[int, str] = {}
        first: dict[str, tuple[tuple[object, ...], int]] = {}
        base, together = scenario.digest, points_of(scenario, begin=True)
        for place, assignment in enumerate(values):
            likeness: tuple[object, ...] = ()
            if known and (known_name := known.get(_words(assignment))) is not None:
                names.append(known_name)
                first.setdefault(known_name, (likeness, place))
                continue
            try:
                point = together.named(scenario, assignment)
                refuse_large_scenario(point)
                name, likeness = journal.name_of(point.digest), _likeness(point)
            except MpsimError as error:
                wrong[place] = reason_of(error)
                name = journal.name_of("wrong", base, list(assignment.items()))
            names.append(name)
            first.setdefault(name, (likeness, place))
        order = [place for _, place in sorted(first.values())]
        if shard is not None:
            chosen = _part(order, shard)
            own = {names[place] for place in chosen}
            inside = [place for place, name in enumerate(names) if name in own]
            moved = {place: at for at, place in enumerate(inside)}
            return cls(
                scenario,
                [values[place] for place in inside],
                [names[place] for place in inside],
                {moved[place]: text for place, text in wrong.items() if place in moved},
                [moved[place] for place in chosen],
            )
        return cls(scenario, values, names, wrong, order)


def named(journal: Journal, base: str) -> dict[str, str]:
    """Names of simulated points of `base` by values whose meaning no file or catalog can change."""
    return {
        _words(entry["values"]): name
        for name, entry in journal.items()
        if entry.get("base") == base
        and entry["summary"] is not None  # what was too large before may be meant now
        and all(map(_is_number, entry["values"].values()))
    }


def _words(values: Mapping[str, object]) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str) and _QUANTITY.fullmatch(value) is not None
    )


def _likeness(scenario: Scenario) -> tuple[object, ...]:
    """Settings that mostly decide a program's structure; others are not mixed up all the same."""
    if scenario.serves:
        return ("", 0)
    parallelism, schedule = scenario.parallelism, scenario.schedule
    return (
        str(schedule.name or schedule.file),
        *(parallelism.pp, scenario.virtual_stages, scenario.microbatches, parallelism.zero),
        *(scenario.replicas > 1, parallelism.tp > 1),
    )


def _part(order: list[int], shard: tuple[int, int]) -> list[int]:
    """The i-th of n parts, of neighbours."""
    part, parts = shard
    if not 1 <= part <= parts:
        raise ScenarioError(f"got shard {part}/{parts}; needed i/n with 1 <= i <= n, such as 1/4")
    ends = [len(order) * k // parts for k in range(parts + 1)]
    return order[ends[part - 1] : ends[part]]


_SHORT = 16  # digits of a digest that tell one scenario from another
_TOGETHER = 64  # points computed together: what a kill can cost


def sweep(
    scenario: Scenario,
    values: Mapping[str, Sequence[object]],
    *,
    jobs: int = 1,
    executor: Executor | None = None,
    cluster: str | None = None,
    resume: str | Path | None = None,
    shard: tuple[int, int] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Sweep:
    """Simulate `scenario` at every combination of `values`.

    Parameters
    ----------
    values : mapping of str to sequence
        Dotted keys (``parallelism.tp``) and the values each takes.
    jobs : int
        Local processes; 1 computes in this one.
    executor : concurrent.futures.Executor, optional
        Where to compute instead.
    cluster : str, optional
        Address of a dask.distributed scheduler, as ``tcp://host:8786``; needs extra ``cluster``.
    resume : path, optional
        JSON-lines file of finished rows: those in it are not computed again, new ones are appended,
        so a sweep that is killed loses little, and ends with the same bytes when run again.
    shard : (int, int), optional
        ``(i, n)``: only the i-th of n parts of the rows, counted from 1.
    progress : callable, optional
        Called with (rows done, rows in all) whenever some are done.

    Raises ScenarioError: if there is nothing to sweep over; mistakes of single rows are kept in the
    rows. Raises TooLargeError: if there are more points than the limit. Raises MpsimError: if the
    workers that compute went away. Raises KeyboardInterrupt: if no row was finished until then.
    """
    report = progress or (lambda done, total: None)
    combined = combinations(values)
    journal = Journal(resume)
    base = journal.name_of("base", scenario.digest)[:_SHORT]
    points = Points.of(scenario, combined, shard, {} if shard else named(journal, base), journal)
    missing = [place for place in points.order if points.names[place] not in journal]
    total = len(points.order)
    report(total - len(missing), total)
    done = total - len(missing)
    interrupted = False
    try:
        with (
            journal.writing(),
            executor_for(jobs, len(missing), executor=executor, cluster=cluster) as pool,
        ):
            chunks = _chunks(missing, jobs)
            tasks = [_task(points, chunk) for chunk in chunks]
            outcomes_of = computed(pool, compute_rows, tasks)
            for chunk, outcomes in zip(chunks, outcomes_of, strict=True):
                for place, outcome in zip(chunk, outcomes, strict=True):
                    row = {"base": base, "values": dict(points.values[place]), **outcome}
                    journal.add(points.names[place], row)
                journal.flush()
                done += len(chunk)
                report(done, total)
    except KeyboardInterrupt:
        if not done:
            raise
        interrupted = True
    there = [place for place, name in enumerate(points.names) if name in journal]
    rows = StoredRows(
        [points.values[place] for place in there], [points.names[place] for place in there], journal
    )
    return Sweep(
        scenario=scenario.name,
        keys=tuple(values),
        rows=rows,
        remarks=journal.remarks,
        interrupted=interrupted,
    )


def _chunks(missing: Sequence[int], jobs: int) -> list[Sequence[int]]:
    """Points computed together: few at first, to be seen, then more; several chunks a process."""
    most = max(1, min(_TOGETHER, len(missing) // (4 * max(jobs, 1))))
    chunks: list[Sequence[int]] = []
    at = 0
    while at < len(missing):
        size = min(most, 1 << min(16, len(chunks) // max(jobs, 1)))
        chunks.append(missing[at : at + size])
        at += size
    return chunks


def _task(points: Points, chunk: Sequence[int]) -> tuple[object, ...]:
    """Arguments that compute the rows of a chunk; workers have to be told that any size may be."""
    task = [(points.values[place], points.wrong.get(place)) for place in chunk]
    return points.scenario, task, is_unlimited()
