"""Table of keys: which word of a tool says which value of a scenario, written once for reading and writing.

Rows stand in the section ``keys`` of a format's data file. A row with a kind is read and written by the table alone; what a row cannot say (a count that follows from two
others, a list in a spelling of its own) is worked out by the format's module, and the row's note tells how.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from mpsim.formats.words import DATA, table
from mpsim.memo import remembered

__all__ = ["TABLES", "Key", "keys", "keys_to"]

TABLES = ("megatron", "megatron-yaml", "torchtitan", "deepspeed", "huggingface")
"""Data files with a table of keys."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """One key of a tool and the value of a scenario that it says.

    Parameters
    ----------
    name : str
        The key as the tool writes it; dotted where it is nested.
    to : str
        Dotted key of the scenario.
    values : mapping of str to object
        Value of the scenario by the tool's word; empty where both write the same. Of several words for one value the first is written.
    note : str
        What the row cannot say.
    kind : str
        ``int``, ``number``, ``word``, ``switch`` (true where it is on), ``off`` (false where it is on), ``says`` (that where it is on, else nothing); empty where the row
        alone does not decide.
    default, dataclass : object
        Value where the key is absent, and where it is absent in a file that fills dataclasses.
    ask : bool
        Whether the scenario needs it.
    says : object
        Value that a switch stands for.
    when : str
        Condition under which the key counts.
    tries : list
        Values that a writer tries, where they are no words.
    always : str
        Where a writer says it although it is the usual value: ``file``, or ``dataclass`` alone; ``flag``: no dataclass has it.
    """

    name: str
    to: str
    values: Mapping[str, object] = dataclasses.field(default_factory=dict)
    note: str = ""
    kind: str = ""
    default: object = None
    dataclass: object = None
    ask: bool = False
    says: object = None
    when: str = ""
    tries: Sequence[object] = ()
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
    return tuple(
        Key(row["key"], **{word: value for word, value in row.items() if word != "key"})
        for row in table(DATA, name)["keys"]
    )


def keys_to(name: str, to: str) -> tuple[Key, ...]:
    """Keys of a format that say a value of the scenario, the one that is written first."""
    return tuple(key for key in keys(name) if key.to == to)
