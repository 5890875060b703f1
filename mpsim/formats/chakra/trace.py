"""Chakra execution traces: a file a rank, nodes with dependencies, groups that communicate.

References
----------
mlcommons/chakra 21585d8, ``schema/protobuf/et_def.proto``; astra-sim/astra-sim 518bd51,
``Workload.cc`` (names of files, attributes).
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats.chakra.schema import COLLECTIVE_TYPES, NODE_TYPES, messages
from mpsim.inputs import read_bytes, read_json

LARGEST: Final = 1 << 26
MOST_NODES: Final = 1_000_000
MOST_RANKS: Final = 65_536
_ENDING = re.compile(r"\.(\d{1,9})\.et$")


@structs.dataclass(frozen=True, slots=True)
class Node:
    """One node of an execution trace."""

    id: int
    name: str
    kind: str  # such as ``COMP`` or ``COMM_COLL``
    before: tuple[int, ...]  # nodes of the same rank that it waits for, control dependencies first
    duration: float  # [s], in whole microseconds
    # such as ``comm_size``, ``comm_dst``, ``pg_name``; lists of them as tuples
    attributes: Mapping[str, Any]
    inputs: str = ""  # values of its inputs as text, which metadata keeps groups in

    def text(self, name: str) -> str:
        """An attribute as text; empty where there is none."""
        return str(self.attributes.get(name) or "")

    def whole(self, name: str) -> int:
        """A size that the node states; 0 where it is no number."""
        value = self.attributes.get(name)
        return int(value) if isinstance(value, int | float) and math.isfinite(value) else 0

    @property
    def collective(self) -> str:
        """Our name of what a collective node does."""
        number = self.attributes.get("comm_type")
        if isinstance(number, int) and 0 <= number < len(COLLECTIVE_TYPES):
            return COLLECTIVE_TYPES[number]
        return "all_reduce"


def is_trace(path: Path) -> bool:
    """Whether a file is named as a rank of an execution trace."""
    return _ENDING.search(path.name) is not None


def _siblings(path: Path) -> dict[int, Path]:
    """Files of all ranks of a trace, of any one of them or of a folder; in the order of ranks."""
    folder = path if path.is_dir() else path.parent
    prefix = None if path.is_dir() else _ENDING.sub("", path.name)
    files: dict[int, Path] = {}
    for other in sorted(folder.iterdir()):
        match = _ENDING.search(other.name)
        if match is None or not other.is_file():
            continue
        name = other.name[: match.start()]
        prefix = prefix or name
        if name == prefix:
            files[int(match[1])] = other
        if len(files) > MOST_RANKS:
            raise FormatError(f"{folder}: over {MOST_RANKS:,} ranks")
    return dict(sorted(files.items()))


def read_rank(path: Path) -> tuple[str, list[Node]]:
    """Version of the schema and nodes of one rank. FormatError if the file is cut, too large, or
    ids are not its own; MissingExtraError if protobuf is not installed.
    """
    content = read_bytes(path, needed="the trace of one rank", error=FormatError, largest=LARGEST)
    if not content:
        raise FormatError(f"{path}: is empty; needed GlobalMetadata and nodes")
    try:
        found = messages(content)
        head = next(found, None)
        nodes = [_node(message) for message in itertools.islice(found, MOST_NODES + 1)]
    except ValueError as error:
        raise FormatError(f"{path}: cut or no execution trace: {error}") from error
    if head is None or len(nodes) > MOST_NODES:
        raise FormatError(f"{path}: over {MOST_NODES:,} nodes; needed fewer: record fewer steps")
    known = {node.id for node in nodes}
    if len(known) < len(nodes):
        raise FormatError(f"{path}: ids are given twice; needed one a node")
    if lost := {before for node in nodes for before in node.before} - known:
        raise FormatError(
            f"{path}: a node waits for {min(lost)}, which is not in the file; the file is cut"
        )
    return head.version, nodes


def _node(message: Any) -> Node:
    if not 0 <= message.type < len(NODE_TYPES):
        raise ValueError(f"a node of type {message.type}")
    return Node(
        id=message.id,
        name=message.name,
        kind=NODE_TYPES[message.type],
        before=(*message.ctrl_deps, *message.data_deps),
        duration=message.duration_micros * 1e-6,
        attributes={item.name: _value(item) for item in message.attr},
        inputs=message.inputs.values,
    )


def _value(attribute: Any) -> object:
    """Read the value of an attribute: a scalar, or a list of them as a tuple."""
    member = attribute.WhichOneof("value")
    if not member:
        return None
    value = getattr(attribute, member)
    return tuple(value.values) if member.endswith("_list") else value


@structs.dataclass(frozen=True, slots=True)
class Trace:
    """Execution traces of all ranks of a job."""

    files: tuple[str, ...]
    version: str  # of the schema
    ranks: tuple[list[Node], ...]  # nodes of each rank, as its file lists them
    # members of every group by name, of the JSON beside the files or of metadata in them
    groups: Mapping[str, tuple[int, ...]]

    def members(self, node: Node) -> tuple[int, ...]:
        """Ranks that take part in a collective: its group, or everyone where it names none.
        FormatError if nothing says who is in the group, or it has a rank that there is not.
        """
        name = node.text("pg_name")
        if not name or not self.groups:
            return tuple(range(len(self.ranks)))
        if name not in self.groups:
            raise FormatError(
                f"{self.files[0]}: collective {node.name!r} is of group {name[:40]!r}, which"
                " neither the JSON beside the trace nor its metadata lists"
            )
        members = self.groups[name]
        if not members or min(members) < 0 or max(members) >= len(self.ranks):
            raise FormatError(
                f"{self.files[0]}: group {name[:40]!r} has rank {max(members, default=-1)}; the"
                f" trace has ranks 0 to {len(self.ranks) - 1}"
            )
        return members


def read_ranks(path: Path) -> Trace:
    """Read the traces of all ranks, beside one or in a folder. FormatError if one lacks."""
    files = _siblings(path)
    if not files:
        raise FormatError(f"{path}: no file is named prefix.RANK.et; needed one a rank")
    missing = next((index for index, rank in enumerate(files) if rank != index), None)
    if missing is not None:
        raise FormatError(
            f"{path}: rank {missing} of {max(files) + 1} has no file; needed one a rank"
        )
    groups = _groups_beside(files[0].parent, _ENDING.sub("", files[0].name))
    version, ranks = "", []
    for file in files.values():
        version, nodes = read_rank(file)
        ranks.append(nodes)
        for name, members in _stated_groups(nodes):
            groups.setdefault(name, members)
    return Trace(tuple(map(str, files.values())), version, tuple(ranks), groups)


def _groups_beside(folder: Path, prefix: str) -> dict[str, tuple[int, ...]]:
    """Members of every group, of the JSON beside the trace."""
    for name in (f"{prefix}.comm_group.json", f"{prefix}.json", "comm_group.json"):
        file = folder / name
        if file.is_file() and "empty" not in name and file.stat().st_size < 1 << 26:
            data = read_json(file, needed="groups", error=FormatError)
            if isinstance(data, dict):
                return {str(key): tuple(ranks) for key, ranks in data.items() if _are_ranks(ranks)}
    return {}


def _are_ranks(ranks: object) -> bool:
    return isinstance(ranks, list | tuple) and all(type(rank) is int for rank in ranks)


def _stated_groups(nodes: list[Node]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Groups that metadata states, as attributes or as inputs of ``process_group:init``."""
    for node in nodes:
        if node.kind != "METADATA":
            continue
        get = node.attributes.get
        ranks = get("ranks", get("pg_ranks", get("comm_group")))
        if _are_ranks(ranks):
            yield str(get("pg_name", node.name)), tuple(ranks)
        for entry in _listed(node.inputs) if "pg_name" in node.inputs else []:
            if isinstance(entry, dict) and entry.get("ranks") and _are_ranks(entry["ranks"]):
                yield str(entry.get("pg_name", "")), tuple(entry["ranks"])


def _listed(text: str) -> list[object]:
    """A list as PyTorch writes it: in JSON, or as the only text of another list."""
    try:
        listed = json.loads(text)
        while isinstance(listed, list) and len(listed) == 1 and isinstance(listed[0], str | list):
            listed = json.loads(listed[0]) if isinstance(listed[0], str) else listed[0]
    except (ValueError, RecursionError):
        return []
    return listed if isinstance(listed, list) else []
