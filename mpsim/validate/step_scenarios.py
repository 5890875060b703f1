"""Scenarios of measured steps: what ran, in words of a scenario; nothing that was timed."""

from __future__ import annotations

from mpsim.errors import CalibrationError
from mpsim.formats import Imported
from mpsim.hardware import Cluster, host_of
from mpsim.measured.records import ELEMENT_BYTES, Measurement
from mpsim.result.words import Figures
from mpsim.schedule import schedule
from mpsim.shipped import read_shipped, say
from mpsim.units import Dimension, format_quantity, parse_quantity

_MODEL = ("layers", "hidden", "heads", "ffn_hidden", "vocab")
_SIZES = (*_MODEL, "sequence", "micro_batch")
_DEGREES = ("dp", "tp", "pp")
_DIGITS = 4


def family_of(measurement: Measurement) -> str:
    """The family that a step is summarised with: how it was divided."""
    dp, tp, pp = (measurement.shape.get(axis, 1) for axis in _DEGREES)
    names = []
    if dp > 1:
        names.append(
            "fsdp2" if measurement.variant.get("data_parallel") == "fsdp2" else "data parallel"
        )
    if tp > 1:
        names.append("tensor parallel")
    if pp > 1:
        names.append(f"pipeline {measurement.variant.get('schedule')}")
    return ", ".join(names) or "one rank"


def title_of(measurement: Measurement) -> str:
    """A step in a few words."""
    shape = measurement.shape
    divided = " x ".join(f"{axis} {shape[axis]}" for axis in _DEGREES if shape.get(axis, 1) > 1)
    alone = f"one rank, {shape['micro_batch']} x {shape['sequence']} tokens"
    words = [
        f"{shape['layers']} layers of {shape['hidden']}",
        divided or alone,
        *([str(measurement.variant["schedule"])] if shape.get("pp", 1) > 1 else []),
        *(["fsdp2"] if measurement.variant.get("data_parallel") == "fsdp2" else []),
        *([f"{shape['microbatches']} microbatches"] if shape.get("microbatches", 1) > 1 else []),
        *(["compiled"] if measurement.variant.get("compiled") else []),
        *(["recompute"] if measurement.variant.get("recompute", "none") != "none" else []),
    ]
    return ", ".join(words)


def step_of(measurement: Measurement, machine: Cluster, *, launch: float = 0.0) -> Imported:
    """The scenario that a measured step ran.

    `launch`: host time of one launch on a GPU, as `mpsim measure` found it; 0 where it was not
    measured [s]. CalibrationError if it lacks a size, or ran something that no scenario can say.
    """
    lacking = [name for name in _SIZES if name not in measurement.shape]
    if lacking:
        raise CalibrationError(f"shape lacks {', '.join(lacking)}")
    if measurement.variant.get("compiled") and machine.accelerator.family == "cpu":
        raise CalibrationError(say("validate.compiled_cpu"))
    assert machine.calibration is not None, "a machine file"
    shape = measurement.shape
    dp, tp, pp = (shape.get(axis, 1) for axis in _DEGREES)
    per_node, left = divmod(dp * tp * pp, measurement.domains)
    if left:
        raise CalibrationError(
            f"{dp * tp * pp} ranks do not divide among {measurement.domains} nodes"
        )
    sharded = measurement.variant.get("data_parallel") == "fsdp2"
    microbatches = shape.get("microbatches", 1)
    return Imported(
        scenario={
            "schema": 1,
            "name": title_of(measurement),
            "model": {
                **{name: shape[name] for name in _MODEL},
                "tied_embeddings": False,
                "max_positions": shape["sequence"],
            },
            "cluster": {
                "machine": dict(machine.calibration.document),
                "accelerators_per_node": per_node,
                "nodes": measurement.domains,
            },
            "parallelism": {"dp": dp, "tp": tp, "pp": pp, "zero": 3 if sharded else 0},
            "schedule": _schedule(measurement),
            "training": {
                "global_batch": shape["micro_batch"] * microbatches * dp,
                "micro_batch": shape["micro_batch"],
                "sequence_length": shape["sequence"],
                "precision": measurement.precision,
                "recompute": str(measurement.variant.get("recompute", "none")),
            },
            "framework": _framework(measurement, machine, launch),
        }
    )


def _schedule(measurement: Measurement) -> dict[str, object]:
    if measurement.shape.get("pp", 1) == 1:
        return {"name": "1f1b"}
    virtual = measurement.shape.get("virtual_stages", 1)
    more = {"virtual_stages": virtual} if virtual > 1 else {}
    return {"name": str(measurement.variant["schedule"]), **more}


def _framework(measurement: Measurement, machine: Cluster, launch: float) -> dict[str, object]:
    """The stack that `mpsim measure` runs: its preset, and what its steps do otherwise."""
    table = read_shipped("mpsim.validate.data", "stacks.yaml")
    stack = _stack(measurement)
    narrow = measurement.precision in ("bf16", "fp16")
    fields = {**table["common"], **table[stack], **table["narrow" if narrow else "wide"]}
    fields |= {} if machine.accelerator.family == "cpu" else table["gpu"]
    kernel = table["attention"].get(measurement.variant.get("attention"))
    fields |= {"attention_kernel": kernel} if kernel else {}
    fields |= table["compiled"] if measurement.variant.get("compiled") else {}
    element = ELEMENT_BYTES[measurement.precision]
    fields |= {key: element * passes for key, passes in table["copies"].get(stack, {}).items()}
    known = machine.accelerator.calibration
    habits = known.framework if known else {}
    fields = {key: value for key, value in fields.items() if key == "preset" or key not in habits}
    if machine.accelerator.family == "cpu":
        each = parse_quantity(habits.get("launch_cost", "0 s"), Dimension.TIME)
        layers = measurement.shape["layers"] / measurement.shape.get("pp", 1)
        fields |= _calls(table["calls"], stack, each, layers)
    elif launch:
        x86 = launch / host_of(machine).call_time  # the plan brings it back to this host's
        fields["launch_cost"] = _written(x86 * table["calls"]["operator"])
    return fields


def _stack(measurement: Measurement) -> str:
    if measurement.shape.get("pp", 1) > 1:
        halves = schedule(str(measurement.variant["schedule"])).splits
        return "split-pipeline" if halves else "pipeline"
    return "fsdp2" if measurement.variant.get("data_parallel") == "fsdp2" else "replica"


def _calls(table: Figures, stack: str, each: float, layers: float) -> dict[str, object]:
    """Costs of Python on a CPU, counted in eager calls that take `each` [s]."""
    calls = {way: count + table.get(stack, {}).get(way, 0) for way, count in table["layer"].items()}
    fields: dict[str, object] = {
        "layer_launches_forward": calls["forward"],
        "layer_launches_backward": calls["backward"],
        "step_overhead": _written(each * calls["optimizer"] * layers),
    }
    if "pipeline" in stack:
        fields |= {
            "stage_synchronizations": 1,
            "synchronization_cost": _written(each * table["action"]),
        }
    return fields


def _written(seconds: float) -> str:
    return format_quantity(seconds, Dimension.TIME, digits=_DIGITS)
