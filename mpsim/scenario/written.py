"""Scenario as written: sections, and what follows from each; `Scenario` checks and varies it."""

import contextlib
import functools
import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal, Self, TypeAlias

from mpsim.document import Document
from mpsim.errors import Problem, ScenarioError
from mpsim.framework import Framework, framework
from mpsim.hardware import Cluster
from mpsim.inputs import shown
from mpsim.scenario import sections
from mpsim.scenario.cluster import ClusterChoice, clusters_of
from mpsim.scenario.fields import Field, Later, Listed, Read, Section, Shorthand
from mpsim.scenario.layers import Layers, ground
from mpsim.scenario.model import ModelChoice
from mpsim.scenario.settled import in_words, settle, settled_by
from mpsim.workload import Transformer

if TYPE_CHECKING:
    from mpsim.scenario.design import DesignChoice
    from mpsim.scenario.serving import PoolChoice, Serving
else:
    DesignChoice: TypeAlias = Annotated[object, Later("mpsim.scenario.design", "DesignChoice")]
    Serving: TypeAlias = Annotated[object, Later("mpsim.scenario.serving", "Serving")]


def _one_line(name: str) -> str:
    """Refuse a name that would write lines of its own into a summary."""
    if not name.isprintable():
        raise ValueError(f"got {shown(name)}; needed letters, digits and signs in one line")
    return name


class Written(Section):
    """Sections of one run with presets looked up, unchecked, for checks and resolving."""

    schema: Literal[1]
    """Version of this format: 1."""
    name: Annotated[str, Field(max_length=200), Read(_one_line, "after")] = ""
    """Name of the run; left out, that of the file."""
    model: Annotated[ModelChoice, Shorthand("model")]
    """The transformer, such as 'model: gpt3-175b'."""
    cluster: Annotated[ClusterChoice, Shorthand("cluster")]
    """The machine, such as 'cluster: {preset: dgx-a100-80gb, nodes: 128}'."""
    parallelism: sections.Parallelism = sections.Parallelism.model_construct()
    """Degrees of parallelism and sharding."""
    schedule: Annotated[sections.ScheduleChoice, Shorthand("schedule")] = (
        sections.ScheduleChoice.model_construct(name="1f1b")
    )
    """The pipeline schedule."""
    training: sections.Training | None
    """Batch, sequence length and precision of a step, such as {global_batch: 8, sequence_length:
    2048}; a scenario that serves has serving instead."""
    serving: Serving | None = None
    """Serving a stream of requests, in place of training."""
    server: Mapping[str, str | int | float | bool] | None = None
    """Options of the serving engine in its own words, such as 'server: {engine: sglang,
    chunked-prefill-size: 16384}'; left out, its defaults."""
    framework: Annotated[sections.FrameworkChoice, Shorthand("framework")] = (
        sections.FrameworkChoice.model_construct()
    )
    """The software stack."""
    simulation: sections.Simulation = sections.Simulation.model_construct()
    """How the step is simulated."""
    variation: sections.Variation | None = None
    """Differences from rank to rank and from step to step; left out, none."""
    sweep: Mapping[str, sections.SweepValues] = {}
    """Values to try, by dotted key: a list, or {range: [start, stop, step]}."""
    design: DesignChoice | None = None
    """Clusters to choose from for some work, for `mpsim design`; left out, none."""
    include: Listed[str] | str = ()
    """Files to start from, relative to this one; what stands here wins."""
    overrides: Annotated[Mapping[str, dict[str, object]], Field(max_length=100)] = {}
    """Named changes to choose from, each a mapping of dotted keys or sections."""

    _source: ClassVar[Document] = Document({}, {}, "")  # of one that was read, its own

    @classmethod
    def _before(cls, data: object) -> object:
        """Training may be left out where the job is serving."""
        if isinstance(data, Mapping) and {"serving", "server"} & data.keys():
            return {"training": None, **data}
        return data

    @property
    def serves(self) -> bool:
        """Whether the job is serving, not a training step."""
        return self.serving is not None

    @property
    def straggles(self) -> bool:
        """Whether steps lose the usual to stragglers: not where a variation draws ranks' speeds."""
        drawn = self.variation and (self.variation.speed or self.variation.jitter)
        return self.simulation.straggling and not drawn

    @property
    def training_step(self) -> sections.Training:
        """The training section; ScenarioError for a scenario that serves."""
        if self.training is None:
            message = "missing; this needs a training step, and the scenario serves"
            raise ScenarioError([Problem(f"{message}: see mpsim search", key="training")])
        return self.training

    @property
    def service(self) -> Serving:
        """The serving section; ScenarioError for a scenario that trains."""
        if self.serving is None:
            message = "missing; this needs a service, and the scenario trains"
            raise ScenarioError([Problem(message, key="serving")])
        return self.serving

    @property
    def pools(self) -> "Mapping[str, PoolChoice]":
        """Instances of a service, or of each of its pools, by the section that has them: with what
        pools share filled in, and one instance where the cluster is to say how many.
        """
        from mpsim.scenario.serving import PoolChoice

        degrees, serving = self.parallelism, self.service
        shared = {"weights": serving.weights, "kv": serving.kv}
        if (apart := serving.disaggregated) is None:
            own = {axis: getattr(degrees, axis) for axis in ("tp", "pp", "ep")}
            own |= {name: getattr(serving, name) for name in ("attention_dp", "kv_blocks")}
            own |= {**shared, "replicas": serving.replicas or 1}
            return {"serving": PoolChoice().model_copy(update=own)}
        return {
            f"serving.disaggregated.{name}": pool.model_copy(
                update={name: getattr(pool, name) or value for name, value in shared.items()}
            )
            for name, pool in (("prefill", apart.prefill), ("decode", apart.decode))
        }

    @classmethod
    def of(cls, document: Document, *, like: "Written | None" = None) -> Self:
        """Make the sections of a document, unchecked; what they have in common with `like` is
        looked up once. pydantic_core.ValidationError if a section is not well-formed.
        """
        scenario = cls.model_validate(settle(document.data))
        vars(scenario)["_source"] = document
        if like is not None:
            _inherit(scenario, like)
        return scenario

    @property
    def source(self) -> Document:
        """The data it was made from, with the place of every key that was read from a file."""
        return self._source

    @property
    def told(self) -> dict[str, object]:
        """Figures that its file does not show: keys with the values that framework or model settle,
        and how many accelerators `cluster.nodes` are where a domain has more than a node.
        """
        cluster, node = self.hardware, self.hardware.node
        trays = (
            f"{cluster.nodes:,} of {node.accelerators} are {cluster.accelerators:,} accelerators;"
            f" {node.domain // node.accelerators:,} make a domain of {node.domain:,}"
        )
        taken, has_trays = in_words(settled_by(self._source.data)), node.domain > node.accelerators
        told = {"taken_by_default": taken, "nodes": trays if has_trays else ""}
        return {key: value for key, value in told.items() if value}

    @property
    def folder(self) -> Path:
        """Folder of its file, to which named files are relative; else the working directory."""
        return Path(self._source.file).parent

    @functools.cached_property
    def ground(self) -> Layers:
        """Layers of the scenario, on which `with_values` lays its values."""
        return ground(self._source)

    def locate(self, problems: Iterable[Problem]) -> list[Problem]:
        """`problems` with file, line and column of their keys, in the order written."""
        return in_order(self._source, problems)

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

        A calibrated accelerator brings its host's costs; the scenario's own fields win, except for
        an attention kernel that an accelerator cannot run.
        """
        measured = self.hardware.accelerator.calibration
        habits = measured.framework if measured else {}
        return framework_of(self.framework, habits).on_chips(_families(self))

    @property
    def world_size(self) -> int:
        """Accelerators, each of which is a rank."""
        return self.hardware.accelerators

    @functools.cached_property
    def dp(self) -> int:
        """Data-parallel replicas: as given, or what the cluster has room for."""
        given = self.parallelism.dp
        return self.world_size // self.parallelism.replica_ranks if given is None else given

    @property
    def degrees(self) -> Mapping[str, int]:
        """Degree of every axis, that of data parallelism resolved."""
        given = {axis: getattr(self.parallelism, axis) for axis in sections.AXES}
        return {**given, "dp": self.dp}

    @property
    def replicas(self) -> int:
        """Ranks that hold the same parameters."""
        return math.prod(self.degrees[axis] for axis in sections.REPLICATING)

    @property
    def virtual_stages(self) -> int:
        """Chunks of layers each pipeline rank holds."""
        return self.schedule.chunks

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
        """Every distinct kind of node as a cluster; the scenario's own where it is not mixed."""
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


