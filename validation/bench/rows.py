"""Rows of published tables, split into what a prediction may read and what only the score may read."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from mpsim.formats.tables import Cells
from mpsim.hardware import Cluster

__all__ = ["Row"]


@dataclasses.dataclass(frozen=True, slots=True)
class Row:
    """One row of a file.

    Parameters
    ----------
    id : str
        Its ``id`` or ``record_id``, else its number from 1.
    configuration, measured : Cells
        What a prediction may read, and what only the score may read.
    folder : Path
        Where the row's file lies: files that it names are relative to it.
    machine : Cluster, optional
        Of a machine file, whose constants count for rows of its accelerator.
    """

    id: str
    configuration: Cells
    measured: Cells
    folder: Path = Path()
    machine: Cluster | None = None
