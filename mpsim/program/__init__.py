"""Program: every operation as columns, built by tiling templates, ready for any engine."""

from mpsim.program.expand import expand
from mpsim.program.program import (
    COLLECTIVE,
    SEND,
    TICK,
    Program,
    Span,
    Stream,
    Template,
    Vocabulary,
)
from mpsim.program.rows import Rows
from mpsim.program.unfold import unfold

__all__ = [
    "COLLECTIVE",
    "SEND",
    "TICK",
    "Program",
    "Rows",
    "Span",
    "Stream",
    "Template",
    "Vocabulary",
    "expand",
    "unfold",
]
