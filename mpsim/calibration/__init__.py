"""Measured data against predictions: how far the simulator is from what was measured."""

from mpsim.calibration.validate import Family, Record, Validation, validate_files

__all__ = ["Family", "Record", "Validation", "validate_files"]
