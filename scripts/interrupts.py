"""Send SIGINT and SIGTERM into every command at random instants: it ends with 130, no traceback, no worker and nothing that looks complete.

    python scripts/interrupts.py                   # 30 instants of each signal into each command: an hour
    python scripts/interrupts.py 3 sweep search    # 3 into two of them

SIGINT goes to the whole group, as a terminal sends it; SIGTERM to the command alone, as a supervisor does. A file that a run leaves is what an undisturbed one writes, a journal of
whole lines, or says `partial` in its name; JSON on stdout says `interrupted` or `complete: false`. Prints a table; exits 1 where something is wrong.
"""

from __future__ import annotations

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]
COMMANDS: dict[str, str] = yaml.safe_load(Path(__file__).with_suffix(".yaml").read_text())
INTERRUPTED, LIMIT = 130, 2.0  # between the signal and the end of the last process [s]
PIPES = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}


def start(folder: Path, words: str) -> subprocess.Popen[str]:
    """A command in a group of its own."""
    command = [sys.executable, "-m", "mpsim", *shlex.split(words)]
    return subprocess.Popen(command, cwd=folder, start_new_session=True, **PIPES)


def finish(process: subprocess.Popen[str], limit: float = 120.0) -> tuple[str, str]:
    """What a command prints; after the limit its group is killed."""
    try:
        return process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        return process.communicate()


def files(folder: Path) -> dict[str, bytes]:
    """Every file of a folder."""
    return {path.name: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def alive(group: int) -> bool:
    """Whether a group has a process that is no zombie."""
    listed = subprocess.run(["ps", "-eo", "pgid=,stat="], check=True, **PIPES).stdout
    pairs = (line.split() for line in listed.splitlines())
    return any(int(number) == group and not state.startswith("Z") for number, state in pairs)


def disturb(process: subprocess.Popen[str], number: int, after: float) -> tuple[float, str, str]:
    """Seconds from the signal to the last process (0 where it came too early or too late), what is wrong, and stdout."""
    time.sleep(after)
    if process.poll() is None:
        (os.killpg if number is signal.SIGINT else os.kill)(process.pid, number)
    since = time.monotonic()
    out, err = finish(process, 20)
    while (stays := alive(process.pid)) and time.monotonic() - since < 2 * LIMIT:
        time.sleep(0.02)
    took, code = time.monotonic() - since, process.returncode
    if code in (0, -number) or ("Traceback" in err and "mpsim/cli" not in err):
        return 0.0, "", out  # done before, or Python had not come to mpsim
    wrong = [f"exit {code}"] * (code != INTERRUPTED) + ["a process stays"] * stays
    wrong += [word for word in ("Traceback", "internal error") if word in err]
    return took, ", ".join(wrong + [f"{took:.1f} s"] * (took > LIMIT)), out


def looks_whole(out: str) -> bool:
    """Whether JSON of a command that was cut short does not say so."""
    try:
        said = json.loads(out)
    except ValueError:  # nothing, a table, or several objects of which each is whole
        return False
    return not said.get("interrupted") and said.get("complete") is not False


def main(instants: int, names: list[str]) -> int:
    """Disturb each command."""
    print("| command | instants | right | worst [s] | wrong |\n| --- | --- | --- | --- | --- |")
    bad = 0
    with tempfile.TemporaryDirectory() as place:
        fresh, trial = Path(place) / "fresh", Path(place) / "trial"
        shutil.copytree(ROOT / "scenarios", fresh)
        shutil.copy(ROOT / "validation/data/collectives.csv", fresh / "sums.csv")
        rows = "".join(f"{size},{size / 10} s\n" for size in range(32, 1280, 32))
        (fresh / "measured.csv").write_text(f"training.global_batch,step_time\n{rows}")
        finish(start(fresh, "export megatron quickstart.yaml --output args.sh"))
        for name in names:
            shutil.copytree(fresh, trial)
            since = time.monotonic()
            usual = finish(start(trial, COMMANDS[name]), 4 if name == "explore" else 120)[0]
            lasts, whole, worst, faults = time.monotonic() - since, files(trial), 0.0, []
            for number in [signal.SIGINT] * instants + [signal.SIGTERM] * instants:
                took = 0.0
                while not took:
                    shutil.rmtree(trial)
                    shutil.copytree(fresh, trial)
                    after = random.uniform(0.02, lasts)
                    took, fault, out = disturb(start(trial, COMMANDS[name]), number, after)
                fault += " JSON" * (out != usual and looks_whole(out))
                for file, data in files(trial).items():
                    journal = file.endswith(".jsonl") and data[-1:] in (b"", b"\n")
                    same = data == whole.get(file)
                    fault += f" left {file}" * (not (same or journal or "partial" in file))
                faults += [f"{number.name} at {after:.2f} s: {fault}"] if fault else []
                worst = max(worst, took)
            shutil.rmtree(trial)
            bad, right = bad + len(faults), 2 * instants - len(faults)
            print(
                f"| {name} | {2 * instants} | {right} | {worst:.2f} | {'; '.join(faults)} |",
                flush=True,
            )
    return 1 if bad else 0


if __name__ == "__main__":
    random.seed(1)
    sys.exit(main(int([*sys.argv, "30"][1]), sys.argv[2:] or list(COMMANDS)))
