"""Validation: measured rows and recorded steps, predicted one by one and scored.

A row is predicted by its configuration; measured columns are read only to score it.
"""

from mpsim.validate.records import Family, Record, Validation
from mpsim.validate.rows import served_points, validate_files
from mpsim.validate.steps import Comparison, StepComparison, compare_runs

__all__ = ["Comparison", "Family", "Record", "StepComparison", "Validation", "compare_runs"]
__all__ += ["served_points", "validate_files"]
