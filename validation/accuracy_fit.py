"""Refits: what predictions of published runs would be with other constants, with a family left out of the fit, and without each rule and each constant.

Shapes: N rows, K constants.

A checkerboard divides all published runs by model, accelerator and format: rules and constants are shaped on black rows and scored on white ones. To see what each is worth on either
half, run from the repository's root

    python validation/accuracy_fit.py [--swap] [rules | constants]

which lists what can go: a rule or constant without which the white half is predicted as well (`WORTH`).

Every constant is changed by a step and all rows are predicted again, which gives sensitivities J of log times. A fit is then linear least squares on log
errors with the literature as a prior, rows of a family sharing one weight; large errors count less (Huber).
"""

from __future__ import annotations

import contextlib
import dataclasses
import fnmatch
import functools
import hashlib
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import NDArray

from bench import files, runs, tables, training
from mpsim.cost import collectives, kernels
from mpsim.cost.constants import Constant, ConstantGroup, constant_groups
from mpsim.errors import MpsimError
from mpsim.formats.tables import Cells, read_rows
from mpsim.formats.words import gpu
from mpsim.framework import framework, framework_aliases
from mpsim.hardware import link
from mpsim.training import blocks
from mpsim.units import Dimension, parse_quantity
from mpsim.validate import Record

FILES = ("kernels", "collectives", "interference", "straggling", "nccl", "libraries")
NAMED = (
    *("llm-foundry", "internevo", "bloom-tuning", "megatron-sc21", "korthikanti22-layer"),
    *("torchtitan", "nemo-launcher", "megatron-bridge"),
)
STEP = 0.05  # relative change of a constant for its sensitivities
NOISE = 0.05  # of a row, in log; errors beyond it count less
ROUNDS = 5
COLOURS = ("black", "white")
BOARD = ("model", "accelerator", "precision")  # columns whose cells are the squares
WORTH = 0.0002  # growth of a half's mean error below which a rule or constant did nothing for it
ANSWERS: Any = (kernels._answers, collectives._answers, blocks._known)
"""What models of equal content remember."""
HERE = Path(__file__).resolve().parent
Floats = NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Origin:
    """The columns of a record, and accelerator and framework it was predicted with."""

    cells: Cells
    where: tuple[str, str]


@functools.cache
def _origins() -> dict[str, Origin]:
    found: dict[str, Origin] = {}
    for name in ("published-runs.csv", "single-node-runs.csv"):
        for values in read_rows(HERE / "data" / name):
            single = "record_id" in values
            cells = Cells(values)
            cells = training.as_published(cells) if single else cells
            with contextlib.suppress(Exception):
                preset = str(tables.rule_of(cells)["framework"]["preset"])
                chip = gpu(cells.text("accelerator")).name
                name_of = framework_aliases().get(preset, preset)
                found[values.get("id") or values["record_id"]] = Origin(cells, (chip, name_of))
    return found


def cells_of(record: Record) -> Origin:
    """Where a record comes from."""
    return _origins()[record.id]


def colour(cells: Cells, *, swap: bool = False) -> str:
    """The half that a row is in, by a hash of its square that no other row changes."""
    square = "|".join(cells.text(column) for column in BOARD)
    odd = int(hashlib.sha256(square.encode()).hexdigest(), 16) % 2
    return COLOURS[odd ^ swap]


def is_named(record: Record) -> bool:
    """Whether a row is one of the eight families', and of the part of it that is scored."""
    if record.family not in NAMED or record.kind != "training":
        return False
    cells = cells_of(record).cells
    if record.family == "megatron-sc21":
        return "DeepSpeed" not in cells.text("framework")
    if record.family == "torchtitan":
        return cells.whole("pp") == 1
    return record.family != "megatron-bridge" or not cells.whole("moe_experts")


@dataclasses.dataclass(frozen=True, slots=True)
class Fitted:
    """A constant that was fitted; see validation/constants.yaml."""

    name: str
    at: str
    prior: float
    sigma: float
    families: tuple[str, ...]
    meaning: str

    @property
    def value(self) -> float:
        """As the product has it."""
        kind, group, leaf = self.at.split("/")
        if kind == "framework":
            return float(framework(group.split(",")[0], {}).fields()[leaf])
        if kind == "link":
            return float(getattr(link(group), leaf))
        return constant_groups(kind)[group].value(leaf)


