"""Runs damaged files through their readers in a process of their own, and says what became of each.

``python -m tests.fuzz.damage_run --count 10000 --seed 1`` prints a table and exits with 1 where anything but reading and refusing happened;
``--keep tests/corpus`` keeps the file that shows each new fault.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import gzip
import hashlib
import io
import multiprocessing
import os
import resource
import signal
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from random import Random

from mpsim.errors import MpsimError
from tests.fuzz.damage import damaged
from tests.fuzz.damage_readers import READERS, Reader, Unsound

__all__ = ["CLASSES", "Outcome", "attempt", "inputs", "run"]

CLASSES = ("read", "refused", "traceback", "hang", "escape")
"""Read as something sound; refused with an error of mpsim; any other exception; over ten seconds; believed though unsound, or anything written, printed or
ended that nobody asked for."""
LIMIT = 10  # s of processor time an input may take
PATIENCE = 60  # s of wall time, for a busy machine; a process that waits for something is told by its processor time
MEMORY = 6 << 30  # bytes of address space
LONGEST = 55_000  # characters of a message with every mistake of a file


class HangError(BaseException):
    """Ten seconds of processor time are over."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one damaged file.

    Parameters
    ----------
    kind : str
        One of `CLASSES`.
    what : str
        The exception and where it was raised.
    seconds : float
    """

    kind: str
    what: str = ""
    seconds: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Input:
    """One damaged file, which its numbers make again."""

    reader: int
    sample: str
    seed: str

    @property
    def content(self) -> bytes:
        samples = READERS[self.reader].samples
        others = tuple(content for name, content in samples.items() if name != self.sample)
        return damaged(samples[self.sample], Random(self.seed), others=others[:3])


def inputs(count: int, *, seed: int, only: str = "") -> Iterator[Input]:
    """Damaged files of all readers by their shares, of all samples in turn."""
    chosen = [index for index, reader in enumerate(READERS) if only in reader.name]
    whole = sum(READERS[index].share for index in chosen)
    for index in chosen:
        names = sorted(READERS[index].samples)
        for number in range(round(count * READERS[index].share / whole)):
            yield Input(index, names[number % len(names)], f"{seed}/{READERS[index].name}/{number}")


def attempt(reader: Reader, name: str, content: bytes) -> Outcome:
    """Read one file in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="damage") as place:
        folder = Path(place)
        for other, good in reader.beside.items():
            (folder / other).write_bytes(good)
        path = folder / name
        path.write_bytes(content)
        before = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
        begin = time.process_time()
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            kind, what = _classified(reader, path)
        after = {file: file.stat().st_mtime_ns for file in folder.rglob("*")}
        if kind in ("read", "refused") and before != after and reader.name != "journal":
            kind, what = "escape", "a file was written"
        if kind in ("read", "refused") and said.getvalue():
            kind, what = "escape", f"printed {said.getvalue()[:80]!r}"
        return Outcome(kind, what, time.process_time() - begin)


def _classified(reader: Reader, path: Path) -> tuple[str, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            reader.read(path)
    except MpsimError as error:
        if "unforeseen" in str(error):
            return "traceback", f"unforeseen: {str(error).partition('unforeseen')[2][:80]}"
        return (
            ("escape", "a message of many pages") if len(str(error)) > LONGEST else ("refused", "")
        )
    except Unsound as error:
        return "escape", f"unsound: {error}"
    except HangError:
        return "hang", ""
    except BaseException as error:  # noqa: BLE001 - whatever escapes a reader is what is looked for
        return "traceback", _told(error)
    return "read", ""


def _told(error: BaseException) -> str:
    """The exception and the innermost line of mpsim that it went through."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if f"{os.sep}mpsim{os.sep}" in frame.filename
    ]
    place = f"{Path(frames[-1].filename).name}:{frames[-1].lineno} {frames[-1].name}" if frames else "?"  # fmt: skip
    return f"{type(error).__name__} at {place}: {str(error)[:100]}"


def _work(pipe: Connection) -> None:
    """Answer every input with its outcome."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    signal.signal(signal.SIGVTALRM, _over)
    while (item := pipe.recv()) is not None:
        signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT)
        try:
            outcome = attempt(READERS[item.reader], item.sample, item.content)
        except HangError:
            outcome = Outcome("hang")
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        pipe.send(outcome)


