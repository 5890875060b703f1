"""Chakra execution traces: a file a rank, nodes with dependencies, groups that communicate; their
messages of protobuf, whose classes are built when needed.

References
----------
mlcommons/chakra 21585d8, ``schema/protobuf/et_def.proto``; astra-sim/astra-sim 518bd51,
``Workload.cc`` (names of files, attributes and their types).
"""

from __future__ import annotations

import io
import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mpsim import structs
from mpsim.errors import FormatError, MissingExtraError
from mpsim.inputs import read_bytes, read_json
from mpsim.memo import remembered

NODE_TYPES: Final = tuple(
    "INVALID METADATA MEM_LOAD MEM_STORE COMP COMM_SEND COMM_RECV COMM_COLL".split()
)
"""Names of ``NodeType``, by number."""

COLLECTIVE_TYPES: Final = (
    *"all_reduce reduce all_gather gather scatter broadcast all_to_all reduce_scatter".split(),
    *("reduce_scatter", "barrier"),
)
"""Our names of ``CollectiveCommType``, by number."""

_SCALARS: Final = (
    "double float int32 int64 uint32 uint64 sint32 sint64 fixed32 fixed64 sfixed32 sfixed64 "
    "bool string bytes"
).split()
_SCHEMA: Final[Mapping[str, str]] = {
    **{f"{kind.title()}List": f"values {kind} 1 *" for kind in _SCALARS},
    "AttributeProto": "name string 1; doc_string string 2; "
    + "; ".join(
        f"{kind}_val {kind} {3 + 2 * place} ?; {kind}_list {kind.title()}List {4 + 2 * place} ?"
        for place, kind in enumerate(_SCALARS)
    ),
    "GlobalMetadata": "version string 1; attr AttributeProto 2 *",
    "IOInfo": "values string 1; shapes string 2; types string 3",
    "Node": "id uint64 1; name string 2; type int32 3; ctrl_deps uint64 4 *; data_deps uint64 5 *; "
    "start_time_micros uint64 6; duration_micros uint64 7; inputs IOInfo 8; outputs IOInfo 9; "
    "attr AttributeProto 10 *",
}
"""Fields of every message: name, type and number; ``*`` is a list, ``?`` a member of the oneof
``value``. An enum is an int32 on the wire."""

ATTRIBUTES: Final[Mapping[str, str]] = {
    name: kind
    for kind, names in {
        "bool": "is_cpu_op",
        "int64": "num_ops comm_type comm_size",
        "uint64": "tensor_size",
        "int32": "comm_src comm_dst comm_tag mpsim_stage mpsim_chunk mpsim_microbatch",
        "string": "pg_name mpsim_stream mpsim_kind mpsim_part",
    }.items()
    for name in names.split()
}
"""Attributes of nodes by type: readers look for one member of the oneof and read 0 else."""


@remembered(1)
def _classes() -> Mapping[str, Any]:
    """Classes of the messages by name."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtraError("protobuf", "chakra") from error
    file = descriptor_pb2.FileDescriptorProto(
        name="et_def.proto", package="ChakraProtoMsg", syntax="proto3"
    )
    field_type = descriptor_pb2.FieldDescriptorProto
    for name, fields in _SCHEMA.items():
        described = file.message_type.add(name=name)
        for text in fields.split("; "):
            word, kind, number, *marks = text.split()
            field = described.field.add(name=word, number=int(number))
            field.label = field_type.LABEL_REPEATED if "*" in marks else field_type.LABEL_OPTIONAL
            if kind in _SCALARS:
                field.type = getattr(field_type, f"TYPE_{kind.upper()}")
            else:
                field.type, field.type_name = field_type.TYPE_MESSAGE, f".ChakraProtoMsg.{kind}"
            if "?" in marks:
                field.oneof_index = 0
        if "?" in fields:
            described.oneof_decl.add(name="value")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"ChakraProtoMsg.{name}"))
        for name in _SCHEMA
    }


def message(name: str, /, **fields: object) -> Any:
    """A message of the schema, such as a ``Node``. MissingExtraError without protobuf."""
    return _classes()[name](**fields)


def messages(content: bytes) -> Iterator[Any]:
    """The messages of a file, each behind its length: ``GlobalMetadata``, then a ``Node`` each.
    ValueError if the file is cut, or holds something else.
    """
    names = _classes()
    from google.protobuf.message import DecodeError
    from google.protobuf.proto import parse_length_prefixed

    stream, name = io.BytesIO(content), "GlobalMetadata"
    try:
        while (found := parse_length_prefixed(names[name], stream)) is not None:
            yield found
            name = "Node"
    except (DecodeError, EOFError) as error:
        raise ValueError(str(error) or "the last message breaks off") from error


def framed(content: object) -> bytes:
    """A message behind its length."""
    from google.protobuf.proto import serialize_length_prefixed

    stream = io.BytesIO()
    serialize_length_prefixed(content, stream)
    return stream.getvalue()


def add_attributes(node: Any, values: Mapping[str, int | str]) -> None:
    """Append attributes to a node, each as the type that `ATTRIBUTES` says."""
    for name, value in values.items():
        node.attr.add(name=name, **{f"{ATTRIBUTES[name]}_val": value})


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
