"""Executors: where the points of a study are computed. All of them are
`concurrent.futures.Executor`.

* none: in this process;
* `local_processes`: a pool of processes on this machine;
* `dask_cluster`: the workers of a dask.distributed scheduler, on any machines;
* any other that a caller brings.
"""

from __future__ import annotations

import gc
import importlib
import logging
import multiprocessing
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import (
    FIRST_COMPLETED,
    BrokenExecutor,
    Executor,
    Future,
    ProcessPoolExecutor,
    wait,
)
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, ParamSpec, TypeVar

from mpsim.errors import MissingExtraError, MpsimError, ScenarioError

P = ParamSpec("P")
T = TypeVar("T")
_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
_PATIENCE = "30s"  # for the scheduler to answer
_LOOK = 1.0  # between looks after workers [s]
_AWAY = 10.0  # without a worker or the scheduler, where there were some [s]
_UNTIL_FIRST = 60.0  # for the first worker to come [s]
_MEND = "what was finished is kept with --resume: run it again"


@contextmanager
def executor_for(
    jobs: int, tasks: int, *, executor: Executor | None = None, cluster: str | None = None
) -> Iterator[Executor | None]:
    """The executor for so many tasks; None where this process does it alone. `jobs`: local
    processes. `executor`: taken as it is, and left open. `cluster`: address of a dask scheduler.
    """
    if executor is not None and cluster is not None:
        raise ScenarioError("got both an executor and a cluster; give one of them")
    if executor is not None:
        yield executor
    elif cluster is not None:
        with dask_cluster(cluster) as remote:
            yield remote
    elif jobs <= 1 or tasks <= 1:
        yield None
    else:
        with local_processes(min(jobs, tasks)) as pool:
            yield pool


@contextmanager
def local_processes(jobs: int) -> Iterator[Executor]:
    """Processes on this machine, which collect garbage as this one does; an interrupt is left to
    it, and it ends them at once.
    """
    pool = _Processes(
        jobs, multiprocessing.get_context("spawn"), gc.set_threshold, gc.get_threshold()
    )
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    pool.shutdown(cancel_futures=True)


class _Processes(ProcessPoolExecutor):
    """Processes to which Ctrl-C means nothing from their first instruction on."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a task; the process started for it inherits that interrupts are blocked."""
        resource_tracker.ensure_running()  # it would unblock them
        with _interrupts_blocked():
            return super().submit(fn, *args, **kwargs)

    def kill(self) -> None:
        """End every process, whatever it does; nothing that they compute is kept by them.

        No future is cancelled: the pool's own thread fails those that are left, and dies of one
        that was cancelled meanwhile.
        """
        for worker in list((self._processes or {}).values()):
            worker.kill()
        self.shutdown()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hold back interrupts in this thread, where the system can, and their handlers.

    Another thread may take the signal all the same, and its handler would then raise here between
    the start of a process and the message that this waits for.
    """
    held: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():
        handlers = {
            number: signal.signal(number, lambda caught, _: held.append(caught))
            for number in (signal.SIGINT, signal.SIGTERM)
        }
    can_block = hasattr(signal, "pthread_sigmask")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT}) if can_block else set()
    try:
        yield
    finally:
        if can_block:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            signal.signal(number, handler or signal.SIG_DFL)
        if held:
            signal.raise_signal(held[0])


@contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """Workers of a dask scheduler; what a lost worker was computing is given to another.

    `address`: such as ``tcp://scheduler:8786``. MissingExtraError if dask.distributed is not
    installed; ScenarioError if the address is none, or nobody answers there.
    """
    if not address.startswith(_SCHEMES):
        raise ScenarioError(f"got cluster {address!r}; needed an address such as tcp://host:8786")
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError as error:
        raise MissingExtraError("distributed", "cluster") from error
    try:
        client: Any = distributed.Client(address, timeout=_PATIENCE, set_as_default=False)
    except (OSError, TimeoutError) as error:
        raise ScenarioError(f"no dask scheduler answers at {address}: {error}") from error
    # `finished` says what is wrong in one line; the client's own pages come late
    logging.getLogger("distributed.client").setLevel(logging.CRITICAL)
    try:
        yield _Remote(client, address)
    finally:
        client.close(timeout=1)


class _Remote(Executor):
    """The workers of a scheduler, which can be asked whether anybody is there."""

    def __init__(self, client: Any, address: str) -> None:
        self._client = client
        self._address = address
        # tasks depend on their arguments only, so one that was lost can run again
        self._pool: Executor = client.get_executor(pure=False, retries=3)
        self._seen = time.monotonic()
        self._had_workers = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a task to whoever is free."""
        return self._pool.submit(fn, *args, **kwargs)

    def check(self) -> None:
        """Raise MpsimError once the scheduler or the last worker has been away for long."""
        running = self._client.status == "running"
        workers = running and bool(self._client.scheduler_info(n_workers=-1)["workers"])
        self._had_workers |= workers
        now = time.monotonic()
        if workers:
            self._seen = now
        elif now - self._seen > (_AWAY if self._had_workers else _UNTIL_FIRST):
            who = "no worker is" if running else "the scheduler is no longer"
            who += " left" if running and self._had_workers else ""
            raise MpsimError(f"{who} at {self._address}; {_MEND}")


def finished(waiting: Iterable[Future[T]], pool: Executor) -> Iterator[Future[T]]:
    """Futures as they end, as `concurrent.futures.as_completed` gives them; none is waited for
    whose workers are gone. MpsimError if the workers went away, or nobody has come for long.
    """
    left = set(waiting)
    while left:
        done, left = wait(left, timeout=_LOOK, return_when=FIRST_COMPLETED)
        if isinstance(pool, _Remote) and not done:
            pool.check()
        for future in done:
            error = None if future.cancelled() else future.exception()
            of_dask = type(error).__module__.partition(".")[0] == "distributed"
            if future.cancelled() or isinstance(error, BrokenExecutor) or of_dask:
                cause = "the scheduler is gone" if error is None else type(error).__name__
                raise MpsimError(f"workers went away ({cause}); {_MEND}") from error
            yield future


def computed(
    pool: Executor | None, function: Callable[..., T], tasks: Sequence[Sequence[Any]]
) -> Iterator[T]:
    """Results of a function for each task, in order, each as soon as those before it are there."""
    if pool is None:
        yield from (function(*task) for task in tasks)
        return
    waiting = {pool.submit(function, *task): place for place, task in enumerate(tasks)}
    results: dict[int, T] = {}
    following = 0
    try:
        for future in finished(waiting, pool):
            results[waiting[future]] = future.result()
            while following in results:
                yield results.pop(following)
                following += 1
    finally:
        for future in () if isinstance(pool, _Processes) else waiting:  # that pool ends its own
            future.cancel()
