"""Scenario: what a person wrote about one run, checked, before anything is planned or timed."""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic_core import ValidationError

from mpsim import archive
from mpsim.document import Document
from mpsim.errors import MpsimError, Problem, ScenarioError
from mpsim.scenario.balance import stage_layers
from mpsim.scenario.checks import check
from mpsim.scenario.fields import Fields
from mpsim.scenario.layers import lay_values, read_layers
from mpsim.scenario.resolved import digest_of, resolved_data
from mpsim.scenario.sections import factors, points
from mpsim.scenario.settled import settle
from mpsim.scenario.written import Written, framework_of, in_order
from mpsim.table import Section as Part
from mpsim.table import Sheet, Shown

if TYPE_CHECKING:
    from mpsim.scenario.serving import Serving


class Scenario(Shown, Written):
    """One run as a person describes it: model, cluster, division of work, software.

    Made by `load` or `Scenario.from_mapping`, which report every mistake at once.
    """

    @classmethod
    def from_mapping(cls, data: Mapping[str, object], *, checked: bool = True) -> Scenario:
        """Build a scenario from plain data, as a file would hold it.

        Parameters
        ----------
        data : mapping
            Keys as in a scenario file; quantities are strings with units. ``include`` needs a file.
        checked : bool
            Whether to refuse a scenario that contradicts itself (see `check`).

        Raises
        ------
        ScenarioError
            With every mistake found.
        """
        if not isinstance(data, Mapping):
            raise ScenarioError(f"got {type(data).__name__}; needed a mapping of sections")
        if data.get("include"):
            problem = Problem("needs a file to be relative to; use mpsim.load", key="include")
            raise ScenarioError([problem])
        return _build(Document(copy.deepcopy(dict(data)), {}, ""), checked=checked)

    def save(self, path: str | Path) -> None:
        """Write an archive of the scenario with everything it includes or looks up."""
        archive.save(path, "Scenario", {"value": self.resolved()})

    @classmethod
    def load(cls, path: str | Path) -> Scenario:
        """Read what `save` wrote (`mpsim.load` reads YAML). ScenarioError if it is no archive."""
        return cls.from_mapping(archive.Archive(path).of("Scenario").part("value", dict))

    @property
    def stage_layers(self) -> tuple[int, ...] | None:
        """Layers of each stage: as given, or balanced; None if even or not to be balanced."""
        return stage_layers(self)

    @functools.cached_property
    def problems(self) -> list[Problem]:
        """Problems that keep it from being simulated, as far as they show unplanned."""
        return check(self)

    def model_copy(self, *, update: Mapping[str, Any] | None = None) -> Scenario:
        """A copy with some sections replaced, without what was found out of several of them."""
        copied = super().model_copy(update=update)
        for name in ("problems", "dp", "stage_clusters", "replica_clusters"):
            copied.__dict__.pop(name, None)
        return copied

    @property
    def digest(self) -> str:
        """sha256 of all that decides the result; names, files and the order of keys do not."""
        return digest_of(self)

    def resolved(self) -> Fields:
        """Plain data with every preset spelled out and units on every quantity.
        `Scenario.from_mapping` makes the same scenario of it, also after a preset has changed.
        """
        return copy.deepcopy(resolved_data(self))

    def with_values(
        self, values: Mapping[str, object], *, checked: bool = True, sound: bool = False
    ) -> Scenario:
        """The scenario with some values replaced, checked again, and its sweep dropped.

        `values`: new value by dotted key, as a file would have it; None leaves the key out.
        `checked`: whether to refuse values that do not go together. `sound`: whether they were
        checked before. ScenarioError if the values are wrong or do not go together.
        """
        document = lay_values(self.ground, values)
        scenario = _build(document, checked=checked and not sound, like=self)
        if sound:
            vars(scenario)["problems"] = []
        return scenario

    def replace(self, values: Mapping[str, object] | None = None, **short: object) -> Scenario:
        """The scenario with some values replaced: `with_values` for people.

        Parameters
        ----------
        values : mapping of str to object, optional
            New value by dotted key.
        **short
            New value by the last part of a key that one section alone has, or by section.

        Raises
        ------
        ScenarioError
            If a key or a value is wrong, or values do not go together, as for a file.

        Examples
        --------
        >>> base = Scenario.from_mapping({
        ...     "schema": 1, "model": "gpt3-175b",
        ...     "cluster": {"preset": "dgx-a100-80gb", "nodes": 8},
        ...     "parallelism": {"tp": 8, "pp": 8},
        ...     "training": {"global_batch": 64, "sequence_length": 2048}})
        >>> base.replace(pp=4, schedule="gpipe").dp, base.replace({"cluster.nodes": 16}).dp
        (2, 2)
        """
        from mpsim.scenario.schema import long_keys

        job = "serving" if self.serves else "training"
        return self.with_values(long_keys(type(self), {**(values or {}), **short}, job=job))

    def points(self) -> Iterator[dict[str, object]]:
        """Values by dotted key of every point of the sweep, the last key changing fastest."""
        return points(self.sweep) if self.sweep else iter(())

    def sheet(self) -> Sheet:
        """The sections as they were written, a line each."""
        title = self.name
        with contextlib.suppress(MpsimError):  # a scenario that was not checked may have no cluster
            title = str(self)
        written = {key: value for key, value in self._source.data.items() if key not in _UNTOLD}
        rows = tuple((str(key), _words(value)) for key, value in written.items())
        return Sheet(title, (Part(rows),))

    def __str__(self) -> str:
        if self.serving is not None:
            return self._describe_service(self.serving)
        p, cluster, training = self.parallelism, self.hardware, self.training_step
        schedule = self.schedule.name or self.schedule.file
        return (
            f"{self.name or 'scenario'}: {self.transformer.name} on {cluster.nodes} x "
            f"{cluster.node.accelerators} {cluster.accelerator.name}; "
            f"{factors(p.dividing)} x dp {self.dp}, {schedule}; "
            f"{training.global_batch} sequences of {training.sequence_length} tokens a step"
        )

    def _describe_service(self, serving: Serving) -> str:
        p, cluster, load = self.parallelism, self.hardware, serving.workload
        stream: str = load.arrival
        if load.rate or load.concurrency:
            stream = f"{load.rate:g} requests/s" if load.rate else f"{load.concurrency} users"
        return (
            f"{self.name or 'scenario'}: {self.transformer.name} served on {cluster.nodes} x"
            f" {cluster.node.accelerators} {cluster.accelerator.name}; tp {p.tp} x pp {p.pp} x ep"
            f" {p.ep}, {serving.engine.preset}, {serving.weights}; {stream}"
        )

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle what it was made from: read-only views of presets do not pickle."""
        return _rebuild, (self._source,)


_UNTOLD = ("schema", "name", "include")  # keys of a file that say nothing of the run


def _words(value: object, prefix: str = "") -> str:
    """Keys and values of a section in one line."""
    if not isinstance(value, Mapping):
        return f"{prefix} {value}" if prefix else f"{value}"
    inner = (_words(part, f"{prefix}.{key}" if prefix else str(key)) for key, part in value.items())
    return ", ".join(inner)


def load(
    path: str | Path,
    *,
    set: Iterable[str] = (),  # noqa: A002 - the word of the command line
    overrides: Iterable[str] = (),
    checked: bool = True,
    allow_include: bool = False,
) -> Scenario:
    """Read a scenario file.

    Parameters
    ----------
    path : str or Path
        A YAML file; what it includes is read relative to it.
    set : iterable of str
        ``key=value`` each, laid on top last; the value is read as YAML.
    overrides : iterable of str
        Names in the ``overrides:`` section to lay on top, in order.
    checked : bool
        Whether to refuse a scenario that contradicts itself (see `check`).
    allow_include : bool
        Whether it may include files outside its folder; a scenario of a stranger should not.

    Raises
    ------
    ScenarioError
        With every mistake found, each with its file, line, column and key.
    """
    given = [set] if isinstance(set, str) else set
    named = [overrides] if isinstance(overrides, str) else overrides
    document = read_layers(Path(path), set=given, overrides=named, allow_include=allow_include)
    document.data.setdefault("name", Path(path).stem)
    return _build(document, checked=checked)


def json_schema() -> Fields:
    """JSON schema of the scenario file, for editors that complete and check YAML."""
    from pydantic.json_schema import GenerateJsonSchema

    whole: Any = Scenario.__get_pydantic_core_schema__()
    del whole["ref"]  # nothing else holds it
    schema = GenerateJsonSchema().generate(whole)
    schema["required"].remove("training")  # or serving in its place
    schema["oneOf"] = [{"required": ["training"]}, {"required": ["serving"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _build(document: Document, *, checked: bool, like: Scenario | None = None) -> Scenario:
    """Make a scenario of a document; what it has in common with `like` is looked up once."""
    problems = list(document.problems)
    # of a file that was not read nobody knows what is missing or contradicts it
    is_whole = not any(problem.key == "include" for problem in problems)
    try:
        scenario = Scenario.of(document, like=like)
    except ValidationError as error:
        # the words for mistakes, which most scenarios do without
        from mpsim.scenario.translate import MISSING, translate

        reported = {problem.key for problem in problems}
        wrong = [
            *translate(error, Scenario),
            *(_other_problems(document, error) if checked and is_whole else ()),
        ]
        problems += [
            problem
            for problem in wrong
            if problem.key not in reported and (is_whole or not problem.message.startswith(MISSING))
        ]
        raise ScenarioError(in_order(document, problems)) from None
    if checked and is_whole:
        problems += scenario.problems
    if problems:
        raise ScenarioError(in_order(document, problems))
    return scenario


def _rebuild(document: Document) -> Scenario:
    return _build(document, checked=False)


def _other_problems(document: Document, error: ValidationError) -> list[Problem]:
    """Problems that `check` finds in the well-formed sections, though others are not."""
    from mpsim.scenario.translate import fragment, is_read

    scenario = fragment(Scenario, settle(document.data), error)
    vars(scenario)["_source"] = document
    problems: list[Problem] = []
    if is_read(scenario, "framework") and not is_read(scenario, "cluster"):
        try:  # without a machine there are no habits of its host
            vars(scenario)["software"] = framework_of(scenario.framework)
        except ScenarioError as wrong:
            problems += wrong.problems
    return problems + check(scenario)
