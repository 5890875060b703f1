"""Damage: good files made bad, seeded, in the ways that files go bad and in those that people make them bad."""

from __future__ import annotations

import gzip
import json
import re
from collections.abc import Callable
from random import Random
from typing import Any

__all__ = ["KINDS", "damaged"]

NUMBER = re.compile(rb"(?<![\w.])-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?(?![\w.])")
WORDS = (
    *(b"null", b"true", b'""', b'"x"', b"[]", b"{}", b"[[]]", b"-1", b"0", b"1.5", b"NaN", b"nan", b"inf", b"-Infinity"),
    *(b"1e400", b"-1e308", b"1e-320", b"1e18", b"9" * 19, b"9" * 30, b"9" * 400, b"9" * 5000, b"18446744073709551616"),
    *(b"2147483648", b"1000000", b"0x10", b"1_000", b"'", b'"', b"*a", b"&a [*a]", b"!!python/name:os.system", b"$(touch x)"),
    *(b"../../etc/passwd", b"/dev/zero", b"${X:-${X}}", b"=1+1", b"%s%n", b"2026-02-30", b"\x00", b"1 us", b"1e30 GB/s"),
)  # fmt: skip
"""Words that take the place of a number or a value."""
VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**63, 2**64, 10**30, 10**400, 1.5, -0.0, 1e308, 1e-320),
    *(float("nan"), float("inf"), "", "x", "8", "nan", "1e999", "\0", "\ud800", "\u202e", "../../x"),
    *([], {}, [[]], [None], {"": None}, ["x"] * 3, [0] * 1000, {"a": {"a": {}}}, "9" * 5000),
)  # fmt: skip
"""Values that take the place of one in JSON."""
LETTERS = "\ufeff \u200b \u202e \U0001f4a5 \x1b[2J \x07 \u2028 \xa0 \u0661 \uff11 é \ud800"
ENCODINGS = ("utf-16", "utf-32", "utf-16-le", "latin-1", "cp037", "utf-7", "utf-8-sig", "shift-jis")
LARGEST = 3_000_000  # bytes of what comes out, bombs left out


def _cut(content: bytes, dice: Random) -> bytes:
    return content[: dice.randrange(len(content) + 1)]


def _flip(content: bytes, dice: Random) -> bytes:
    data = bytearray(content)
    for _ in range(dice.choice((1, 2, 5, 20)) if data else 0):
        data[dice.randrange(len(data))] = dice.randrange(256)
    return bytes(data)


def _lines(content: bytes, dice: Random) -> bytes:
    """Swap, drop or repeat lines."""
    lines = content.split(b"\n")
    here, there = dice.randrange(len(lines)), dice.randrange(len(lines))
    kind = dice.randrange(4)
    if kind == 0:
        lines[here], lines[there] = lines[there], lines[here]
    elif kind == 1:
        del lines[min(here, there) : max(here, there) + 1]
    elif kind == 2:
        lines.insert(there, lines[here])
    else:
        lines[here:here] = [lines[here]] * dice.choice((2, 50, 2000))
    return b"\n".join(lines)[:LARGEST]


def _double(content: bytes, dice: Random) -> bytes:
    return (content * dice.choice((2, 3)))[:LARGEST]


def _number(content: bytes, dice: Random) -> bytes:
    """Something else for one number, or for all that are the same."""
    found = list(NUMBER.finditer(content))
    if not found:
        return _flip(content, dice)
    chosen, word = dice.choice(found), dice.choice(WORDS)
    if dice.random() < 0.2:
        return content.replace(chosen[0], word)[:LARGEST]
    return content[: chosen.start()] + word + content[chosen.end() :]


def _value(content: bytes, dice: Random) -> bytes:
    """Something else for what stands behind a colon, an equals sign or a comma."""
    found = list(re.finditer(rb"(?<=[:=,])[ \t]*[^,:=\n\]}]+", content))
    if not found:
        return _number(content, dice)
    chosen = dice.choice(found)
    return content[: chosen.start()] + b" " + dice.choice(WORDS) + content[chosen.end() :]


def _nest(content: bytes, dice: Random) -> bytes:
    """Brackets without end in the middle, or around one value."""
    opening, closing = dice.choice(((b"[", b"]"), (b"{", b"}"), (b"(", b")"), (b'{"a":', b"}")))
    depth = dice.choice((2, 49, 200, 990, 5000, 100_000))
    found = list(NUMBER.finditer(content))
    if not found or dice.random() < 0.3:
        middle = dice.randrange(len(content) + 1)
        return content[:middle] + opening * depth + content[middle:]
    chosen = dice.choice(found)
    inner = opening * depth + chosen[0] + closing * depth
    return content[: chosen.start()] + inner + content[chosen.end() :]


