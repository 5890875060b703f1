"""Writes that fail: a full disk, a broken one, a kill. One line, no file under its final name that is not whole, nothing left beside it."""

from __future__ import annotations

import builtins
import contextlib
import errno
import io
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.nightly import some

ROOT = Path(__file__).resolve().parents[2]
CONFIGURATION = ROOT / "tests/imports/samples/hf/llama2_7b.config.json"
SMALL = """\
schema: 1
name: small
model: {layers: 4, hidden: 256, heads: 4, ffn_hidden: 1024, vocab: 1000}
cluster: {preset: dgx-h100, nodes: 1}
parallelism: {pp: 2}
training: {global_batch: 16, sequence_length: 128}
sweep: {training.micro_batch: [1, 2]}
"""
COMMANDS = {
    "run --trace": ("run", "small.yaml", "--trace", "out.json"),
    "run --plots": ("run", "small.yaml", "--plots", "out"),
    "run --trace, packed": ("run", "small.yaml", "--trace", "out.json.gz"),
    "run --memory-snapshot": ("run", "small.yaml", "--memory-snapshot", "out.pickle"),
    "run --emit": ("run", "small.yaml", "--emit", "megatron=out.sh"),
    "sweep --csv": ("sweep", "small.yaml", "--csv", "out.csv", "--jobs", "1"),
    "sweep --plot": ("sweep", "small.yaml", "--plot", "out.png", "--jobs", "1"),
    "sweep --resume": ("sweep", "small.yaml", "--resume", "out.jsonl", "--jobs", "1"),
    "schedule --plot": ("schedule", "1f1b", "--pp", "2", "--microbatches", "4", "--plot", "out.svg"),
    "plan --plot": ("plan", "small.yaml", "--tokens", "1e9", "--plot", "out.png"),
    "export": ("export", "megatron", "small.yaml", "-o", "out.sh"),
    "export chakra": ("export", "chakra", "small.yaml", "-o", "out"),
    "import": ("import", "hf", str(CONFIGURATION), "-o", "out.yaml"),
    "new": ("new", "out.yaml"),
}  # fmt: skip
"""Commands that write, and what to."""
GROWS = "out.jsonl"
"""A journal is appended to: it keeps the lines that it has."""


class Disk:
    """A disk of which the writes into one folder fail from a certain one on.

    Parameters
    ----------
    folder : Path
    code : int
        Number of the error.
    after : int, optional
        Writes that succeed; None where all do.
    """

    def __init__(self, folder: Path, code: int, after: int | None = None) -> None:
        self.folder, self.code, self.after, self.writes = folder, code, after, 0

    def write(self, name: object) -> None:
        """Count a write, and let it fail where it is late enough."""
        self.writes += 1
        if self.after is not None and self.writes > self.after:
            raise OSError(self.code, os.strerror(self.code), str(name))

    def holds(self, name: object) -> bool:
        """Whether a file lies on this disk."""
        return isinstance(name, str | os.PathLike) and str(Path(name).absolute()).startswith(
            str(self.folder)
        )

    @contextlib.contextmanager
    def mounted(self, patch: pytest.MonkeyPatch) -> Iterator[None]:
        """Put every file that is opened for writing on this disk."""
        opened, replaced, disk = io.open, os.replace, self

        class File(io.FileIO):
            """A file of which others do not get the number, for whatever is written goes through here; but a journal, which is locked by it."""

            def write(self, data: object) -> int:
                disk.write(self.name)
                return super().write(data)  # type: ignore[arg-type] # whatever write takes

            def fileno(self) -> int:
                if "a" in self.mode:
                    return super().fileno()
                raise io.UnsupportedOperation("fileno")

        def open_(file: object, mode: str = "r", *args: object, **kwargs: object) -> object:
            if not disk.holds(file) or not set(mode) & set("wax+"):
                return opened(file, mode, *args, **kwargs)  # type: ignore[call-overload] # as it was called
            disk.write(file)
            binary = io.BufferedWriter(File(str(file), mode.replace("b", "").replace("t", "")))
            if "b" in mode:
                return binary
            words = ("encoding", "errors", "newline")
            given = {key: kwargs[key] for key in words if key in kwargs}
            return io.TextIOWrapper(binary, **given)  # type: ignore[arg-type] # as it was called

        def replace(source: object, target: object, **kwargs: object) -> None:
            if disk.holds(target):
                disk.write(target)
            replaced(source, target, **kwargs)  # type: ignore[arg-type] # as it was called

        with patch.context() as patched:
            patched.setattr(io, "open", open_)
            patched.setattr(builtins, "open", open_)
            patched.setattr(os, "replace", replace)
            patched.setattr(os, "fsync", lambda *_: disk.write("a journal"))
            yield


def _files(folder: Path) -> dict[str, bytes]:
    """Content of every file below a folder, by its path in it."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.mark.parametrize("name", some(COMMANDS, 6))
def test_a_command_whose_writes_fail_says_so_and_leaves_nothing_half(
    name, tmp_path, monkeypatch, mpsim_cli
):
    """Its first, its middle and its last write: ENOSPC or EIO, exit code 1 or 2, one line, whole files or none."""
    good = tmp_path / "good"
    good.mkdir()
    monkeypatch.chdir(good)
    Path("small.yaml").write_text(SMALL)
    counting = Disk(good, 0)
    with counting.mounted(monkeypatch):
        done = mpsim_cli(*COMMANDS[name])
    assert (done.code, counting.writes > 0) == (0, True), done.err
    expected = _files(good)
    for number in sorted({0, counting.writes // 2, counting.writes - 1}):
        code = (errno.ENOSPC, errno.EIO)[number % 2]
        folder = tmp_path / f"bad{number}"
        folder.mkdir()
        monkeypatch.chdir(folder)
        Path("small.yaml").write_text(SMALL)
        with Disk(folder, code, after=number).mounted(monkeypatch):
            done = mpsim_cli(*COMMANDS[name])
        assert done.code in (1, 2), (number, done)
        said = [line for line in done.err.splitlines() if os.strerror(code) in line]
        assert len(said) == 1, (number, done.err)
        assert "Traceback" not in done.err
        assert "internal error" not in done.err
        left = _files(folder)
        assert left.keys() <= expected.keys(), number  # nothing beside what it writes
        for file, content in left.items():
            whole = expected[file]
            assert content == whole or (file == GROWS and whole.startswith(content)), (number, file)


KILLED = """
import os, signal, sys
from mpsim.cli import main
os.replace = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


@pytest.mark.parametrize("name", some(["run --trace", "sweep --csv"], 1))
def test_a_kill_at_the_last_moment_leaves_the_file_of_before(name, tmp_path):
    """SIGKILL just before a file takes its name: what stood there stands there."""
    (tmp_path / "small.yaml").write_text(SMALL)
    target = tmp_path / COMMANDS[name][3]
    target.write_text("what was there before")
    done = subprocess.run(
        [sys.executable, "-c", KILLED, *COMMANDS[name]], cwd=tmp_path, capture_output=True, check=False, timeout=3000,
    )  # fmt: skip
    assert done.returncode < 0
    assert target.read_text() == "what was there before"


def test_a_file_larger_than_the_system_allows_is_one_line(tmp_path):
    """The real thing: a limit of 1 kB on files, which the kernel enforces (EFBIG)."""
    (tmp_path / "small.yaml").write_text(SMALL)
    limited = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))\n"
        "from mpsim.cli import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-c", limited, *COMMANDS["run --trace"]], cwd=tmp_path, capture_output=True, text=True, check=False, timeout=3000,
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert done.stderr.count("File too large") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["small.yaml"]
