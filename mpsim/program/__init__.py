"""Scenario to Plan to Program: every operation of a step, columnar."""

from mpsim.program.expand import expand
from mpsim.program.pipeline import from_orders
from mpsim.program.program import PARTS, TICK, Kind, Program, Span, Stream, Template
from mpsim.program.rows import Rows
from mpsim.program.unfold import unfold

__all__ = [
    "PARTS",
    "TICK",
    "Kind",
    "Program",
    "Rows",
    "Span",
    "Stream",
    "Template",
    "expand",
    "from_orders",
    "unfold",
]
