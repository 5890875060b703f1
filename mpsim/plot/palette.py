"""One fixed colour per kind of event, in every picture, for every eye.

Any two colours of `EVENTS` stay apart for people who see no red or no green; the tests compute it.
Communication is hatched as well wherever it is stacked next to computation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import numpy as np

from mpsim.arrays import Floats
from mpsim.parallel import ACCOUNTED, AXIS_NAMES
from mpsim.shipped import read_shipped
from mpsim.training.vocabulary import PARTS

_COLOURS = read_shipped("mpsim.plot.data", "colours.yaml")
EVENTS: Final[Mapping[str, str]] = {
    **_COLOURS["actions"],
    **{axis.name: axis.colour for axis in ACCOUNTED},
    **_COLOURS["others"],
}
"""Kind of event to colour."""

SERIES = (
    *(EVENTS[kind] for kind in ("forward", "backward", "weight_gradient", "recompute")),
    *("#854E82", EVENTS["optimizer"], "#88CCEE", EVENTS["host"]),
)
"""Colours of lines that are no kinds of event, such as the values of a sweep."""

MARKERS = "osD^vPX*"  # marks of points

LABELS: Final[Mapping[str, str]] = {
    "input_gradient": "input gradient",
    "weight_gradient": "weight gradient",
    "recompute": "recomputation",
    **{axis.name: axis.label for axis in ACCOUNTED},
    "host": "host launch",
}
"""What legends say, where it is not the kind's own name."""

COMMUNICATION = frozenset(AXIS_NAMES)  # kinds that are hatched in stacked bars

RESOURCES: Final[Mapping[str, str]] = {
    "compute": EVENTS["forward"],
    "scale_up": EVENTS["tp"],
    "scale_out": EVENTS["pp"],
}
"""Resource to colour, where lines show how busy each is."""

SERVING: Final[Mapping[str, str]] = _COLOURS["serving"]
"""Part of a service's time to the kind of event it is drawn as; others have their own."""

MEMORY: Final[Mapping[str, str]] = _COLOURS["memory"]
"""Component of memory to colour, none of a kind of event: a page shows both."""

LIMIT = "#B00000"
"""Colour of what a value may reach at most, and of no part of it."""

BUBBLE: Final[Mapping[str, str]] = {**_COLOURS["bubble"], "message": EVENTS["pp"]}
"""Cause of the bubble to colour."""

DARK_PAGE: Final[Mapping[str, str]] = _COLOURS["dark"]
"""Colours of words on a dark page, where they have one of their own."""

TABLES: Final[Mapping[str, Mapping[str, str]]] = {
    "": EVENTS,
    "memory": MEMORY,
    "resource": RESOURCES,
    "cause": BUBBLE,
}
"""Tables of colours by the word before the dot."""

LUMINANCE = np.array([0.299, 0.587, 0.114])
"""Weights of red, green and blue in how bright a colour looks (ITU-R BT.601)."""

DARK = 0.45  # luminance under which white text reads better than black

_LIGHTEST = 0.6  # how far the last chunk's shade is on the way to white


def colour_of(word: str, number: int = 0) -> str:
    """The colour ``#RRGGBB`` that a word means: a kind of event, ``memory.``, ``resource.`` or
    ``cause.`` and a name, a colour itself, or nothing for the next.

    `number`: place among the series of a chart, which counts where there is no word.
    """
    if word.startswith("#"):
        return word
    table, _, name = word.rpartition(".")
    return TABLES[table].get(name, EVENTS["other"]) if word else SERIES[number % len(SERIES)]


def event_of_part(part: str) -> str:
    """Kind of event that a part of the time of a step or of a service is drawn as.

    Examples
    --------
    >>> event_of_part("exposed_tp"), event_of_part("decode")
    ('tp', 'forward')
    """
    event = part.removeprefix("exposed_")
    return event if event in EVENTS else SERVING.get(event, "other")


def rgb(colour: str) -> Floats:
    """Red, green and blue of ``#RRGGBB`` in [0, 1]."""
    return np.frombuffer(bytes.fromhex(colour.removeprefix("#")), dtype=np.uint8) / 255


def shades(colour: str, count: int) -> Floats:
    """Shades of a colour for `count` chunks, the first as it is, float64[count, 3]."""
    white = np.linspace(0.0, _LIGHTEST, count)[:, None] if count > 1 else np.zeros((1, 1))
    result: Floats = rgb(colour) * (1 - white) + white
    return result


assert set(map(event_of_part, PARTS)) <= set(EVENTS)
