"""Layouts that a search simulated: names, values, figures, and lines of alike ones."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence

from mpsim import structs
from mpsim.parallel import AXIS_NAMES
from mpsim.result.residuals import LEVEL, Setting, residuals
from mpsim.scenario.sections import Parallelism
from mpsim.study.rows import figure_of, times_of
from mpsim.study.search.given import ranked_by
from mpsim.study.search.layouts import ALWAYS_SAID, AXES
from mpsim.study.ties import ratio_between, selection
from mpsim.training.intervals import residuals_of
from mpsim.units import Dimension, format_quantity

SHORT: Mapping[str, str] = {
    "layers_per_stage": "layers",
    "virtual_stages": "v",
    "micro_batch": "mb",
    "sequence_parallel": "sp",
    "name": "",
}
_USUAL: Mapping[str, object] = {
    **{axis: 1 for axis in AXIS_NAMES if axis not in ALWAYS_SAID},
    "sequence_parallel": False,
    "zero": 0,
    "virtual_stages": None,
    "layers_per_stage": None,
    "recompute": "none",
    "recompute_modules": None,
    "recompute_method": None,
    "recompute_layers": None,
    "order": Parallelism().order,
    "offload": "none",
    "placement": "packed",
    "expert_overlap": "none",
}
"""What goes without saying."""

_OWN = (
    *("step_time_s", "bound_s", "memory_bytes", "fits_probability", "ranked_by_s"),
    *("accelerators", "tokens_per_s_per_accelerator", "price_per_hour", "cost_per_step"),
)
_OF_SUMMARY = ("energy_j_per_token", "meter_energy_j_per_token", "mfu", "bubble_fraction")
"""Figures of a row of the table, of the layout and of its whole result."""


@structs.dataclass(frozen=True, slots=True, repr=False)
class Found:
    """One simulated layout."""

    values: Mapping[str, object]  # by dotted key, as `Scenario.with_values` takes them
    step_time_s: float  # simulated [s]
    bound_s: float  # what was known before: no step is shorter [s]
    memory_bytes: float  # of the fullest rank [B]
    accelerators: int
    tokens: int  # of a step
    price_per_hour: float | None  # of all accelerators [USD/h]; None without a price
    # the whole result in the shape of ``mpsim run --json``, for the best ones
    summary: Mapping[str, object] | None = None
    # model, machine and software, of which residuals of its figures depend
    setting: Setting | None = None
    # odds that its measured peak would fit; None where nothing is known of the setting
    fits_probability: float | None = None
    filled: float = 1.0  # share of its memory that the rank needs which needs most

    @property
    def ranked_by_s(self) -> float:
        """Seconds it is ranked by, dead launches counted: `mpsim.study.search.given.ranked_by`."""
        return ranked_by(self.step_time_s, self.fits_probability)

    @property
    def interval(self) -> Mapping[str, object] | None:
        """Ranges of step time, tokens/s and accelerator, memory; None for unknown settings."""
        if self.setting is None:
            return None
        step = residuals_of(self.setting).interval(self.step_time_s, self.setting)
        memory = residuals("memory").interval(self.memory_bytes, self.setting)
        return {
            "step_time_s": step.to_json(),
            "tokens_per_s_per_accelerator": step.inverse(self.tokens / self.accelerators).to_json(),
            "memory_bytes": memory.to_json(),
            "level": LEVEL,
        }

    def __repr__(self) -> str:
        step = format_quantity(self.step_time_s, Dimension.TIME)
        memory = format_quantity(self.memory_bytes, Dimension.BYTES)
        return f"<Found {self.name}: {step} a step, {memory}>"

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        own = (field.name for field in structs.fields(self) if field.name != "setting")
        names = (*own, "ranked_by_s", "tokens_per_s_per_accelerator", "interval")
        return structs.named(self, *names)

    @property
    def name(self) -> str:
        """The layout in a few words, what is usual left out."""
        return name_of_layout(self.values)

    @property
    def tokens_per_s_per_accelerator(self) -> float:
        """Tokens of a second on one accelerator."""
        return self.tokens / self.step_time_s / self.accelerators

    @property
    def complexity(self) -> int:
        """Axes in use, dp aside, and switches that are not as usual."""
        axes = sum(self.values.get(AXES[axis], 1) != 1 for axis in AXIS_NAMES if axis != "dp")
        return axes + sum(
            key.rpartition(".")[2] in _USUAL and value != _USUAL[key.rpartition(".")[2]]
            for key, value in self.values.items()
            if key.rpartition(".")[2] not in AXIS_NAMES
        )

    def objective(self, name: str) -> float:
        """Seconds, or dollars, a token, launches that die counted."""
        price = 1.0 if name == "time" else (self.price_per_hour or 0.0) / 3600
        return self.ranked_by_s * price / self.tokens

    @property
    def cost_per_step(self) -> float | None:
        """Price of a step [USD]; None without a price."""
        return (
            None if self.price_per_hour is None else self.price_per_hour * self.step_time_s / 3600
        )

    def flat(self) -> dict[str, object]:
        """Values and figures in one mapping, units in the names."""
        return {
            **self.values,
            **structs.named(self, *_OWN),
            **{name: figure_of(self.summary, name) for name in _OF_SUMMARY},
            **{f"{name}_s": seconds for name, seconds in times_of(self.summary).items()},
        }


@structs.dataclass(frozen=True, slots=True)
class Line:
    """A layout with its twins."""

    rank: int  # of the layout, from 1
    row: Found
    twins: tuple[Found, ...]  # layouts of the same degrees whose time cannot be told from its own

    @property
    def varies(self) -> dict[str, tuple[object, ...]]:
        """Values that the twins have, by the keys in which any of them differs."""
        varied: dict[str, dict[object, None]] = {}
        for twin in self.twins:
            for key in dict.fromkeys((*self.row.values, *twin.values)):
                value = twin.values.get(key)
                if value != self.row.values.get(key):
                    varied.setdefault(key, {})[value] = None
        return {key: tuple(values) for key, values in varied.items()}

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return {
            "rank": self.rank,
            "layout": dict(self.row.values),
            "twins": len(self.twins),
            "varies": {key: list(values) for key, values in self.varies.items()},
        }


def folded(rows: Sequence[Found]) -> tuple[Line, ...]:
    """Rows in their order; twins (same degrees, times that tie) folded into the first's line."""
    lines: list[list[tuple[int, Found]]] = []
    for rank, row in enumerate(rows, start=1):
        line = next((line for line in lines if _twin(line[0][1], row)), None)
        if line is None:
            lines.append([(rank, row)])
        else:
            line.append((rank, row))
    return tuple(Line(line[0][0], line[0][1], tuple(row for _, row in line[1:])) for line in lines)


