"""Tables of the words of other tools: keys that say values of a scenario, and names of chips.

Keys are rows of a format's data file, written once for reading and writing. A row with a kind is
read and written by the table alone; what a row cannot say (a count that follows from two others, a
list in a spelling of its own) is worked out by the format's module, and the row's note tells how.
Of regular expressions the first that fits counts.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mpsim import structs
from mpsim.errors import CalibrationError
from mpsim.hardware import Accelerator, accelerator
from mpsim.memo import remembered
from mpsim.scenario import servers
from mpsim.shipped import read_shipped

DATA = "mpsim.formats.data"
TABLES = (
    *("megatron", "megatron-yaml", "torchtitan", "deepspeed", "huggingface"),
    *servers.SERVERS,
)
"""Data files with a table of keys."""
_LONGEST = 300  # characters of a word: patterns go over it again and again


@remembered(64)
def table(package: str, name: str) -> Mapping[str, Any]:
    """Sections of ``<name>.yaml``, which ships in `package`."""
    sections: Mapping[str, object] = read_shipped(package, f"{name}.yaml")
    return sections


@remembered(4096)
def lookup(package: str, name: str, section: str, text: str) -> Mapping[str, Any]:
    """Entry of a section whose ``pattern`` fits all of `text`, the first that does.
    CalibrationError if none fits, or the entry says why it cannot be used (``refused``).
    """
    for entry in table(package, name)[section]:
        if len(text) <= _LONGEST and re.fullmatch(entry["pattern"], text, flags=re.IGNORECASE):
            if "refused" in entry:
                raise CalibrationError(entry["refused"])
            found: Mapping[str, object] = entry
            return found
    what = section.removesuffix("s")
    if not text:
        raise CalibrationError(f"{what} is not stated")
    raise CalibrationError(
        f"{what} {text[:_LONGEST]!r} is not known; it would stand in {name}.yaml"
    )


def gpu(name: str) -> Accelerator:
    """The catalog's accelerator that a name means; CalibrationError if none or several."""
    return accelerator(lookup(DATA, "hardware", "gpus", name)["accelerator"])


@structs.dataclass(frozen=True, slots=True)
class Key:
    """One key of a tool and the value of a scenario that it says."""

    name: str  # the key as the tool writes it; dotted where it is nested
    to: str  # dotted key of the scenario
    # value of the scenario by the tool's word; empty where both write the same. Of several words
    # for one value the first is written
    values: Mapping[str, object] = structs.field(default_factory=dict)
    note: str = ""  # what the row cannot say
    # ``int``, ``number``, ``word``, ``switch`` (true where it is on), ``off`` (false where it is
    # on), ``says`` (that where it is on, else nothing); empty where the row alone does not decide
    kind: str = ""
    # default, dataclass: value where the key is absent, and in a file that fills dataclasses
    default: object = None
    dataclass: object = None
    ask: bool = False  # whether the scenario needs it
    says: object = None  # value that a switch stands for
    when: str = ""  # condition under which the key counts
    tries: Sequence[object] = ()  # values that a writer tries, where they are no words
    # where a writer says it although it is the usual value: ``file``, or ``dataclass`` alone;
    # ``flag``: no dataclass has it
    always: str = ""

    def word(self, value: object) -> str | None:
        """The tool's word for a value of the scenario; None where it has none."""
        return next((word for word, meant in self.values.items() if meant == value), None)


@remembered(16)
def keys(name: str) -> tuple[Key, ...]:
    """Every row of a format's table, in its order.

    Examples
    --------
    >>> [key.name for key in keys("megatron") if key.to == "parallelism.tp"]
    ['tensor-model-parallel-size', 'model-parallel-size']
    """
    package = servers.DATA if name in servers.SERVERS else DATA
    return tuple(
        Key(row["key"], **{word: value for word, value in row.items() if word != "key"})
        for row in table(package, name)["keys"]
    )


def keys_to(name: str, to: str) -> tuple[Key, ...]:
    """Keys of a format that say a value of the scenario, the one that is written first."""
    return tuple(key for key in keys(name) if key.to == to)
