"""Sweeps: the same scenario at every combination of some values.

A row that cannot be simulated (degrees that do not divide, a batch that does not multiply) stays in the table with its reason, and so does one that does
not fit into memory. Rows come in the order of the Cartesian product, the last key fastest, however many processes computed them.

Points that are the same scenario in other words are computed once. Points whose programs are likely to have the same structure are computed
together, and a journal gets its lines in that order whoever finishes first, so its bytes do not depend on interruptions.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future, as_completed
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any, overload

from mpsim.errors import MpsimError, ScenarioError
from mpsim.scenario import Scenario
from mpsim.study.executors import executor_for, lost
from mpsim.study.journal import Journal, name_of
from mpsim.study.shared import kind_of
from mpsim.study.tables import write_csv
from mpsim.study.together import Together
from mpsim.units import Dimension, format_quantity

__all__ = ["COLUMNS", "Row", "Sweep", "combinations", "compute_rows", "sweep"]

COLUMNS = (
    "accelerators",
    "step_time_s",
    "tokens_per_s",
    "tokens_per_s_per_accelerator",
    "mfu",
    "hfu",
    "bubble_fraction",
    "peak_memory_bytes",
    "fits_memory",
    "energy_j_per_step",
    "cost_per_step",
    "engine",
)
"""What a table of results shows of each summary."""

_SHORT = 16  # digits of a digest that tell one scenario from another
_QUANTITY = re.compile(r"[0-9][0-9.eE+-]* [^ .]+")
_TOGETHER = 64  # points computed together: what a kill can cost


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One combination of a sweep.

    Parameters
    ----------
    values : mapping of str to object
        Dotted key to the value it was given.
    summary : mapping of str to object, or None
        The result in the shape of ``mpsim run --json``, without ``calibration.constants``; None when it could not be simulated.
    reason : str or None
        Why it could not be simulated, or that it does not fit into memory; None for a good row.
    """

    values: Mapping[str, object]
    summary: Mapping[str, object] | None
    reason: str | None

    @property
    def usable(self) -> bool:
        """Whether it was simulated and fits into memory."""
        return self.summary is not None and self.reason is None

    def number(self, column: str) -> float:
        """One figure of the summary as a float; NaN when there is none."""
        value = self.summary.get(column) if self.summary is not None else None
        return float(value) if isinstance(value, int | float) else float("nan")

    def flat(self) -> dict[str, object]:
        """Values, figures and reason in one mapping, in the order of the columns."""
        summary = self.summary or {}
        figures = {column: summary.get(column) for column in COLUMNS}
        parts = summary.get("breakdown_s")
        times = (
            {f"{name}_s": part for name, part in parts.items()} if isinstance(parts, dict) else {}
        )
        return {**self.values, **figures, **times, "reason": self.reason}


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """The results of a sweep, one row a combination.

    Parameters
    ----------
    scenario : str
        Name of the scenario that was varied.
    keys : tuple of str
        Dotted keys, in the order they were given; the last varies fastest.
    rows : sequence of Row
    """

    scenario: str
    keys: tuple[str, ...]
    rows: Sequence[Row]

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self.rows)

    def __repr__(self) -> str:
        best = self.best
        lead = f", best {dict(best.values)}" if best else ""
        usable = sum(row.usable for row in self.rows)
        return f"<Sweep {self.scenario}: {len(self.rows)} rows, {usable} usable{lead}>"

    @property
    def best(self) -> Row | None:
        """The usable row with the most tokens per second and accelerator; the first of equals."""
        usable = (row for row in self.rows if row.usable)
        return max(usable, key=lambda row: row.number("tokens_per_s_per_accelerator"), default=None)

    def table(self) -> list[dict[str, object]]:
        """One flat mapping a row, all with the same keys in the same order."""
        flat = [row.flat() for row in self.rows]
        reasonless = dict.fromkeys(key for row in flat for key in row if key != "reason")
        return [{key: row.get(key) for key in [*reasonless, "reason"]} for row in flat]

    def to_json(self) -> dict[str, object]:
        """Plain data: scenario, keys, and rows of values, summary and reason."""
        rows = [dataclasses.asdict(row) for row in self.rows]
        return {"scenario": self.scenario, "keys": list(self.keys), "rows": rows}

    def to_csv(self, path: str | Path | None = None) -> str:
        """Write the table as CSV, units in the column names; return the text.

        Parameters
        ----------
        path : str or Path, optional
            Where to write it; left out: nowhere.
        """
        return write_csv(self.table(), path)


