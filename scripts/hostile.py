"""Twelve hostile names and twelve hostile files: what became of each, as tables of tests/cli/hostile.md.

``python scripts/hostile.py`` runs them all and writes the tables between the marks of the page; the tests run all but the pictures and compare.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import sqlite3
import struct
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

from mpsim.cli import main

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "tests" / "cli" / "hostile.md"
BEGIN, END = "<!-- hostile {} -->", "<!-- hostile {} end -->"

NAMES = {
    "a way up": "../../escape",
    "an absolute path": "/tmp/mpsim-escape",
    "the folder above": "..",
    "a hidden file": ".bashrc",
    "nothing": " ",
    "a null character": "a\0b",
    "a sequence of the terminal": "\x1b[2J\x1b]0;owned\x07",
    "letters from right to left": "\u202eexe.yaml",
    "a script": "<script>alert(1)</script>",
    "5,000 letters": "x" * 5000,
    "a line of a shell": "line\n$(touch owned); #",
    "mathematics without end": "$\\frac{ $x_{",
}
"""Names of a scenario, by what they are."""
SMALL = {
    "schema": 1,
    "model": {"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 1024, "vocab": 1000},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"pp": 2},
    "training": {"global_batch": 16, "sequence_length": 128},
}


def _bomb(path: Path) -> None:
    with gzip.open(path, "wb") as stream:
        stream.write(b'{"schemaVersion": 1, "deviceProperties": [], "x": "')
        for _ in range(64):
            stream.write(b"A" * (1 << 20))


def _aliases(path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [
        f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 12)
    ]
    path.write_text("\n".join(lines))


def _archive(path: Path) -> None:
    """A zip of which every member claims to be 4 GiB."""
    with zipfile.ZipFile(path, "w") as archive:
        for number in range(5):
            archive.writestr(f"{number}.npy", b"x")
        archive.writestr("value.json", "{}")
    data, place = bytearray(path.read_bytes()), -1
    while (place := data.find(b"PK\x01\x02", place + 1)) >= 0:  # an entry of the directory
        data[place + 24 : place + 28] = struct.pack("<I", 0xFFFFFFF0)
    path.write_bytes(bytes(data))


def _entities(path: Path) -> None:
    entities = "".join(f'<!ENTITY a{n} "{f"&a{n - 1};" * 10}">' for n in range(1, 10))
    path.with_name("net.graphml").write_text(
        f'<?xml version="1.0"?><!DOCTYPE g [<!ENTITY a0 "x">{entities}]><graphml>&a9;</graphml>'
    )
    fabric = {"kind": "graph", "graph": "net.graphml"}
    cluster = {**SMALL["cluster"], "nodes": 2, "fabric": fabric}  # type: ignore[dict-item] # a mapping
    path.write_text(json.dumps({**SMALL, "cluster": cluster}))


def _database(path: Path) -> None:
    """An export of Nsight Systems in which a view stands for the kernels, which would never end."""
    with contextlib.closing(sqlite3.connect(path)) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS start, i AS end, 0 AS deviceId, 1 AS demangledName FROM n"
        base.execute(f"CREATE VIEW CUPTI_ACTIVITY_KIND_KERNEL AS {endless}")
        base.commit()


def _include(path: Path) -> None:
    path.write_text(json.dumps({**SMALL, "include": "/etc/passwd"}))


FILES: dict[str, tuple[str, Callable[[Path], object], tuple[str, ...]]] = {
    "a pipe that nobody writes to": ("a.yaml", os.mkfifo, ("check", "a.yaml")),
    "a link to /dev/zero": ("a.json", lambda path: path.symlink_to("/dev/zero"), ("import", "auto", "a.json")),
    "a folder": ("a.yaml", Path.mkdir, ("run", "a.yaml")),
    "a link to itself": ("a.yaml", lambda path: path.symlink_to(path.name), ("check", "a.yaml")),
    "64 MiB in 64 kB": ("a.json.gz", _bomb, ("import", "kineto", "a.json.gz")),
    "a YAML of nine to the twelfth values": ("a.yaml", _aliases, ("check", "a.yaml")),
    "JSON of 100,000 levels": ("a.json", lambda path: path.write_text('{"a":' * 100_000), ("import", "hf", "a.json")),
    "an include of /etc/passwd": ("a.yaml", _include, ("check", "a.yaml")),
    "an archive that claims 24 GiB": ("a.mpsim", _archive, ("compare", "a.mpsim", "a.mpsim")),
    "a graph of a milliard entities": ("a.yaml", _entities, ("check", "a.yaml")),
    "a database whose kernels never end": ("a.sqlite", _database, ("import", "nsys", "a.sqlite")),
    "a YAML that names a function": ("a.yaml", lambda path: path.write_text("a: !!python/object/apply:os.system [id]\n"), ("run", "a.yaml")),
}  # fmt: skip
"""Files, by what they are: name, how it is made, the command that reads it."""


@contextlib.contextmanager
def _folder() -> Iterator[Path]:
    """An empty folder, two levels down, to work in."""
    before = Path.cwd()
    os.environ["MPSIM_PROGRESS"] = "off"  # what a slow machine says is no part of the answer
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "work" / "here"
        folder.mkdir(parents=True)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(before)


def _run(*words: str) -> tuple[int, str]:
    """Exit code of a command, and all that it printed."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(list(words))
    return code, said.getvalue()


