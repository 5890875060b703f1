"""Scenario to Plan to Program: every operation of a step, columnar."""

from mpsim.program.pipeline import from_orders
from mpsim.program.program import PARTS, TICK, Kind, Program, Stream, Template
from mpsim.program.rows import Rows

__all__ = ["PARTS", "TICK", "Kind", "Program", "Rows", "Stream", "Template", "from_orders"]
