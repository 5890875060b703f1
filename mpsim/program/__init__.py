"""Scenario to Plan to Program: every operation of a step, columnar."""

from mpsim.program.build import build_program
from mpsim.program.expand import expand
from mpsim.program.pipeline import from_orders
from mpsim.program.plan import Plan
from mpsim.program.planning import make_plan
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
    "Plan",
    "Program",
    "Rows",
    "Span",
    "Stream",
    "Template",
    "build_program",
    "expand",
    "from_orders",
    "make_plan",
    "unfold",
]
