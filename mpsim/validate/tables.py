"""Tables of what families of published rows mean and leave unsaid."""

from __future__ import annotations

import functools

from mpsim.importers import words

__all__ = ["lookup", "table"]

_DATA = "mpsim.validate.data"
table = functools.partial(words.table, _DATA)
lookup = functools.partial(words.lookup, _DATA)
