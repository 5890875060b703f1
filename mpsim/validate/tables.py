"""Tables of how names in measured data are to be read: regular expressions, the first that fits counts."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from mpsim.errors import CalibrationError
from mpsim.shipped import load_catalog

__all__ = ["lookup", "table"]

_PACKAGE = "mpsim.validate.data"


@functools.cache
def table(name: str) -> Mapping[str, Any]:
    """Sections of ``data/<name>.yaml``."""
    for stem, content in load_catalog(_PACKAGE):
        if stem == name:
            sections: Mapping[str, Any] = content
            return sections
    raise CalibrationError(f"no table {name!r}")


@functools.cache
def lookup(name: str, section: str, text: str) -> Mapping[str, Any]:
    """Entry of a section whose ``pattern`` fits all of `text`, the first that does.

    Raises
    ------
    CalibrationError
        If none fits, or the entry says why it cannot be used (``refused``).
    """
    for entry in table(name)[section]:
        if re.fullmatch(entry["pattern"], text, flags=re.IGNORECASE):
            if "refused" in entry:
                raise CalibrationError(entry["refused"])
            found: Mapping[str, Any] = entry
            return found
    what = section.removesuffix("s")
    if not text:
        raise CalibrationError(f"{what} is not stated")
    raise CalibrationError(f"{what} {text!r} is not known; it would stand in {name}.yaml")
