"""Use of links while the step runs, one line of pixels a link, tier by tier.

Shapes: L links, B bins.
"""

from __future__ import annotations

import itertools
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
_LEAST = 0.1  # percent: smaller loads look like this one
_NOTHING = "#FFFFFF"


class LinksDisplay(Display):
    """Share of their bandwidth that links carry over time, on a scale of powers of ten that shows small loads; white where nothing moves.

    Parameters
    ----------
    names : sequence of str
    edges_s : float64[B + 1]
        Edges of the time bins [s].
    share : float64[L, B]
        Of each link; 1 is full, more is more than it could carry (``network: analytic``).
    tiers : sequence of str, optional
        Tier of each link; links of one tier follow each other.
    """

    def __init__(
        self,
        names: Sequence[str],
        edges_s: NDArray[np.float64],
        share: NDArray[np.float64],
        tiers: Sequence[str] = (),
    ) -> None:
        self.names, self.edges_s, self.share = tuple(names), edges_s, share
        self.tiers = tuple(tiers) or ("",) * len(self.names)
        if share.shape != (len(self.names), len(edges_s) - 1) or len(self.tiers) != len(self.names):
            raise ScenarioError(
                f"got shares of shape {share.shape}; needed {len(self.names)} links by {len(edges_s) - 1} bins"
            )

    @classmethod
    def from_result(cls, result: Result, *, most: int = 12) -> LinksDisplay:
        """The busiest links of every tier of a result, as many of each that there are about `most`, in their order."""
        used = result.links
        tiers = used.tiers or ("",) * len(used.names)
        present = dict.fromkeys(tiers[link] for link in used.busiest(len(used.names)).tolist())
        each = max(1, -(-most // max(1, len(present))))
        busiest = used.busiest(len(used.names)).tolist()
        chosen = sorted(
            link
            for tier in present
            for link in [link for link in busiest if tiers[link] == tier][:each]
        )
        order = list(dict.fromkeys(tiers))
        chosen.sort(key=lambda link: (order.index(tiers[link]), link))
        names = [used.names[link] for link in chosen]
        return cls(names, used.edges_s, used.share[chosen], [tiers[link] for link in chosen])

    def _size(self) -> tuple[float, float]:
        return 10.0, 1.4 + 0.26 * max(len(self.names), 2)

    def _draw(self, ax: Axes) -> None:
        import matplotlib as mpl
        from matplotlib.colors import LogNorm
        from matplotlib.ticker import FuncFormatter

        unit, length = time_unit(float(self.edges_s[-1]))
        rows = np.arange(len(self.names) + 1) - 0.5
        top = max(100.0, 100 * float(self.share.max(initial=0.0)))
        percent = np.where(self.share > 0, np.maximum(100 * self.share, _LEAST), np.nan)
        colours = mpl.colormaps[_COLOURS].with_extremes(bad=_NOTHING)
        mesh = ax.pcolormesh(
            self.edges_s / length, rows, percent, cmap=colours, norm=LogNorm(_LEAST, top)
        )
        ax.set_yticks(range(len(self.names)), self.names)
        ax.set_ylim(len(self.names) - 0.5, -0.5)
        ax.grid(visible=False)
        ax.set_xlabel(f"time ({unit})")
        self._name_tiers(ax)
        figure = ax.get_figure(root=True)
        assert figure is not None
        bar = figure.colorbar(
            mesh, ax=ax, label="in use (%)", pad=0.01 + 0.05 * (self.tiers[:1] != ("",))
        )
        bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))

    def _name_tiers(self, ax: Axes) -> None:
        """Draw a line between tiers, and the name of each at the right."""
        first = 0
        for tier, rows in itertools.groupby(self.tiers):
            count = len(list(rows))
            if first:
                ax.axhline(first - 0.5, color="black", linewidth=0.8)
            middle = first + (count - 1) / 2
            transform = ax.get_yaxis_transform()
            ax.text(1.005, middle, tier, transform=transform, va="center", fontsize=8, rotation=90)
            first += count