def tie(best: Found, row: Found) -> bool:
    """Whether it cannot be said which makes more tokens a second and accelerator."""
    if best.setting is None or row.setting is None:
        return False
    value = row.tokens_per_s_per_accelerator / best.tokens_per_s_per_accelerator
    return ratio_between(best.setting, row.setting, value).tie


def expected(best: Found, tied: Sequence[Found], objective: str) -> float:
    """Step time to expect of the best chosen among ties [s]: `mpsim.study.ties.selection`."""
    rivals = [row for row in (best, *tied) if row.setting is not None]
    if len(rivals) < 2:
        return best.step_time_s
    logs = [math.log(row.objective(objective)) for row in rivals]
    settings = [row.setting for row in rivals if row.setting is not None]
    return best.step_time_s * math.exp(selection(settings, logs))


def _twin(row: Found, other: Found) -> bool:
    """Whether layouts tie that share their degrees and what else was searched of the machine."""
    keys = {key for key in row.values if key not in AXES.values()} | {
        AXES[axis] for axis in AXES if axis in AXIS_NAMES
    }
    return all(row.values[key] == other.values.get(key) for key in keys) and tie(row, other)


def name_of_layout(values: Mapping[str, object]) -> str:
    """Values in a few words, what is usual left out."""
    return ", ".join(f"{short} {value}".strip() for short, value in _words_of(values))


def runs(counts: Sequence[int]) -> str:
    """Counts in a row, equal neighbours as 14x8."""
    parts = [(value, len(list(same))) for value, same in itertools.groupby(counts)]
    return "-".join(f"{times}x{value}" if times > 1 else str(value) for value, times in parts)


def _words_of(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Short names and values; switches that are on have no value."""
    for key, value in values.items():
        last = key.rpartition(".")[2]
        if last not in _USUAL or value != _USUAL[last]:
            words = runs(value) if isinstance(value, list | tuple) else value
            if last == "stages" and isinstance(value, list | tuple):
                words = " + ".join(str(part.get("count", 1)) for part in value)
            yield SHORT.get(last, last), "" if value is True else words
