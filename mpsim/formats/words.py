"""Tables of how words of other tools are to be read: regular expressions, the first that fits counts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from mpsim.errors import CalibrationError
from mpsim.hardware import Accelerator, accelerator
from mpsim.memo import remembered
from mpsim.shipped import read_shipped

__all__ = ["DATA", "gpu", "lookup", "table"]

DATA = "mpsim.formats.data"
_LONGEST = 300  # characters of a word: patterns go over it again and again


@remembered(64)
def table(package: str, name: str) -> Mapping[str, Any]:
    """Sections of ``<name>.yaml``, which ships in `package`."""
    sections: Mapping[str, object] = read_shipped(package, f"{name}.yaml")
    return sections


@remembered(4096)
def lookup(package: str, name: str, section: str, text: str) -> Mapping[str, Any]:
    """Entry of a section whose ``pattern`` fits all of `text`, the first that does.

    Raises
    ------
    CalibrationError
        If none fits, or the entry says why it cannot be used (``refused``).
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
    """The accelerator of the catalog that a name means; CalibrationError if it is unknown, or means several."""
    return accelerator(lookup(DATA, "hardware", "gpus", name)["accelerator"])
