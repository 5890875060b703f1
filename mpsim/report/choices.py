"""What-if: answers worked out beforehand, each a result, and sliders to choose by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from mpsim import structs
from mpsim.errors import ScenarioError, UnitError
from mpsim.report.blocks import Figure, Section, setting_text
from mpsim.report.service import HEADLINE as OF_SERVICE
from mpsim.report.step import HEADLINE as OF_STEP
from mpsim.result.words import Figures
from mpsim.shipped import say
from mpsim.units import Dimension, parse_quantity

MOST = 2000  # answers on one page


@structs.dataclass(frozen=True, slots=True)
class Slider:
    """One setting that can be chosen."""

    key: str
    values: Sequence[str]  # as text, in the order of the slider; the one at `start` is shown first
    start: int = 0
    group: str = ""  # settings of one group stand together
    label: str = ""  # word for it on the page; empty for the key


@structs.dataclass(frozen=True, slots=True)
class Answer:
    """The result of one combination."""

    places: Sequence[int]  # place of the value of each slider
    summary: Figures | None  # figures as ``mpsim run --json`` prints them, to the last digit
    reason: str = ""  # why there is no summary, or what is wrong with it; empty where nothing is


@structs.dataclass(frozen=True, slots=True)
class Choices:
    """Sliders over answers that are known."""

    block: ClassVar[str] = "choices"
    title: str
    alt: str
    sliders: Sequence[Slider]
    answers: Sequence[Answer]
    figures: Sequence[Figure]  # shown of an answer
    account: str  # key of the parts that its time is cut into


def what_if(
    rows: Iterable[tuple[Mapping[str, object], Figures | None, str]],
    *,
    start: Mapping[str, object] | None = None,
    lead: str,
) -> Section:
    """The section of sliders over rows of a sweep or a search.

    `rows`: values by dotted key; rows without a summary say why. `start`: values that are shown
    first; left out: those of the first row with a summary. `lead`: where the answers come from.
    ScenarioError if there are more than a page can hold.
    """
    table = list(rows)
    if len(table) > MOST:
        raise ScenarioError(say("report.many_combinations", count=len(table), most=MOST))
    known: dict[str, dict[str, object]] = {}
    for values, _, _ in table:
        for key, value in values.items():
            known.setdefault(key, {})[setting_text(value)] = value
    offered = {key: _in_order(values) for key, values in known.items() if len(values) > 1}
    done = [(values, summary) for values, summary, _ in table if summary is not None]
    shown = {**(done[0][0] if done else {}), **(start or {})}
    serves = any(summary.get("job") == "serving" for _, summary in done)
    figures, account = (OF_SERVICE, "account_s") if serves else (OF_STEP, "breakdown_s")
    kept = {key.partition(".")[0] for each in figures for key in (each.key, each.range_key)}
    block = Choices(
        title="Choose and see",
        alt=say("report.choices", count=len(table), keys=", ".join(offered) or "one setting"),
        sliders=[
            Slider(key, texts, _place(texts, shown.get(key))) for key, texts in offered.items()
        ],
        answers=[
            Answer(
                [_place(offered[key], values.get(key)) for key in offered],
                None
                if summary is None
                else {key: summary[key] for key in summary if key in kept | {account}},
                reason,
            )
            for values, summary, reason in table
        ],
        figures=figures,
        account=account,
    )
    return Section("what-if", "What if", lead, [block])


def _in_order(values: Mapping[str, object]) -> list[str]:
    """Texts of values: nothing first, numbers by size, then words in their order."""

    def order(text: str) -> tuple[int, float, str]:
        value = values[text]
        if isinstance(value, bool) or not isinstance(value, int | float):
            return (1 if value is not None else -1, 0.0, text)
        return (0, float(value), "")

    return sorted(values, key=order)


def _place(texts: Sequence[str], value: object) -> int:
    """Place of a value; of a quantity that is written with another unit, too."""
    text = setting_text(value)
    size = _quantity(text)
    same = (i for i, other in enumerate(texts) if size is not None and _quantity(other) == size)
    return texts.index(text) if text in texts else next(same, 0)


def _quantity(text: str) -> tuple[Dimension, float] | None:
    """Dimension and size of a quantity with a unit; None for what is none."""
    for dimension in Dimension:
        try:
            return dimension, parse_quantity(text, dimension)
        except UnitError:
            continue
    return None
