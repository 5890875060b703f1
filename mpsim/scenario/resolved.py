"""A scenario with every preset spelled out, as plain data, and the digest of it."""

from __future__ import annotations

import copy
import dataclasses
import hashlib
import itertools
import json
from collections.abc import Mapping
from typing import Any

from mpsim.errors import ScheduleError
from mpsim.framework import Framework
from mpsim.hardware import Accelerator, Cluster, Fabric, FabricKind, Link, Placement
from mpsim.inputs import read_bytes
from mpsim.memo import remembered
from mpsim.scenario.described import Described
from mpsim.scenario.variation import Variation
from mpsim.units import Dimension, format_exact
from mpsim.workload import Transformer

__all__ = ["digest_of", "resolved_data"]

_PROVENANCE = ("source", "as_of", "title")
_PRESETS = 16  # models and frameworks that stay ready


def resolved_data(scenario: Described) -> dict[str, Any]:
    """Plain data that gives the same scenario again, whatever becomes of the presets it named."""
    parallelism = scenario.parallelism.model_dump(exclude_none=True)
    if not scenario.serves:
        parallelism["dp"] = scenario.dp
    else:  # pools have layouts of their own
        own = () if scenario.service.disaggregated else ("tp", "pp", "ep")
        parallelism = {axis: parallelism[axis] for axis in own}
    if "layers_per_stage" in parallelism:
        parallelism["layers_per_stage"] = list(scenario.stage_layers or ())
    schedule = scenario.schedule.model_dump(exclude_none=True)
    schedule["virtual_stages"] = scenario.schedule.chunks
    framework = {"preset": scenario.framework.preset, **scenario.framework.overrides}
    data: dict[str, Any] = {
        "schema": scenario.schema_version,
        "name": scenario.name,
        "model": _model(scenario.transformer),
        "cluster": _cluster(scenario.hardware) | _parts(scenario),
        "parallelism": parallelism,
        "schedule": schedule,
        **_job(scenario),
        "framework": framework,
        "simulation": _simulation(scenario),
    }
    if scenario.variation is not None:
        data["variation"] = _variation(scenario.variation)
    if scenario.sweep:
        data["sweep"] = {key: list(values) for key, values in scenario.sweep.items()}
    return data


def _variation(variation: Variation) -> dict[str, Any]:
    data = variation.model_dump(exclude_none=True)
    for part in data["slow"]:
        if "ranks" in part:
            part["ranks"] = list(part["ranks"])
    outages = [
        {**outage, **{key: format_exact(outage[key], Dimension.TIME) for key in ("at", "duration")}}
        for outage in data.pop("outages")
    ]
    found = {**data, "slow": list(data["slow"]), "links": list(data["links"])}
    return {**found, "outages": outages} if outages else found


def digest_of(scenario: Described) -> str:
    """sha256 of all that decides the result: not of names of files, nor of the order of keys."""
    content = resolved_data(scenario)
    del content["name"]
    content.pop("sweep", None)
    content["framework"] = _figures(scenario.software)
    if scenario.schedule.file is not None:
        orders = read_bytes(scenario.schedule.file, needed="a schedule", error=ScheduleError)
        content["schedule"]["file"] = hashlib.sha256(orders).hexdigest()
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def _model(transformer: Transformer) -> dict[str, Any]:
    return copy.deepcopy(_figures(transformer))


@remembered(_PRESETS)
def _figures(preset: Transformer | Framework) -> dict[str, Any]:
    """Fields of a model or framework without their sources; points of a sweep share them, do not change it in place."""
    fields = dataclasses.asdict(preset)
    return {key: value for key, value in fields.items() if key not in _PROVENANCE}


def _job(scenario: Described) -> dict[str, Any]:
    """The section of the job, by its name."""
    if scenario.serving is None:
        return {"training": _training(scenario)}
    data = scenario.serving.model_dump(exclude_none=True)
    engine = data.pop("engine")
    if "disaggregated" in data:
        del data["attention_dp"]
    return {
        "serving": {
            "engine": {"preset": engine["preset"], **engine["overrides"]},
            **_with_units(data),
        }
    }


def _with_units(data: dict[str, Any]) -> dict[str, Any]:
    """A serving section whose times are quantities again."""
    times = {"slo": ("ttft", "tpot"), "workload": ("duration", "warmup")}
    written = {
        section: {
            key: format_exact(value, Dimension.TIME) if key in names else value
            for key, value in data[section].items()
        }
        for section, names in times.items()
    }
    return {**data, **written}


def _training(scenario: Described) -> dict[str, Any]:
    data = scenario.training_step.model_dump()
    batches = data.pop("batch_per_replica")
    return data if batches is None else {**data, "batch_per_replica": list(batches)}


