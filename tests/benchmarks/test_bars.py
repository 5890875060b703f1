"""The bars that the engine has to clear, each a ratio to simpy itself: ``pytest tests/benchmarks/test_bars.py --benchmark-only``.

The unit is **bare**: processor time of one ``yield env.timeout(1)`` in one simpy process, measured in the same run, so that the speed
of the machine falls out. Every case takes the best of several rounds. ``extra_info`` holds the figure and its bar.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import simpy

import mpsim
from mpsim.engine import Timeline, run
from mpsim.engine.fluid import Fluid
from mpsim.engine.kernels import kernel_times, reduce_template
from mpsim.engine.structure import Structure
from mpsim.program import Program, Rows, Span, Stream
from mpsim.program.expand import expand
from mpsim.program.rows import Prices
from mpsim.program.unfold import Unfolding
from mpsim.schedule import make_orders
from mpsim.training import from_orders
from mpsim.training.build import build_program
from mpsim.training.pipeline import ACTIONS, MESSAGES, add_pipeline
from mpsim.training.planning import make_plan
from mpsim.training.vocabulary import TRAINING, Kind
from tests.benchmarks.timing import best
from tests.plans import small_plan

pytestmark = [pytest.mark.benchmark(group="bars"), pytest.mark.usefixtures("heap_of_a_user")]

TIMES = {"forward": 1000.0, "backward": 1000.0, "weight": 1000.0, "send": 10.0}


@pytest.fixture(scope="module")
def gpt3(scenarios):
    """GPT-3 175B, tp 8, pp 16, dp 8, 192 microbatches, three chunks a rank."""
    return mpsim.load(scenarios / "gpt3-175b-a100.yaml")


@pytest.fixture(scope="module")
def program(gpt3) -> Program:
    return build_program(make_plan(gpt3))


def test_simpy_is_half_as_fast_as_bare_at_one_event_an_operation(clear, bare, program):
    """Operations a second over bare events a second; that there is one event each is asserted in the unit tests."""
    clear(bare * len(program) / best(lambda: run(program, "simpy")), at_least=0.5)


def test_gpt3_from_scenario_to_the_time_of_every_action(clear, bare, gpt3):
    """Nothing cached: plan, costs, program, times, Result."""
    clear(best(lambda: mpsim.simulate(gpt3)) / bare, at_most=40_000)


def test_gpt3_from_scenario_to_the_time_of_every_kernel(clear, bare, gpt3):
    """758,916 kernels and more, nothing cached."""
    assert len(mpsim.simulate(gpt3).kernels.start) > 700_000
    clear(best(lambda: mpsim.simulate(gpt3).kernels) / bare, at_most=130_000)


def _replayed(structure: Structure, program: Program, duration: np.ndarray) -> Timeline:
    start, end = structure.replay(duration)
    return Timeline(dataclasses.replace(program, duration=duration), start, end, "replay")


def test_gpt3_with_structure_cached_and_new_durations_of_actions(clear, bare, program):
    """Every start and end."""
    structure = Structure.of(program)
    duration = np.rint(program.duration * 1.1)
    structure.replay(duration)
    clear(best(lambda: structure.replay(duration)) / bare, at_most=20_000)


def test_gpt3_with_structure_cached_and_new_durations_of_kernels(clear, bare, program):
    """Kernels reduced to actions, replayed, and spread to every kernel again."""
    structure = Structure.of(program)

    def again():
        spans = _spans(program.templates, [t.duration[None] for t in program.templates])
        duration = np.where(program.template < 0, program.duration, spans[0][program.template])
        return kernel_times(_replayed(structure, program, duration))

    clear(best(again) / bare, at_most=65_000)


def test_replay_of_kernels_with_reduction_and_expansion(clear, bare, program):
    """Kernels a second over bare events a second, on a structure that is known."""
    structure = Structure.of(program)
    kernels = len(kernel_times(run(program)).start)
    took = best(lambda: kernel_times(_replayed(structure, program, program.duration)))
    reduced = best(lambda: _spans(program.templates, [t.duration[None] for t in program.templates]))
    clear(bare * kernels / (took + reduced), at_least=20)


def test_construction_at_kernel_grain(clear, bare, gpt3):
    """Rows a second over bare events a second: the program built and expanded, a row a kernel."""
    plan = make_plan(gpt3)
    count = len(expand(build_program(plan)))
    clear(bare * count / best(lambda: expand(build_program(plan))), at_least=10)


def _variants(structure: Structure, program: Program, bare: float, count: int = 1000) -> float:
    """Variants a second, at 800,000 bare timeouts a second as the machine of the bars had."""
    classes, index = np.unique(program.duration, return_inverse=True)
    factor = np.random.default_rng(0).uniform(0.5, 2.0, (count, 1))
    took = best(lambda: structure.makespans(np.rint(factor * classes), index=index), 3)
    return count / (took / bare / 800_000)


def test_variants_of_16_ranks_at_chunk_grain(clear, bare, program):
    """GPT-3's pipeline, 36,662 operations."""
    clear(_variants(Structure.of(program), program, bare), at_least=2_000)


