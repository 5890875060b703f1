"""The table of speed: what common work costs in **bare**, processor time of one simpy timeout, measured beside every round.

    python tests/benchmarks/table.py                            # the whole table
    python tests/benchmarks/table.py --only "sweep,GPT-3" --rounds 9
    python tests/benchmarks/table.py --json before.json         # and what --before prints beside today's figures
    python tests/benchmarks/table.py --before before.json

A figure is the least of several rounds, each divided by the bare timeout of its own round, so that a machine that others use moves both alike.
Every function of `mpsim.memo` forgets what it said before a round begins.
"""

from __future__ import annotations

import argparse
import dataclasses
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

import mpsim  # noqa: E402
from mpsim import memo  # noqa: E402
from mpsim.study.search.bound import Bounder  # noqa: E402
from mpsim.study.search.layouts import Layouts  # noqa: E402
from mpsim.study.search.trainings import Timer  # noqa: E402
from mpsim.training.planning import make_plan  # noqa: E402
from tests.benchmarks.timing import bare_timeout  # noqa: E402

LINKS = {
    "cluster.nic": [f"{rate} Gb/s" for rate in range(100, 900, 100)],
    "cluster.price_per_hour": [f"{price} USD/h" for price in (1, 2, 3, 4)],
}
LAYOUTS = {
    "parallelism.tp": [1, 2, 4],
    "parallelism.pp": [2, 4],
    "training.micro_batch": [1, 2],
    "training.recompute": ["none", "selective", "full"],
    "parallelism.zero": [0, 1],
}
COMMAND = "import sys; from mpsim.cli import main; sys.exit(main())"
LONG = """
import time, mpsim
from pathlib import Path
from tests.benchmarks.timing import bare_timeout
scenario = mpsim.load("scenarios/gpt3-175b-a100.yaml").with_values({"training.global_batch": 80000})
_ = mpsim.simulate(mpsim.load("scenarios/gpt3-175b-a100.yaml")).summary  # which reads the catalogs
bare, begin = bare_timeout(), time.process_time()
summary = mpsim.simulate(scenario).summary
took = time.process_time() - begin
# not ru_maxrss, which a process inherits from the one that started it
status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
print(took / min(bare, bare_timeout()), int(status["VmHWM"].split()[0]) / 1e3)
"""


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """A line of the table.

    Parameters
    ----------
    work : str
        What is done.
    measure : callable
        One round: the figure, in `unit`.
    goal : float
        What was asked for.
    bar : float
        What it may be at most on a busy machine, so that nobody makes it slower unseen.
    unit : str
        Of the figure.
    """

    work: str
    measure: Callable[[], float]
    goal: float
    bar: float
    unit: str = "bare"


def cpu(work: Callable[[], object], *, forget: bool = True) -> float:
    """Processor time of some work, by default with nothing remembered from before [s]."""
    if forget:
        memo.forget()
    gc.collect()
    begin = time.process_time()
    work()
    return time.process_time() - begin


def in_bare(work: Callable[[], object], count: int = 1, *, forget: bool = True) -> float:
    """Processor time of one of `count` things in bare timeouts, which are timed before and after it."""
    before = bare_timeout()
    took = cpu(work, forget=forget)
    return took / count / min(before, bare_timeout())


def scenario(name: str) -> mpsim.Scenario:
    """One of those that ship."""
    return mpsim.load(ROOT / "scenarios" / f"{name}.yaml")


def sweep_of_links() -> float:
    """32 points of the quickstart that run the same kernels."""
    quickstart = scenario("quickstart")
    return in_bare(lambda: mpsim.sweep(quickstart, LINKS), 32)


def sweep_of_layouts() -> float:
    """72 points of the quickstart, each with kernels of its own."""
    quickstart = scenario("quickstart")
    return in_bare(lambda: mpsim.sweep(quickstart, LAYOUTS), 72)


def exact_layouts() -> float:
    """64 layouts of GPT-3 that a search would time, every one built and replayed."""
    gpt3 = scenario("gpt3-175b-a100")
    space = Layouts(gpt3, {})
    layouts = [layout for frame in space.frames() for layout in space.layouts(frame)]
    timer = Timer(Bounder(make_plan(gpt3.with_values(layouts[0].values()))), gpt3)
    chosen = [
        layout
        for layout in layouts
        if layout.frame.pp == 8 and layout.frame.virtual_stages == 3 and layout.micro_batch <= 2
    ][:64]
    timer.seconds(chosen[:4])
    return in_bare(lambda: timer.seconds(chosen), len(chosen))


def cluster_of_a_design() -> float:
    """Two clusters of the chips' design, each with the best of some 15,000 layouts."""
    chips = scenario("what-if/design-chips")
    return in_bare(lambda: mpsim.design(chips, upgrades=False), 2)


def whole_step() -> float:
    """GPT-3, 36,616 operations, from a scenario to its summary, after another step of other lengths on the same machine."""
    gpt3 = scenario("gpt3-175b-a100")
    memo.forget()
    _ = mpsim.simulate(_other(gpt3)).summary
    return in_bare(lambda: mpsim.simulate(gpt3).summary, forget=False)


def _other(gpt3: mpsim.Scenario) -> mpsim.Scenario:
    """A step that shares catalogs with another, and neither its orders nor its kernels."""
    return gpt3.with_values({"training.global_batch": 640, "training.sequence_length": 1024})


