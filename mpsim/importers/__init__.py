"""Importers: files of other tools as scenarios or measured points, one reader a format.

`recognise` says which format a file has, by what it holds and not by its name; `read` gives what it says. Every reader takes its file through
`mpsim.importers.source`, which unpacks and bounds it.
"""

from mpsim.importers.formats import FORMATS, read, recognise
from mpsim.importers.imported import Assumed, Imported, Mapped, MeasuredPoint, Points, Recorded
from mpsim.importers.source import Format

__all__ = [
    "FORMATS",
    "Assumed",
    "Format",
    "Imported",
    "Mapped",
    "MeasuredPoint",
    "Points",
    "Recorded",
    "read",
    "recognise",
]