class _Rows(Sequence[Row]):
    """Rows made when they are asked for: a finished one takes two kilobytes of text, and five times that as mappings."""

    def __init__(
        self, values: Sequence[Mapping[str, object]], names: Sequence[str], journal: Journal
    ) -> None:
        self._values = values
        self._names = names
        self._journal = journal

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Row: ...

    @overload
    def __getitem__(self, index: slice) -> tuple[Row, ...]: ...

    def __getitem__(self, index: int | slice) -> Row | tuple[Row, ...]:
        if isinstance(index, slice):
            return tuple(self[place] for place in range(*index.indices(len(self))))
        entry = self._journal[self._names[index]]
        return Row(self._values[index], entry["summary"], entry["reason"])

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence) or len(other) != len(self):
            return NotImplemented
        return all(one == two for one, two in zip(self, other, strict=True))

    __hash__ = None  # type: ignore[assignment] # a sequence of mappings

    def __repr__(self) -> str:
        return f"<{len(self)} rows>"


def combinations(values: Mapping[str, Sequence[object]]) -> list[dict[str, object]]:
    """Every combination of `values`, the last key fastest.

    Raises
    ------
    ScenarioError
        If there is no key, or a key without values.

    Examples
    --------
    >>> combinations({"parallelism.tp": [1, 2], "parallelism.pp": [4]})
    [{'parallelism.tp': 1, 'parallelism.pp': 4}, {'parallelism.tp': 2, 'parallelism.pp': 4}]
    """
    if not values:
        raise ScenarioError("nothing to sweep over: give a sweep: block or keys with values")
    empty = [key for key, choices in values.items() if not choices]
    if empty:
        raise ScenarioError(f"no values to sweep over for {', '.join(empty)}; give at least one")
    return [
        dict(zip(values, choice, strict=True)) for choice in itertools.product(*values.values())
    ]


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
    scenario : Scenario
    values : mapping of str to sequence
        Dotted keys (``parallelism.tp``) and the values each takes.
    jobs : int
        Local processes; 1 computes in this one.
    executor : concurrent.futures.Executor, optional
        Where to compute instead.
    cluster : str, optional
        Address of a dask.distributed scheduler whose workers compute, such as ``tcp://host:8786``; needs the extra ``cluster``.
    resume : path, optional
        JSON-lines file of finished rows: those in it are not computed again, new ones are appended as
        they finish, so a sweep that is killed loses little, and ends with the same bytes when it is run again.
    shard : (int, int), optional
        ``(i, n)``: only the i-th of n parts of the rows, counted from 1.
    progress : callable, optional
        Called with (rows done, rows in all) whenever some are done.

    Returns
    -------
    Sweep

    Raises
    ------
    ScenarioError
        If there is nothing to sweep over. Mistakes of single rows are kept in the rows.

    Examples
    --------
    >>> import mpsim
    >>> scenario = mpsim.load("scenarios/quickstart.yaml")  # doctest: +SKIP
    >>> mpsim.sweep(scenario, {"parallelism.tp": [1, 2, 4]}).best.values  # doctest: +SKIP
    {'parallelism.tp': 2}
    """
    report = progress or (lambda done, total: None)
    combined = combinations(values)
    report(0, len(combined))
    journal, base = Journal(resume), name_of("base", scenario.digest)[:_SHORT]
    points = _Points.of(scenario, combined, shard, {} if shard else _named(journal, base))
    missing = [place for place in points.order if points.names[place] not in journal]
    total = len(points.order)
    report(total - len(missing), total)
    with executor_for(jobs, len(missing), executor=executor, cluster=cluster) as pool:
        size = _chunk(len(missing), jobs)
        chunks = [missing[at : at + size] for at in range(0, len(missing), size)]
        done = total - len(missing)
        try:
            for chunk, outcomes in _computed(points, chunks, pool):
                for place, outcome in zip(chunk, outcomes, strict=True):
                    row = {"base": base, "values": dict(points.values[place]), **outcome}
                    journal.add(points.names[place], row)
                journal.flush()
                done += len(chunk)
                report(done, total)
        finally:
            journal.flush()
    rows = _Rows(points.values, points.names, journal)
    return Sweep(scenario=scenario.name, keys=tuple(values), rows=rows)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Points:
    """Points of a sweep.

    Parameters
    ----------
    scenario : Scenario
        That is varied.
    values : sequence of mapping
        Of each point.
    names : list of str
        The same for points that are the same scenario.
    wrong : mapping of int to str
        Why points are none.
    order : list of int
        First point of each name, those of like structure next to each other.
    """

    scenario: Scenario
    values: Sequence[Mapping[str, object]]
    names: list[str]
    wrong: Mapping[int, str]
    order: list[int]

    @classmethod
    def of(
        cls,
        scenario: Scenario,
        values: Sequence[Mapping[str, object]],
        shard: tuple[int, int] | None,
        known: Mapping[str, str],
    ) -> _Points:
        names: list[str] = []
        wrong: dict[int, str] = {}
        first: dict[str, tuple[tuple[object, ...], int]] = {}
        base = scenario.digest
        for place, one in enumerate(values):
            likeness: tuple[object, ...] = ()
            if known and (found := known.get(_words(one))) is not None:
                names.append(found)
                first.setdefault(found, (likeness, place))
                continue
            try:
                point = scenario.with_values(one)
            except MpsimError as error:
                wrong[place] = _in_one_line(error)
                name = name_of("wrong", base, list(one.items()))
            else:
                name, likeness = name_of(point.digest), _likeness(point)
            names.append(name)
            first.setdefault(name, (likeness, place))
        order = [place for _, place in sorted(first.values())]
        if shard is not None:
            chosen = _part(order, shard)
            kept = {names[place] for place in chosen}
            inside = [place for place, name in enumerate(names) if name in kept]
            moved = {place: at for at, place in enumerate(inside)}
            return cls(
                scenario,
                [values[place] for place in inside],
                [names[place] for place in inside],
                {moved[place]: text for place, text in wrong.items() if place in moved},
                [moved[place] for place in chosen],
            )
        return cls(scenario, values, names, wrong, order)


def _named(journal: Journal, base: str) -> dict[str, str]:
    """Names of points of the scenario `base` that are in the journal, by their values: numbers and quantities, which mean the same whatever files and catalogs hold."""
    return {
        _words(entry["values"]): name
        for name, entry in journal.items()
        if entry.get("base") == base and all(map(_is_number, entry["values"].values()))
    }


def _words(values: Mapping[str, object]) -> str:
    return json.dumps(values, sort_keys=True, default=str)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) or (
        isinstance(value, str) and _QUANTITY.fullmatch(value) is not None
    )


def _likeness(scenario: Scenario) -> tuple[object, ...]:
    """What the structure of a program mostly follows from, comparable; structures that differ all the same are not mixed up."""
    parallelism, schedule = scenario.parallelism, scenario.schedule
    return (
        str(schedule.name or schedule.file),
        *(parallelism.pp, scenario.virtual_stages, scenario.microbatches, parallelism.zero),
        *(scenario.dp * parallelism.cp > 1, parallelism.tp > 1),
    )


def _part(order: list[int], shard: tuple[int, int]) -> list[int]:
    """The i-th of n parts, of neighbours."""
    part, parts = shard
    if not 1 <= part <= parts:
        raise ScenarioError(f"got shard {part}/{parts}; needed i/n with 1 <= i <= n, such as 1/4")
    ends = [len(order) * k // parts for k in range(parts + 1)]
    return order[ends[part - 1] : ends[part]]


def _chunk(missing: int, jobs: int) -> int:
    """Points computed together: several chunks for every process, and few enough to lose."""
    return max(1, min(_TOGETHER, missing // (4 * max(jobs, 1))))


def _computed(
    points: _Points, chunks: Sequence[Sequence[int]], pool: Executor | None
) -> Iterator[tuple[Sequence[int], list[dict[str, Any]]]]:
    """Rows of each chunk, in the order of the chunks."""
    tasks = [[(points.values[one], points.wrong.get(one)) for one in chunk] for chunk in chunks]
    if pool is None:
        for chunk, task in zip(chunks, tasks, strict=True):
            yield chunk, compute_rows(points.scenario, task)
        return
    waiting = {pool.submit(compute_rows, points.scenario, task): i for i, task in enumerate(tasks)}
    try:
        yield from _in_order(waiting, chunks)
    except BrokenProcessPool as error:
        raise lost(error) from error
    finally:
        for future in waiting:
            future.cancel()


def _in_order(
    waiting: Mapping[Future[list[dict[str, Any]]], int], chunks: Sequence[Sequence[int]]
) -> Iterator[tuple[Sequence[int], list[dict[str, Any]]]]:
    """Chunks as soon as they and all before them have finished."""
    finished: dict[int, list[dict[str, Any]]] = {}
    following = 0
    for future in as_completed(waiting):
        finished[waiting[future]] = future.result()
        while following in finished:
            yield chunks[following], finished.pop(following)
            following += 1


def compute_rows(
    scenario: Scenario, points: Sequence[tuple[Mapping[str, object], str | None]]
) -> list[dict[str, Any]]:
    """Simulate points of a sweep together; runs wherever an executor likes.

    Parameters
    ----------
    scenario : Scenario
    points : sequence of (mapping, str or None)
        Values of each, and why it is none if that is known.

    Returns
    -------
    list of dict
        ``summary`` and ``reason`` of each.
    """
    chosen = [values for values, wrong in points if wrong is None]
    scenarios = [scenario.with_values(values) for values in chosen]
    together = _together(scenario.digest)
    outcomes = iter(together.simulate(scenarios, [kind_of(values) for values in chosen]))
    rows: list[dict[str, Any]] = []
    for _, wrong in points:
        outcome = None if wrong is not None else next(outcomes)
        if outcome is None or isinstance(outcome, MpsimError):
            reason = wrong if outcome is None else _in_one_line(outcome)
            rows.append({"summary": None, "reason": reason})
        else:
            summary = _figures(outcome.summary)
            rows.append({"summary": summary, "reason": _does_not_fit(summary)})
    return rows


class _Own(threading.local):
    """What a thread knows of points of the scenario it computes."""

    digest = ""
    together = Together()


_OWN = _Own()


def _together(digest: str) -> Together:
    """What this thread knows of points of the scenario with this digest."""
    if _OWN.digest != digest:
        _OWN.digest, _OWN.together = digest, Together()
    return _OWN.together


def _figures(summary: Mapping[str, Any]) -> dict[str, Any]:
    """A summary without the sources of its constants: nine tenths of its size, and the same in most rows."""
    calibration = {key: one for key, one in summary["calibration"].items() if key != "constants"}
    return {**summary, "calibration": calibration}


def _in_one_line(error: MpsimError) -> str:
    return "; ".join(str(error).splitlines())


def _does_not_fit(summary: Mapping[str, object]) -> str | None:
    if summary["fits_memory"]:
        return None
    memory = summary["memory"]
    assert isinstance(memory, Mapping)
    needed, capacity = (
        format_quantity(memory[key], Dimension.BYTES) for key in ("total", "capacity")
    )
    return f"does not fit: rank {memory['rank']} needs {needed} of {capacity}"
