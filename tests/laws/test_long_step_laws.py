"""Laws of long steps: counted periods tell what simulating every microbatch tells."""

from __future__ import annotations

import pickle

import pytest

import mpsim
from mpsim.simulate import long_step, prepare
from mpsim.training import long_step as long
from mpsim.training.long_step import LongResult, lengths_of

EXACT = ("step_time_s", "breakdown_s", "communication_s", "bubble_fraction", "memory", "mfu")


@pytest.fixture(autouse=True)
def everything_is_long(monkeypatch):
    """So that the whole step is quickly simulated too."""
    monkeypatch.setattr(long, "_WORTH", 0)


def quickstart(scenarios, **values) -> mpsim.Scenario:
    """The quickstart with 600 microbatches a pipeline and other values."""
    keys = {key.replace("__", "."): value for key, value in values.items()}
    scenario = mpsim.load(scenarios / "quickstart.yaml").with_values(
        {"training.global_batch": 3200, **keys}
    )
    batch = 600 * scenario.dp * scenario.training_step.micro_batch
    return scenario.with_values({"training.global_batch": batch})


def figures(summary, prefix=""):
    """Every figure by its dotted name."""
    for name, figure in summary.items():
        if isinstance(figure, dict):
            yield from figures(figure, f"{prefix}{name}.")
        else:
            yield prefix + name, figure


CASES = [
    {},
    {"parallelism__zero": 0, "training__recompute": "full"},
    {"parallelism__pp": 1},
    {"parallelism__tp": 1, "parallelism__sequence_parallel": False, "training__micro_batch": 2},
    {"schedule": "zb-h1"},
    {"schedule": "eager-1f1b"},
    {"schedule": "dualpipe-v"},
    {"schedule": {"name": "interleaved-1f1b", "virtual_stages": 2}},
    {"schedule": {"name": "interleaved-zb", "virtual_stages": 2}},
    {"parallelism__layers_per_stage": [9, 7, 8, 8]},
    {"parallelism__layers_per_stage": [7, 8, 8, 9]},
    {"framework": "megatron-lm", "parallelism__zero": 1},
    {"cluster__nic": "10 Gb/s"},
]


@pytest.mark.parametrize("values", CASES, ids=str)
def test_counted_periods_are_simulated_periods(scenarios, values):
    """Ticks to the byte, sums of other figures to the rounding of a million additions."""
    scenario = quickstart(scenarios, **values)
    counted = long_step(scenario)
    assert isinstance(counted, LongResult)
    whole = prepare(scenario).run()
    for name in EXACT:
        assert counted.summary[name] == whole.summary[name], name
    known = dict(figures(whole.summary))
    for name, figure in figures(counted.summary):
        if isinstance(figure, float):
            assert figure == pytest.approx(known[name], rel=1e-11, abs=1e-11), name
        elif name != "interval":
            assert str(figure)[:40] == str(known[name])[:40], name


def test_what_asks_for_operations_simulates_them_all(scenarios):
    """Timeline, account and memory of a long step are those of the whole, read again from a pickle too."""
    scenario = quickstart(scenarios)
    counted, whole = pickle.loads(pickle.dumps(long_step(scenario))), prepare(scenario).run()
    assert (counted.timeline.end == whole.timeline.end).all()
    assert (counted.parts == whole.parts).all()
    assert len(counted.program) == len(whole.program)
    assert counted.memory.total.tolist() == whole.memory.total.tolist()


def test_a_step_that_has_not_become_steady_is_not_counted(scenarios):
    """GPipe runs all forwards first, so that no number of microbatches repeats itself."""
    assert long_step(quickstart(scenarios, schedule="gpipe")) is None


@pytest.mark.parametrize(
    "values",
    [
        {"simulation__network": "flow"},
        {"simulation__engine": "simpy"},
        {"simulation__interference": True},
        {"variation": {"jitter": 0.05}},
        {"schedule": "auto"},
    ],
    ids=str,
)
def test_steps_whose_times_hang_on_more_are_simulated_whole(scenarios, values):
    """Shared links, interference, draws and searched orders are no repetition of a period."""
    keys = {key.replace("__", "."): value for key, value in values.items()}
    assert not list(lengths_of(mpsim.load(scenarios / "quickstart.yaml").with_values(keys)))


def test_a_sweep_counts_as_a_run_does(scenarios):
    """Equal bytes of both."""
    scenario = quickstart(scenarios)
    (row,) = mpsim.sweep(scenario, {"parallelism.zero": [1]})
    alone = mpsim.simulate(scenario.with_values({"parallelism.zero": 1})).summary
    assert row.summary is not None
    assert {**row.summary, "calibration": None} == {**alone, "calibration": None}