def constants() -> list[Fitted]:
    """All of validation/constants.yaml."""
    entries = yaml.safe_load((HERE / "constants.yaml").read_text("utf-8"))["constants"]
    return [
        Fitted(**{**entry, "families": tuple(entry["families"]), "sigma": float(entry["sigma"])})
        for entry in entries
    ]


@dataclasses.dataclass(frozen=True, slots=True)
class Declared:
    """A constant that was chosen with rows in view; see validation/constants.yaml.

    Parameters
    ----------
    name : str
    at : str
        ``file/group/leaf`` of mpsim/cost/data, each a pattern; ``framework/field`` of any framework that has the `value`; or ``rule``, which no number resets.
    literature : float, str or None
        What other sources say; None where they say nothing.
    why : str
        Which they are.
    rows : tuple of str
        Families in view.
    value : float or str
        Of a framework's field, as it is written; "" elsewhere.
    """

    name: str
    at: str
    literature: float | str | None
    why: str
    rows: tuple[str, ...]
    value: float | str = ""

    @property
    def as_shipped(self) -> str:
        """The value or values that the product has, as text."""
        if self.value:
            return str(self.value)
        found = sorted({constant.value for _, constant in found_at(self.at)})
        return " to ".join(f"{value:.3g}" for value in dict.fromkeys([*found[:1], *found[-1:]]))


def declared() -> list[Declared]:
    """The constants that were chosen, not fitted."""
    entries = yaml.safe_load((HERE / "constants.yaml").read_text("utf-8"))["declared"]
    return [Declared(**{**entry, "rows": tuple(entry["rows"])}) for entry in entries]


def found_at(at: str) -> list[tuple[ConstantGroup, Constant]]:
    """Constants of mpsim/cost/data at a pattern ``file/group/leaf``."""
    kind, *rest = at.split("/", maxsplit=1)
    if kind not in FILES or not rest:
        return []
    name, leaf = rest[0].rsplit("/", 1)
    return [
        (group, constant)
        for group_name, group in constant_groups(kind).items()
        if fnmatch.fnmatch(group_name, name)
        for label, constant in group.constants.items()
        if fnmatch.fnmatch(label, leaf)
    ]


@contextlib.contextmanager
def instead(values: Mapping[Fitted | Declared, float | str]) -> Iterator[None]:
    """Constants with other values while inside."""
    kept = runs.scenario_of
    shelves: dict[int, tuple[ConstantGroup, Mapping[str, Constant]]] = {}
    for one, value in values.items():
        for group, constant in found_at(one.at):
            shelves.setdefault(id(group), (group, group.constants))
            leaf = constant.name.rpartition(".")[2]
            other = dataclasses.replace(constant, value=float(value))
            object.__setattr__(group, "constants", {**group.constants, leaf: other})

    def changed(cells: Cells, rule: Mapping[str, Any]) -> dict[str, Any]:
        scenario = kept(cells, rule)
        for one, value in values.items():
            _change(scenario, one, value)
        return scenario

    runs.scenario_of = changed
    forgotten = (*ANSWERS, runs._filled, runs._outcome) if shelves else ()
    for answers in forgotten:  # what is changed in a scenario is seen by the cache
        answers.cache_clear()
    try:
        yield
    finally:
        runs.scenario_of = kept
        for group, before in shelves.values():
            object.__setattr__(group, "constants", before)
        for answers in forgotten:
            answers.cache_clear()


def _change(scenario: dict[str, Any], one: Fitted | Declared, value: float | str) -> None:
    if isinstance(one, Declared):
        kind, _, leaf = one.at.partition("/")
        if kind == "framework" and _field(scenario["framework"], leaf) == _plain(one.value):
            scenario["framework"] = {**scenario["framework"], leaf: value}
        return
    kind, name, leaf = one.at.split("/")
    if kind == "framework" and scenario["framework"]["preset"] in name.split(","):
        scenario["framework"] = {**scenario["framework"], leaf: f"{float(value) * 1e6:.6g} us"}
    nic = scenario["cluster"].get("nic")
    if kind == "link" and isinstance(nic, dict) and nic["preset"] == name:
        scenario["cluster"] = {**scenario["cluster"], "nic": {**nic, leaf: value}}


def _field(fields: Mapping[str, Any], leaf: str) -> object:
    """A field of the framework that a scenario names, with its overrides."""
    overrides = {name: value for name, value in fields.items() if name != "preset"}
    return framework(str(fields["preset"]), overrides).fields()[leaf]