def name_row(what: str, *, pictures: bool = True) -> dict[str, str]:
    """What became of a scenario of a hostile name: its checks, the file that it becomes, its HTML, its pictures.

    Parameters
    ----------
    what : str
        Key of `NAMES`.
    pictures : bool
        Whether two scenarios of that name are drawn, which takes seconds.
    """
    from mpsim.scenario import load
    from mpsim.simulate import simulate_step

    name = NAMES[what]
    with _folder() as folder:
        for file, ending in (("a.yaml", ""), ("b.yaml", "2")):
            Path(file).write_text(json.dumps({**SMALL, "name": name + ending}))
        code, text = _run("run", "a.yaml", "--emit", "megatron")
        row = {"Name": what, "Exit": str(code)}
        if code:
            row |= {"File": "none", "HTML": "none", "Pictures": "none"}
            row["Terminal"] = _terminal(text)
            return row
        page = simulate_step(load("a.yaml"))._repr_html_()
        row["Terminal"] = _terminal(text)
        row["HTML"] = "escaped" if "<script" not in page and "\x1b" not in page else "not escaped"
        if pictures:
            drawn, more = _run("run", "a.yaml", "b.yaml", "--plots", "out")
            folders = {path.parent.name for path in Path("out").glob("*/*.png")}
            assert drawn == 0, more
            row["Pictures"] = f"in {len(folders)} folders below `out`"
        made = [path for path in Path(folder.parents[1]).rglob("*") if path.is_file()]
        scripts = [path for path in made if path.suffix == ".sh"]
        assert all(path.is_relative_to(folder) for path in made), made
        assert not Path("owned").exists()
        shown = scripts[0].name
        row["File"] = (
            f"`{shown}`" if len(shown) < 60 else f"`{shown[:20]}...`, {len(shown)} letters"
        )
    return row


def _terminal(text: str) -> str:
    wild = [letter for letter in text if ord(letter) < 32 and letter not in "\n\t"]
    return "no control character" if not wild and "\u202e" not in text else "control characters"


def file_row(what: str) -> dict[str, str]:
    """What became of a hostile file: exit code and the line that was printed; `what` is a key of `FILES`."""
    name, make, command = FILES[what]
    with _folder() as folder:
        make(folder / name)
        before = sorted(folder.iterdir())
        code, text = _run(*command)
        assert sorted(folder.iterdir()) == before, "nothing is written"
        lines = text.replace(str(folder), "").strip().splitlines()
    assert "Traceback" not in text
    assert len(lines) == 1, lines
    said = lines[0] if len(lines[0]) < 160 else lines[0][:157] + "..."
    return {"File": what, "Command": f"`mpsim {' '.join(command)}`", "Exit": str(code), "Printed": f"`{said}`"}  # fmt: skip


def table(rows: list[dict[str, str]], columns: tuple[str, ...]) -> str:
    """Rows as a table of Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    lines += ["| " + " | ".join(row[column].replace("|", "\\|") for column in columns) + " |" for row in rows]  # fmt: skip
    return "\n".join(lines)


NAME_COLUMNS = ("Name", "Exit", "File", "Terminal", "HTML", "Pictures")
FILE_COLUMNS = ("File", "Command", "Exit", "Printed")


def cells(page: str, part: str) -> list[list[str]]:
    """Cells of the rows that stand on the page."""
    block = (
        page.split(BEGIN.format(part))[1]
        .split(END.format(part), maxsplit=1)[0]
        .strip()
        .splitlines()
    )
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in block[2:]]


def render(page: str) -> str:
    """The page with both tables anew."""
    parts = {
        "names": table([name_row(what) for what in NAMES], NAME_COLUMNS),
        "files": table([file_row(what) for what in FILES], FILE_COLUMNS),
    }
    for part, text in parts.items():
        head, rest = page.split(BEGIN.format(part))
        page = head + BEGIN.format(part) + "\n" + text + "\n" + END.format(part) + rest.split(END.format(part))[1]  # fmt: skip
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
