"""An answer: bars of a few variants, and under them the sentence that follows from the numbers.

Shapes: V variants.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from mpsim.errors import ScenarioError
from mpsim.plot.display import Display, legend_above, short_number
from mpsim.plot.palette import EVENTS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["AnswerDisplay"]

_COLOURS = tuple(EVENTS[name] for name in ("forward", "backward", "weight_gradient", "recompute"))
_LINE = 96  # characters of the sentence in one line
_MOST_LABELLED = 12  # bars that still have room for a number each


class AnswerDisplay(Display):
    """Variants side by side, and what they say.

    Parameters
    ----------
    labels : sequence of str
        Of variants [V].
    series : mapping of str to sequence of float
        Name to one value a variant; one series without a name has no legend.
    ylabel, xlabel : str
        With units.
    answer : str
        One sentence.
    """

    def __init__(
        self,
        labels: Sequence[str],
        series: Mapping[str, Sequence[float]],
        *,
        ylabel: str,
        answer: str,
        xlabel: str = "",
    ) -> None:
        self.labels, self.ylabel, self.xlabel, self.answer = tuple(labels), ylabel, xlabel, answer
        self.series = {name: np.asarray(values, dtype=float) for name, values in series.items()}
        for name, values in self.series.items():
            if len(values) != len(self.labels):
                raise ScenarioError(
                    f"{name}: got {len(values)} values; needed one for each of {len(self.labels)} variants"
                )

    def _size(self) -> tuple[float, float]:
        return 8.0, 4.2

    def _draw(self, ax: Axes) -> None:
        place, width = np.arange(len(self.labels)), 0.8 / len(self.series)
        handles = []
        for number, (name, values) in enumerate(self.series.items()):
            left = place + (number - (len(self.series) - 1) / 2) * width
            bars = ax.bar(left, values, 0.92 * width, color=_COLOURS[number], label=name)
            handles.append(bars)
            if len(self.labels) * len(self.series) <= _MOST_LABELLED:
                ax.bar_label(bars, [short_number(value) for value in values.tolist()], padding=2)
        if len(self.series) > 1:
            legend_above(ax, handles, columns=len(handles))
        ax.set_xticks(place, self.labels)
        ax.set_ylabel(self.ylabel)
        ax.set_ylim(0.0, 1.12 * max(float(line.max()) for line in self.series.values()))
        ax.grid(axis="y")
        sentence = "\n".join(textwrap.wrap(self.answer, _LINE))
        ax.set_xlabel("\n\n".join(filter(None, (self.xlabel, sentence))))