def _plain(value: float | str) -> float:
    """A value as a framework holds it: seconds of a time."""
    return parse_quantity(value, Dimension.TIME) if isinstance(value, str) else float(value)


@dataclasses.dataclass(frozen=True, slots=True)
class Refits:
    """What fits without each family, and without any, would be off.

    Parameters
    ----------
    constants : list of Fitted
    uncertainty : float64[K]
        One sigma of the joint fit.
    left_out : mapping of str to float
        Mean absolute error of each named family, predicted without it.
    pooled, unfitted, unfitted_bias : float
        Over the rows of the named families: each left out in turn; with the literature's constants.
    shift : mapping of str to float
        Change of the log time of each of these rows when its family is left out, by id.
    """

    constants: list[Fitted]
    uncertainty: Floats
    left_out: Mapping[str, float]
    pooled: float
    unfitted: float
    unfitted_bias: float
    shift: Mapping[str, float]

    @classmethod
    def of(cls, file: Path, records: Sequence[Record]) -> Refits:
        """Predict all rows of the named families once a constant, and fit."""
        named = [one for one in records if is_named(one)]
        known = constants()
        again = _Again(file, {one.id for one in named})
        error = np.array([np.log(1 + (one.error or 0.0)) for one in named])
        slopes = np.stack([again.slope(one, named) for one in known], axis=1)
        family = np.array([one.family for one in named])
        chosen = {one: one.literature for one in declared() if one.literature is not None}
        with instead({**chosen, **{one: one.prior for one in known}}):
            without = again.errors(NAMED)
        literature = np.array([without[one.id] for one in named])
        _, spread = _fit(error, slopes, family, known, np.ones(len(named), bool))
        missed: dict[str, Floats] = {}
        shift: dict[str, float] = {}
        for name in NAMED:
            delta, _ = _fit(error, slopes, family, known, family != name)
            mine = family == name
            moved = slopes[mine] @ delta
            missed[name] = np.abs(np.expm1(error[mine] + moved))
            ids = [one.id for one in named if one.family == name]
            shift |= dict(zip(ids, moved.tolist(), strict=True))
        return cls(
            constants=known,
            uncertainty=spread,
            left_out={name: float(one.mean()) for name, one in missed.items()},
            pooled=float(np.concatenate(list(missed.values())).mean()),
            unfitted=float(np.abs(literature).mean()),
            unfitted_bias=statistics.fmean(literature.tolist()),
            shift=shift,
        )


class _Again:
    """Predicts some rows of a file again and again."""

    def __init__(self, file: Path, ids: set[str]) -> None:
        self._kind, rows = files.opened(file)
        self._rows = [row for row in rows if row.id in ids]

    def errors(self, families: Sequence[str]) -> dict[str, float]:
        """Error of every row of some families."""
        found = {}
        for row in self._rows:
            if row.configuration.text("family") not in families:
                continue
            for one in files.predict_row(self._kind, row):
                if one.kind == "training":
                    found[one.id] = float(one.error or 0.0)
        return found

    def slope(self, one: Fitted, records: Sequence[Record]) -> Floats:
        """Change of log time by change of the constant, 0 for families that it does not touch [N]."""
        step = STEP * one.value
        with instead({one: one.value + step}):
            later = self.errors(one.families)
        changed = [later.get(r.id, r.error) or 0.0 for r in records]
        before = [r.error or 0.0 for r in records]
        return np.array(
            [np.log((1 + b) / (1 + a)) / step for a, b in zip(before, changed, strict=True)]
        )


def _fit(
    error: Floats,
    slopes: Floats,
    family: NDArray[np.str_],
    known: list[Fitted],
    used: NDArray[np.bool_],
) -> tuple[Floats, Floats]:
    """Changes of the constants that fit the rows used, and their uncertainty.

    Notes
    -----
    A constant none of whose families is used is the literature's.
    """
    present = set(family[used].tolist())
    count = {name: int((family[used] == name).sum()) for name in present}
    share = np.array([used.sum() / len(present) / count[one] for one in family[used].tolist()])
    weight = np.sqrt(share) / NOISE
    prior = np.array([one.prior - one.value for one in known])
    sigma = np.array([one.sigma for one in known])
    pinned = np.array([bool(set(one.families) & present) for one in known])
    tight = np.where(pinned, sigma, sigma * 1e-3)
    delta = np.zeros(len(known))
    for _ in range(ROUNDS):
        left = np.abs(error[used] + slopes[used] @ delta)
        robust = weight * np.sqrt(np.minimum(1.0, NOISE / np.maximum(left, 1e-12)))
        matrix = np.vstack([slopes[used] * robust[:, None], np.diag(1 / tight)])
        target = np.concatenate([-error[used] * robust, prior / tight])
        delta = np.linalg.lstsq(matrix, target, rcond=None)[0]
    spread: Floats = np.sqrt(np.diag(np.linalg.inv(matrix.T @ matrix)))
    return delta, spread


