"""The vocabulary of a job: programs, engines and results work with any."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.engine import run
from mpsim.errors import DeadlockError
from mpsim.parallel.axes import ACCOUNTED
from mpsim.program import SEND, Program, Rows, Vocabulary
from mpsim.result.intervals import busy_ticks
from mpsim.training.build import build_program
from tests.plans import small_plan

SERVING = Vocabulary(
    kinds=("send", "collective", "prefill", "decode"),
    actions=("prefill", "decode"),
    parts=("prefill", "decode", *(axis.part for axis in ACCOUNTED), "host", "other"),
    computing=("prefill", "decode"),
)
PREFILL, DECODE = (SERVING.kinds.index(name) for name in ("prefill", "decode"))


def served(*, circular: bool = False) -> Program:
    """A prefill on one rank class, a message, and a decode on another."""
    rows = Rows(SERVING)
    prefill = rows.add(1, kind=PREFILL, part=SERVING.part("prefill"), duration=5.0)
    send = rows.add(1, kind=SEND, stream=5, peer=1, part=SERVING.part("exposed_pp"), duration=2.0)
    decode = rows.add(1, kind=DECODE, rank=1, part=SERVING.part("decode"), duration=3.0)
    rows.depend(send, prefill)
    rows.depend(decode, send)
    if circular:
        rows.depend(prefill, decode)
    return rows.finish(rank_name=("pp 0", "pp 1"), class_size=[1, 1])


@pytest.mark.parametrize("engine", ["simpy", "replay"])
def test_another_job_runs_and_is_accounted(engine: str) -> None:
    """Prefill 0 to 5, message until 7, decode until 10, each in the part that its job names."""
    timeline = run(served(), engine)
    assert timeline.end.tolist() == [5.0, 7.0, 10.0]
    busy = timeline.program.busy_parts
    assert busy[0, SERVING.part("prefill")] == 5.0
    assert busy[1, SERVING.part("decode")] == 3.0
    assert busy_ticks(timeline).tolist() == [5.0, 3.0]


def test_a_deadlock_is_told_in_the_words_of_the_job() -> None:
    """The operations that wait for each other have the names of their kinds."""
    with pytest.raises(DeadlockError, match=r"(?s)prefill.*decode|decode.*prefill"):
        run(served(circular=True), "replay")


def test_actions_are_known_by_kind() -> None:
    """A message is none."""
    assert SERVING.is_action(np.array([SEND, PREFILL, DECODE], np.int8)).tolist() == [
        False,
        True,
        True,
    ]


def test_nouns_say_what_they_are_in_a_few_lines() -> None:
    """Plan, Layout and Program print in less than a screen, whatever they hold."""
    plan = small_plan(pp=4, microbatches=64)
    for noun in (plan, plan.layout, build_program(plan)):
        assert len(repr(noun)) < 1000
