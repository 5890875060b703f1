"""Use of ranks while the step runs: a line of pixels a rank, bright where its kernels run.

Shapes: R rank classes, B bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, thin
from mpsim.plot.timeline import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import Result

__all__ = ["HeatDisplay"]

_COLOURS = "cividis"  # even in lightness, and the same to eyes that see no red or no green
_MOST_ROWS = 64  # drawn one by one; of more, neighbours are averaged


class HeatDisplay(Display):
    """Share of time in which kernels run, by rank and time.

    Parameters
    ----------
    names : sequence of str
        Of rank classes, from top to bottom.
    edges_s : float64[B + 1]
        Edges of the time bins [s].
    share : float64[R, B]
        In [0, 1].
    """

    def __init__(
        self, names: Sequence[str], edges_s: NDArray[np.float64], share: NDArray[np.float64]
    ) -> None:
        self.names, self.edges_s, self.share = tuple(names), edges_s, share
        if share.shape != (len(self.names), len(edges_s) - 1):
            raise ScenarioError(
                f"got shares of shape {share.shape}; needed {len(self.names)} ranks by {len(edges_s) - 1} bins"
            )

    @classmethod
    def from_result(cls, result: Result) -> HeatDisplay:
        """Every rank class of a result."""
        use = result.utilisation
        return cls(result.timeline.program.rank_name, use.series.edges_s, use.kernels)

    def _rows(self) -> tuple[list[str], NDArray[np.float64]]:
        """Names and shares of the rows drawn."""
        if len(self.names) <= _MOST_ROWS:
            return list(self.names), self.share
        groups = np.array_split(np.arange(len(self.names)), _MOST_ROWS)
        shares = np.stack([self.share[group].mean(axis=0) for group in groups])
        return [f"{self.names[group[0]]} to {self.names[group[-1]]}" for group in groups], shares

    def _size(self) -> tuple[float, float]:
        return 10.0, float(np.clip(1.6 + 0.22 * len(self.names), 2.2, 10.0))

    def _draw(self, ax: Axes) -> None:
        unit, length = time_unit(float(self.edges_s[-1]))
        names, share = self._rows()
        edges = np.arange(len(names) + 1) - 0.5
        mesh = ax.pcolormesh(
            self.edges_s / length,
            edges,
            100 * share,
            cmap=_COLOURS,
            vmin=0.0,
            vmax=100.0,
            rasterized=True,
        )
        named = thin(len(names), 32)
        ax.set_yticks(named, [names[row] for row in named])
        ax.invert_yaxis()
        ax.grid(visible=False)
        ax.set_xlabel(f"time ({unit})")
        ax.set_ylabel("rank")
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.colorbar(mesh, ax=ax, label="kernels run (%)", pad=0.01)
