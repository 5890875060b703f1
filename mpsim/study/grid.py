"""Sweeps: the same scenario at every combination of some values.

A row that cannot be simulated (degrees that do not divide, a batch that does not multiply) stays in the table with its reason, and so does one that does
not fit into memory. Rows come in the order of the Cartesian product, the last key fastest, however many processes computed them.

Points that are the same scenario in other words are computed once. Points whose programs are likely to have the same structure are computed
together, and a journal gets its lines in that order whoever finishes first, so its bytes do not depend on interruptions.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Any

from mpsim.limits import is_unlimited
from mpsim.scenario import Scenario
from mpsim.study.executors import executor_for, finished
from mpsim.study.journal import Journal, name_of
from mpsim.study.points import Points, combinations, named
from mpsim.study.rows import StoredRows, Sweep
from mpsim.study.together import compute_rows

__all__ = ["sweep"]

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
        Address of a dask.distributed scheduler whose workers compute, such as ``tcp://host:8786``; needs the extra ``cluster``.
    resume : path, optional
        JSON-lines file of finished rows: those in it are not computed again, new ones are appended as
        they finish, so a sweep that is killed loses little, and ends with the same bytes when it is run again.
    shard : (int, int), optional
        ``(i, n)``: only the i-th of n parts of the rows, counted from 1.
    progress : callable, optional
        Called with (rows done, rows in all) whenever some are done.

    Raises
    ------
    ScenarioError
        If there is nothing to sweep over. Mistakes of single rows are kept in the rows.
    TooLargeError
        If there are more points than the limit.
    MpsimError
        If the workers that compute went away.
    KeyboardInterrupt
        If no row was finished until then; else those that were are returned.

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
    points = Points.of(scenario, combined, shard, {} if shard else named(journal, base))
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
            for chunk, outcomes in _computed(points, _chunks(missing, jobs), pool):
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
        [points.values[place] for place in there],
        [points.names[place] for place in there],
        journal,
    )
    return Sweep(
        scenario=scenario.name,
        keys=tuple(values),
        rows=rows,
        remarks=journal.remarks,
        interrupted=interrupted,
    )


def _chunks(missing: Sequence[int], jobs: int) -> list[Sequence[int]]:
    """Points computed together: few at first, so that there is something to see, then more; several chunks for every process, and few enough to lose."""
    most = max(1, min(_TOGETHER, len(missing) // (4 * max(jobs, 1))))
    chunks: list[Sequence[int]] = []
    at = 0
    while at < len(missing):
        size = min(most, 1 << min(16, len(chunks) // max(jobs, 1)))
        chunks.append(missing[at : at + size])
        at += size
    return chunks


def _computed(
    points: Points, chunks: Sequence[Sequence[int]], pool: Executor | None
) -> Iterator[tuple[Sequence[int], list[dict[str, Any]]]]:
    """Rows of each chunk, in the order of the chunks."""
    tasks = [
        [(points.values[place], points.wrong.get(place)) for place in chunk] for chunk in chunks
    ]
    if pool is None:
        for chunk, task in zip(chunks, tasks, strict=True):
            yield chunk, compute_rows(points.scenario, task, is_unlimited())
        return
    any_size = is_unlimited()  # which workers have to be told
    waiting = {
        pool.submit(compute_rows, points.scenario, task, any_size): i
        for i, task in enumerate(tasks)
    }
    try:
        yield from _in_order(waiting, chunks, pool)
    finally:
        for future in waiting:
            future.cancel()


def _in_order(
    waiting: Mapping[Future[list[dict[str, Any]]], int],
    chunks: Sequence[Sequence[int]],
    pool: Executor,
) -> Iterator[tuple[Sequence[int], list[dict[str, Any]]]]:
    """Chunks as soon as they and all before them have finished."""
    computed: dict[int, list[dict[str, Any]]] = {}
    following = 0
    for future in finished(waiting, pool):
        computed[waiting[future]] = future.result()
        while following in computed:
            yield chunks[following], computed.pop(following)
            following += 1
