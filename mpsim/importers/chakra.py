"""Chakra execution traces: one file a rank, nodes with their dependencies; read without protobuf, whose wire format is a few rules.

References
----------
mlcommons/chakra 21585d8, ``schema/protobuf/et_def.proto``; astra-sim/astra-sim 518bd51, ``Workload.cc`` (names of files, attributes).
"""

from __future__ import annotations

import dataclasses
import json
import re
import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.importers.imported import Recorded
from mpsim.importers.source import Format, Head, Options

__all__ = ["CHAKRA", "Node", "read_rank", "siblings"]

LARGEST: Final = 1 << 28
MOST_RANKS: Final = 65_536
_KINDS: Final = (
    "INVALID",
    "METADATA",
    "MEM_LOAD",
    "MEM_STORE",
    "COMP",
    "COMM_SEND",
    "COMM_RECV",
    "COMM_COLL",
)
_COLLECTIVES: Final = (
    "all-reduce",
    "reduce",
    "all-gather",
    "gather",
    "scatter",
    "broadcast",
    "all-to-all",
    "reduce-scatter",
    "reduce-scatter",
    "barrier",
)


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """One node of an execution trace.

    Parameters
    ----------
    id : int
    name : str
    kind : str
        Such as ``COMP`` or ``COMM_COLL``.
    control, data : tuple of int
        Nodes of the same rank that it waits for.
    duration : float
        [s], in whole microseconds.
    attributes : mapping of str to object
        Such as ``comm_size``, ``comm_dst``, ``pg_name``.
    """

    id: int
    name: str
    kind: str
    control: tuple[int, ...]
    data: tuple[int, ...]
    duration: float
    attributes: Mapping[str, Any]


def is_trace(path: Path) -> bool:
    """Whether a file is named as a rank of an execution trace."""
    return re.search(r"\.\d+\.et$", path.name) is not None


def siblings(path: Path) -> dict[int, Path]:
    """Files of all ranks of a trace, of any one of them or of a folder."""
    folder, prefix = (
        (path, None) if path.is_dir() else (path.parent, re.sub(r"\.\d+\.et$", "", path.name))
    )
    found: dict[int, Path] = {}
    for other in sorted(folder.iterdir()):
        match = re.fullmatch(r"(.*)\.(\d{1,9})\.et", other.name)
        if match is not None and match[1] == (prefix or match[1]) and other.is_file():
            prefix = prefix or match[1]
            found[int(match[2])] = other
            if len(found) > MOST_RANKS:
                raise FormatError(f"{folder}: over {MOST_RANKS:,} ranks")
    return found


def read_rank(path: Path) -> tuple[str, list[Node]]:
    """Version of the schema and nodes of one rank.

    Raises
    ------
    FormatError
        If the file is cut, too large, or ids are not its own.
    """
    if path.stat().st_size > LARGEST:
        raise FormatError(f"{path}: is over {LARGEST >> 20} MiB; needed the trace of one rank")
    content = path.read_bytes()
    version, nodes = "", []
    try:
        messages = list(_delimited(content))
        if not messages:
            raise FormatError(f"{path}: is empty; needed GlobalMetadata and nodes")
        version = next(
            (
                value.decode("utf-8", "replace")
                for number, value in _fields(messages[0])
                if number == 1 and isinstance(value, bytes)
            ),
            "",
        )
        nodes = [_node(message) for message in messages[1:]]
    except (IndexError, ValueError, struct.error) as error:
        raise FormatError(f"{path}: cut or no execution trace: {error}") from error
    known = [node.id for node in nodes]
    if len(set(known)) < len(known):
        raise FormatError(f"{path}: ids are given twice; needed one a node")
    lost = {before for node in nodes for before in (*node.control, *node.data)} - set(known)
    if lost:
        raise FormatError(
            f"{path}: a node waits for {min(lost)}, which is not in the file; the file is cut"
        )
    return version, nodes


def _delimited(content: bytes) -> Iterator[bytes]:
    """Messages, each behind its length."""
    place = 0
    while place < len(content):
        size, place = _varint(content, place)
        if place + size > len(content):
            raise ValueError("the last message breaks off")
        yield content[place : place + size]
        place += size


