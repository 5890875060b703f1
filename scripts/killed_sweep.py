"""Disturb a large sweep and resume it: kills, a full disk, damaged lines, a second writer. Journal and table must end with the bytes of an undisturbed one.

    python scripts/killed_sweep.py                       # 20,000 points, ten kills, some minutes
    python scripts/killed_sweep.py --points 2000 --jobs 1

The points differ in the rates and latencies of links and memory, so most of them share the structure of their program. SIGKILL comes at a random number of lines and is
followed by half a line on disk, as a lost machine would leave it. The disk is full where the system refuses to let a file grow. A damaged line is computed again and
comes last in the journal, so there the table is compared. Prints times, points per second, memory, and what the kills cost; exits 1 where bytes differ.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SCENARIO = ROOT / "scenarios" / "quickstart.yaml"
SETTINGS = ("cluster.accelerator.preset=h100-sxm",)
SIZES = (10, 4, 10)
"""Values of each axis but the last, which takes as many as the points ask for."""


@dataclasses.dataclass(frozen=True)
class Run:
    """What one process did."""

    seconds: float
    cpu: float
    peak: float
    code: int


def axes(points: int) -> dict[str, list[str]]:
    """Values of four axes of hardware, about `points` combinations."""
    memory, scale_up, latency = SIZES
    rates = max(1, points // (memory * scale_up * latency))
    return {
        "cluster.accelerator.memory_bandwidth": [
            f"{2.4 + 0.1 * i:.1f} TB/s" for i in range(memory)
        ],
        "cluster.scale_up.bandwidth": [f"{300 + 50 * i} GB/s" for i in range(scale_up)],
        "cluster.nic.latency": [f"{2 + 0.5 * i} us" for i in range(latency)],
        "cluster.nic.bandwidth": [f"{100 + 6 * i} Gb/s" for i in range(rates)],
    }


def start(
    journal: Path, over: dict[str, list[str]], jobs: int, *, room: int | None = None
) -> subprocess.Popen[bytes]:
    """A sweep in processes of its own, whose files cannot grow beyond `room` bytes; its table lies beside the journal."""
    options = [f"--over={key}={','.join(values)}" for key, values in over.items()]
    settings = [part for one in SETTINGS for part in ("--set", one)]
    command = [sys.executable, "-m", "mpsim", "sweep", SCENARIO, *settings, *options]
    return subprocess.Popen(
        [
            *map(str, command),
            *("--resume", str(journal), "--csv", str(table(journal)), "--jobs", str(jobs)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        start_new_session=True,
        preexec_fn=None if room is None else lambda: limit(room),  # noqa: PLW1509 (no threads here)
    )


def table(journal: Path) -> Path:
    """CSV file beside a journal."""
    return journal.with_suffix(".csv")


def limit(room: int) -> None:
    """Let no file of this process grow beyond `room` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))


def damage(journal: Path, count: int) -> None:
    """Change a letter in so many lines."""
    data = bytearray(journal.read_bytes())
    for _ in range(count):
        data[random.randrange(len(data))] ^= 0x15
    journal.write_bytes(bytes(data))


def said(process: subprocess.Popen[bytes]) -> str:
    """Last line on stderr."""
    text = process.stderr.read().decode() if process.stderr else ""
    return (text.strip().splitlines() or [""])[-1]


def lines(journal: Path) -> int:
    """Lines on disk."""
    return journal.read_bytes().count(b"\n") if journal.exists() else 0


def finish(process: subprocess.Popen[bytes], since: float) -> Run:
    """Wait for a process."""
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    cpu = usage.ru_utime + usage.ru_stime
    return Run(time.monotonic() - since, cpu, usage.ru_maxrss / 1e6, process.returncode)


def interrupted(journal: Path, over: dict[str, list[str]], jobs: int, at: int) -> float:
    """Run until `at` lines are on disk, then kill every process of the sweep; return the seconds."""
    since = time.monotonic()
    process = start(journal, over, jobs)
    while lines(journal) < at and process.poll() is None:
        time.sleep(0.01)
    time.sleep(random.random() * 0.2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    with journal.open("ab") as file:
        file.write(b'{"digest": "0123')
    return time.monotonic() - since


def main() -> int:
    """Run both sweeps and compare."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--points", type=int, default=20_000)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--seed", type=int, default=6)
    given = parser.parse_args()
    random.seed(given.seed)
    over = axes(given.points)
    with tempfile.TemporaryDirectory() as folder:
        whole, killed = Path(folder) / "whole.jsonl", Path(folder) / "killed.jsonl"
        since = time.monotonic()
        once = finish(start(whole, over, given.jobs), since)
        total = lines(whole)
        print(
            f"undisturbed: {total} rows in {once.seconds:.1f} s, {total / once.seconds:.0f} rows/s with {given.jobs} jobs, "
            f"{once.cpu:.0f} s of CPU, at most {once.peak:.2f} GB in one process, {whole.stat().st_size / 1e6:.0f} MB on disk"
        )
        spent = 0.0
        for at in sorted(random.sample(range(1, total), given.kills)):
            took = interrupted(killed, over, given.jobs, at)
            spent += took
            print(f"killed after {took:.1f} s with {lines(killed)} rows on disk")
        since = time.monotonic()
        last = finish(start(killed, over, given.jobs), since)
        spent += last.seconds
        same = killed.read_bytes() == whole.read_bytes()
        print(
            f"resumed: {last.seconds:.1f} s; {spent:.1f} s in all, {spent - once.seconds:+.1f} s for {given.kills} kills; "
            f"bytes {'are the same' if same else 'DIFFER'}"
        )
        since = time.monotonic()
        again = finish(start(killed, over, given.jobs), since)
        print(f"run again with nothing to compute: {again.seconds:.1f} s")
        good = [same, once.code == last.code == again.code == 0]

        full = Path(folder) / "full.jsonl"
        stopped = start(full, over, given.jobs, room=whole.stat().st_size // 3)
        message = said(stopped)
        good.append(stopped.wait() == 1 and "Traceback" not in message)
        print(f"full disk at {lines(full)} rows: exit {stopped.returncode}, {message!r}")
        both = [start(full, over, given.jobs) for _ in range(2)]
        messages = [said(process) for process in both]
        codes = [process.wait() for process in both]
        print(f"two writers at once: exits {codes}, {messages}")
        good.append(sorted(codes) == [0, 2])
        good.append(full.read_bytes() == whole.read_bytes())
        print(f"resumed: bytes {'are the same' if good[-1] else 'DIFFER'}")

        damage(full, 100)
        mended = start(full, over, given.jobs)
        message = said(mended)
        good.append(mended.wait() == 0 and table(full).read_bytes() == table(whole).read_bytes())
        print(
            f"100 letters changed: {message!r}; the table {'is the same' if good[-1] else 'DIFFERS'}"
        )
    return 0 if all(good) else 1


if __name__ == "__main__":
    sys.exit(main())
