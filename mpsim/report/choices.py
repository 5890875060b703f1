"""What-if: answers that were worked out beforehand, each a result of its own, and the sliders that choose among them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from mpsim.errors import ScenarioError, UnitError
from mpsim.report.blocks import Figure, Section
from mpsim.report.service import HEADLINE as OF_SERVICE
from mpsim.report.step import HEADLINE as OF_STEP
from mpsim.units import Dimension, parse_quantity

__all__ = ["Answer", "Choices", "Slider", "what_if", "written"]

MOST = 2000
"""Answers on one page."""

_KEPT = (
    *("scenario", "job", "engine", "accelerators", "breakdown_s", "account_s", "interval"),
    *("step_time_s", "tokens_per_s", "tokens_per_s_per_accelerator", "mfu", "hfu"),
    *("bubble_fraction", "peak_memory_bytes", "fits_memory", "energy_j_per_step", "cost_per_step"),
    *("duration_s", "ttft_s", "tpot_s", "output_tokens_per_s", "goodput_per_s"),
    *("output_tokens_per_s_per_accelerator", "requests_within_slo", "energy_j_per_output_token"),
    "cost_per_million_output_tokens",
)
"""Keys of a summary that an answer keeps; their values stay as they are."""


@dataclasses.dataclass(frozen=True, slots=True)
class Slider:
    """One setting that can be chosen.

    Parameters
    ----------
    values : sequence
        As text, in the order of the slider; the one at `start` is shown first.
    group : str
        Settings of one group stand together.
    label : str
        Word for it on the page; empty for the key.
    """

    key: str
    values: Sequence[str]
    start: int = 0
    group: str = ""
    label: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """The result of one combination.

    Parameters
    ----------
    places : sequence of int
        Place of the value of each slider.
    summary : mapping or None
        Figures as ``mpsim run --json`` prints them, to the last digit.
    reason : str
        Why there is no summary, or what is wrong with it; empty where nothing is.
    """

    places: Sequence[int]
    summary: Mapping[str, Any] | None
    reason: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Choices:
    """Sliders over answers that are known.

    Parameters
    ----------
    figures : sequence of Figure
        Shown of an answer.
    account : str
        Key of the parts that its time is cut into.
    """

    block: ClassVar[str] = "choices"
    title: str
    alt: str
    sliders: Sequence[Slider]
    answers: Sequence[Answer]
    figures: Sequence[Figure]
    account: str


def what_if(
    rows: Iterable[tuple[Mapping[str, object], Mapping[str, Any] | None, str]],
    *,
    start: Mapping[str, object] | None = None,
    lead: str,
) -> Section:
    """The section of sliders over rows of a sweep or a search.

    Parameters
    ----------
    rows : iterable of (values, summary, reason)
        Values by dotted key; rows without a summary say why.
    start : mapping, optional
        Values that are shown first; left out: those of the first row with a summary.
    lead : str
        Where the answers come from.

    Raises
    ------
    ScenarioError
        If there are more than a page can hold.
    """
    table = list(rows)
    if len(table) > MOST:
        raise ScenarioError(
            f"got {len(table):,} combinations for the sliders of a page; needed at most {MOST:,}: give fewer values"
        )
    choices: dict[str, list[object]] = {}
    for values, _, _ in table:
        for key, value in values.items():
            known = choices.setdefault(key, [])
            if not any(value is other or value == other for other in known):
                known.append(value)
    offered = {
        key: sorted(values, key=_order) for key, values in choices.items() if len(values) > 1
    }
    done = [(values, summary) for values, summary, _ in table if summary is not None]
    shown = {**(done[0][0] if done else {}), **(start or {})}
    serves = any(summary.get("job") == "serving" for _, summary in done)
    block = Choices(
        title="Choose and see",
        alt=f"{len(table)} combinations of {', '.join(offered) or 'one setting'}, each simulated by itself.",
        sliders=[
            Slider(key, [*map(written, values)], _place(values, shown.get(key)))
            for key, values in offered.items()
        ],
        answers=[
            Answer(
                [_place(offered[key], values.get(key)) for key in offered],
                None if summary is None else _kept(summary),
                reason,
            )
            for values, summary, reason in table
        ],
        figures=OF_SERVICE if serves else OF_STEP,
        account="account_s" if serves else "breakdown_s",
    )
    return Section("what-if", "What if", lead, [block])


def _kept(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Figures of a summary that an answer shows."""
    kept = {key: summary[key] for key in _KEPT if key in summary}
    ranges = kept.get("interval")
    if isinstance(ranges, Mapping):
        kept["interval"] = {key: value for key, value in ranges.items() if isinstance(value, list)}
    return kept


def _order(value: object) -> tuple[int, float, str]:
    """Numbers by size, then words in their order."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return (1 if value is not None else -1, 0.0, str(value))
    return (0, float(value), "")


def _place(values: Sequence[object], value: object) -> int:
    """Place of a value; of a quantity that is written with another unit, too."""
    exact = next((i for i, other in enumerate(values) if other == value), None)
    if exact is not None:
        return exact
    size = _quantity(value)
    return next(
        (i for i, other in enumerate(values) if size is not None and _quantity(other) == size), 0
    )


def _quantity(value: object) -> tuple[Dimension, float] | None:
    """Dimension and size of a quantity with a unit; None for what is none."""
    for dimension in Dimension if isinstance(value, str) else ():
        try:
            return dimension, parse_quantity(value, dimension)
        except UnitError:
            continue
    return None


def written(value: object) -> str:
    """A value of a setting as a slider shows it."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)
