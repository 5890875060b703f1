"""The replay engine: the same Program as max-plus algebra, for programs whose durations cannot change while they run."""

from __future__ import annotations

from mpsim.engine.chains import Chains
from mpsim.engine.graph import deadlock, precedence
from mpsim.engine.steady import ends_of
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Program

__all__ = ["run_replay"]


def run_replay(program: Program) -> Timeline:
    """Evaluate `program` once, chain by chain: an operation starts at the latest end of what it waits for.

    Returns
    -------
    Timeline
        Equal, bit for bit, to that of the simpy engine.

    Raises
    ------
    DeadlockError
        If operations wait for each other.
    """
    chains = Chains.of(program)
    ends = ends_of(program, chains, program.duration)
    end = ends[chains.last]
    if len(end) and end.min() < 0:
        raise deadlock(program, precedence(program), end >= 0)
    return Timeline(program=program, start=chains.starts(ends), end=end, engine="replay")
