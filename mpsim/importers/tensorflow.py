"""TensorFlow's graphs, which are recognised and refused by name.

A graph that runs on several devices holds collectives as nodes of its own, and TensorFlow compiles what lies between them device by device: there is no HLO of the whole step. What
TensorFlow compiles on one device is HLO, which `mpsim.importers.hlo` reads.

References
----------
tensorflow 2.21.0: ``MirroredStrategy`` emits ``CollectiveReduceV2``; ``experimental_get_compiler_ir`` fails on variables of another device and on DTensor's handles.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from mpsim.errors import FormatError
from mpsim.importers.imported import Recorded
from mpsim.importers.source import Format, Head, Options, read_text
from mpsim.inputs import open_regular

__all__ = ["TENSORFLOW", "is_graph"]

_HEAD: Final = 1 << 22
_NODE = re.compile(
    r'^[ \t]*(node|node_def)[ \t]*\{|"?tf(?:_executor|_device)?\.\w+"?\(|^[ \t]*tf_executor',
    re.MULTILINE,
)
_OPERATION = re.compile(r'^[ \t]*op:[ \t]*"\w+"', re.MULTILINE)
_COLLECTIVE = re.compile(
    r"Collective(?:Reduce|Gather|AllToAll|Bcast)\w*|NcclAllReduce|XlaAllReduce|DTensor\w+"
)


def is_graph(path: Path) -> bool:
    """Whether a file is a graph of TensorFlow in binary: a GraphDef or a SavedModel."""
    if path.suffix != ".pb":
        return False
    try:
        head = _beginning(path)
    except FormatError:  # said by the reader that is asked to read it
        return False
    return any(
        word in head for word in (b"saved_model", b"Placeholder", b"PartitionedCall", b"Collective")
    )


def _beginning(path: Path) -> bytes:
    with open_regular(path, needed="a graph", error=FormatError) as raw:
        return raw.read(_HEAD)


def _recognises(head: Head) -> bool:
    if is_graph(head.path):
        return True
    return bool(_NODE.search(head.text)) and (
        bool(_OPERATION.search(head.text)) or "tf." in head.text or "tf_" in head.text
    )


def _refuse(head: Head, options: Options) -> Recorded:
    """Say why a graph cannot be read.

    Raises
    ------
    FormatError
        Always.
    """
    del options
    if head.path.suffix == ".pb":
        text = _beginning(head.path).decode("latin-1")
    else:
        text = read_text(head.path, needed="text")
    found = _COLLECTIVE.search(text)
    what = f"a TensorFlow graph for several devices ({found[0]})" if found else "a TensorFlow graph"
    raise FormatError(
        f"{head.path}: is {what}, which TensorFlow compiles device by device, not as one program; needed the HLO of one device: "
        "tf.function(jit_compile=True).experimental_get_compiler_ir(...)(stage='optimized_hlo'), or a profile"
    )


TENSORFLOW: Final = Format(
    "tensorflow", "graph of TensorFlow (refused)", "timeline", _recognises, _refuse
)