def _parts(scenario: Described) -> dict[str, Any]:
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


def _part(cluster: Cluster) -> dict[str, Any]:
    """Fields that the nodes of one part have in place of the cluster's."""
    whole = _cluster(cluster)
    names = ("accelerator", "scale_up", "nic", "nics_per_node", "node_power", "price_per_hour")
    return {key: whole[key] for key in names if whole.get(key)}


def _simulation(scenario: Described) -> dict[str, Any]:
    data = scenario.simulation.model_dump()
    if not data["interference"]:  # written only where it matters: digests of old scenarios stay
        del data["interference"]
    if data["straggling"]:  # likewise
        del data["straggling"]
    return data


def _without_none(data: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in data.items() if value is not None}


def _cluster(cluster: Cluster) -> dict[str, Any]:
    node, fabric = cluster.node, cluster.fabric
    price = cluster.accelerator.price_per_hour
    return _without_none(
        {
            "machine": _machine(cluster),
            "name": cluster.name,
            "nodes": cluster.nodes,
            "accelerator": _accelerator(node.accelerator, within=cluster),
            "accelerators_per_node": node.accelerators,
            "scale_up": _link(node.scale_up),
            "domain": node.domain,
            "nics_per_node": node.nics,
            "nic": _link(node.nic),
            "fabric": _fabric(fabric),
            "placement": _placement(cluster),
            "library": cluster.library or None,
            "node_power": _optional(node.power_w, Dimension.POWER),
            "price_per_hour": _optional(price, Dimension.PRICE_RATE),
        }
    )


def _fabric(fabric: Fabric) -> dict[str, Any]:
    usual = Fabric(kind=FabricKind.SINGLE_SWITCH)
    whole = [fabric.oversubscription, *fabric.above]
    rest = {
        "shape": list(fabric.shape),
        "widths": list(fabric.widths),
        "links": [[*ends, format_exact(rate, Dimension.BANDWIDTH)] for *ends, rate in fabric.links],
        "switch_price": fabric.switch_price,
        "cable_price": fabric.cable_price,
        "switch_power": _optional(fabric.switch_power_w, Dimension.POWER),
        "planes": None if fabric.planes == usual.planes else fabric.planes,
        "routing": None if fabric.routing is usual.routing else fabric.routing.value,
    }
    return {
        "kind": fabric.kind.value,
        "oversubscription": whole if fabric.above else fabric.oversubscription,
        "hop_latency": format_exact(fabric.hop_latency, Dimension.TIME),
        "radix": fabric.radix,
        "axes": fabric.axes,
        **{key: value for key, value in rest.items() if value not in (None, [])},
    }


def _placement(cluster: Cluster) -> str | list[int] | None:
    where = cluster.placement
    if where is Placement.PACKED:
        return None
    return where.value if isinstance(where, Placement) else list(where)


def _optional(value: float | None, dimension: Dimension) -> str | None:
    return None if value is None else format_exact(value, dimension)


def _machine(part: Cluster | Accelerator) -> dict[str, Any] | None:
    """Content of the machine file that a part was measured in."""
    return None if part.calibration is None else dict(part.calibration.document)


def _accelerator(chip: Accelerator, *, within: Cluster) -> dict[str, Any]:
    own = {} if chip.calibration in (None, within.calibration) else {"machine": _machine(chip)}
    return {
        **own,
        "preset": chip.name,
        "peak_flops": {
            precision: format_exact(peak, Dimension.FLOP_RATE)
            for precision, peak in sorted(chip.peak_flops.items())
        },
        "memory": format_exact(chip.memory_bytes, Dimension.BYTES),
        "memory_bandwidth": format_exact(chip.memory_bandwidth, Dimension.BANDWIDTH),
        "compute_units": chip.compute_units,
        "tdp": format_exact(chip.tdp_w, Dimension.POWER),
        "idle": format_exact(chip.idle_w, Dimension.POWER),
        **{
            key: format_exact(hertz, Dimension.FREQUENCY)
            for key, hertz in (("boost_clock", chip.boost_clock_hz), ("clock", chip.clock_hz))
            if hertz is not None
        },
    }


def _link(link: Link) -> dict[str, Any]:
    return {
        "preset": link.name,
        "bandwidth": format_exact(link.bandwidth, Dimension.BANDWIDTH),
        "latency": format_exact(link.latency, Dimension.TIME),
        "links": link.links,
        "efficiency": link.efficiency,
        "in_network_reduction": link.in_network_reduction,
        "switch_latency": format_exact(link.switch_latency, Dimension.TIME),
        "switch_ports": link.switch_ports,
    }