def long_step(place: int) -> float:
    """10,000 microbatches of it in a process of their own: time in bare, or peak memory [MB]."""
    done = subprocess.run(
        [sys.executable, "-c", LONG], capture_output=True, text=True, check=True, cwd=ROOT
    )
    return float(done.stdout.split()[place])


BYTECODE = Path(tempfile.gettempdir()) / f"mpsim-bytecode-{os.getuid()}"
"""Modules of children are compiled once, as those of an installed package are."""


def _child(script: str, *arguments: str) -> float:
    """Processor time of a process [s]."""
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(BYTECODE)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-c", script, *arguments]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, capture_output=True, check=True, cwd=ROOT, env=environment)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def cold_start() -> float:
    """``mpsim run scenarios/quickstart.yaml`` in a fresh process."""
    bare = bare_timeout()
    took = _child(COMMAND, "run", "scenarios/quickstart.yaml")
    return took / min(bare, bare_timeout())


def cold_start_over_imports() -> float:
    """The same over a process that imports what mpsim stands on, and does nothing."""
    own = min(_child(COMMAND, "run", "scenarios/quickstart.yaml") for _ in range(3))
    return own / min(_child("import numpy, pydantic, yaml, typer") for _ in range(3))


def row_of_validate() -> float:
    """Twelve measured rows of other layouts of the quickstart."""
    from mpsim.validate import validate_files

    lines = ["scenario,parallelism.tp,parallelism.zero,training.micro_batch,measured step_time"]
    file = ROOT / "scenarios" / "quickstart.yaml"
    lines += [
        f"{file},{tp},{zero},{batch},1.0" for tp in (1, 2) for zero in (0, 1, 2) for batch in (1, 2)
    ]
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as table:
        table.write("\n".join(lines) + "\n")
        table.flush()
        return in_bare(lambda: validate_files([Path(table.name)]), len(lines) - 1)


def uncontended_flows() -> float:
    """The times of GPT-3's operations under 1F1B, whose messages never meet on a link, as flows over analytic."""
    gpt3 = scenario("gpt3-175b-a100").with_values({"schedule": "1f1b"})
    flows, plain = (
        gpt3.with_values({"simulation.network": network}) for network in ("flow", "analytic")
    )
    _ = mpsim.simulate(_other(gpt3))
    rounds = range(3)
    shared = min(cpu(lambda: mpsim.simulate(flows), forget=False) for _ in rounds)
    return shared / min(cpu(lambda: mpsim.simulate(plain), forget=False) for _ in rounds)


def overhead_of_jobs() -> float:
    """Processor time of a point in two processes over one in this one, the start of the processes left out [%]."""
    quickstart = scenario("quickstart")
    over = {**LAYOUTS, "training.sequence_length": [1024, 2048, 4096, 8192]}

    def spent(jobs: int, chosen: dict[str, list[object]]) -> float:
        memo.forget()
        before = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        mpsim.sweep(quickstart, chosen, jobs=jobs)
        after = [
            resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
        ]
        return sum(
            b.ru_utime + b.ru_stime - a.ru_utime - a.ru_stime
            for a, b in zip(before, after, strict=True)
        )

    few = {**over, "training.sequence_length": [1024]}
    one, two = (
        min(spent(jobs, over) for _ in range(3)) - min(spent(jobs, few) for _ in range(3))
        for jobs in (1, 2)
    )
    return 100 * (two / one - 1)


TABLE = (
    Row("a sweep point that changes links or prices", sweep_of_links, 1_500, 9_000),
    Row("a sweep point that changes the layout", sweep_of_layouts, 4_000, 20_000),
    Row("an exact layout of a search", exact_layouts, 2_500, 9_000),
    Row("a cluster of a design", cluster_of_a_design, 240_000, 4_000_000),
    Row("simulate + summary of GPT-3", whole_step, 30_000, 90_000),
    Row("m = 10,000 (1.9 M operations)", lambda: long_step(0), 200_000, 100_000),
    Row("m = 10,000, peak memory", lambda: long_step(1), 100, 100, "MB"),
    Row("cold quickstart", cold_start, 800_000, 1_000_000),
    Row("cold quickstart over its imports", cold_start_over_imports, 1.3, 2.8, "x"),
    Row("a row of validate", row_of_validate, 20_000, 36_000),
    Row("a flow network when nothing contends", uncontended_flows, 2, 2, "x analytic"),
    Row("--jobs 2 against 1, a point", overhead_of_jobs, 5, 25, "% CPU"),
)
"""Every row with its goal and its bar. Where the issue that asked for them says seconds, two million bare timeouts are one."""


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="rows that hold one of these words, by comma")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="file that keeps the figures")
    parser.add_argument("--before", type=Path, help="figures to print beside")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    # catalogs stay parsed beside compiled modules, as for whoever installed the package
    sys.dont_write_bytecode, sys.pycache_prefix = False, str(BYTECODE)
    before = json.loads(options.before.read_text()) if options.before else {}
    figures: dict[str, float] = {}
    print("| work | before | now | goal |", "| --- | --: | --: | --: |", sep="\n")
    for row in TABLE:
        if any(words in row.work for words in options.only.split(",")):
            figures[row.work] = min(row.measure() for _ in range(options.rounds))
            was = f"{before[row.work]:,.4g}" if row.work in before else ""
            print(
                f"| {row.work} ({row.unit}) | {was} | {figures[row.work]:,.4g} | {row.goal:,} |",
                flush=True,
            )
    if options.json:
        options.json.write_text(json.dumps(figures))


if __name__ == "__main__":
    main()
