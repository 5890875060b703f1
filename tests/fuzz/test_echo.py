"""What a message repeats of a file: a few words, whatever stands there."""

from __future__ import annotations

import gzip
import random
import re
import warnings

import pytest

from mpsim.errors import CalibrationError, MpsimError
from tests.fuzz.damage_readers import READERS

WORD = "Qz"
LONG = (WORD * 5000, f"{WORD} {WORD} - " * 1250, "7" * 10_000)
"""A value of 10,000 characters: a word, a text with blanks, a number."""
VALUE = re.compile(rb'(?<=[:=, "\'\[({-])[A-Za-z0-9_.+/-]+')
MOST = 200  # characters of a value in a message
PLACES = 8  # of each sample that get such a value


def repeated(message: str) -> int:
    """Characters of a message that are of the value."""
    return sum(map(len, re.findall(rf"(?:{WORD}[ -]*)+|7{{20,}}", message)))


@pytest.mark.parametrize("reader", [pytest.param(r, id=r.name) for r in READERS])
def test_no_message_repeats_a_value_of_ten_thousand_characters(reader, tmp_path):
    """Importers and loaders get one in place of a value of each good file, at places drawn once."""
    dice, said = random.Random(7), ""
    for name, content in reader.beside.items():
        (tmp_path / name).write_bytes(content)
    for name, content in list(reader.samples.items())[:6]:
        plain = gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content
        places = [] if b"\0" in plain else [found.span() for found in VALUE.finditer(plain)]
        for first, last in dice.sample(places, min(PLACES, len(places))):
            text = dice.choice(LONG)
            path = tmp_path / name
            path.write_bytes(plain[:first] + text.encode() + plain[last:])
            with warnings.catch_warnings(record=True) as told:
                warnings.simplefilter("always")
                try:
                    reader.read(path)
                except MpsimError as error:
                    said = str(error)
            assert repeated(said) <= MOST, (name, plain[max(0, first - 40) : first], said[:1500])
            assert all(repeated(str(warning.message)) <= MOST for warning in told)


def test_an_error_prints_the_ends_of_a_long_word():
    """The net below `shown`: 140 characters, and the last 50 or so, of any word; blanks part words."""
    said = str(CalibrationError(f"a.csv:3: got {'x' * 10_000}; needed less, {'y' * 190} is whole"))
    assert said == f"a.csv:3: got {'x' * 140}...{'x' * 49}; needed less, {'y' * 190} is whole"
