"""Fifteen laws that hold for every scenario, each a function that says how one scenario breaks it.

`Case` simulates a scenario once and keeps what several laws ask for; `broken` runs them all. A law says nothing (an empty text) where it holds, and None where it does
not apply: one of unfolded ranks to a step of thousands of ranks, one of hardware to a scenario that is not simulated.
"""

from __future__ import annotations

import collections
import copy
import dataclasses
import functools
import json
import math
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import mpsim
from mpsim.engine import run
from mpsim.errors import MpsimError
from mpsim.hardware import Accelerator, Cluster, accelerator, accelerator_names, host_of
from mpsim.parallel import FOLDED
from mpsim.program import TICK, Program
from mpsim.program.expand import expand
from mpsim.program.unfold import Unfolding
from mpsim.result import Result
from mpsim.scenario import Scenario
from mpsim.serving import ServiceResult
from mpsim.serving.bounds import bound_service
from mpsim.serving.tally import latencies
from mpsim.simulate import Prepared, prepare, ready
from mpsim.training.build import build_program
from mpsim.training.plan import PlanCosts

__all__ = ["LAWS", "Case", "broken"]

_ROUNDED = 1e-6  # of a step: what whole ticks and sums of floats may be off
_MOST_ROWS = 150_000  # of a program that laws build a second time, kernel by kernel


class Case:
    """One scenario and what became of it.

    Parameters
    ----------
    data : dict
        As a file would hold it.
    """

    RAN, REFUSED = "ran", "refused"

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data
        self.refused = self.failed = ""
        self.result: Result | ServiceResult | None = None
        try:
            self.scenario = Scenario.from_mapping(data)
            ready(self.scenario)
        except MpsimError as error:
            self.refused = str(error)
        try:
            self.result = mpsim.simulate(Scenario.from_mapping(data))
            self.summary = json.loads(self.result.to_json())
        except MpsimError as error:
            self.failed, self.result = str(error), None

    @property
    def step(self) -> Result | None:
        """The training step, where it is one that ran."""
        return self.result if isinstance(self.result, Result) else None

    @functools.cached_property
    def prepared(self) -> Prepared:
        """The step before it ran."""
        return prepare(self.scenario)

    @functools.cached_property
    def size(self) -> int:
        """Rows of the step, kernel by kernel."""
        program = self.prepared.program
        kernels = np.array([len(template.stream) for template in program.templates] + [1])
        return int(kernels[program.template].sum())


def _account_sums(case: Case) -> str | None:
    """The parts of the account sum to the step, of every rank class exactly, and to the time of a service, of every pool; none is below 0."""
    if (result := case.step) is not None:
        timeline = result.timeline
        if not (result.parts.sum(axis=1) == timeline.makespan).all():
            return f"parts sum to {result.parts.sum(axis=1)} of {timeline.makespan} ticks"
        if (result.parts < 0).any():
            return f"a part is {result.parts.min()} ticks"
        parts, whole = case.summary["breakdown_s"], case.summary["step_time_s"]
        accounts = [parts]
    elif isinstance(case.result, ServiceResult):
        whole = case.summary["duration_s"]
        pools = case.summary.get("pools", {}).values()
        accounts = [pool["account_s"] for pool in (case.summary, *pools)]
    else:
        return None
    for parts in accounts:
        if min(parts.values()) < -1e-9:
            return f"a part is {min(parts.values())} s"
        if not math.isclose(sum(parts.values()), whole, rel_tol=1e-9, abs_tol=1e-12):
            return f"parts sum to {sum(parts.values())} of {whole} s"
    return ""


def _links_carry(case: Case) -> str | None:
    """No port of a rank and no link of the fabric carries more than its bandwidth, over the step."""
    if (result := case.step) is None or case.size > _MOST_ROWS:
        return None
    use = result.links
    most = float(use.mean.max(initial=0.0))
    return _unless(
        most <= 1 + _ROUNDED,
        f"{use.names[int(use.mean.argmax())] if len(use.names) else ''} carries {most:.6f} of what it can",
    )


def _above_floors(case: Case) -> str | None:
    """The step takes at least what compute, memory, links and NICs need for what it does; a service at least its closed form."""
    if isinstance(case.result, ServiceResult):
        return _above_closed_form(case.result)
    if case.step is None:
        return None
    floors, step = case.summary["floors_s"], case.summary["step_time_s"]
    slowest = max(floors, key=floors.__getitem__)
    return _unless(
        floors[slowest] <= step * (1 + _ROUNDED), f"{slowest} needs {floors[slowest]} s of {step} s"
    )


