"""Chakra's execution traces as messages of protobuf, whose classes are built when needed.

References
----------
mlcommons/chakra 21585d8, ``schema/protobuf/et_def.proto``; astra-sim/astra-sim 518bd51,
``Workload.cc`` (types of the attributes).
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from typing import Any, Final

from mpsim.errors import MissingExtraError
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
