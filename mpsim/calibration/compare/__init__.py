"""Measured training steps against predicted ones: totals, parts, orders, timelines."""

from mpsim.calibration.compare.comparison import Comparison, StepComparison, compare_runs
from mpsim.calibration.compare.trace import write_both

__all__ = ["Comparison", "StepComparison", "compare_runs", "write_both"]