def _above_closed_form(result: ServiceResult) -> str | None:
    """No stream ends, and no request is served, faster than the bounds that a search prunes by."""
    if result.scenario.variation and result.scenario.variation.outages:  # requests begin anew
        return None
    bounds = bound_service(result.plan, result.requests)
    times = latencies(result.served, result.requests, result.plan.first_token_time)
    slack = 1 + _ROUNDED
    if bounds.duration > result.served.end * slack:
        return f"the stream needs {bounds.duration} s of {result.served.end} s"
    for name, least in (("ttft", bounds.ttft), ("tpot", bounds.tpot)):
        if (below := least > times[name] * slack).any():
            place = int(np.argmax(below))
            return f"{name} of request {place} is {times[name][place]} s, needs {least[place]} s"
    return ""


def _tensor_units(case: Case) -> str | None:
    """Matrix units execute at most what they could."""
    if case.step is None:
        return None
    share = case.summary["tensor_utilisation"]
    return _unless(0 <= share <= 1, f"tensor_utilisation is {share}")


_NOT_MEMORY = ("total", "capacity", "rank", "stage")


def _memory_sums(case: Case) -> str | None:
    """The parts of memory sum to its total, which is what the rank with most needs."""
    if case.step is None:
        return None
    memory = case.summary["memory"]
    parts = [value for key, value in memory.items() if key not in _NOT_MEMORY]
    if min(parts) < 0:
        return f"a part is {min(parts)} B"
    capacities = (
        case.step.memory.capacities
    )  # where they differ, the fullest rank is that with least room
    if memory["total"] != case.summary["peak_memory_bytes"] and len(set(capacities.tolist())) == 1:
        return f"the fullest rank needs {memory['total']} of {case.summary['peak_memory_bytes']} B"
    return _unless(
        math.isclose(sum(parts), memory["total"], rel_tol=1e-9),
        f"parts sum to {sum(parts)} of {memory['total']} B",
    )


def _folds(case: Case) -> str | None:
    """Actions as rows, kernels as rows, and every rank by itself take the same time."""
    if case.step is None or case.size > _MOST_ROWS or not case.prepared.replays:
        return None
    program, mesh = case.prepared.program, case.prepared.plan.layout.mesh
    folded = run(program, "replay").makespan
    fine = expand(program)
    kernels = run(fine, "replay").makespan
    if kernels != folded:
        return f"{folded * TICK} s by actions, {kernels * TICK} s by kernels"
    copies = mesh.world // mesh.pp
    if case.prepared.plan.classes or case.size * copies > 4 * _MOST_ROWS:
        return ""
    everyone = Unfolding(fine, {axis.name: mesh.degree(axis.name) for axis in FOLDED}).program()
    apart = run(everyone, "replay").makespan
    return _unless(apart == folded, f"{folded * TICK} s folded, {apart * TICK} s rank by rank")


def _engines_agree(case: Case) -> str | None:
    """simpy and replay give every row the same start and end."""
    if case.step is None or not case.prepared.replays or len(case.prepared.program) > 20_000:
        return None
    first, second = (run(case.prepared.program, engine) for engine in ("replay", "simpy"))
    same = np.array_equal(first.start, second.start) and np.array_equal(first.end, second.end)
    return _unless(same, f"{first.step_time_s} s by replay, {second.step_time_s} s by simpy")


def _faster(cluster: Cluster, what: str) -> Cluster:
    node = cluster.node
    chip = node.accelerator
    if what == "flops":
        chip = dataclasses.replace(
            chip, peak_flops={k: v * 1.5 for k, v in chip.peak_flops.items()}
        )
        return dataclasses.replace(cluster, node=dataclasses.replace(node, accelerator=chip))
    if what == "memory":
        chip = dataclasses.replace(chip, memory_bandwidth=chip.memory_bandwidth * 1.5)
        return dataclasses.replace(cluster, node=dataclasses.replace(node, accelerator=chip))
    if getattr(node, what) is None:
        return cluster
    link = getattr(node, what)
    better = dataclasses.replace(link, bandwidth=link.bandwidth * 1.5)
    return dataclasses.replace(cluster, node=dataclasses.replace(node, **{what: better}))


def outdoes(new: Accelerator, old: Accelerator) -> bool:
    """Whether a chip has no figure below another one's of its family."""
    formats = ("bf16", "fp16", "fp8", "fp4")
    return (
        new.name != old.name
        and (new.family, new.scale_up) == (old.family, old.scale_up)
        and new.memory_bandwidth >= old.memory_bandwidth
        and new.memory_bytes >= old.memory_bytes
        and new.tdp_w >= old.tdp_w
        and all(new.peak_flops.get(f, 0.0) >= old.peak_flops.get(f, 0.0) for f in formats)
    )


