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
from collections.abc import Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from typing import Any

from mpsim.errors import MissingExtraError, MpsimError, ScenarioError

__all__ = ["dask_cluster", "executor_for", "local_processes", "lost"]

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
    """Processes on this machine; an interrupt is left to this process."""
    pool = ProcessPoolExecutor(
        max_workers=jobs,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_leave_interrupts_to_the_parent,
    )
    try:
        yield pool
    except BaseException:
        pool.shutdown(wait=True, cancel_futures=True)
        raise
    pool.shutdown()


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


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
