"""``mpsim check``: every mistake of a scenario at once, or what was derived from it."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from mpsim.cli.console import print_json, print_table, print_text
from mpsim.cli.emit import targets
from mpsim.cli.options import AsJson, Emit, Reading
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity, percent

if TYPE_CHECKING:
    from mpsim.serving import ServicePlan
    from mpsim.simulate import Prepared


def check(file: Path, *, reading: Reading, emit: Emit = None, as_json: AsJson = False) -> None:
    """Report every mistake of a scenario at once; without any, what follows from it.

    FILE: Scenario file.
    """
    from mpsim.result.result import told_of
    from mpsim.simulate import Prepared, ready

    scenario = reading.load(file)
    (wanted,) = targets(emit, [scenario])
    able = ready(scenario)
    derived = _derived(able) if isinstance(able, Prepared) else _derived_service(able)
    derived |= scenario.told
    derived |= {"warnings": told} if (told := told_of(scenario)) else {}
    files = [item.of(scenario) for item in wanted]
    if as_json:
        data: dict[str, object] = {"scenario": scenario.name, "ok": True, "derived": derived}
        print_json(data | ({"emitted": [item.to_json() for item in files]} if files else {}))
    else:
        print_text(f"{file}: ok")
        print_table(_words(derived))
    for item in files:
        item.write(as_json=as_json)


def _words(derived: Mapping[str, object]) -> list[tuple[str, str]]:
    """Derived values as a person writes them: name, and figure with its unit."""
    rows = []
    for key, value in derived.items():
        name, text = key.replace("_", " "), str(value)
        if key.endswith("_bytes"):
            name = name.removesuffix(" bytes")
            text = format_quantity(float(text), Dimension.BYTES)
        elif key.endswith("_probability"):
            text = percent(float(text))
        elif "parameters" in key:
            text = f"{float(text) / 1e9:.4g} B"
        elif isinstance(value, bool):
            text = "yes" if value else "no"
        elif isinstance(value, int):
            text = f"{value:,}"
        elif isinstance(value, list):
            text = _stages(value) if key == "layers_per_stage" else "; ".join(map(str, value))
        rows.append((f"  {name}", text))
    return rows


def _stages(layers: Sequence[int]) -> str:
    """How many layers neighbouring stages have.

    Examples
    --------
    >>> _stages([2, 2, 3]), _stages([4])
    ('2 on each of 2 stages, 3 on 1 stage', '4 on 1 stage')
    """
    runs = ((count, len(list(group))) for count, group in itertools.groupby(layers))
    return ", ".join(
        f"{count} on {'each of ' if stages > 1 else ''}{plural(stages, 'stage')}"
        for count, stages in runs
    )


def _derived(prepared: Prepared) -> dict[str, object]:
    """The values that a scenario leaves to be worked out."""
    from mpsim.cost import CollectiveModel
    from mpsim.training.intervals import fits_probability, setting_of
    from mpsim.training.memory.account import account_memory, at_the_peak
    from mpsim.training.summary import straddling_words

    scenario, plan = prepared.scenario, prepared.plan
    libraries = [CollectiveModel(cluster).library.name for cluster in scenario.clusters]
    memory = account_memory(plan)
    derived: dict[str, object] = {
        "accelerators": plan.layout.mesh.world,
        "dp": plan.layout.mesh.dp,
        "microbatches": plan.orders.microbatches,
        "virtual_stages": plan.orders.virtual_stages,
        "layers_per_stage": [stage.layers for stage in plan.layout.stages],
        "parameters": plan.layout.model.parameters().total,
        "active_parameters": plan.layout.model.active_parameters(lookup=True),
        "parameters_per_rank": float(plan.layout.rank_parameters.max()),
        "library": ", ".join(dict.fromkeys(libraries)),
        "peak_memory_bytes": float(memory.total.max()),
        "memory_capacity_bytes": memory.capacity,
        "fits_memory": memory.fits,
        "fits_probability": fits_probability(memory, setting_of(plan)),
        "fullest_rank": (
            f"pp {memory.fullest % plan.layout.mesh.pp}, in the {memory.when[memory.fullest]}"
        ),
        "at_the_peak": at_the_peak(plan, memory),
    }
    domain, filled = scenario.hardware.node.domain, plan.layout.cluster.node.domain
    if filled != domain:
        derived["accelerators_of_a_domain"] = f"{filled} of {domain}, which hold groups whole"
    if straddles := straddling_words(plan, prepared.program):
        derived["straddling"] = straddles
    if not memory.fits:
        from mpsim.study.fitting import changes_that_fit

        changes = [str(change) for change in changes_that_fit(scenario)]
        derived["would_fit_with"] = changes or "no change of one or two keys: see mpsim search"
    return derived


def _derived_service(plan: ServicePlan) -> dict[str, object]:
    """Memory of an instance and how much cache is left."""
    if plan.prefill is None:
        return _derived_pool(plan)
    pools = {
        f"{name}_{key}": value
        for name, pool in plan.pools.items()
        for key, value in _derived_pool(pool).items()
    }
    return {**pools, "accelerators": plan.accelerators, "token_bytes": plan.token_bytes}


def _derived_pool(plan: ServicePlan) -> dict[str, object]:
    memory = plan.memory
    return {
        "accelerators": plan.pool_accelerators,
        "replicas": plan.replicas,
        "weights_bytes": memory.weights,
        "activations_bytes": memory.activations,
        "reserve_bytes": memory.reserve,
        "cache_bytes": memory.cache,
        "memory_capacity_bytes": memory.capacity,
        "cache_blocks": plan.blocks,
        "cache_tokens": plan.cache_tokens,
        **({"straddling": plan.straddles} if plan.straddles else {}),
        **_sequences(plan),
    }


def _sequences(plan: ServicePlan) -> dict[str, object]:
    """How many sequences of the workload's mean length an instance holds, and what binds them."""
    load = plan.workload
    if load.trace is not None:
        return {}
    tokens = load.prompt.tokens + (0 if plan.key.endswith("prefill") else load.output.tokens)
    fit, most = plan.cache_tokens // tokens, plan.rules.max_sequences * plan.pp
    binds = "memory" if fit < most else "serving.engine.max_sequences"
    return {"sequences_that_fit": min(fit, most), "bound_by": binds}
