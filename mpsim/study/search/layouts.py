"""Layouts of a step: values of each axis, and combinations that a scenario's checks accept.

The checks themselves say what is legal. Each depends on few axes, so it is asked once for every
combination of those, and a combination that fails takes everything that extends it with it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, TypeAlias

from mpsim import structs
from mpsim.errors import MpsimError, ScenarioError
from mpsim.framework import SelectiveRecompute, StageSplit
from mpsim.parallel import AXES as MESH_AXES
from mpsim.parallel import AXIS_NAMES, REPLICATING
from mpsim.scenario import Scenario, checks
from mpsim.scenario.balance import balanced_stages, stage_loads, work_of
from mpsim.schedule import schedule
from mpsim.shipped import read_shipped
from mpsim.study.search.given import defaults

Values: TypeAlias = Mapping[str, Any]
"""Value of each axis, of whatever type the key of a scenario has."""

# data parallelism follows from the others
_MESH = tuple(axis.name for axis in MESH_AXES if axis.multiplies and axis.name != "dp")
_DEGREES = (*_MESH, *(axis.name for axis in MESH_AXES if not axis.multiplies))

AXES: Final[Mapping[str, str]] = {
    **{axis: f"parallelism.{axis}" for axis in _DEGREES},
    **read_shipped("mpsim.study.data", "search.yaml")["keys"],
}
"""What a search varies: name of each axis, and its key in a scenario."""

_FRAME = (*_DEGREES, "order", "schedule", "virtual_stages", "layers_per_stage")
ALWAYS_SAID = ("tp", "pp", "dp")
"""Degrees that every description of a layout has, also where they are 1."""
_HABITS = ("sequence_parallel", "zero", "offload", "recompute", "modules")
_ASIDE = ("order", "offload", "modules")  # axes that are as the scenario has them unless asked for
_SELECTIVE = "selective"
_OF_RECOMPUTE = (
    *("recompute_modules", "recompute_method", "recompute_layers", "recompute_keeps"),
    *("offload_activations", "offload_layers"),
)
DEPENDS: Final[Mapping[str, tuple[str, ...]]] = {
    check: tuple(axes) for check, axes in read_shipped("mpsim.study.data", "depends.yaml").items()
}
"""Axes that each check looks at; one that is not listed is asked about every layout."""
_CHECKS: Final[Mapping[str, checks.Check]] = {check.__name__: check for check in checks.CHECKS}


def refuse_every_layout(scenario: Scenario) -> None:
    """Raise ScenarioError with the problems of a scenario that no layout of it mends."""
    rules = [rule for name, rule in _CHECKS.items() if DEPENDS.get(name) == ()]
    if problems := checks.check(scenario, rules):
        raise ScenarioError(problems)


@structs.dataclass(frozen=True, slots=True)
class Frame:
    """Degrees and schedule: layouts of one frame share their mesh and their stages."""

    tp: int
    cp: int
    pp: int
    ep: int
    schedule: str
    virtual_stages: int | None  # None where the schedule has a number of its own
    # None where layers are divided as the scenario says, or else evenly
    layers_per_stage: tuple[int, ...] | None
    dp: int
    # axes in the order they are laid on accelerators; None for that of the scenario
    order: str | None = None

    @property
    def degrees(self) -> dict[str, int]:
        """Degree of every axis."""
        return {axis: getattr(self, axis) for axis in AXIS_NAMES}


@structs.dataclass(frozen=True, slots=True)
class Layout:
    """One way to lay a model on a cluster."""

    frame: Frame
    micro_batch: int
    sequence_parallel: bool
    zero: int
    recompute: str
    # what selective recomputation runs again; None for the scenario's, or the usual
    modules: tuple[str, ...] | None = None
    offload: str | None = None  # what the host keeps; None for what the scenario says
    cleared: tuple[str, ...] = ()  # keys of the scenario that belong to another recomputation

    @property
    def again(self) -> tuple[str, tuple[str, ...] | None]:
        """Recomputation: its granularity and modules."""
        return self.recompute, self.modules

    @property
    def division(self) -> tuple[object, ...]:
        """Microbatch and habits that decide what its actions keep and take."""
        return self.micro_batch, self.sequence_parallel, self.again

    @property
    def sharing(self) -> tuple[int, str | None]:
        """Where model states are: ZeRO stage and what the host keeps."""
        return self.zero, self.offload

    def values(self) -> dict[str, object]:
        """Values by dotted key that `Scenario.with_values` takes."""
        frame = self.frame
        aside = {
            "parallelism.layers_per_stage": frame.layers_per_stage,
            "parallelism.order": frame.order,
            "parallelism.offload": self.offload,
            "training.recompute_modules": self.modules,
        }
        return {
            **{
                f"parallelism.{axis}": frame.degrees[axis]
                for axis in dict.fromkeys((*ALWAYS_SAID, *AXIS_NAMES))
            },
            "parallelism.sequence_parallel": self.sequence_parallel,
            "parallelism.zero": self.zero,
            "schedule.name": frame.schedule,
            "schedule.virtual_stages": frame.virtual_stages,
            "training.micro_batch": self.micro_batch,
            "training.recompute": self.recompute,
            **dict.fromkeys(self.cleared),
            **{key: value for key, value in aside.items() if value is not None},
        }


class Layouts:
    """Legal layouts of one scenario. `scenario`: its model, cluster, batch and framework; its own
    layout counts for nothing. `given`: values of axes, instead of the usual ones.
    """

    def __init__(self, scenario: Scenario, given: Mapping[str, Sequence[object]]) -> None:
        self._base = scenario
        self._given = given
        self._known: dict[tuple[object, ...], bool] = {}
        own = scenario.parallelism
        self._divided = own.layers_per_stage not in (None, "auto") or (
            own.embedding_counts_as_layer or own.loss_counts_as_layer
        )
        self.choices = {axis: self._choose(axis) for axis in AXES}
        self._rules = {name: DEPENDS.get(name, tuple(AXES)) for name in _CHECKS}
        # frames share what depends on few of their axes: a handful, of thousands
        self._batch_rules = self._within((*_FRAME, "micro_batch"), _FRAME)
        self._habit_rules = self._within((*_FRAME, *_HABITS), _FRAME)
        self._batch_axes = self._seen(self._batch_rules, *_MESH)
        self._habit_axes = self._seen(self._habit_rules)
        self._batches: dict[tuple[object, ...], list[int]] = {}
        self._habits: dict[tuple[object, ...], list[Values]] = {}
        self.undivided = 0
        """Layouts that fell away since layers do not divide, as far as frames were asked for."""
        self.unbatched = 0
        """Layouts that fell away since the batch does not divide among their replicas, as far as
        their frames were asked for layouts."""

    def frames(self) -> Iterator[Frame]:
        """Frames that break no rule, by axis in the order of `AXES`."""
        rules = [self._within(_FRAME[: i + 1], _FRAME[:i]) for i in range(len(_FRAME))]
        yield from self._grow({}, rules)

    def micro_batches(self, frame: Frame) -> list[int]:
        """Microbatches that a frame can run."""
        values = _values(frame)
        key = tuple(values[axis] for axis in self._batch_axes)
        if key not in self._batches:
            self._batches[key] = [
                int(size)
                for size in self._micro_batches(frame)
                if self._obeys({**values, "micro_batch": size}, self._batch_rules)
            ]
        return self._batches[key]

    def layouts(self, frame: Frame) -> list[Layout]:
        """Every legal layout of a frame, as far as the checks can say."""
        rest = [
            name
            for name, axes in self._rules.items()
            if not (set(axes) <= {*_FRAME, "micro_batch"} or set(axes) <= {*_FRAME, *_HABITS})
        ]
        sizes, habits = self.micro_batches(frame), self.habits(frame)
        self.unbatched += 0 if sizes else len(habits)
        return [
            Layout(frame, size, **habit, cleared=self._cleared(habit["recompute"]))
            for size in sizes
            for habit in habits
            if not rest or self._obeys({**_values(frame), "micro_batch": size, **habit}, rest)
        ]

    def habits(self, frame: Frame) -> list[Values]:
        """Sequence parallelism, ZeRO stage, offload and recomputation that a frame can have."""
        values = _values(frame)
        ranges = [self._habit(axis, frame) for axis in _HABITS]
        key = (*map(len, ranges), *(values[axis] for axis in self._habit_axes))
        if key not in self._habits:
            chosen = itertools.product(*ranges)
            every = (dict(zip(_HABITS, each, strict=True)) for each in chosen)
            self._habits[key] = [
                habit
                for habit in every
                if self._means_one_thing(habit)
                and self._obeys({**values, **habit}, self._habit_rules)
            ]
        return self._habits[key]

    def _means_one_thing(self, habit: Values) -> bool:
        """Whether modules stand beside selective recomputation, where the framework has per-op."""
        if habit["recompute"] != _SELECTIVE:
            return habit["modules"] is None
        own = self._base.training_step.recompute_modules
        return not self._is_per_op or (habit["modules"] or own) is not None

    @property
    def _is_per_op(self) -> bool:
        selective = self._base.software.kernels.recompute_selective
        return selective is SelectiveRecompute.PER_OP

    def _meant(self, words: Sequence[Any]) -> tuple[Any, ...]:
        """Recomputations to try: selective in the framework's meaning, and as it stands."""
        if not self._is_per_op or _SELECTIVE not in words:
            return tuple(words)
        per_op = SelectiveRecompute.PER_OP.value
        meant = [per_op if word == _SELECTIVE else word for word in words]
        named = [self._base.training_step.recompute_modules, *self._given.get("modules", ())]
        return tuple(dict.fromkeys((*meant, *([_SELECTIVE] if any(named) else ()))))

    def _cleared(self, recompute: str) -> tuple[str, ...]:
        """Keys that stand beside the scenario's own recomputation, and no other."""
        own = self._base.training_step
        if recompute == own.recompute:
            return ()
        return tuple(f"training.{name}" for name in _OF_RECOMPUTE if getattr(own, name) is not None)

    def scenario(self, values: Values) -> Scenario:
        """The scenario with axes replaced, not checked."""
        base, own = self._base, self._base.training_step
        changed: dict[str, dict[str, Any]] = {
            "parallelism": {"dp": None},
            "schedule": {"virtual_stages": None, "file": None},
            "training": {},
        }
        if values.get("recompute", own.recompute) != own.recompute:
            changed["training"] |= dict.fromkeys(_OF_RECOMPUTE)
        if not self._divided:
            changed["parallelism"]["layers_per_stage"] = None
        for axis, value in values.items():
            section, _, name = AXES[axis].partition(".")
            if value is not None and not (axis == "layers_per_stage" and self._divided):
                changed[section][name] = value
        update = {name: getattr(base, name).model_copy(update=new) for name, new in changed.items()}
        return base.model_copy(update=update)

    def _grow(self, values: Values, rules: Sequence[Sequence[str]]) -> Iterator[Frame]:
        depth = len(values)
        # the last axis of a frame is the split, which follows from all others
        if depth == len(_FRAME) - 1 and not self._given.get("layers_per_stage"):
            splits = self._splits(values)
            self.undivided += 0 if splits else self._habitable(values)
            for split in splits:
                yield from self._grow({**values, _FRAME[-1]: split}, rules)
            return
        if depth == len(_FRAME):
            yield Frame(**values, dp=self._replicas(values))
            return
        axis = _FRAME[depth]
        if axis == "order":
            yield from self._orders(values, rules)
            return
        for choice in self._frame_choices(axis, values):
            grown = {**values, axis: choice}
            if self._obeys(grown, rules[depth]):
                yield from self._grow(grown, rules)

    def _orders(self, values: Values, rules: Sequence[Sequence[str]]) -> Iterator[Frame]:
        """Orders of axes that lay ranks in different ways: axes of one rank stand anywhere."""
        degrees = {**values, "dp": self._replicas(values)}
        known: set[tuple[str, ...]] = set()
        for order in self.choices["order"]:
            axes = (order or self._base.parallelism.order).split("-")
            laid = tuple(axis for axis in axes if degrees[axis] > 1)
            if laid not in known:
                known.add(laid)
                yield from self._grow({**values, "order": order}, rules)

    def _splits(self, values: Values) -> list[tuple[int, ...] | None]:
        """Legal splits of layers worth a look: even, or as given, and balanced where better."""
        asked = {**values, _FRAME[-1]: None}
        rules = self._within(_FRAME, _FRAME[:-1])
        splits: list[tuple[int, ...] | None] = [None] if self._obeys(asked, rules) else []
        if self._divided:
            return splits
        balanced = balanced_stages(self.scenario(asked))
        if balanced is None or len(set(balanced)) == 1:
            return splits
        if splits:
            work = work_of(self._base.transformer, self._base.training_step.sequence_length)
            even = (len(work.layers) // len(balanced),) * len(balanced)
            slowest = max(stage_loads(work, even))
            gain = 1.0 - max(stage_loads(work, balanced)) / slowest
            if gain < defaults("axes")["split_gain_at_least"]:
                return splits
        if self._obeys({**values, _FRAME[-1]: balanced}, rules):
            splits.append(balanced)
        return splits

    def _habitable(self, values: Values) -> int:
        """Layouts that a frame would have if its layers divided."""
        frame = Frame(**values, layers_per_stage=None, dp=self._replicas(values))
        return len(self.micro_batches(frame)) * len(self.habits(frame))

    def _replicas(self, values: Values) -> int:
        ranks: int = math.prod(values[axis] for axis in _MESH)
        return self._base.world_size // ranks

    def _frame_choices(self, axis: str, values: Values) -> Sequence[Any]:
        """Choices that differ: without a pipeline all schedules are one, few have free chunks."""
        if axis == "schedule" and values["pp"] == 1:
            plain = [name for name in self.choices[axis] if not schedule(name).interleaves]
            return (plain or self.choices[axis])[:1]
        if axis == "virtual_stages":
            return self.choices[axis] if schedule(values["schedule"]).interleaves else (None,)
        return self.choices[axis]

    def _habit(self, axis: str, frame: Frame) -> Sequence[Any]:
        """Choices that differ: with one rank there is nothing to share."""
        choices = self.choices[axis]
        alone = {
            "sequence_parallel": frame.tp == 1,
            "zero": math.prod(frame.degrees[axis] for axis in REPLICATING) == 1,
        }
        return choices[:1] if alone.get(axis) else choices

    def _micro_batches(self, frame: Frame) -> Sequence[Any]:
        if "micro_batch" in self._given:
            return self.choices["micro_batch"]
        each = self._base.training_step.global_batch // frame.dp
        most = defaults("axes")["micro_batch_at_most"]
        return [size for size in range(1, most + 1) if each and each % size == 0]

    def _within(self, axes: Sequence[str], before: Sequence[str]) -> list[str]:
        """Rules that look at `axes` only, and not only at those `before`."""
        return [
            name
            for name, seen in self._rules.items()
            if set(seen) <= set(axes) and (not before or not set(seen) <= set(before))
        ]

    def _seen(self, rules: Sequence[str], *more: str) -> tuple[str, ...]:
        """Axes of a frame that any of these rules looks at, and further ones."""
        axes = {axis for rule in rules for axis in self._rules[rule]} | set(more)
        return tuple(axis for axis in _FRAME if axis in axes)

    def _obeys(self, values: Values, rules: Sequence[str]) -> bool:
        scenario: Scenario | None = None
        for rule in rules:
            # thousands of layouts share what a check looks at, and all checks of one its scenario
            key = (rule, *(values[axis] for axis in self._rules[rule]))
            if key not in self._known:
                scenario = scenario or self.scenario(values)
                try:
                    self._known[key] = not _CHECKS[rule](scenario)
                except MpsimError:
                    self._known[key] = False
            if not self._known[key]:
                return False
        return True

    def _choose(self, axis: str) -> tuple[Any, ...]:
        if axis in self._given:
            values = tuple(
                tuple(value) if isinstance(value, list) else value for value in self._given[axis]
            )
            return self._meant(values) if axis == "recompute" else values
        if axis in _ASIDE:
            return (None,)
        base, usual = self._base, defaults("axes")
        world, model = base.world_size, base.transformer
        if axis == "tp":
            return _divisors(model.heads, at_most=base.hardware.node.domain)
        if axis == "pp":
            return _divisors(world, at_most=model.layers)
        if axis == "cp":
            length = base.training_step.sequence_length
            return _divisors(world, at_most=max(1, length // usual["context_tokens_at_least"]))
        if axis == "ep":
            return _divisors(model.moe.experts, at_most=world) if model.moe else (1,)
        if axis == "virtual_stages":
            even = _divisors(model.layers, at_most=usual["virtual_stages_at_most"])[1:]
            uneven = base.software.pipeline.stage_split is not StageSplit.EVEN
            return tuple(sorted({*even, *(usual["virtual_stages_uneven"] if uneven else ())}))
        if axis in ("micro_batch", "layers_per_stage"):
            return ()
        if axis == "recompute":
            return self._meant(usual[axis])
        own = {"schedule": (base.schedule.name,)} if base.schedule.name else {}
        plural = {"schedule": "schedules"}.get(axis, axis)
        return tuple(dict.fromkeys((*usual[plural], *own.get(axis, ()))))


def _values(frame: Frame) -> Values:
    return {axis: getattr(frame, axis) for axis in _FRAME}


def _divisors(number: int, *, at_most: int) -> tuple[int, ...]:
    return tuple(n for n in range(1, min(number, at_most) + 1) if number % n == 0)