def _stretch(content: bytes, dice: Random) -> bytes:
    """A piece of the file, a mark or a blank many times over, for readers that go back over what they have read."""
    here = dice.randrange(len(content) + 1)
    pieces = [content[here : here + dice.choice((1, 2, 5, 12, 40))] or b"x"]
    pieces += [
        b" ",
        b"\n",
        b"\t",
        b"a",
        b"1",
        b"/*",
        b'\\"',
        b"{",
        b"[ ",
        b"-",
        b"a=",
        b"${",
        b"$(",
        b"((",
        b",",
        b'"',
        b"'",
    ]
    piece = pieces[0] if dice.random() < 0.4 else dice.choice(pieces)
    there = dice.randrange(len(content) + 1)
    return content[:there] + piece * (dice.choice((1000, 20_000, 200_000)) // len(piece)) + content[there:]  # fmt: skip


def _letters(content: bytes, dice: Random) -> bytes:
    """Letters that move cursors, turn lines, or are none."""
    for _ in range(dice.choice((1, 3))):
        place = dice.randrange(len(content) + 1)
        letter = dice.choice(LETTERS.split(" ")).encode("utf-8", "surrogatepass")
        content = content[:place] + letter * dice.choice((1, 1, 500)) + content[place:]
    return content


def _encoding(content: bytes, dice: Random) -> bytes:
    return content.decode("utf-8", "replace").encode(dice.choice(ENCODINGS), "replace")


def _nothing(content: bytes, dice: Random) -> bytes:
    noise = bytes(dice.randrange(256) for _ in range(dice.choice((1, 100, 5000))))
    return dice.choice((b"", b"\n", b" \t \n", b"\xef\xbb\xbf", b"\0", noise, content[:2] + noise))


def _pack(content: bytes, dice: Random) -> bytes:
    """Packed and cut, packed and flipped, packed twice, or a bomb behind a good beginning."""
    packed = gzip.compress(content, mtime=0)
    kind = dice.randrange(5)
    if kind == 0:
        return packed[: dice.randrange(1, len(packed))]
    if kind == 1:
        return _flip(packed, dice)
    if kind == 2:
        return gzip.compress(packed, mtime=0)
    if kind == 3:
        return packed + dice.choice((b"\0" * 10, b"tail", packed))
    letter = dice.choice((b"\0", b" ", b"[", b"\n", b"1", b"-"))
    return packed + gzip.compress(letter * (1 << 25), 1, mtime=0)


def _unpack(content: bytes) -> bytes:
    return gzip.decompress(content) if content[:2] == b"\x1f\x8b" else content


def _tree(content: bytes, dice: Random) -> bytes:
    """JSON, or a line of it, with a value replaced, taken away, moved or repeated."""
    lines = content.split(b"\n")
    at: int | None = None
    try:
        data = json.loads(content)
    except (ValueError, RecursionError):
        found = [
            number
            for number, line in enumerate(lines)
            if line.strip()[:1] in b"{[" and line.strip()
        ]
        if not found:
            return _value(content, dice)
        at = dice.choice(found)
        try:
            data = json.loads(lines[at].strip().rstrip(b","))
        except (ValueError, RecursionError):
            return _value(content, dice)
    text = json.dumps(_changed(data, dice)).encode()
    if dice.random() < 0.15 and text.startswith(b"{") and len(text) > 2:
        text = b"{" + text[1:-1] + b", " + text[1:]  # every key of the top twice
    if at is None:
        return text
    lines[at] = text
    return b"\n".join(lines)


def _changed(data: Any, dice: Random) -> Any:
    """`data` with one place in it changed; the place is found by walking down at random."""
    spots: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        items = node.items() if isinstance(node, dict) else enumerate(node)
        for key, value in list(items):
            spots.append((node, key))
            if isinstance(value, dict | list):
                walk(value)

    if not isinstance(data, dict | list) or not data:
        return dice.choice(VALUES)
    walk(data)
    for _ in range(dice.choice((1, 1, 1, 3))):
        node, key = dice.choice(spots)
        kind = dice.randrange(6)
        if kind < 3:
            node[key] = dice.choice(VALUES)
        elif kind == 3 and isinstance(node, dict):
            node.pop(key, None)
        elif kind == 3:
            node.append(dice.choice(VALUES))
        elif kind == 4:
            other, name = dice.choice(spots)
            try:
                node[key] = json.loads(json.dumps(other[name]))
            except (KeyError, IndexError, ValueError):
                continue
        elif isinstance(node, dict):
            node[dice.choice(("", "x", "a.b", "__class__", "\x1b[2J", "é"))] = node.get(key)
    return data


KINDS: tuple[Callable[[bytes, Random], bytes], ...] = (
    *(
        _cut,
        _flip,
        _lines,
        _double,
        _number,
        _number,
        _value,
        _value,
        _nest,
        _stretch,
        _letters,
        _encoding,
    ),
    *(_nothing, _pack, _tree, _tree, _tree),
)


def damaged(content: bytes, dice: Random, *, others: tuple[bytes, ...] = ()) -> bytes:
    """A good file made bad once, sometimes twice; now and then with the tail of another sample.

    Parameters
    ----------
    content : bytes
    dice : Random
    others : tuple of bytes
        Samples of the same reader.
    """
    if others and dice.random() < 0.03:
        other = dice.choice(others)
        return content[: dice.randrange(len(content) + 1)] + other[dice.randrange(len(other) + 1) :]
    packed = content[:2] == b"\x1f\x8b"
    if packed and dice.random() < 0.7:
        content = _unpack(content)
    for _ in range(2 if dice.random() < 0.2 else 1):
        content = dice.choice(KINDS)(content, dice)
    return content
