"""Ctrl-C and SIGTERM: a command ends with what it has, its workers with it, and says how far it is before."""

from __future__ import annotations

import gc
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import Future
from pathlib import Path

import pytest

from bench import validate_files
from mpsim.errors import MpsimError
from mpsim.scenario import load
from mpsim.study import sweep
from mpsim.study.executors import computed, local_processes
from mpsim.study.plan import plan
from mpsim.study.scaling import scale

LONG = (
    *("--over", "parallelism.tp=1,2,4,8", "--over", "parallelism.pp=1,2,3,4"),
    *("--over", "training.micro_batch=1,2,4", "--over", "parallelism.zero=0,1,2"),
    *("--over", "training.global_batch=64,128,256,512"),
)


def interrupt_after(count):
    """A report of progress that is interrupted at the `count`-th call."""
    calls = iter(range(1, 10**6))

    def report(done, total):
        if next(calls) == count:
            raise KeyboardInterrupt

    return report


def is_there(group):
    """Whether a group of processes has any."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


def test_scale_keeps_the_sizes_it_has(scenarios):
    """Two of four rows; before the first there is nothing to keep."""
    scenario = load(scenarios / "quickstart.yaml")
    found = scale(scenario, [8, 16], progress=interrupt_after(2))
    assert (len(found.rows), found.interrupted) == (2, True)
    assert not scale(scenario, [8, 16]).interrupted


def test_a_sweep_keeps_the_rows_it_has(scenarios, tmp_path):
    """In memory and in its journal, with which it ends as if nothing had been."""
    scenario, axes = load(scenarios / "quickstart.yaml"), {"training.global_batch": [32, 64, 96]}
    journal = tmp_path / "rows.jsonl"
    found = sweep(scenario, axes, resume=journal, progress=interrupt_after(3))  # one of none done
    whole = sweep(scenario, axes)
    assert (list(found.rows), found.interrupted) == (list(whole.rows)[:2], True)
    resumed = sweep(scenario, axes, resume=journal)
    assert (list(resumed.rows), resumed.interrupted) == (list(whole.rows), False)


def test_plan_keeps_the_combinations_it_has(scenarios):
    """The first of two."""
    scenario = load(scenarios / "quickstart.yaml")
    over = {"training.global_batch": [32, 64]}
    found = plan(scenario, 1e9, over, progress=interrupt_after(1))
    assert ([row.values for row in found.rows], found.interrupted) == (
        [{"training.global_batch": 32}],
        True,
    )
    assert not plan(scenario, 1e9, over).interrupted


def test_validate_keeps_the_rows_it_has(tmp_path):
    """Three of nine schedules; the exit code of the command says that it was cut short."""
    table = tmp_path / "collectives.csv"
    head = "record_id,system,collective,nodes,gpus,gpus_per_node,bytes,time_us,busbw_gbps\n"
    row = "{0},dgx-h100,all_reduce,1,8,8,{0}000000,100,50\n"
    table.write_text(head + "".join(row.format(number) for number in range(1, 10)))
    found = validate_files([table], progress=interrupt_after(3))
    assert (len(found.records), found.interrupted) == (3, True)


def test_a_command_cut_short_prints_what_it_has(mpsim_cli, scenarios, monkeypatch):
    """The rows on stdout, one line on stderr, and the exit code of an interrupt."""
    from mpsim.study import scaling

    real, sizes = scaling.simulate_step, []

    def interrupted(scenario):
        sizes.append(scenario)
        if len(sizes) > 1:
            raise KeyboardInterrupt
        return real(scenario)

    monkeypatch.setattr(scaling, "simulate_step", interrupted)
    done = mpsim_cli("scale", scenarios / "quickstart.yaml", "--gpus", "8..32")
    assert done.code == 130
    assert done.out.splitlines()[-1].split()[0] == "8"
    assert done.err.endswith("mpsim: interrupted; this is what was found until then\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_workers_end_with_the_sweep_and_say_nothing(scenarios, number):
    """The signal reaches the whole group as a terminal sends it; no process of it is left, and none prints a traceback."""
    command = [sys.executable, "-m", "mpsim", "sweep", scenarios / "quickstart.yaml", "-j", "2"]
    process = subprocess.Popen(
        [*command, *LONG],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env=os.environ | {"MPSIM_PROGRESS": "on"},
    )
    first = process.stderr.readline()  # it is at work
    assert first.startswith(("mpsim sweep: at work for", "quickstart: "))
    os.killpg(process.pid, number)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert said.rstrip().splitlines()[-1].startswith("mpsim: interrupted")
    assert "Traceback" not in said
    while is_there(
        process.pid
    ):  # until its last process is reaped; the limit of the test ends it otherwise
        time.sleep(0.05)


def test_a_pool_that_is_left_by_an_error_leaves_no_process(monkeypatch):
    """Whatever its workers do; it cancels no future, of which the pool's own thread would die with a traceback."""
    workers, cancelled = [], []
    monkeypatch.setattr(Future, "cancel", cancelled.append)

    def leave():
        with local_processes(2) as pool:
            for _ in computed(pool, time.sleep, [(0,), *[(1000,)] * 20]):
                workers.extend(pool._processes.values())
                raise MpsimError("out of work")

    with pytest.raises(MpsimError):
        leave()
    assert workers
    assert not cancelled
    while any(
        worker.is_alive() for worker in workers
    ):  # which of two threads reaped it takes a moment to be known
        time.sleep(0.01)