@dataclasses.dataclass(frozen=True, slots=True)
class Dropped:
    """What predictions lose without a rule or a constant.

    Parameters
    ----------
    what : str
    rows : int
        Whose prediction moves.
    growth : mapping of str to float
        Of the mean error of each half.
    """

    what: str
    rows: int
    growth: Mapping[str, float]

    def __str__(self) -> str:
        halves = ", ".join(f"{name} {100 * self.growth[name]:+6.2f}" for name in COLOURS)
        return f"{'keep' if self.growth['white'] > WORTH else 'GOES'}  {halves}  {self.rows:4d} rows  {self.what}"


class Board:
    """All published runs with names hidden, predicted again without single rules or constants."""

    def __init__(self, *, swap: bool = False) -> None:
        self.kind, rows = files.opened(HERE / "data" / "published-runs.csv")
        hidden = {"family": "", "source": ""}
        self.rows = [
            dataclasses.replace(row, configuration=Cells({**row.configuration.values, **hidden}))
            for row in rows
        ]
        self.colour = {row.id: colour(row.configuration, swap=swap) for row in self.rows}
        self.rules = [self._rule(row) for row in self.rows]
        self.errors = self._errors(self.rows)

    def _errors(self, rows: Sequence[files.Row]) -> dict[str, float]:
        records = (files.predict_row(self.kind, row)[0] for row in rows)
        return {each.id: abs(each.error) for each in records if each.error is not None}

    @staticmethod
    def _rule(row: files.Row) -> Mapping[str, Any] | None:
        try:
            return tables.rule_of(row.configuration)
        except MpsimError:
            return None

    def _dropped(self, what: str, errors: Mapping[str, float]) -> Dropped:
        """Rows that are no longer predicted keep their error."""
        now = {**self.errors, **{name: errors[name] for name in errors.keys() & self.errors}}
        moved = {name: now[name] - self.errors[name] for name in self.errors}
        growth = {
            half: statistics.fmean(moved[name] for name in moved if self.colour[name] == half)
            for half in COLOURS
        }
        return Dropped(what, sum(map(bool, moved.values())), growth)

    def without_rules(self) -> Iterator[Dropped]:
        """Each rule of training.yaml dropped in turn; of a list that several share, from all of them at once."""
        whole = tables.table("training")
        lists = [("everywhere", whole["everywhere"]), ("families", whole["families"])]
        lists += [(f"also of {rule['where']}", rule.get("also", [])) for rule in whole["families"]]
        shared: dict[str, list[tuple[str, list[Any]]]] = {}
        for name, rules in lists:
            shared.setdefault(str(rules), []).append((name, rules))
        for alike in shared.values():
            name, first = alike[0]
            for place, rule in enumerate(tuple(first)):
                for _, rules in alike:
                    del rules[place]
                try:
                    # the division of a model that no accelerator holds reads rules again
                    touched = [
                        row
                        for row, before in zip(self.rows, self.rules, strict=True)
                        if not row.configuration.text("tp") or self._rule(row) != before
                    ]
                    yield self._dropped(f"{name}: {rule['where']}", self._errors(touched))
                finally:
                    for _, rules in alike:
                        rules.insert(place, rule)

    def without_constants(self) -> Iterator[Dropped]:
        """Each constant set back to the literature in turn."""
        entries: list[tuple[Fitted | Declared, float | str]] = [
            *((one, one.prior) for one in constants()),
            *((one, one.literature) for one in declared() if one.literature is not None),
        ]
        for one, value in entries:
            with instead({one: value}):
                yield self._dropped(f"{one.name} ({one.at})", self._errors(self.rows))


def main() -> None:
    """Print what each rule and constant is worth on both halves."""
    words = sys.argv[1:]
    board = Board(swap="--swap" in words)
    parts: dict[str, Callable[[], Iterator[Dropped]]] = {
        "rules": board.without_rules,
        "constants": board.without_constants,
    }
    for name, dropped in parts.items():
        if name in words or not parts.keys() & set(words):
            for each in dropped():
                sys.stdout.write(f"{each}\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
