"""Program: every operation as columns, built by tiling templates, ready for any engine."""

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

__all__ = ["COLLECTIVE", "SEND", "TICK", "Program", "Rows", "Span", "Stream", "Template"]
__all__ += ["Vocabulary"]