def _over(number: int, frame: object) -> None:
    raise HangError


class _Worker:
    """A process that reads damaged files, begun anew where one hung or died."""

    def __enter__(self) -> _Worker:
        self._begin()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(5)
        self.process.kill()

    def _begin(self) -> None:
        context = multiprocessing.get_context("fork")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_work, args=(theirs,), daemon=True)
        self.process.start()
        theirs.close()

    def outcome(self, item: Input) -> Outcome:
        """What becomes of an input within ten seconds."""
        begin = time.monotonic()
        try:
            self.pipe.send(item)
            while time.monotonic() - begin < PATIENCE:
                if self.pipe.poll(LIMIT):
                    return self.pipe.recv()  # type: ignore[no-any-return]
        except (EOFError, OSError):
            self.process.join()
            code = self.process.exitcode
            self._begin()
            return Outcome("escape", f"the process ended with {code}")
        self.process.kill()
        self.process.join()
        self._begin()
        return Outcome("hang", "stood still")


def run(items: Sequence[Input]) -> Iterator[tuple[Input, Outcome]]:
    """Every input with what became of it."""
    with _Worker() as worker:
        for item in items:
            yield item, worker.outcome(item)


def _keep(item: Input, outcome: Outcome, folder: Path) -> None:
    """Keep the file that shows a fault, under a name of the fault."""
    reader = READERS[item.reader]
    place = folder / reader.name.replace(" ", "-").lower()
    mark = hashlib.sha256(outcome.what.partition(":")[0].encode()).hexdigest()[:8]
    stem, _, ending = item.sample.partition(".")
    if list(place.glob(f"{mark}*")) or len(item.content) > 300_000:
        return
    content = item.content
    place.mkdir(parents=True, exist_ok=True)
    small = len(content) < 20_000
    name = f"{mark}.{stem}.{ending}" if small else f"{mark}.{stem}.{ending}.packed"
    (place / name).write_bytes(content if small else gzip.compress(content, mtime=0))


def _table(counts: dict[str, collections.Counter[str]], slowest: dict[str, float]) -> str:
    lines = ["| Reader | Inputs | " + " | ".join(kind.capitalize() for kind in CLASSES) + " | Slowest |"]  # fmt: skip
    lines.append("|---|" + "---:|" * (len(CLASSES) + 2))
    whole: collections.Counter[str] = sum(counts.values(), collections.Counter())
    for name, counter in [*counts.items(), ("**all**", whole)]:
        cells = " | ".join(str(counter[kind]) for kind in CLASSES)
        slow = slowest.get(name, max(slowest.values(), default=0.0))
        lines.append(f"| {name} | {sum(counter.values())} | {cells} | {slow:.1f} s |")
    return "\n".join(lines)


def main() -> int:
    """Print what became of damaged files."""
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--count", type=int, default=1000)
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--only", default="", help="readers with this in their name")
    options.add_argument("--keep", type=Path, help="folder for files that show a fault")
    given = options.parse_args()
    counts: dict[str, collections.Counter[str]] = {}
    slowest: dict[str, float] = {}
    faults: collections.Counter[str] = collections.Counter()
    shown: dict[str, Input] = {}
    for item, outcome in run(list(inputs(given.count, seed=given.seed, only=given.only))):
        name = READERS[item.reader].name
        counts.setdefault(name, collections.Counter())[outcome.kind] += 1
        slowest[name] = max(slowest.get(name, 0.0), outcome.seconds)
        if outcome.seconds > LIMIT / 4:
            print(f"slow: {outcome.seconds:.1f} s {item.sample} {item.seed}", file=sys.stderr)
        if outcome.kind not in ("read", "refused"):
            fault = f"{name}: {outcome.kind}: {outcome.what}"
            faults[fault] += 1
            if fault not in shown:
                shown[fault] = item
                print(f"{item.sample} {item.seed}: {fault}", file=sys.stderr, flush=True)
                if given.keep:
                    _keep(item, outcome, given.keep)
    print(_table(counts, slowest))
    for fault, times in faults.most_common():
        print(f"{times} x {fault}")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