def _faster_is_not_slower(case: Case) -> str | None:
    """A faster chip, memory, scale-up link or NIC never slows a step whose transfers do not meet, nor requests that come alone."""
    if isinstance(case.result, ServiceResult):
        return _faster_serves_no_slower(case)
    if case.step is None or not case.prepared.replays or case.prepared.plan.classes:
        return None
    plan = case.prepared.plan
    if plan.layout.stage_clusters or plan.schedule in ("auto", "zb-1p", "zb-2p"):  # another order
        return None
    before = run(case.prepared.program, "replay").makespan
    for what in ("flops", "memory", "scale_up", "nic"):
        better = plan.on(
            dataclasses.replace(plan.layout, cluster=_faster(plan.layout.cluster, what))
        )
        after = run(build_program(better, PlanCosts(better)), "replay").makespan
        if after > before * (1 + _ROUNDED):
            return f"{what} x 1.5: {before * TICK} s becomes {after * TICK} s"
    return ""


def _faster_serves_no_slower(case: Case) -> str:
    """The same of requests that come one after the other."""
    data = copy.deepcopy(case.data)
    load = data["serving"]["workload"]
    load.pop("rate", None)
    load.update(arrival="closed", concurrency=1, requests=3)
    alone = Scenario.from_mapping(data)
    before = mpsim.simulate(alone).summary["duration_s"]
    node = alone.hardware.node
    chip = node.accelerator
    peaks = {key: f"{1.5 * peak} FLOP/s" for key, peak in chip.peak_flops.items()}
    changes: dict[str, object] = {
        "accelerator.peak_flops": peaks,
        "accelerator.memory_bandwidth": f"{1.5 * chip.memory_bandwidth} B/s",
        "scale_up.bandwidth": f"{1.5 * node.scale_up.bandwidth} B/s",
    }
    if node.nics:
        changes["nic.bandwidth"] = f"{1.5 * node.nic.bandwidth} B/s"
    for key, value in changes.items():
        after = mpsim.simulate(alone.with_values({f"cluster.{key}": value})).summary["duration_s"]
        if after > before * (1 + _ROUNDED):
            return f"{key} x 1.5: {before} s becomes {after} s"
    calls = host_of(alone.hardware).call_time
    for name in accelerator_names():
        if not outdoes(accelerator(name), chip):
            continue
        other = alone.with_values({"cluster.accelerator": name})
        # a faster chip may hang on a slower host, which launches its kernels
        if host_of(other.hardware).call_time <= calls:
            after = mpsim.simulate(other)
            if after.summary["duration_s"] > before * (1 + _ROUNDED):
                return f"{chip.name}'s {before} s become {after.summary['duration_s']} s on {name}"
    return ""


def _interference_is_not_faster(case: Case) -> str | None:
    """Kernels and collectives that slow each other down never make a step faster."""
    if case.step is None or case.size > _MOST_ROWS // 5 or "variation" in case.data:
        return None
    simulation = {**case.data.get("simulation", {}), "engine": "simpy"}
    times = []
    try:
        for interference in (False, True):
            data = {**case.data, "simulation": {**simulation, "interference": interference}}
            result = mpsim.simulate(Scenario.from_mapping(data))
            assert isinstance(result, Result)
            times.append(result.timeline.step_time_s)
    except MpsimError:
        return None
    plain, beside = times
    return _unless(plain <= beside * (1 + _ROUNDED), f"{plain} s becomes {beside} s beside others")


def _more_work_is_not_faster(case: Case) -> str | None:
    """Twice the microbatches take at least as long."""
    if case.step is None or "batch_per_replica" in case.data["training"]:
        return None
    more = copy.deepcopy(case.data)
    more.pop("variation", None)
    plain = copy.deepcopy(more)
    more["training"]["global_batch"] *= 2
    try:
        before, after = (mpsim.simulate(Scenario.from_mapping(data)) for data in (plain, more))
    except MpsimError:  # a schedule may not run so many
        return None
    assert isinstance(before, Result)
    assert isinstance(after, Result)
    once, twice = before.timeline.step_time_s, after.timeline.step_time_s
    return _unless(
        once <= twice * (1 + _ROUNDED), f"{once} s becomes {twice} s with twice the microbatches"
    )


