"""Rows of published tables, split into what a prediction may read and what only the score may read."""

from __future__ import annotations

import dataclasses
import re
import unicodedata
from pathlib import Path

from bench.tables import table
from mpsim.formats.tables import Cells
from mpsim.hardware import Cluster

__all__ = ["Row", "tidied"]

_NUMBER = r"\d+\.?\d*|\.\d+"
_THOUSANDS = r"(?<=\d)[, '](?=\d{3}(?!\d))"


def tidied(column: str, text: str) -> str:
    """A cell without typography, separators of thousands, and the unit that its column has anyway.

    Examples
    --------
    >>> tidied("num_accel", "1,024 GPUs"), tidied("seq_len", "8k"), tidied("bytes", "1 GiB")
    ('1024', '8192', '1073741824')
    >>> tidied("ep", "TP8")
    'TP8'
    """
    known = table("cells")
    text = re.sub(known["dashes"], "-", unicodedata.normalize("NFKC", text)).strip()
    if not re.fullmatch(known["numbers"], column):
        return re.sub(r"\s+", " ", text)
    plain = re.sub(_THOUSANDS, "", text)
    for entry in known["units"]:
        if re.fullmatch(entry["columns"], column):
            pattern = entry["pattern"].replace("{column}", column)
            match = re.fullmatch(pattern, plain)
            if match and re.fullmatch(_NUMBER, match[1]):
                return f"{float(match[1]) * entry['times']:.15g}"
    return plain if re.fullmatch(r"[\d.]+", plain) else text


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