def test_processes_collect_garbage_as_the_command_that_started_them():
    """A command collects a hundredth as often as Python does by itself, and what it computes runs in them."""
    own = gc.get_threshold()
    try:
        gc.set_threshold(123_456)
        with local_processes(1) as pool:
            assert [*computed(pool, gc.get_threshold, [()])] == [gc.get_threshold()]
    finally:
        gc.set_threshold(*own)


def test_watch_tells_and_keeps_what_it_read(mpsim_cli, scenarios, monkeypatch, tmp_path):
    """Ctrl-C is how a watch ends: the answer is of all that was read, and a restart goes on behind it."""
    log, state = tmp_path / "run.jsonl", tmp_path / "state.json"
    log.write_text("".join(f'{{"step": {n}, "step_time_s": 0.5}}\n' for n in range(30)))

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupt)
    words = ("--scenario", scenarios / "quickstart.yaml", "--state", state, "--follow", "--json")
    done = mpsim_cli("watch", log, *words)
    assert done.code == 130
    assert json.loads(done.out)["step"] == 29
    assert json.loads(state.read_text())["place"] == log.stat().st_size


def test_explain_interrupted_while_it_reads_has_no_answer(mpsim_cli, monkeypatch, tmp_path):
    """Half of the ranks explain nothing: one line, and nothing on stdout."""
    import mpsim.explain.explanation as module

    def interrupt(_):
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "read_recordings", interrupt)
    real = Path(__file__).parents[2] / "validation" / "measured" / "explained" / "clean"
    done = mpsim_cli("explain", real / "scenario.yaml", real / "rank0.json.gz")
    assert (done.code, done.out) == (130, "")
    assert done.err.rstrip().endswith("interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_modules_are_imported_is_one_line(number):
    """The first third of a second of every command: no traceback of whatever was being imported, and the exit code of any interrupt."""
    code = (
        "import os, sys, mpsim.cli, importlib.abc\n"
        "class Finder(importlib.abc.MetaPathFinder):\n"
        "    def find_spec(self, name, path, target=None):\n"
        f"        os.kill(os.getpid(), {int(number)})\n"
        "sys.meta_path.insert(0, Finder())\n"
        "mpsim.cli.main()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mpsim: interrupted\n")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_options_are_read_is_one_line(number, tmp_path, scenarios):
    """Also where it comes within text that Python executes, for which CPython dies of SIGINT at exit whoever handled it."""
    (tmp_path / "interrupted.py").write_text(
        "import sys, mpsim.cli, mpsim.cli.options as options\n"
        "def parse(text, dimension):\n"
        f"    exec('import os; os.kill(os.getpid(), {int(number)}); sum(range(10**7))')\n"
        "options.parse_quantity = parse\n"
        "sys.exit(mpsim.cli.main())\n"
    )
    words = ["goodput", str(scenarios / "quickstart.yaml"), "--restart", "1 h"]
    done = subprocess.run(
        [sys.executable, "-m", "interrupted", *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "mpsim: interrupted\n")


def test_a_table_that_was_cut_short_is_called_partial(mpsim_cli, scenarios, monkeypatch, tmp_path):
    """Neither the table nor the picture that was asked for is there, and the JSON says why."""
    from mpsim.study import grid

    def one_chunk(*asked):
        yield next(real(*asked))
        raise KeyboardInterrupt

    real = grid.computed
    monkeypatch.setattr(grid, "computed", one_chunk)
    monkeypatch.chdir(tmp_path)
    over = ("--over", "training.micro_batch=1,2", "--over", "parallelism.tp=1,2")
    written = ("--csv", "table.csv", "--plot", "table.svg", "--json", "-j", "1")
    done = mpsim_cli("sweep", scenarios / "quickstart.yaml", *over, *written)
    assert done.code == 130
    assert json.loads(done.out)["interrupted"]
    assert [path.name for path in tmp_path.iterdir()] == ["table.csv.partial"]
