"""Program: every operation as columns, built by tiling templates, ready for any engine."""

from mpsim.program.expand import expand
from mpsim.program.program import (
    COMPUTING,
    PARTS,
    PIPELINE,
    TICK,
    Kind,
    Program,
    Span,
    Stream,
    Template,
)
from mpsim.program.rows import Rows
from mpsim.program.unfold import unfold

__all__ = [
    "COMPUTING",
    "PARTS",
    "PIPELINE",
    "TICK",
    "Kind",
    "Program",
    "Rows",
    "Span",
    "Stream",
    "Template",
    "expand",
    "unfold",
]
