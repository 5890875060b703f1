"""Chakra's execution traces on the wire: messages of protobuf behind their lengths, without protobuf, whose wire format is a few rules.

Names and numbers of the schema stand here once for `mpsim.formats.chakra`, which reads them, and `mpsim.formats.chakra_writer`, which writes them.

References
----------
mlcommons/chakra 21585d8, ``schema/protobuf/et_def.proto``; astra-sim/astra-sim 518bd51, ``Workload.cc`` (types of the attributes).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

__all__ = [
    "COLLECTIVE_TYPES",
    "NODE_TYPES",
    "encode_attribute",
    "encode_bytes",
    "encode_packed",
    "encode_varint",
    "framed",
]

NODE_TYPES: Final = (
    "INVALID",
    "METADATA",
    "MEM_LOAD",
    "MEM_STORE",
    "COMP",
    "COMM_SEND",
    "COMM_RECV",
    "COMM_COLL",
)
"""Names of ``NodeType``, by number."""

COLLECTIVE_TYPES: Final = (
    "all_reduce",
    "reduce",
    "all_gather",
    "gather",
    "scatter",
    "broadcast",
    "all_to_all",
    "reduce_scatter",
    "reduce_scatter",
    "barrier",
)
"""Our names of ``CollectiveCommType``, by number."""

FIELDS: Final = {
    "double": 3,
    "float": 5,
    "int32": 7,
    "int64": 9,
    "uint32": 11,
    "uint64": 13,
    "sint32": 15,
    "sint64": 17,
    "fixed32": 19,
    "fixed64": 21,
    "sfixed32": 23,
    "sfixed64": 25,
    "bool": 27,
    "string": 29,
    "bytes": 31,
}
"""Field of ``AttributeProto`` that holds a scalar of each type; the list of the type is the next one."""
_MASK: Final = (1 << 64) - 1
_LENGTH = 2  # wire type of strings, messages and packed lists


def encode_varint(value: int) -> bytes:
    """A whole number, seven bits a byte; negative ones in two's complement of 64 bits.

    Examples
    --------
    >>> encode_varint(300).hex()
    'ac02'
    """
    value &= _MASK
    result = bytearray()
    while value > 127:
        result.append(value & 127 | 128)
        value >>= 7
    result.append(value)
    return bytes(result)


def encode_bytes(field: int, content: bytes) -> bytes:
    """A field that holds bytes, text or a message."""
    return encode_varint(field << 3 | _LENGTH) + encode_varint(len(content)) + content


def encode_packed(field: int, values: Iterable[int]) -> bytes:
    """A field that holds a list of whole numbers; nothing where there are none."""
    content = b"".join(map(encode_varint, values))
    return encode_bytes(field, content) if content else b""


def encode_attribute(name: str, kind: str, value: int | str) -> bytes:
    """An attribute of a node, as its field 10.

    Parameters
    ----------
    name : str
    kind : str
        ``int32``, ``int64``, ``uint64``, ``bool`` or ``string``: readers look for one of them and read 0 from any other.
    value : int or str
    """
    field = FIELDS[kind]
    content = (
        encode_bytes(field, value.encode())
        if isinstance(value, str)
        else encode_varint(field << 3) + encode_varint(value)
    )
    return encode_bytes(10, encode_bytes(1, name.encode()) + content)


def framed(message: bytes) -> bytes:
    """A message behind its length."""
    return encode_varint(len(message)) + message
