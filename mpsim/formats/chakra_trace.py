"""Chakra execution traces: one file a rank, nodes with their dependencies; read without protobuf, whose wire format is a few rules.

References
----------
mlcommons/chakra 21585d8, ``schema/protobuf/et_def.proto``; astra-sim/astra-sim 518bd51, ``Workload.cc`` (names of files, attributes).
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import struct
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.execution_trace import COLLECTIVE_TYPES, NODE_TYPES
from mpsim.inputs import read_bytes, read_json

__all__ = [
    "Node",
    "Trace",
    "collective_type",
    "read_rank",
    "read_ranks",
    "siblings",
    "whole",
]

LARGEST: Final = 1 << 28
MOST_RANKS: Final = 65_536


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
        Such as ``comm_size``, ``comm_dst``, ``pg_name``; lists of them as tuples.
    inputs : str
        Values of its inputs as text, which metadata keeps groups in.
    """

    id: int
    name: str
    kind: str
    control: tuple[int, ...]
    data: tuple[int, ...]
    duration: float
    attributes: Mapping[str, Any]
    inputs: str = ""


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
    content = read_bytes(path, needed="the trace of one rank", error=FormatError, largest=LARGEST)
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
    if not isinstance(kind, int) or kind >= len(NODE_TYPES):
        raise ValueError(f"a node of type {kind!r}")
    return Node(
        id=int(plain.get(1, 0)),
        name=name.decode("utf-8", "replace") if isinstance(name, bytes) else "",
        kind=NODE_TYPES[kind],
        control=tuple(lists[4]),
        data=tuple(lists[5]),
        duration=int(plain.get(7, 0)) * 1e-6,
        attributes=attributes,
        inputs=_inputs(plain.get(8)),
    )


def _inputs(message: Any) -> str:
    """Values of an IOInfo message."""
    if not isinstance(message, bytes):
        return ""
    texts = (value for number, value in _fields(message) if number == 1)
    return next((text.decode("utf-8", "replace") for text in texts if isinstance(text, bytes)), "")


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
            content = _scalar(number, value) if number % 2 else _listed(number - 1, value)
    return name, content


def _listed(number: int, value: int | bytes) -> tuple[Any, ...]:
    """Values of a list message: packed where they are numbers, one field each where they are texts."""
    if isinstance(value, int):
        return ()
    values: list[Any] = []
    sizes = {3: 8, 5: 4, 19: 4, 21: 8, 23: 4, 25: 8}
    for field, item in _fields(value):
        if field != 1:
            continue
        if isinstance(item, int) or number in (29, 31):
            values.append(_scalar(number, item))
        elif number in sizes:
            step = sizes[number]
            values += [_scalar(number, item[at : at + step]) for at in range(0, len(item), step)]
        else:
            values += [_scalar(number, each) for each in _packed(item)]
    return tuple(values)


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


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Execution traces of all ranks of a job.

    Parameters
    ----------
    files : tuple of str
    version : str
        Of the schema.
    ranks : tuple of list of Node
        Nodes of each rank, as its file lists them.
    groups : mapping of str to tuple of int
        Members of every group by name, of the JSON beside the files or of metadata in them.
    """

    files: tuple[str, ...]
    version: str
    ranks: tuple[list[Node], ...]
    groups: Mapping[str, tuple[int, ...]]

    def members(self, node: Node) -> tuple[int, ...]:
        """Ranks that take part in a collective: its group, or everyone where it names none.

        Raises
        ------
        FormatError
            If nothing says who is in the group, or it has a rank that there is not.
        """
        name = str(node.attributes.get("pg_name") or "")
        everyone = tuple(range(len(self.ranks)))
        if not name or not self.groups:
            return everyone
        if name not in self.groups:
            raise FormatError(
                f"{self.files[0]}: collective {node.name!r} is of group {name[:40]!r}, which neither the JSON beside the trace nor its metadata lists"
            )
        members = self.groups[name]
        if not members or min(members) < 0 or max(members) >= len(self.ranks):
            raise FormatError(
                f"{self.files[0]}: group {name[:40]!r} has rank {max(members, default=-1)}; the trace has ranks 0 to {len(self.ranks) - 1}"
            )
        return members


def read_ranks(path: Path) -> Trace:
    """Read the traces of all ranks, found beside any one of them or in a folder.

    Raises
    ------
    FormatError
        If a rank is missing or cut.
    """
    files = siblings(path)
    if not files:
        raise FormatError(f"{path}: no file is named prefix.RANK.et; needed one a rank")
    missing = next((index for index, rank in enumerate(sorted(files)) if rank != index), None)
    if missing is not None:
        raise FormatError(
            f"{path}: rank {missing} of {max(files) + 1} has no file; needed one a rank"
        )
    prefix = re.sub(r"\.\d+\.et$", "", files[0].name)
    groups = _groups(files[0].parent, prefix)
    version, ranks = "", []
    for _, file in sorted(files.items()):
        version, nodes = read_rank(file)
        ranks.append(nodes)
        groups |= {name: members for name, members in _stated_groups(nodes) if name not in groups}
    return Trace(
        tuple(str(file) for _, file in sorted(files.items())), version, tuple(ranks), groups
    )


def _groups(path: Path, prefix: str) -> dict[str, tuple[int, ...]]:
    """Members of every group, of the JSON beside the trace."""
    for name in (f"{prefix}.comm_group.json", f"{prefix}.json", "comm_group.json"):
        file = path / name
        if file.is_file() and "empty" not in name and file.stat().st_size < 1 << 26:
            data = read_json(file, needed="groups", error=FormatError)
            if isinstance(data, dict):
                return {str(key): tuple(ranks) for key, ranks in data.items() if _are_ranks(ranks)}
    return {}


def _are_ranks(ranks: object) -> bool:
    return isinstance(ranks, list | tuple) and all(
        isinstance(rank, int) and not isinstance(rank, bool) for rank in ranks
    )


def _stated_groups(nodes: list[Node]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Groups that metadata states: as attributes, or as PyTorch lists them among the inputs of ``process_group:init``."""
    for node in nodes:
        if node.kind != "METADATA":
            continue
        ranks = next(
            (
                node.attributes[key]
                for key in ("ranks", "pg_ranks", "comm_group")
                if key in node.attributes
            ),
            None,
        )
        if ranks is not None and _are_ranks(ranks):
            yield str(node.attributes.get("pg_name", node.name)), tuple(ranks)
        if "pg_name" not in node.inputs:
            continue
        try:
            listed = json.loads(node.inputs)
            while (
                isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], str | list)
            ):
                listed = json.loads(listed[0]) if isinstance(listed[0], str) else listed[0]
        except (ValueError, RecursionError):
            continue
        for entry in listed if isinstance(listed, list) else []:
            if isinstance(entry, dict) and entry.get("ranks") and _are_ranks(entry["ranks"]):
                yield str(entry.get("pg_name", "")), tuple(entry["ranks"])


def collective_type(node: Node) -> str:
    """Our name of what a collective node does."""
    number = node.attributes.get("comm_type")
    known = isinstance(number, int) and 0 <= number < len(COLLECTIVE_TYPES)
    return COLLECTIVE_TYPES[number] if known else "all_reduce"  # type: ignore[index] # a number, as `known` says


def whole(value: object) -> int:
    """A size that a node states; 0 where it is no number."""
    return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0
