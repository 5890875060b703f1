"""Keys that framework or model settle: what a trainer always does, the format that a served model
was released in.

Most presets describe how a stack runs whatever it is told to run. Some shard as their name says, a
few are the whole recipe of one training; those settle the keys that a file leaves out. What is
written always wins. A word that means another thing to users of the stack than to those of Megatron
is replaced by the one that means it here.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from mpsim.framework import (
    SelectiveRecompute,
    framework,
    framework_line,
    selective_of,
    settled_keys,
)
from mpsim.hardware import Accelerator
from mpsim.scenario.layers import Data, assign, copied, expand_shorthand
from mpsim.shipped import read_shipped

if TYPE_CHECKING:
    from mpsim.scenario.written import Written

_SELECTIVE = "selective"
_TRAINS, _SERVES = ("framework", ("training",)), ("model", ("serving", "server"))
_AUTO = ("serving.kv", "bf16")


def settle(data: Data) -> Data:
    """`data` of a file with what is settled and its words as they are meant; itself if nothing is.

    Examples
    --------
    >>> given = {"training": {}, "framework": "deepseek-2024", "schedule": "1f1b"}
    >>> settle(given)["parallelism"]["zero"]
    1
    >>> settle({"training": {"recompute": "selective"}, "framework": "torchtitan"})["training"]
    {'recompute': 'per-op'}
    """
    found = {**settled_by(data, said := _said(data)), **said}
    if not found:
        return data
    settled: Data = copied(data)
    for key, value in found.items():
        with contextlib.suppress(KeyError):  # what is no mapping, the schema says
            assign(settled, tuple(key.split(".")), value)
    return settled


def _said(data: Data) -> dict[str, object]:
    """Values that options of a serving engine say, whose tables only a file of serving needs."""
    if not _serves(data):
        return {}
    from mpsim.scenario.servers import said

    # a cache as wide as the model is the schema's, or that of the chip
    return {key: value for key, value in said(data).items() if (key, value) != _AUTO}


def _wide(data: Data) -> str | None:
    """The format of 16 bits that is served where an accelerator has no other: fp16 before bf16
    (vLLM: bfloat16 needs compute capability 8.0), in all pools, whose caches are alike.
    """
    if not _serves(data):
        return None
    from mpsim.scenario.servers import chips_of

    peaks = [chip.peak_flops for chip in chips_of(data)]
    lacks = any("bf16" not in each for each in peaks)
    return "fp16" if lacks and all("fp16" in each for each in peaks) else None


def _serves(data: Data) -> bool:
    return any(isinstance(data.get(job), Mapping) for job in _SERVES[1])


def settled_by(data: Data, said: Mapping[str, object] | None = None) -> dict[str, object]:
    """Values by dotted key that the framework or the model of a file settles: those of each of
    their groups of which the file writes no key, and what is meant by a word that the file writes.
    `said`: what options of a serving engine say, of who knows it.
    """
    groups = settled_keys(str(_section(data, *_TRAINS).get("preset")))
    said = _said(data) if said is None else said
    form, wide = released(str(_section(data, *_SERVES).get("preset"))), _wide(data)
    formats = {"serving.weights": form or wide, "serving.kv": wide}
    groups += tuple({key: word} for key, word in formats.items() if word)
    left_out = {
        key: value
        for group in groups
        if not any(key in said or _written(data, key) for key in group)
        for key, value in group.items()
    }
    return {**left_out, **_meant(data)}


def released(model: str) -> str | None:
    """The format of the weights that a model of the catalog was released with; None for 16 bits."""
    found: str | None = read_shipped("mpsim.scenario.data", "released.yaml")["weights"].get(model)
    return found


def longest_context(model: str) -> float:
    """Tokens of a sequence that a model of the catalog was released for; inf of any other."""
    known = read_shipped("mpsim.scenario.data", "released.yaml")["context"]
    return float(known.get(model, math.inf))


def homeless(scenario: Written, chips: Iterable[Accelerator]) -> list[str]:
    """Say where a stack or an engine is simulated on accelerators that it was not written for, and
    which was: such habits and kernels are of nobody's run.
    """
    known, words, serves = read_shipped("mpsim.scenario.data", "homes.yaml"), {}, scenario.serves
    stack = scenario.service.engine.preset if serves else scenario.framework.preset
    preset, homes = stack if serves else framework_line(stack)[0], known["homes"]
    home = next((name for name, stacks in homes.items() if preset in stacks), "")
    for chip in chips if preset else ():
        alone = chip.family in homes and not serves
        if (home or alone) and home not in (chip.family, chip.vendor):
            ported = known["ports"].get(chip.vendor, {}).get(preset)
            meant = homes[chip.family] if alone else ported or known["elsewhere"].get(home, [])
            text = f"{stack} was not written for {chip.name}, and is simulated all the same"
            words[chip.family] = text + (f"; take {' or '.join(meant[:2])}" if meant else "")
    return [f"{'serving.engine' if serves else 'framework'}: {text}" for text in words.values()]


def other_attention(scenario: Written) -> list[str]:
    """Say where an accelerator cannot run the attention kernel that the file asks for."""
    choice, taken = scenario.framework, scenario.software
    named = {"attention_kernel", "fused_attention"} & choice.overrides.keys()
    if not named or not choice.overrides.get("fused_attention", True):
        return []
    asked = framework(choice.preset, choice.overrides).kernels.attention_kernel
    runs = taken.kernels.attention_kernel if taken.lowering.fused_attention else "scores in memory"
    if runs == asked:
        return []
    chips = ", ".join(dict.fromkeys(cluster.accelerator.name for cluster in scenario.clusters))
    key = "framework.attention_kernel"
    return [f"{key}: got {asked}, which {chips} cannot run; simulated with {runs}"]


def _meant(data: Data) -> dict[str, object]:
    """Selective recomputation as the users of the stack mean it, unless the file names modules."""
    chosen = _section(data, *_TRAINS)
    training = data["training"] if chosen else {}
    if training.get("recompute") != _SELECTIVE or training.get("recompute_modules") is not None:
        return {}
    usual = selective_of(str(chosen.get("preset")))
    is_per_op = chosen.get("recompute_selective", usual) == SelectiveRecompute.PER_OP
    return {"training.recompute": SelectiveRecompute.PER_OP.value} if is_per_op else {}


def _section(data: Data, name: str, jobs: tuple[str, ...]) -> Mapping[str, object]:
    """A section spelled out; empty if there is none, or if the file has none of the jobs."""
    has_job = any(isinstance(data.get(job), Mapping) for job in jobs)
    chosen = expand_shorthand(name, data.get(name)) if has_job else None
    return chosen if isinstance(chosen, Mapping) else {}


def in_words(values: Mapping[str, object]) -> list[str]:
    """Keys with their values, as a file has them.

    Examples
    --------
    >>> in_words({"schedule": "dualpipe", "training.recompute_modules": ["layernorm", "moe_act"]})
    ['schedule: dualpipe', 'training.recompute_modules: [layernorm, moe_act]']
    """
    return [
        f"{key}: [{', '.join(map(str, value))}]" if isinstance(value, list) else f"{key}: {value}"
        for key, value in values.items()
    ]


def _written(data: Data, key: str) -> bool:
    """Whether a file has a key, or in its place something that the schema will refuse."""
    section, _, name = key.partition(".")
    if not name or section not in data:
        return section in data
    inner = data[section]
    return not isinstance(inner, Mapping) or name in inner