def _same_bytes(case: Case) -> str | None:
    """The same scenario, its keys in another order, gives the same bytes."""
    if case.result is None:
        return None
    data = {key: case.data[key] for key in reversed(case.data)}
    again = mpsim.simulate(Scenario.from_mapping(data)).to_json()
    return _unless(again == case.result.to_json(), "a second run gives other bytes")


def _numbers(value: object, path: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, dict):
        for key, entry in value.items():
            yield from _numbers(entry, f"{path}.{key}")
    elif isinstance(value, list):
        for place, entry in enumerate(value):
            yield from _numbers(entry, f"{path}.{place}")
    elif isinstance(value, float):
        yield path, value


def _finite(case: Case) -> str | None:
    """Every number of the JSON is finite, and times, bytes and rates are not below 0."""
    if case.result is None:
        return None
    wrong = [path for path, value in _numbers(case.summary) if not math.isfinite(value)]
    wrong += [
        key
        for key in ("step_time_s", "duration_s", "peak_memory_bytes", "mfu")
        if case.summary.get(key, 1.0) <= 0
    ]
    return _unless(not wrong, f"not finite or not above 0: {', '.join(wrong)}")


def _check_is_run(case: Case) -> str | None:
    """``mpsim check`` refuses what ``mpsim run`` refuses, with the same words, and nothing else."""
    if case.refused == case.failed:
        return ""
    return f"check says {case.refused or 'ok'!r}, run says {case.failed or 'ok'!r}"


def _saved_is_loaded(case: Case) -> str | None:
    """A resolved scenario and a saved result come back equal."""
    if case.result is None:
        return None
    again = Scenario.from_mapping(case.scenario.resolved())
    if again.digest != case.scenario.digest:
        return "the resolved scenario is another one"
    if (result := case.step) is None:
        return ""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "result"
        result.save(path)
        loaded = Result.load(path)
    if loaded.to_json() != result.to_json():
        return "the loaded summary differs"
    same = np.array_equal(loaded.timeline.end, result.timeline.end)
    return _unless(same and _equal(loaded.program, result.program), "the loaded program differs")


def _equal(program: Program, other: Program) -> bool:
    columns = ("rank", "stream", "kind", "template", "duration", "dep", "slot", "part")
    return all(np.array_equal(getattr(program, name), getattr(other, name)) for name in columns)


def _interval_brackets(case: Case) -> str | None:
    """Every interval holds its figure, and its ends are in order."""
    if case.result is None:
        return None
    for name, bounds in case.summary["interval"].items():
        value = case.summary.get(name)
        if isinstance(bounds, list) and isinstance(value, int | float):
            low, high = bounds
            if not low * (1 - 1e-9) <= value <= high * (1 + 1e-9):
                return f"{name} {value} is outside {bounds}"
    return ""


def _unless(holds: bool | np.bool_, message: str) -> str:
    return "" if holds else message


LAWS: dict[str, Callable[[Case], str | None]] = {
    "the account sums": _account_sums,
    "no link above its bandwidth": _links_carry,
    "no time below its floor": _above_floors,
    "matrix units within their peak": _tensor_units,
    "the memory's parts sum": _memory_sums,
    "folded equals unfolded": _folds,
    "replay equals simpy": _engines_agree,
    "faster hardware never slows": _faster_is_not_slower,
    "interference never makes faster": _interference_is_not_faster,
    "more microbatches never take less": _more_work_is_not_faster,
    "the same bytes twice": _same_bytes,
    "JSON is finite": _finite,
    "check agrees with run": _check_is_run,
    "saved equals loaded": _saved_is_loaded,
    "the interval holds the prediction": _interval_brackets,
}
"""The laws by what they claim."""


def broken(data: dict[str, Any], counts: dict[str, int] | None = None) -> dict[str, str]:
    """How one scenario breaks laws; anything but a mistake that mpsim names is one too.

    Parameters
    ----------
    data : dict
    counts : counter, optional
        Gets one more for what became of the scenario, and for every law that holds for it.
    """
    counted: dict[str, int] = collections.Counter() if counts is None else counts
    try:
        case = Case(data)
    except Exception as error:  # noqa: BLE001 # what no command may show a person
        return {"no internal error": f"{type(error).__name__}: {error}"}
    counted[Case.REFUSED if case.result is None else Case.RAN] += 1
    result = {}
    for name, law in LAWS.items():
        try:
            told = law(case)
        except Exception as error:  # noqa: BLE001
            told = f"{type(error).__name__}: {error}"
        if told:
            result[name] = told
        elif told is not None:
            counted[name] += 1
    return result
