"""A recorded step beside the simulated one, by action where both have them, else by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from mpsim import structs
from mpsim.engine import Timeline
from mpsim.formats.recorded_step import RecordedStep, timed_actions
from mpsim.result import Result
from mpsim.study.comparison import Difference, differences, most_of
from mpsim.study.rows import part_text, share_text
from mpsim.table import Section, Sheet, Shown
from mpsim.units import percent


@structs.dataclass(frozen=True, slots=True)
class ActionPair:
    """One action of a pipeline, simulated and recorded."""

    rank: int  # rank class of the simulated step
    action: str  # such as ``2B0``
    simulated_start_s: float
    simulated_s: float
    # recorded_start_s, recorded_s: start since the step began, and duration [s]
    recorded_start_s: float
    recorded_s: float


class KindPair(NamedTuple):
    """Actions of one kind in one stage: how many, and their mean duration [s]."""

    name: str
    actions: int
    simulated_s: float
    recorded_s: float


@structs.dataclass(frozen=True, slots=True, eq=False, repr=False)
class RecordedComparison(Shown):
    """A recorded step against a simulated one."""

    scenario: str
    recording: str  # what recorded it
    step: Difference  # step times, simulated first [s]
    parts: tuple[Difference, ...]  # mean time over ranks by part, the largest difference first [s]
    # actions that both have, by rank and simulated start; empty where either has none
    actions: tuple[ActionPair, ...]
    # whether each recorded rank took its actions in the simulated order, by its name
    same_order: tuple[tuple[str, bool], ...]
    simulated: Timeline
    recorded: Timeline
    offsets_s: tuple[float, ...]  # what was taken from the clocks of the ranks [s]

    @property
    def explanation(self) -> str:
        """One sentence: how the step times differ and which part makes up most of it."""
        change, simulated = self.step.difference or 0.0, self.step.a or 0.0
        if not change or not simulated:
            return f"the recorded step takes as long as the simulated one, {part_text(simulated)}"
        longer = "longer" if change > 0 else "shorter"
        text = (
            f"the recorded step is {part_text(abs(change))} ({percent(abs(change) / simulated)})"
            f" {longer} than the simulated one"
        )
        return f"{text}{most_of(self.parts, change)}"

    def sheet(self) -> Sheet:
        """Both steps side by side, actions by kind, and differences, as ``compare`` prints."""
        rows = tuple(
            (figure.name.replace("_", " "), *figure.cells) for figure in (self.step, *self.parts)
        )
        header = ("", f"simulated: {self.scenario}", "recorded", "difference", "of simulated")
        sections = [Section(rows, header, (1, 2, 3, 4))]
        if self.actions:
            kinds = tuple(
                (name, str(n), part_text(ours), part_text(theirs), share_text(theirs / ours - 1))
                for name, n, ours, theirs in self.by_kind()
                if ours
            )
            header = ("action", "count", "simulated", "recorded", "of simulated")
            sections.append(Section(kinds, header, (1, 2, 3, 4)))
        orders = (
            f"{name}: actions in {'the same' if same else 'another'} order"
            for name, same in self.same_order
        )
        return Sheet("", (*sections, Section(lines=(*orders, self.explanation))))

    def by_kind(self) -> list[KindPair]:
        """Mean durations of the actions by stage and kind."""
        found: dict[tuple[int, str], list[ActionPair]] = {}
        for pair in self.actions:
            letter = next(letter for letter in pair.action if letter in "FBIW")
            stage = int(pair.action.partition(letter)[0])
            found.setdefault((stage, letter), []).append(pair)
        return [
            KindPair(
                f"stage {stage} {letter}",
                len(pairs),
                float(np.mean([pair.simulated_s for pair in pairs])),
                float(np.mean([pair.recorded_s for pair in pairs])),
            )
            for (stage, letter), pairs in sorted(found.items())
        ]

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            **structs.named(self, "scenario", "recording", "explanation"),
            "step_time_s": self.step.to_json(),
            "breakdown_s": {part.name: part.to_json() for part in self.parts},
            "actions": [structs.asdict(pair) for pair in self.actions],
            "same_order": dict(self.same_order),
            "clock_offsets_s": list(self.offsets_s),
        }


def compare_recorded(result: Result, recorded: RecordedStep) -> RecordedComparison:
    """Set a recorded step beside a simulated one. `result`: of the scenario that was recorded.

    Notes
    -----
    A recorded rank is beside the rank class whose stages it ran; without actions nothing tells
    ranks apart and means over ranks are compared.
    """
    simulated = dict(result.breakdown)
    if "backward" in recorded.parts:  # a recorded backward is whole where nothing tells its parts
        for inside in ("weight_gradient", "recompute"):
            if inside not in recorded.parts:
                simulated["backward"] += simulated.pop(inside, 0.0)
    pairs, orders = _paired(result.timeline, recorded.timeline)
    return RecordedComparison(
        scenario=str(result.summary["scenario"]),
        recording=recorded.timeline.engine,
        step=Difference("step_time_s", result.timeline.step_time_s, recorded.step_time_s),
        parts=tuple(part for part in differences(simulated, recorded.parts) if part.a or part.b),
        actions=tuple(pairs),
        same_order=tuple(orders),
        simulated=result.timeline,
        recorded=recorded.timeline,
        offsets_s=recorded.offsets_s,
    )


def _paired(
    simulated: Timeline, recorded: Timeline
) -> tuple[list[ActionPair], list[tuple[str, bool]]]:
    """Actions that both have, and whether each recorded rank took them in order."""
    ours = [timed_actions(simulated, rank) for rank in range(simulated.program.ranks)]
    pairs: list[ActionPair] = []
    orders: list[tuple[str, bool]] = []
    for rank in range(recorded.program.ranks):
        theirs = timed_actions(recorded, rank)
        place = _class_of(theirs, ours)
        if place is None:
            continue
        mine = ours[place]
        shared = [token for token in mine if token in theirs]
        for token in shared:
            (start, end), (began, ended) = mine[token], theirs[token]
            pairs.append(ActionPair(place, token, start, end - start, began, ended - began))
        taken = [token for token in theirs if token in mine]
        orders.append((recorded.program.rank_name[rank], taken == shared == list(mine)))
    return pairs, orders


def _class_of(actions: Mapping[str, object], known: Sequence[Mapping[str, object]]) -> int | None:
    """Rank class that took the most of a rank's actions."""
    shared = [len(actions.keys() & mine.keys()) for mine in known]
    most = max(shared, default=0)
    return shared.index(most) if most else None