def _varint(content: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = content[place]
        place += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value & (1 << 64) - 1, place
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _fields(message: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Numbers and contents of the fields of a message."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == 0:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        if kind == 2:
            size, place = _varint(message, place)
        elif kind in (1, 5):
            size = 8 if kind == 1 else 4
        else:
            raise ValueError(f"a field of wire type {kind}")
        if place + size > len(message):
            raise ValueError("a field breaks off")
        yield key >> 3, message[place : place + size]
        place += size


def _node(message: bytes) -> Node:
    plain: dict[int, Any] = {}
    lists: dict[int, list[int]] = {4: [], 5: []}
    attributes: dict[str, Any] = {}
    for number, value in _fields(message):
        if number in lists:
            lists[number] += [value] if isinstance(value, int) else _packed(value)
        elif number == 10 and isinstance(value, bytes):
            name, content = _attribute(value)
            attributes[name] = content
        else:
            plain[number] = value
    kind = plain.get(3, 0)
    name = plain.get(2, b"")
    if not isinstance(kind, int) or kind >= len(_KINDS):
        raise ValueError(f"a node of type {kind!r}")
    return Node(
        id=int(plain.get(1, 0)),
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else "",
        kind=_KINDS[kind],
        control=tuple(lists[4]),
        data=tuple(lists[5]),
        duration=int(plain.get(7, 0)) * 1e-6,
        attributes=attributes,
    )


def _packed(content: bytes) -> list[int]:
    values, place = [], 0
    while place < len(content):
        value, place = _varint(content, place)
        values.append(value)
    return values


def _attribute(message: bytes) -> tuple[str, Any]:
    """Name and value: scalars at odd field numbers, lists of them at the next even one."""
    name, content = "", None
    for number, value in _fields(message):
        if number == 1 and isinstance(value, bytes):
            name = value.decode("utf-8", "replace")
        elif number >= 3:
            content = _scalar(number, value) if number % 2 else None
    return name, content


def _scalar(number: int, value: int | bytes) -> Any:
    if isinstance(value, int):
        if number in (7, 9):  # int32, int64: two's complement
            return value - (1 << 64) if value >= 1 << 63 else value
        if number in (15, 17):  # zigzag
            return (value >> 1) ^ -(value & 1)
        return bool(value) if number == 27 else value
    formats = {3: "<d", 5: "<f", 19: "<I", 21: "<Q", 23: "<i", 25: "<q"}
    if number in formats:
        return struct.unpack(formats[number], value)[0]
    return value.decode("utf-8", "replace") if number == 29 else value


def _groups(path: Path, prefix: str) -> dict[str, list[int]]:
    """Members of every group, of the JSON beside the trace."""
    for name in (f"{prefix}.comm_group.json", f"{prefix}.json", "comm_group.json"):
        file = path / name
        if file.is_file() and "empty" not in name and file.stat().st_size < 1 << 26:
            try:
                data = json.loads(file.read_text("utf-8"))
            except (ValueError, RecursionError) as error:
                raise FormatError(f"{file}: no groups in JSON: {error}") from error
            if isinstance(data, dict):
                return {
                    str(key): [int(rank) for rank in ranks]
                    for key, ranks in data.items()
                    if isinstance(ranks, list) and all(isinstance(rank, int) for rank in ranks)
                }
    return {}


def _read_trace(head: Head, options: Options) -> Recorded:
    """Read all ranks of an execution trace.

    Raises
    ------
    FormatError
        If a rank is missing or cut, or sends and receives do not pair.
    """
    del options
    files = siblings(head.path)
    if not files:
        raise FormatError(f"{head.path}: no file is named prefix.RANK.et; needed one a rank")
    missing = sorted(set(range(max(files) + 1)) - files.keys())
    if missing:
        raise FormatError(
            f"{head.path}: rank {missing[0]} of {max(files) + 1} has no file; needed one a rank"
        )
    prefix = re.sub(r"\.\d+\.et$", "", files[0].name)
    groups = _groups(files[0].parent, prefix)
    everyone = list(range(len(files)))
    version, count = "", 0
    sends: Counter[tuple[Any, ...]] = Counter()
    receives: Counter[tuple[Any, ...]] = Counter()
    called: dict[tuple[str, int, str], Counter[int]] = {}
    compute: list[float] = []
    for rank, file in sorted(files.items()):
        version, nodes = read_rank(file)
        count += len(nodes)
        compute.append(sum(node.duration for node in nodes if node.kind == "COMP"))
        for node in nodes:
            kind, get = node.kind, node.attributes.get
            if kind == "COMM_SEND":
                sends[rank, get("comm_dst"), get("comm_tag"), get("comm_size")] += 1
            elif kind == "COMM_RECV":
                receives[get("comm_src"), rank, get("comm_tag"), get("comm_size")] += 1
            elif kind == "COMM_COLL":
                called.setdefault(
                    (
                        _collective(get("comm_type")),
                        int(get("comm_size") or 0),
                        str(get("pg_name") or ""),
                    ),
                    Counter(),
                )[rank] += 1
    collectives = [
        {"kind": kind, "times": times, "operand_bytes": size, "groups": [members]}
        for (kind, size, name), counts in called.items()
        for members, times in _calls(counts, groups.get(name), everyone)
    ]
    unpaired = (sends - receives) + (receives - sends)
    warnings = (f"{sum(unpaired.values())} messages have no partner",) if unpaired else ()
    facts = {
        "ranks": len(files),
        "nodes": count,
        "messages": sum((sends & receives).values()),
        "collectives": collectives,
        "compute_s": max(compute, default=0.0),
    }
    return Recorded(
        format="chakra",
        tool="Chakra execution trace",
        version=version,
        files=tuple(map(str, files.values())),
        facts=facts,
        warnings=warnings,
    )


def _calls(
    counts: Counter[int], members: list[int] | None, everyone: list[int]
) -> Iterator[tuple[list[int], int]]:
    """A collective of one group counts once, however many ranks of it take part."""
    yield (members or everyone), max(counts.values())


def _collective(number: object) -> str:
    return (
        _COLLECTIVES[number]
        if isinstance(number, int) and 0 <= number < len(_COLLECTIVES)
        else "all-reduce"
    )


CHAKRA: Final = Format(
    "chakra", "execution trace of Chakra", "timeline", lambda head: is_trace(head.path), _read_trace
)
