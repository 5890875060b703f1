"""Use of links while the step runs, one line of pixels a link.

Shapes: L links, B bins.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display
from mpsim.plot.timeline import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import Result

__all__ = ["LinksDisplay"]

_COLOURS = "viridis"


class LinksDisplay(Display):
    """Share of their bandwidth that links carry over time.

    Parameters
    ----------
    names : sequence of str
    edges_s : float64[B + 1]
        Edges of the time bins [s].
    share : float64[L, B]
        Of each link; 1 is full, more is more than it could carry (``network: analytic``).
    """

    def __init__(
        self, names: Sequence[str], edges_s: NDArray[np.float64], share: NDArray[np.float64]
    ) -> None:
        self.names, self.edges_s, self.share = tuple(names), edges_s, share
        if share.shape != (len(self.names), len(edges_s) - 1):
            raise ScenarioError(
                f"got shares of shape {share.shape}; needed {len(self.names)} links by {len(edges_s) - 1} bins"
            )

    @classmethod
    def from_result(cls, result: Result, *, most: int = 12) -> LinksDisplay:
        """The busiest links of a result, ports of ranks in their order and then links of the fabric."""
        used = result.links
        chosen = np.sort(used.busiest(most))
        return cls([used.names[item] for item in chosen], used.edges_s, used.share[chosen])

    def _size(self) -> tuple[float, float]:
        return 10.0, 1.4 + 0.26 * max(len(self.names), 2)

    def _draw(self, ax: Axes) -> None:
        unit, length = time_unit(float(self.edges_s[-1]))
        rows = np.arange(len(self.names) + 1) - 0.5
        top = max(100.0, 100 * float(self.share.max(initial=0.0)))
        mesh = ax.pcolormesh(
            self.edges_s / length, rows, 100 * self.share, cmap=_COLOURS, vmin=0.0, vmax=top
        )
        ax.set_yticks(range(len(self.names)), self.names)
        ax.invert_yaxis()
        ax.grid(visible=False)
        ax.set_xlabel(f"time ({unit})")
        figure = ax.get_figure(root=True)
        assert figure is not None
        figure.colorbar(mesh, ax=ax, label="in use (%)", pad=0.01)
