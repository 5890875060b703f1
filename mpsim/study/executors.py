"""Executors: where the points of a study are computed. All of them are `concurrent.futures.Executor`.

* none: in this process;
* `local_processes`: a pool of processes on this machine;
* `dask_cluster`: the workers of a dask.distributed scheduler, on any machines;
* any other that a caller brings.
"""

from __future__ import annotations

import importlib
import multiprocessing
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import resource_tracker
from typing import Any, ParamSpec, TypeVar

from mpsim.errors import MissingExtraError, MpsimError, ScenarioError

__all__ = ["dask_cluster", "executor_for", "local_processes", "lost"]

P = ParamSpec("P")
T = TypeVar("T")
_SCHEMES = ("tcp://", "tls://", "ucx://", "ws://", "wss://")
_PATIENCE = "30s"  # for the scheduler to answer


@contextmanager
def executor_for(
    jobs: int, tasks: int, *, executor: Executor | None = None, cluster: str | None = None
) -> Iterator[Executor | None]:
    """The executor for so many tasks; None where this process does it alone.

    Parameters
    ----------
    jobs : int
        Local processes.
    tasks : int
    executor : Executor, optional
        Taken as it is, and left open.
    cluster : str, optional
        Address of a dask scheduler.
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
    """Processes on this machine; an interrupt is left to this process, which ends them at once."""
    pool = _Processes(max_workers=jobs, mp_context=multiprocessing.get_context("spawn"))
    try:
        yield pool
    except BaseException:
        pool.kill()
        raise
    pool.shutdown()


class _Processes(ProcessPoolExecutor):
    """Processes to which Ctrl-C means nothing from their first instruction on."""

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """Submit a task; the process that is started for it inherits that interrupts are blocked."""
        resource_tracker.ensure_running()  # it would unblock them
        with _interrupts_blocked():
            return super().submit(fn, *args, **kwargs)

    def kill(self) -> None:
        """End every process, whatever it does; nothing that they compute is kept by them."""
        workers = list((self._processes or {}).values())
        self.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.kill()
        for worker in workers:
            worker.join()


@contextmanager
def _interrupts_blocked() -> Iterator[None]:
    """Hold back Ctrl-C in this thread, where the system can."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def dask_cluster(address: str) -> Iterator[Executor]:
    """Workers of a dask scheduler; what a lost worker was computing is given to another.

    Parameters
    ----------
    address : str
        Such as ``tcp://scheduler:8786``.

    Raises
    ------
    MissingExtraError
        If dask.distributed is not installed.
    ScenarioError
        If the address is none, or nobody answers there.
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
    try:
        # tasks depend on their arguments only, so one that was lost can run again
        yield client.get_executor(pure=False, retries=3)
    finally:
        client.close()


def lost(error: BaseException) -> MpsimError:
    """The error for a person whose workers went away."""
    return MpsimError(
        f"workers went away ({type(error).__name__}: {error}); what was finished is kept with --resume: run it again"
    )