def _distinct(clusters: Iterable[Cluster]) -> list[Cluster]:
    """Clusters without repeats of one object: equal entries of a section share theirs."""
    result: list[Cluster] = []
    for cluster in clusters:
        if not any(cluster is known for known in result):
            result.append(cluster)
    return result


def _inherit(scenario: Written, like: Written) -> None:
    """Take over presets that `like` looked up and `scenario` names in the same words."""
    known = vars(like)
    if "transformer" in known and scenario.model == like.model:
        vars(scenario)["transformer"] = known["transformer"]
    if scenario.cluster == like.cluster and _files(scenario) == _files(like):
        names = ("hardware", "stage_clusters", "replica_clusters")
        vars(scenario).update((name, known[name]) for name in names if name in known)
    if "software" in known and scenario.framework == like.framework:
        with contextlib.suppress(ScenarioError):  # a cluster that is none is told of elsewhere
            machines = (either.hardware for either in (like, scenario))
            measured = any(machine.accelerator.calibration for machine in machines)
            if not measured and _families(like) == _families(scenario):
                vars(scenario)["software"] = known["software"]


def _families(scenario: Written) -> set[str]:
    return {cluster.accelerator.family for cluster in scenario.clusters}


def _files(scenario: Written) -> Mapping[str, str]:
    """Files in which keys of the cluster were written: what they name is relative to these."""
    return {key: file for key, file in scenario.source.files.items() if key.startswith("cluster")}


def _folder(document: Document, key: str) -> Path:
    """Where the file of dotted `key` lies; the working directory for what has no file."""
    file = document.files.get(document.written(key), document.file)
    return Path(file).parent if Path(file).is_file() else Path()


def framework_of(
    choice: sections.FrameworkChoice, habits: Mapping[str, object] | None = None
) -> Framework:
    """The framework meant, with the scenario's own fields on top of `habits`."""
    return framework(choice.preset, {**(habits or {}), **choice.overrides})


def in_order(document: Document, problems: Iterable[Problem]) -> list[Problem]:
    """Each problem once, with its place, in the order they were written."""
    located = list(dict.fromkeys(document.locate(problem) for problem in problems))
    files = list(dict.fromkeys(problem.file for problem in located))
    return sorted(located, key=lambda each: (files.index(each.file), each.line, each.column))
