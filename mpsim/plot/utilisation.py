"""Utilisation of compute and links while the step runs.

Shapes: T time bins.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS, RESOURCES
from mpsim.plot.timeline import time_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from mpsim.result import Result

__all__ = ["UtilisationDisplay"]

_LABELS = {"compute": "compute", "scale_up": "scale-up links", "scale_out": "scale-out links"}
_STYLES: Mapping[str, Any] = {"compute": "-", "scale_up": "--", "scale_out": ":"}


class UtilisationDisplay(Display):
    """Share of each resource in use over time, mean over ranks.

    Parameters
    ----------
    edges_s : float64[T + 1]
        Edges of the time bins [s].
    shares : mapping of str to float64[T]
        Resource (``compute``, ``scale_up``, ``scale_out``) to its share in use, in [0, 1].
    """

    def __init__(
        self, edges_s: NDArray[np.float64], shares: Mapping[str, NDArray[np.float64]]
    ) -> None:
        self.edges_s = np.asarray(edges_s, dtype=np.float64)
        self.shares = {
            name: np.asarray(values, dtype=np.float64) for name, values in shares.items()
        }
        for name, share in self.shares.items():
            if len(share) != len(self.edges_s) - 1:
                raise ScenarioError(
                    f"{name}: got {len(share)} shares; needed one less than the {len(self.edges_s)} edges"
                )

    @classmethod
    def from_result(cls, result: Result) -> UtilisationDisplay:
        """Utilisation of a result."""
        series = result.utilisation.series
        return cls(series.edges_s, series.shares)

    @property
    def means(self) -> dict[str, float]:
        """Mean of each share over the step, in [0, 1]."""
        width = np.diff(self.edges_s)
        return {
            name: float(np.average(values, weights=width)) for name, values in self.shares.items()
        }

    def _size(self) -> tuple[float, float]:
        return 10.0, 3.2

    def _draw(self, ax: Axes) -> None:
        from matplotlib.lines import Line2D

        unit, length = time_unit(float(self.edges_s[-1]))
        handles = []
        for name, share in self.shares.items():
            colour = RESOURCES.get(name, EVENTS["other"])
            style = _STYLES.get(name, "-.")
            ax.stairs(
                100 * share,
                self.edges_s / length,
                baseline=None,
                color=colour,
                linestyle=style,
                linewidth=1.5,
            )
            label = f"{_LABELS.get(name, name)} (mean {100 * self.means[name]:.1f} %)"
            handles.append(Line2D([], [], color=colour, linestyle=style, label=label))
        legend_above(ax, handles, columns=len(handles))
        ax.set_xlabel(f"time ({unit})")
        ax.set_ylabel("in use, mean over ranks (%)")
        ax.set_xlim(self.edges_s[0] / length, self.edges_s[-1] / length)
        most = max((float(share.max(initial=0.0)) for share in self.shares.values()), default=0.0)
        ax.set_ylim(0.0, 100 * max(1.02, 1.02 * most))
        ax.grid()
