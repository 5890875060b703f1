"""A chart of fits: how far points are from their forms."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from mpsim.calibrate.parts import Score
from mpsim.plot import Lines, residual_chart

__all__ = ["residuals_of"]


def residuals_of(scores: Iterable[Score]) -> Lines:
    """How far points of fits are from their forms."""
    drawn = list(scores)
    errors = [np.array(each.predicted) / np.array(each.measured) - 1.0 for each in drawn]
    return residual_chart(
        [each.what for each in drawn],
        errors,
        [np.array(each.held_out, dtype=bool) for each in drawn],
    )
