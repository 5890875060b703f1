"""Files that somebody damaged: no traceback, no hang, and nothing written when refused."""

from __future__ import annotations

import gzip
import os
import random
import time
from pathlib import Path

import pytest

from tests.nightly import some

SAMPLES = Path(__file__).parent / "samples"
FILES = sorted(
    path
    for path in SAMPLES.rglob("*")
    if path.is_file() and path.name not in ("expected.json", "README.md")
)
ROUNDS = int(os.environ.get("MPSIM_MUTATIONS", "2"))
"""Mutations of each sample; 40 make 2,000 and more."""


def mutated(content, dice):
    """A file cut, with lines swapped, dropped or repeated, numbers made huge, types changed, nested, or filled with noise."""
    lines = content.split(b"\n")
    place, other = dice.randrange(len(lines)), dice.randrange(len(lines))
    kind = dice.randrange(10)
    if kind == 0:
        return content[: dice.randrange(len(content) + 1)]
    if kind == 1:
        lines[place], lines[other] = lines[other], lines[place]
    elif kind == 2:
        del lines[place]
    elif kind == 3:
        lines.insert(other, lines[place])
    elif kind == 4:
        return content.replace(b"1", b"9" * dice.choice([20, 400, 5000]), 1 + dice.randrange(3))
    elif kind == 5:
        word = dice.choice(
            [
                b"null",
                b"true",
                b'"x"',
                b"[]",
                b"{}",
                b"-1",
                b"NaN",
                b"1e400",
                b"$(rm -rf x)",
                b"${X:-${X}}",
            ]
        )
        lines[place] = lines[place].replace(
            dice.choice([b"1", b"2", b"4", b"true", b"false"]), word
        )
    elif kind == 6:
        return (
            content[: len(content) // 2]
            + dice.choice([b"[", b"{", b"("]) * 5000
            + content[len(content) // 2 :]
        )
    elif kind == 7:
        data = bytearray(content)
        for _ in range(20):
            data[dice.randrange(len(data))] = dice.randrange(256)
        return bytes(data)
    elif kind == 8:
        return gzip.compress(content)[: -dice.randrange(1, 30)]
    else:
        return content + content
    return b"\n".join(lines)


@pytest.mark.parametrize("sample", some(FILES, 12), ids=lambda path: str(path.relative_to(SAMPLES)))
def test_a_damaged_file_is_read_or_refused(sample, tmp_path, mpsim_cli):
    """Exit 0 or 2, within five seconds, and no file on refusal."""
    content = sample.read_bytes()
    for number in range(ROUNDS):
        dice = random.Random(f"{sample.name}{number}")
        path, out = tmp_path / sample.name, tmp_path / "out.yaml"
        path.write_bytes(mutated(content, dice))
        begin = time.process_time()
        done = mpsim_cli("import", "auto", path, "-o", out, "--json", "--ranks", 16)
        assert time.process_time() - begin < 5, number
        assert done.code in (0, 2), (number, done.err[-500:])
        assert "Traceback" not in done.err
        assert "unforeseen" not in done.err, (number, done.err)
        assert done.code == 0 or not out.exists(), number
        out.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["config.json", "a.yaml", "a.toml", "a.sh", "trace.json"])
def test_a_zip_bomb_is_refused(name, tmp_path, mpsim_cli):
    """A few kilobytes that unpack to gigabytes are read up to a limit."""
    heads = {"config.json": b'{"model_type": "llama", "a": "', "a.yaml": b"trainer:\n  num_layers: 1\n#", "a.toml": b"[training]\n[model]\n#", "a.sh": b"#SBATCH -N 1\n#", "trace.json": b'{"schemaVersion": 1, "deviceProperties": [], "x": "'}  # fmt: skip
    path = tmp_path / name
    with gzip.open(path, "wb", compresslevel=9) as stream:
        stream.write(heads[name])
        for _ in range(64):
            stream.write(b"A" * (1 << 20))
    begin = time.process_time()
    done = mpsim_cli("import", "auto", path)
    assert (done.code, time.process_time() - begin < 5) == (2, True)