def test_variants_of_8_ranks_at_chunk_grain(clear, bare):
    """1F1B, 64 microbatches, 1,920 operations."""
    program = from_orders(make_orders("1f1b", pp=8, microbatches=64), **TIMES)
    assert len(program) == 1920
    clear(_variants(Structure.of(program), program, bare), at_least=20_000)


def test_variants_of_8_ranks_at_kernel_grain(clear, bare):
    """Every kernel's time changes; templates are reduced, actions replayed."""
    program = build_program(small_plan(pp=8, tp=8, dp=1, microbatches=64, model_name="gpt-39b"))
    structure = Structure.of(program)
    factor = np.random.default_rng(0).uniform(0.5, 2.0, (1000, 1))
    templates = program.templates
    plain, index = np.unique(program.duration[program.template < 0], return_inverse=True)
    column = program.template.astype(np.int64)
    column[program.template < 0] = len(templates) + index
    assert len(kernel_times(run(program)).start) > 50_000

    def variants():
        spans = _spans(templates, [np.rint(factor * t.duration) for t in templates])
        classes = np.concatenate([spans, np.rint(factor * plain)], axis=1)
        return structure.makespans(classes, index=column)

    clear(1000 / (best(variants, 3) / bare / 800_000), at_least=3_000)


def _spans(templates, durations):
    """Durations of rows, from those of the kernels of each template."""
    pairs = zip(templates, durations, strict=True)
    return np.stack([reduce_template(template, took)[1] for template, took in pairs], axis=1)


def _folded(pp: int, microbatches: int) -> Program:
    """1F1B, a tensor-parallel collective after every chunk, and a data-parallel one at the end."""
    orders = make_orders("1f1b", pp=pp, microbatches=microbatches)
    rows, prices = Rows(TRAINING), {ACTIONS: Prices(np.array([1000.0, 2000.0]))}
    prices |= {message: Prices(np.full(pp, 10.0)) for message in MESSAGES}
    variant = (orders.kind > 0).astype(np.int64)
    placed = add_pipeline(rows, orders, variant, np.ones(2, dtype=np.int64))
    prices["tp"] = Prices(np.full(len(orders), 50.0))
    after = rows.add(
        len(orders),
        rank=orders.rank,
        stream=Stream.TP,
        kind=Kind.COLLECTIVE,
        span=Span.TP,
        price="tp",
    )
    rows.depend(after, placed.last)
    same = orders.rank[1:] == orders.rank[:-1]
    rows.depend(placed.first[1:][same], after[:-1][same])
    prices["dp"] = Prices(np.full(pp, 500.0))
    reduced = rows.add(
        pp, rank=np.arange(pp), stream=Stream.DP, kind=Kind.COLLECTIVE, span=Span.DP, price="dp"
    )
    rows.depend(reduced, placed.last[orders.rank_ptr[1:] - 1])
    graph = rows.graph(f"pp {r}" for r in range(pp))
    return graph.priced(prices, class_size=np.full(pp, 1024))


