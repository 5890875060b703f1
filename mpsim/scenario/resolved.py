"""A scenario with every preset spelled out, as plain data, and the digest of it."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from mpsim import structs
from mpsim.errors import ScenarioError
from mpsim.framework import Framework
from mpsim.hardware import Accelerator, Cluster, Fabric, FabricKind, Link, Placement
from mpsim.inputs import check_regular, hash_file
from mpsim.memo import remembered
from mpsim.scenario.balance import stage_layers
from mpsim.scenario.cluster import (
    FIGURES,
    AcceleratorChoice,
    ClusterChoice,
    FabricChoice,
    LinkChoice,
)
from mpsim.scenario.fields import Fields, Section
from mpsim.scenario.layers import STUDIES
from mpsim.workload import Transformer

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

S = TypeVar("S", bound=Section)

_JSON = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode
_PROVENANCE = ("source", "as_of", "title")
_PRESETS = 16  # models, frameworks and hashes of files that stay ready


def resolved_data(scenario: Written) -> Fields:
    """Plain data that gives the same scenario again, whatever becomes of the presets it named."""
    data: Fields = {
        "schema": scenario.schema,
        "name": scenario.name,
        "model": _figures(scenario.transformer),
        "cluster": _cluster(scenario.hardware) | _parts(scenario),
        "parallelism": _parallelism(scenario),
        "schedule": {**_dumped(scenario.schedule), "virtual_stages": scenario.schedule.chunks},
        **_job(scenario),
        "framework": {"preset": scenario.framework.preset, **scenario.framework.overrides},
        "simulation": _simulation(scenario),
    }
    if scenario.variation is not None:
        variation = _dumped(scenario.variation)
        outages = variation.pop("outages")
        data["variation"] = {**variation, "outages": outages} if outages else variation
    if scenario.sweep:
        data["sweep"] = {key: list(values) for key, values in scenario.sweep.items()}
    if scenario.design is not None:
        data["design"] = _dumped(scenario.design)
    return data


def digest_of(scenario: Written) -> str:
    """sha256 of all that decides the result: content of files, not names or order of keys."""
    import hashlib  # here, as OpenSSL takes a hundredth of a start

    content = resolved_data(scenario)
    del content["name"]
    for study in STUDIES:
        content.pop(study, None)
    if scenario.schedule.file is not None:
        content["schedule"]["file"] = _hashed(scenario, scenario.schedule.file, "a schedule")
    if scenario.serving is not None and (trace := scenario.serving.workload.trace) is not None:
        content["serving"]["workload"]["trace"] = _hashed(scenario, trace, "a trace of requests")
    known = {"model": _words(scenario.transformer), "framework": _words(scenario.software)}
    texts = (f'"{key}":{known.get(key) or _JSON(content[key])}' for key in sorted(content))
    return hashlib.sha256(f"{{{','.join(texts)}}}".encode()).hexdigest()


def _hashed(scenario: Written, file: str, needed: str) -> str:
    """Hash of the content of a file, computed once for each of its versions."""
    path = scenario.folder / file
    status = check_regular(path, needed=needed, error=ScenarioError)
    return _content(path, status.st_mtime_ns, status.st_size, needed)


@remembered(_PRESETS)
def _content(path: Path, changed_ns: int, size: int, needed: str) -> str:
    """sha256 of a file as it was at one moment."""
    del changed_ns, size
    return hash_file(path, needed=needed, error=ScenarioError)


def _dumped(section: Section) -> Fields:
    """A section as a file has it, quantities with their units; what was left out stays out."""
    # warnings: where a number may stand for a list, pydantic would complain about the list
    return section.model_dump(mode="json", exclude_none=True, warnings=False)


@remembered(_PRESETS)
def _figures(preset: Transformer | Framework) -> Fields:
    """Fields of a model or framework without sources, shared by points: do not change."""
    fields = structs.asdict(preset)
    return {key: value for key, value in fields.items() if key not in _PROVENANCE}


@remembered(_PRESETS)
def _words(preset: Transformer | Framework) -> str:
    """Fields that decide a result as JSON; a word for recomputation is settled by then."""
    fields = dict(_figures(preset))
    if kernels := fields.get("kernels"):
        fields["kernels"] = {k: value for k, value in kernels.items() if k != "recompute_selective"}
    return _JSON(fields)


def _parallelism(scenario: Written) -> Fields:
    parallelism = _dumped(scenario.parallelism)
    if scenario.serves:  # pools have layouts of their own
        own = () if scenario.service.disaggregated else ("tp", "pp", "ep")
        return {axis: parallelism[axis] for axis in own}
    parallelism["dp"] = scenario.dp
    if "layers_per_stage" in parallelism:
        parallelism["layers_per_stage"] = list(stage_layers(scenario) or ())
    return parallelism


def _job(scenario: Written) -> Fields:
    """The section of the job, by its name."""
    if scenario.serving is None:
        training = scenario.training_step.model_dump(mode="json")
        batches = training.pop("batch_per_replica")
        own = {} if batches is None else {"batch_per_replica": batches}
        return {"training": {**training, **own}}
    serving = _dumped(scenario.serving)
    engine = serving.pop("engine")
    if "disaggregated" in serving:
        del serving["attention_dp"]
    return {"serving": {"engine": {"preset": engine["preset"], **engine["overrides"]}, **serving}}


def _parts(scenario: Written) -> Fields:
    """Nodes of each pipeline rank and replica, neighbours that are alike together."""
    mixed = {"stages": scenario.stage_clusters, "replicas": scenario.replica_clusters}
    return {
        key: [
            {"count": len(run), **_part(run[0])}
            for run in (list(same) for _, same in itertools.groupby(clusters, key=id))
        ]
        for key, clusters in mixed.items()
        if clusters is not None
    }


def _part(cluster: Cluster) -> Fields:
    """Fields that the nodes of one part have in place of the cluster's."""
    whole = _cluster(cluster)
    names = ("accelerator", "scale_up", "nic", "nics_per_node", "node_power", "price_per_hour")
    return {key: whole[key] for key in names if whole.get(key)}


