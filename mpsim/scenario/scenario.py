"""Scenario: what a person wrote about one run, checked, before anything is planned or timed."""

from __future__ import annotations

import contextlib
import copy
import functools
import math
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pydantic
from pydantic import Field, PrivateAttr

from mpsim import archive
from mpsim.document import Document
from mpsim.errors import MpsimError, Problem, ScenarioError
from mpsim.framework import Framework, framework
from mpsim.hardware import Cluster
from mpsim.scenario.balance import balanced_stages
from mpsim.scenario.checks import check
from mpsim.scenario.cluster import ClusterChoice, clusters_of
from mpsim.scenario.fields import Section, Shorthand
from mpsim.scenario.fragment import fragment, is_read
from mpsim.scenario.layers import Layers, ground, lay_values, read_layers
from mpsim.scenario.model import ModelChoice
from mpsim.scenario.resolved import digest_of, resolved_data
from mpsim.scenario.schema import describe_schema, long_keys
from mpsim.scenario.sections import (
    AXES,
    REPLICATING,
    FrameworkChoice,
    Parallelism,
    ScheduleChoice,
    Simulation,
    Training,
    factors,
)
from mpsim.scenario.serving import Serving
from mpsim.scenario.settled import settle
from mpsim.scenario.sweep import SweepValues, points
from mpsim.scenario.translate import MISSING, translate
from mpsim.scenario.variation import Variation
from mpsim.sheet import Section as Part
from mpsim.sheet import Sheet, Shown
from mpsim.workload import Transformer

__all__ = ["Scenario", "json_schema", "load"]


