"""Sensitivity of the step time to each parameter: a tornado."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["SensitivityDisplay"]

_COLOURS = {"hardware": EVENTS["forward"], "software": EVENTS["host"]}


class _Elasticity(Protocol):
    """The part of a `mpsim.study.Elasticity` that a picture reads."""

    @property
    def name(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def value(self) -> str: ...
    @property
    def elasticity(self) -> float: ...


class _Sensitivity(Protocol):
    """The part of a `mpsim.study.Sensitivity` that a picture reads."""

    @property
    def rows(self) -> Sequence[_Elasticity]: ...


class SensitivityDisplay(Display):
    """One bar a parameter, the strongest on top: to the left what shortens the step when there is more of it.

    Parameters
    ----------
    names, kinds : sequence of str
        Labels of the bars from top to bottom, and ``hardware`` or ``software`` for each.
    elasticity : sequence of float
        Per cent of step time for one per cent more.
    """

    def __init__(
        self, names: Sequence[str], kinds: Sequence[str], elasticity: Sequence[float]
    ) -> None:
        if not len(names) == len(kinds) == len(elasticity):
            raise ScenarioError(
                f"got {len(names)} names, {len(kinds)} kinds and {len(elasticity)} values; needed as many of each"
            )
        self.names, self.kinds = tuple(names), tuple(kinds)
        self.elasticity = np.asarray(elasticity, dtype=np.float64)

    @classmethod
    def from_sensitivity(cls, sensitivity: _Sensitivity) -> SensitivityDisplay:
        """Draw measured elasticities."""
        rows = sensitivity.rows
        labels = [f"{row.name}\n{row.value}" if row.value else row.name for row in rows]
        return cls(labels, [row.kind for row in rows], [row.elasticity for row in rows])

    def _size(self) -> tuple[float, float]:
        return 8.0, 1.4 + 0.42 * len(self.names)

    def _draw(self, ax: Axes) -> None:
        from matplotlib.patches import Patch

        place = np.arange(len(self.names))
        ax.barh(place, self.elasticity, height=0.7, color=[_COLOURS[kind] for kind in self.kinds])
        ax.axvline(0.0, color="black", linewidth=0.8)
        reach = 1.25 * float(np.abs(self.elasticity).max(initial=0.0)) or 1.0
        for bar, value in enumerate(self.elasticity.tolist()):
            ax.text(
                value,
                bar,
                f" {value:+.3f} ",
                ha="left" if value > 0 else "right",
                va="center_baseline",
                fontsize=8,
            )
        ax.set_yticks(place, self.names)
        ax.set_ylim(len(self.names) - 0.4, -0.6)
        ax.set_xlim(-reach, reach)
        ax.set_xlabel("% of step time for 1 % more")
        present = [kind for kind in _COLOURS if kind in self.kinds]
        handles = [Patch(facecolor=_COLOURS[kind], label=kind) for kind in present]
        legend_above(ax, handles, columns=2)
