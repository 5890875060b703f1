"""Engines: when each operation of a Program starts and ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpsim import structs
from mpsim.engine.steady import run_replay
from mpsim.engine.timeline import Timeline
from mpsim.engine.traffic import undisturbed
from mpsim.errors import ScenarioError
from mpsim.program.links import Links
from mpsim.program.program import Program

if TYPE_CHECKING:
    from mpsim.program.devices import Devices

__all__ = ["ENGINES", "Timeline", "run", "run_interfering"]

ENGINES = ("auto", "simpy", "replay")


def run(program: Program, engine: str = "auto", links: Links | None = None) -> Timeline:
    """Run a Program.

    `engine`: ``simpy``, ``replay``, or ``auto``: replay where no duration depends on what else
    runs, else simpy. `links`: links that rows of `program` share; without them a transfer takes the
    time it has alone. ``auto`` replays what never meets on them. DeadlockError if operations wait
    for each other.

    Returns Timeline: it says which engine ran.
    """
    if engine not in ENGINES:
        raise ScenarioError(f"unknown engine {engine!r}; known: {', '.join(ENGINES)}")
    if links is not None:
        if engine == "replay":
            raise ScenarioError("replay cannot share links; take engine auto or simpy")
        return _run_shared(program, links, engine)
    if engine == "simpy":
        from mpsim.engine.simpy_engine import run_simpy

        return run_simpy(program)
    return run_replay(program)


def _run_shared(program: Program, links: Links, engine: str) -> Timeline:
    """Replay where no two rows turn out to be in each other's way, else simulate."""
    if engine == "auto":
        alone = run_replay(program)
        if (traffic := undisturbed(links, alone.start, alone.end)) is not None:
            return structs.replace(alone, traffic=traffic)
    from mpsim.engine.contention import run_contended

    return run_contended(program, links)


def run_interfering(devices: Devices, links: Links | None = None) -> Timeline:
    """Run a program whose kernels and collectives slow each other down (`engine.interference`)."""
    from mpsim.engine.interference import run_interfering as go

    return go(devices, links)