class Scenario(Shown, Section):
    """One run as a person describes it: model, cluster, how the work is divided, and what software runs it.

    Made by `load` or `Scenario.from_mapping`, which report every mistake at once.
    """

    schema_version: Annotated[Literal[1], Field(alias="schema")]
    """Version of this format: 1."""
    name: Annotated[str, Field(max_length=200)] = ""
    """What to call the run; left out, the name of the file."""
    model: Annotated[ModelChoice, Shorthand("model")]
    """The transformer, such as 'model: gpt3-175b'."""
    cluster: Annotated[ClusterChoice, Shorthand("cluster")]
    """The machine, such as 'cluster: {preset: dgx-a100-80gb, nodes: 128}'."""
    parallelism: Parallelism = Parallelism()
    """How the work is divided."""
    schedule: Annotated[ScheduleChoice, Shorthand("schedule")] = ScheduleChoice(name="1f1b")
    """The pipeline schedule."""
    training: Training | None
    """What one step trains on, such as 'training: {global_batch: 1536, sequence_length: 2048}'."""
    serving: Serving | None = None
    """Serving a stream of requests, in place of training."""
    framework: Annotated[FrameworkChoice, Shorthand("framework")] = FrameworkChoice()
    """The software stack."""
    simulation: Simulation = Simulation()
    """How the step is simulated."""
    variation: Variation | None = None
    """What differs from rank to rank and from step to step; left out, nothing does."""
    sweep: Annotated[dict[str, SweepValues], Field(default_factory=dict)]
    """Values to try, by dotted key: a list, or {range: [start, stop, step]}."""
    include: Annotated[tuple[str, ...], Field(strict=False)] | str = ()
    """Files to start from, relative to this one; what stands here wins."""
    overrides: Annotated[dict[str, dict[str, Any]], Field(default_factory=dict, max_length=100)]
    """Named changes to choose from, each a mapping of dotted keys or sections."""

    _source: Document = PrivateAttr(default_factory=lambda: Document({}, {}, ""))

    @pydantic.model_validator(mode="before")
    @classmethod
    def _one_job(cls, data: object) -> object:
        """Training may be left out where the job is serving."""
        if isinstance(data, Mapping) and "serving" in data and "training" not in data:
            return {**data, "training": None}
        return data

    @property
    def serves(self) -> bool:
        """Whether the job is serving, not a training step."""
        return self.serving is not None

    @property
    def straggles(self) -> bool:
        """Whether steps lose what they usually do to stragglers: not where a variation draws them."""
        return self.simulation.straggling and self.variation is None

    @property
    def training_step(self) -> Training:
        """The training section; ScenarioError for a scenario that serves."""
        if self.training is None:
            message = "missing; this needs a training step, and the scenario serves"
            raise ScenarioError([Problem(message, key="training")])
        return self.training

    @property
    def service(self) -> Serving:
        """The serving section; ScenarioError for a scenario that trains."""
        if self.serving is None:
            message = "missing; this needs a service, and the scenario trains"
            raise ScenarioError([Problem(message, key="serving")])
        return self.serving

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any], *, checked: bool = True) -> Scenario:
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
        """Read what `save` wrote; `mpsim.load` reads YAML.

        Raises
        ------
        ScenarioError
            If the file is no archive of a scenario.
        """
        data: Any = archive.Archive(path).of("Scenario").part("value", object)
        return cls.from_mapping(data)

    @property
    def source(self) -> Document:
        """The data it was made from, with the place of every key that was read from a file."""
        return self._source

    @functools.cached_property
    def ground(self) -> Layers:
        """Layers of the scenario, on which `with_values` lays its values."""
        return ground(self._source)

    def locate(self, problems: Iterable[Problem]) -> list[Problem]:
        """`problems` with the file, line and column of their keys, in the order they were written."""
        return _located(self._source, problems)

    @functools.cached_property
    def transformer(self) -> Transformer:
        """The model with its preset looked up; ScenarioError if there is none."""
        return self.model.resolve()

    @functools.cached_property
    def hardware(self) -> Cluster:
        """The cluster with its presets looked up; ScenarioError if there is none."""
        return self.cluster.resolve(functools.partial(_folder, self._source))

    @functools.cached_property
    def software(self) -> Framework:
        """The framework with its preset looked up; ScenarioError if there is none.

        A calibrated accelerator brings what its host costs a framework; the scenario's own fields win.
        """
        measured = self.hardware.accelerator.calibration
        habits = measured.framework if measured else {}
        return _framework(self.framework, habits)

    @property
    def world_size(self) -> int:
        """Accelerators, each of which is a rank."""
        return self.hardware.accelerators

    @property
    def dp(self) -> int:
        """Data-parallel replicas: as given, or what the cluster has room for."""
        given = self.parallelism.dp
        return self.world_size // self.parallelism.replica_ranks if given is None else given

    @property
    def degrees(self) -> Mapping[str, int]:
        """Degree of every axis, that of data parallelism resolved."""
        given = {axis: getattr(self.parallelism, axis) for axis in AXES}
        return {**given, "dp": self.dp}

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters."""
        return math.prod(self.degrees[axis] for axis in REPLICATING)

    @property
    def virtual_stages(self) -> int:
        """Chunks of layers each pipeline rank holds."""
        return self.schedule.chunks

    @property
    def stage_layers(self) -> tuple[int, ...] | None:
        """Layers of each stage in model order: as given, or balanced; None for an even division, or where none can be balanced."""
        given = self.parallelism.layers_per_stage
        return balanced_stages(self) if given == "auto" else given

    @property
    def microbatches(self) -> int:
        """Microbatches each replica runs in one step; the most of any where the batch is uneven."""
        distinct = len(self.training_step.batch_per_replica or (0,))
        return max(map(self.microbatches_of, range(distinct)))

    def microbatches_of(self, replica: int) -> int:
        """Microbatches that one data-parallel replica runs in one step."""
        training = self.training_step
        if training.batch_per_replica is not None:
            return training.batch_per_replica[replica] // training.micro_batch
        return training.global_batch // (self.dp * training.micro_batch)

    @functools.cached_property
    def stage_clusters(self) -> tuple[Cluster, ...] | None:
        """The cluster as each pipeline rank has it; None where all are alike."""
        return self._mixed("stages")

    @functools.cached_property
    def replica_clusters(self) -> tuple[Cluster, ...] | None:
        """The cluster as each data-parallel replica has it; None where all are alike."""
        return self._mixed("replicas")

    def _mixed(self, key: str) -> tuple[Cluster, ...] | None:
        return clusters_of(self.cluster, key, functools.partial(_folder, self._source))

    @property
    def clusters(self) -> tuple[Cluster, ...]:
        """Every distinct kind of node: one cluster of each; that of the scenario itself where it is not mixed."""
        parts = self.stage_clusters or self.replica_clusters or (self.hardware,)
        return tuple(_distinct(parts))

    @property
    def is_mixed(self) -> bool:
        """Whether accelerators, links or batches differ anywhere."""
        return len(self.clusters) > 1 or self.has_uneven_replicas

    @property
    def has_uneven_replicas(self) -> bool:
        """Whether data-parallel replicas differ in their nodes or in how much they compute."""
        batches = self.training_step.batch_per_replica or ()
        return len(set(batches)) > 1 or len(_distinct(self.replica_clusters or ())) > 1

    @property
    def digest(self) -> str:
        """sha256 of all that decides the result; names, files and the order of keys do not."""
        return digest_of(self)

    def resolved(self) -> dict[str, Any]:
        """Plain data with every preset spelled out and units on every quantity.

        `Scenario.from_mapping` makes the same scenario of it, also after a preset has changed.
        """
        return resolved_data(self)

    def with_values(self, values: Mapping[str, object], *, checked: bool = True) -> Scenario:
        """The scenario with some values replaced, checked again, and its sweep dropped.

        Parameters
        ----------
        values : mapping of str to object
            New value by dotted key, as it would be written in the file.
        checked : bool
            Whether to refuse values that do not go together.

        Raises
        ------
        ScenarioError
            If the values are wrong or do not go together.

        Examples
        --------
        >>> base = Scenario.from_mapping({
        ...     "schema": 1, "model": "gpt3-175b", "cluster": {"preset": "dgx-a100-80gb", "nodes": 8},
        ...     "parallelism": {"tp": 8, "pp": 8},
        ...     "training": {"global_batch": 64, "sequence_length": 2048}})
        >>> base.dp, base.with_values({"parallelism.pp": 4}).dp
        (1, 2)
        """
        return _build(lay_values(self.ground, values), checked=checked, like=self)

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
        ...     "schema": 1, "model": "gpt3-175b", "cluster": {"preset": "dgx-a100-80gb", "nodes": 8},
        ...     "parallelism": {"tp": 8, "pp": 8},
        ...     "training": {"global_batch": 64, "sequence_length": 2048}})
        >>> base.replace(pp=4, schedule="gpipe").dp, base.replace({"cluster.nodes": 16}).dp
        (2, 2)
        """
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
        stream = (
            f"{load.rate:g} requests/s"
            if load.rate
            else f"{load.concurrency} users"
            if load.concurrency
            else load.arrival
        )
        return (
            f"{self.name or 'scenario'}: {self.transformer.name} served on {cluster.nodes} x "
            f"{cluster.node.accelerators} {cluster.accelerator.name}; tp {p.tp} x pp {p.pp} x ep {p.ep}, {serving.engine.preset}, {serving.weights}; {stream}"
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle what it was made from: resolved presets hold read-only views, which do not pickle."""
        return _rebuild, (self._source,)


_UNTOLD = ("schema", "name", "include")  # keys of a file that say nothing of the run


def _words(value: object, prefix: str = "") -> str:
    """Keys and values of a section in one line."""
    if not isinstance(value, Mapping):
        return f"{prefix} {value}" if prefix else f"{value}"
    inner = (_words(part, f"{prefix}.{key}" if prefix else str(key)) for key, part in value.items())
    return ", ".join(inner)


def _distinct(clusters: Iterable[Cluster]) -> list[Cluster]:
    """Clusters without repeats of one object: equal entries of a section share theirs."""
    result: list[Cluster] = []
    for cluster in clusters:
        if not any(cluster is known for known in result):
            result.append(cluster)
    return result


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


def json_schema() -> dict[str, Any]:
    """JSON schema of the scenario file, for editors that complete and check YAML."""
    schema = describe_schema(Scenario.model_json_schema(by_alias=True), Scenario)
    schema["required"].remove("training")  # or serving in its place
    schema["oneOf"] = [{"required": ["training"]}, {"required": ["serving"]}]
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


def _build(document: Document, *, checked: bool, like: Scenario | None = None) -> Scenario:
    """Make a scenario of a document; what it has in common with `like` is looked up once."""
    problems = list(document.problems)
    # of a file that was not read nobody knows what it says: nothing is missing, and nothing contradicts it
    is_whole = not any(problem.key == "include" for problem in problems)
    try:
        scenario = Scenario.model_validate(settle(document.data))
    except pydantic.ValidationError as error:
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
        raise ScenarioError(_located(document, problems)) from None
    scenario._source = document
    if like is not None:
        _inherit(scenario, like)
    if checked and is_whole:
        problems += check(scenario)
    if problems:
        raise ScenarioError(_located(document, problems))
    return scenario


def _inherit(scenario: Scenario, like: Scenario) -> None:
    """Take over the presets that `like` has looked up and `scenario` names in the same words; none is a file's."""
    known = vars(like)
    if "transformer" in known and scenario.model == like.model:
        vars(scenario)["transformer"] = known["transformer"]
    if "software" in known and scenario.framework == like.framework:
        with contextlib.suppress(ScenarioError):  # a cluster that is none is told of elsewhere
            machines = (either.hardware for either in (like, scenario))
            if all(machine.accelerator.calibration is None for machine in machines):
                vars(scenario)["software"] = known["software"]


def _rebuild(document: Document) -> Scenario:
    return _build(document, checked=False)


def _folder(document: Document, key: str) -> Path:
    """Where the file lies in which dotted `key` was written; the working directory for what comes from no file."""
    file = document.files.get(document.written(key), document.file)
    return Path(file).parent if Path(file).is_file() else Path()


def _other_problems(document: Document, error: pydantic.ValidationError) -> list[Problem]:
    """Problems that `check` finds in the well-formed sections, though others are not."""
    scenario = fragment(Scenario, settle(document.data), error)
    scenario._source = document
    problems: list[Problem] = []
    if is_read(scenario, "framework") and not is_read(scenario, "cluster"):
        try:  # without a machine there are no habits of its host
            vars(scenario)["software"] = _framework(scenario.framework)
        except ScenarioError as wrong:
            problems += wrong.problems
    return problems + check(scenario)


def _framework(choice: FrameworkChoice, habits: Mapping[str, Any] | None = None) -> Framework:
    """The framework meant, with the scenario's own fields on top of `habits`."""
    return framework(choice.preset, {**(habits or {}), **choice.overrides})


def _located(document: Document, problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, with its place, in the order they were written."""
    located = list(dict.fromkeys(document.locate(problem) for problem in problems))
    files = list(dict.fromkeys(problem.file for problem in located))
    return sorted(
        located, key=lambda problem: (files.index(problem.file), problem.line, problem.column)
    )
