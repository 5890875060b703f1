"""The bench: published tables of measured runs, collectives, kernels, schedules and services, predicted row by row and scored.

A row is predicted from its configuration columns alone; the measured columns are read only to score it. Words of the columns are read by the tables in ``data/``.
"""

from bench.files import served_points, validate_files

__all__ = ["served_points", "validate_files"]
