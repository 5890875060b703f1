"""Validation: files of measured runs, collectives, kernels and schedules, predicted row by row and scored.

A row is predicted from its configuration columns alone; the measured columns are read only to score it.
"""

from mpsim.calibration.validate.files import validate_files
from mpsim.calibration.validate.records import Family, Record, Validation

__all__ = ["Family", "Record", "Validation", "validate_files"]
