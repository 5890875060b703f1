"""What pytest collects in the package, and how much processor time a test may take."""

from __future__ import annotations

import importlib.util
import signal
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from types import FrameType

collect_ignore_glob = [] if importlib.util.find_spec("torch") else ["mpsim/measure/[!_]*.py"]

CPU_LIMIT = 300
"""Seconds of processor time that a test may take with its fixtures, the longest of which (published runs) takes 30.

Wall time is no limit: on a busy machine a good test may take any. One that waits for ever ends after the hour of ``timeout`` in ``pyproject.toml``.
"""


def _too_much(signum: int, frame: FrameType | None) -> None:
    del signum, frame
    pytest.fail(f"more than {CPU_LIMIT} s of processor time")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    """Every test has `CPU_LIMIT` seconds of this process, where the system counts them."""
    if not hasattr(signal, "setitimer"):
        return (yield)
    before = signal.signal(signal.SIGPROF, _too_much)
    signal.setitimer(signal.ITIMER_PROF, CPU_LIMIT)
    try:
        return (yield)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)
