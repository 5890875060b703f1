"""Sweeps: the same scenario at every combination of some values.

A row that cannot be simulated (degrees that do not divide, a batch that does not multiply) stays in the
table with its reason, and so does one that does not fit into memory. Rows come in the order of the
Cartesian product, the last key fastest, however many processes computed them.
"""

from __future__ import annotations

import csv
import dataclasses
import hashlib
import io
import itertools
import json
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import mpsim
from mpsim.errors import MpsimError, ScenarioError
from mpsim.result import simulate
from mpsim.scenario import Scenario
from mpsim.units import Dimension, format_quantity

__all__ = ["COLUMNS", "Row", "Sweep", "combinations", "sweep"]

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


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One combination of a sweep.

    Parameters
    ----------
    values : mapping of str to object
        Dotted key to the value it was given.
    summary : mapping of str to object, or None
        The result in the shape of ``mpsim run --json``; None when it could not be simulated.
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
    rows : tuple of Row
    """

    scenario: str
    keys: tuple[str, ...]
    rows: tuple[Row, ...]

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
        usable = [row for row in self.rows if row.usable]
        if not usable:
            return None
        return max(usable, key=lambda row: row.number("tokens_per_s_per_accelerator"))

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
        table = self.table()
        buffer = io.StringIO()
        writer = csv.DictWriter(
            buffer, fieldnames=list(table[0]) if table else [], lineterminator="\n"
        )
        writer.writeheader()
        writer.writerows(table)
        if path is not None:
            Path(path).write_text(buffer.getvalue(), encoding="utf-8")
        return buffer.getvalue()


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
    resume: str | Path | None = None,
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
        Where to compute instead, for example that of a cluster.
    resume : path, optional
        JSON-lines file of finished rows: those in it are not computed again, new ones are appended as
        they finish, so an interrupted sweep loses nothing.
    progress : callable, optional
        Called with (rows done, rows in all) whenever one is done.

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
    wanted = combinations(values)
    digests = [_digest(scenario, one) for one in wanted]
    journal = _Journal.open(resume)
    rows = {index: journal.done[key] for index, key in enumerate(digests) if key in journal.done}
    missing = [index for index in range(len(wanted)) if index not in rows]
    report = progress or (lambda done, total: None)
    report(len(rows), len(wanted))
    with _pool(jobs, executor, len(missing)) as pool:
        for index, row in _computed(scenario, wanted, missing, pool):
            rows[index] = row
            journal.append(digests[index], row)
            report(len(rows), len(wanted))
    ordered = tuple(rows[index] for index in range(len(wanted)))
    return Sweep(scenario=scenario.name, keys=tuple(values), rows=ordered)


def _computed(
    scenario: Scenario,
    wanted: Sequence[Mapping[str, object]],
    missing: Sequence[int],
    pool: Executor | None,
) -> Iterator[tuple[int, Row]]:
    """Rows as they finish."""
    if pool is None:
        for index in missing:
            yield index, _evaluate(scenario, wanted[index])
        return
    waiting = {pool.submit(_evaluate, scenario, wanted[index]): index for index in missing}
    try:
        for future in as_completed(waiting):
            yield waiting[future], future.result()
    except BaseException:
        for future in waiting:
            future.cancel()
        raise


def _evaluate(scenario: Scenario, values: Mapping[str, object]) -> Row:
    """One row; a scenario that cannot be simulated becomes its reason."""
    try:
        result = simulate(scenario.with_values(values))
    except MpsimError as error:
        return Row(values=values, summary=None, reason="; ".join(str(error).splitlines()))
    summary = result.summary
    return Row(values=values, summary=summary, reason=_does_not_fit(summary))


def _does_not_fit(summary: Mapping[str, object]) -> str | None:
    if summary["fits_memory"]:
        return None
    memory = summary["memory"]
    assert isinstance(memory, Mapping)
    needed, capacity = (
        format_quantity(memory[key], Dimension.BYTES) for key in ("total", "capacity")
    )
    return f"does not fit: rank {memory['rank']} needs {needed} of {capacity}"


def _pool(
    jobs: int, executor: Executor | None, tasks: int
) -> AbstractContextManager[Executor | None]:
    if executor is not None:
        return nullcontext(executor)
    if jobs <= 1 or tasks <= 1:
        return nullcontext(None)
    return ProcessPoolExecutor(
        max_workers=min(jobs, tasks),
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_leave_interrupts_to_the_parent,
    )


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _digest(scenario: Scenario, values: Mapping[str, object]) -> str:
    """Name of a row that changes with anything the row depends on."""
    what = [mpsim.__version__, scenario.digest, list(values.items())]
    return hashlib.sha256(json.dumps(what, sort_keys=True, default=str).encode()).hexdigest()


@dataclasses.dataclass(frozen=True, slots=True)
class _Journal:
    """Finished rows on disk, one JSON object a line."""

    path: Path | None
    done: dict[str, Row]

    @classmethod
    def open(cls, path: str | Path | None) -> _Journal:
        if path is None:
            return cls(None, {})
        file, done = Path(path), {}
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        for number, line in enumerate(lines, start=1):
            try:
                entry = json.loads(line)
                digest = entry.pop("digest")
                done[digest] = Row(**entry)
            except (ValueError, TypeError, KeyError, AttributeError):
                if number < len(lines):
                    raise ScenarioError(
                        f"{file}:{number}: not a row of a sweep; give --resume a file that it wrote"
                    ) from None
                file.write_text("".join(f"{kept}\n" for kept in lines[:-1]), encoding="utf-8")
        return cls(file, done)

    def append(self, digest: str, row: Row) -> None:
        if self.path is None:
            return
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"digest": digest, **dataclasses.asdict(row)}) + "\n")
