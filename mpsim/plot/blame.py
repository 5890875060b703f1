"""Blame: a matrix of ranks that cause waiting and ranks that suffer it.

Shapes: C causes, S sufferers.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, thin

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["BlameDisplay"]

_MOST = 32  # rows and columns; beyond, those with most
_COLOURS = "viridis"


class BlameDisplay(Display):
    """Waiting beyond that of the undisturbed step.

    Parameters
    ----------
    causes, sufferers : sequence of str
    matrix_s : float64[C, S]
        Seconds that one rank of each sufferer waited longer on account of each cause.
    """

    def __init__(
        self, causes: Sequence[str], sufferers: Sequence[str], matrix_s: NDArray[np.float64]
    ) -> None:
        self.causes, self.sufferers, self.matrix_s = tuple(causes), tuple(sufferers), matrix_s
        if matrix_s.shape != (len(self.causes), len(self.sufferers)):
            raise ScenarioError(
                f"got a matrix of shape {matrix_s.shape}; needed {len(self.causes)} by {len(self.sufferers)}"
            )

    @classmethod
    def with_most(
        cls, causes: Sequence[str], sufferers: Sequence[str], matrix: NDArray[np.float64]
    ) -> BlameDisplay:
        """Show the causes and sufferers with most waiting, in the order of ranks.

        Parameters
        ----------
        causes, sufferers : sequence of str
        matrix : float64[C, S]
            See `mpsim.study.Blame.matrix` [s].
        """
        rows = np.sort(np.argsort(-np.abs(matrix).sum(axis=1), kind="stable")[:_MOST])
        columns = np.sort(np.argsort(-np.abs(matrix).sum(axis=0), kind="stable")[:_MOST])
        return cls(
            [causes[row] for row in rows],
            [sufferers[column] for column in columns],
            matrix[np.ix_(rows, columns)],
        )

    def _size(self) -> tuple[float, float]:
        return 3.0 + 0.3 * len(self.sufferers), 2.0 + 0.3 * len(self.causes)

    def _draw(self, ax: Axes) -> None:
        shown = ax.imshow(1e3 * self.matrix_s, cmap=_COLOURS, vmin=0.0, aspect="auto")
        ax.set_xticks(thin(len(self.sufferers), _MOST), self.sufferers, rotation=90)
        ax.set_yticks(thin(len(self.causes), _MOST), self.causes)
        ax.set_xlabel("suffered by")
        ax.set_ylabel("caused by")
        ax.grid(visible=False)
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.colorbar(shown, ax=ax, label="waiting of a rank beyond the undisturbed step (ms)")