def _simulation(scenario: Written) -> Fields:
    data = scenario.simulation.model_dump()
    # both are written only where they matter: digests of old scenarios stay
    usual = {"interference": False, "straggling": True}
    return {key: value for key, value in data.items() if usual.get(key) is not value}


@remembered(_PRESETS)
def _cluster(cluster: Cluster) -> Fields:
    """Fields of a cluster, shared by points: do not change."""
    node, chip, where = cluster.node, cluster.accelerator, cluster.placement
    placed = where.value if isinstance(where, Placement) else where
    choice = _spelled(
        ClusterChoice,
        cluster,
        preset=None,
        accelerator=_chip(chip),
        accelerators_per_node=node.accelerators,
        scale_up=_spelled(LinkChoice, node.scale_up),
        domain=node.domain,
        nics_per_node=node.nics,
        nic=_spelled(LinkChoice, node.nic),
        fabric=_fabric(cluster.fabric),
        placement=None if where is Placement.PACKED else placed,
        library=cluster.library or None,
        node_power=node.power_w,
        price_per_hour=chip.price_per_hour,
    )
    data = _dumped(choice)
    fabric = data["fabric"]  # these two come last in it
    data["fabric"] |= {key: fabric.pop(key) for key in ("planes", "routing") if key in fabric}
    if chip.calibration not in (None, cluster.calibration):
        data["accelerator"] = {"machine": _machine(chip), **data["accelerator"]}
    return data if cluster.calibration is None else {"machine": _machine(cluster), **data}


def _spelled(section: type[S], part: Cluster | Accelerator | Link | Fabric, /, **own: object) -> S:
    """The section of which `part` is what is meant, all of its figures written."""
    figures: Fields = {
        key: getattr(part, FIGURES.get(key, key), None) for key in section.model_fields
    }
    return section.model_construct(**(figures | own))


@remembered(_PRESETS)
def _chip(chip: Accelerator) -> AcceleratorChoice:
    flops = dict(sorted(chip.peak_flops.items()))
    return _spelled(AcceleratorChoice, chip, peak_flops=flops)


@remembered(_PRESETS)
def _fabric(fabric: Fabric) -> FabricChoice:
    usual = Fabric(kind=FabricKind.SINGLE_SWITCH)
    thinned = (fabric.oversubscription, *fabric.above)
    return _spelled(
        FabricChoice,
        fabric,
        kind=fabric.kind.value,
        oversubscription=thinned if fabric.above else fabric.oversubscription,
        shape=fabric.shape or None,
        widths=fabric.widths or None,
        links=fabric.links or None,
        planes=None if fabric.planes == usual.planes else fabric.planes,
        routing=None if fabric.routing is usual.routing else fabric.routing.value,
    )


def _machine(part: Cluster | Accelerator) -> Fields:
    """Content of the machine file that a part was measured in."""
    assert part.calibration is not None, "it was measured"
    return dict(part.calibration.document)