def unfolded_step() -> tuple[int, float, float]:
    """16,384 ranks unfolded: operations, processor time of build, order and replay [s], and peak memory [B]."""
    begin = time.process_time()
    folded = _folded(16, 64)
    unfolding = Unfolding(folded, {"tp": 8, "dp": 128})
    program = unfolding.program()
    timeline = _replayed(Structure.unfolded(folded, unfolding), program, program.duration)
    took = time.process_time() - begin
    assert timeline.makespan == run(folded).makespan
    return len(program), took, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_16384_ranks_unfolded(clear, bare):
    """4.3 million operations from nothing to every start and end, in a process of its own: seconds at 800,000 bare timeouts a second."""
    script = "from tests.benchmarks.test_bars import unfolded_step; print(*unfolded_step())"
    done = [
        subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    count, took, memory = min(
        (tuple(map(float, one.stdout.split())) for one in done), key=lambda one: one[1]
    )
    assert count > 4_300_000
    assert memory <= 1e9
    clear(took / bare / 800_000, at_most=2.0)


def test_sensitivity_costs_little_more_than_a_run(clear, gpt3, tmp_path):
    """All parameters both ways, in processor time of starting the command and running the scenario once."""
    result = mpsim.simulate(gpt3)
    one = min(_command(tmp_path, "run", "scenarios/gpt3-175b-a100.yaml") for _ in range(2))
    clear(best(result.sensitivity, 2) / one, at_most=1.0)


def _command(bytecode: Path, *arguments: str) -> float:
    """Processor time of a command in a process of its own [s]; modules are compiled once, as an installed package is."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(bytecode)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    script = "import sys; from mpsim.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", script, *arguments]
    subprocess.run(command, capture_output=True, check=True, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def _rack_local(
    count: int, *, hosts: int = 1024, rack: int = 8
) -> list[tuple[dict[int, float], float]]:
    """Ports and work of flows between two hosts of one rack."""
    draw = np.random.default_rng(7)
    base = draw.integers(hosts // rack, size=count) * rack
    here = draw.integers(rack, size=count)
    there = (here + draw.integers(1, rack, size=count)) % rack
    work = draw.integers(1, 10**6, size=count)
    return [
        ({2 * out: 1.0, 2 * into + 1: 1.0}, float(ticks))
        for out, into, ticks in zip(
            (base + here).tolist(), (base + there).tolist(), work.tolist(), strict=True
        )
    ]


def _drive(flows: list[tuple[dict[int, float], float]], *, at_once: int, hosts: int = 1024) -> None:
    """Every flow that ends is replaced by the next, driven by simpy."""
    network, environment = Fluid([1.0] * (2 * hosts)), simpy.Environment()
    following = iter(enumerate(flows))

    def start() -> None:
        for key, (ports, work) in itertools.islice(following, 1):
            network.start(key, ports, cap=1.0, work=work, now=environment.now)

    def drive():
        for _ in range(at_once):
            start()
        while len(network):
            yield environment.timeout(network.next_end() - environment.now)
            for _ in network.finish(environment.now):
                start()

    environment.process(drive())
    environment.run()


def test_rack_local_flows_of_1024_hosts(clear, bare):
    """Flow ends a second over bare events a second, 512 flows at a time: only what shares links is computed again."""
    flows = _rack_local(4000)
    took = best(lambda: _drive(flows, at_once=512), 3)
    clear(bare * len(flows) / took, at_least=0.02)


def test_llama3_405b_on_16384_gpus_with_shared_links(clear, bare, scenarios):
    """Folded, network: flow, from a scenario to the Result."""
    scenario = mpsim.load(scenarios / "llama3-405b-h100-16k.yaml", set=["simulation.network=flow"])
    assert mpsim.simulate(scenario).timeline.traffic is not None
    clear(best(lambda: mpsim.simulate(scenario), 3) / bare, at_most=250_000)
