"""Serving engines: how a software stack batches, what it keeps, and what it costs beside the device."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Mapping
from typing import Any

from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.hardware import Cluster
from mpsim.memo import remembered
from mpsim.shipped import read_shipped
from mpsim.units import Dimension, parse_quantity

__all__ = ["EnginePreset", "calibrated", "engine", "engine_for", "engine_names", "override"]

SCHEDULERS = ("budget", "prefill-first", "no-evict", "max-utilisation", "static")
RANKS = ("even", "apart")
REDUCTIONS = ("custom", "library")
FRACTIONS = ("memory", "free")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """A serving engine of one era.

    Parameters
    ----------
    name, title : str
    scheduler : str
        One of `SCHEDULERS`, see `mpsim.serving.batching`.
    max_sequences, max_tokens : int
        Sequences that run at once, tokens of an iteration.
    chunked : bool
        Whether a prompt may be cut into chunks.
    block : int
        Tokens of a block of cache.
    memory_fraction : float
        Share of the device memory that the engine may fill.
    fraction_of : str
        What that is a share of: ``memory``, or ``free`` (what weights and reserve leave of it).
    reserve : float
        Of it: what context, libraries and graphs take [B].
    prefix_cache : bool
    batch_wait_steps : int
        Decoding iterations for which prompts may be kept back until more of them have come.
    batch_wait_share : float
        Share of `max_tokens` from which an iteration takes its prompts without waiting.
    graph_sizes : tuple of int
        Numbers of decoding sequences that graphs were captured for, ascending; empty without graphs.
    step_time, request_time : float
        Host time of an iteration, and of a sequence in it, that the device waits for [s].
    prompt_step_time : float
        More of an iteration with prompts [s].
    layer_time : float
        Host time of a layer that the device waits for [s].
    host_layer_time : float
        Host time of a layer beside the device: an iteration is never shorter [s].
    slowdown : float
        Time of the device over that of the kernels alone.
    sampling_time : float
    first_token_time : float
        From a request to the first token, beside queue and prompt: server, tokenizer, network [s]. A user of a closed loop is away from the engine for as long between two requests.
    expert_layer_time, expert_first_token_time : float
        More of a layer of experts that the device waits for, and of each such layer until the first token [s].
    stream_kernels, stream_elements : float
        Memory-bound kernels of a layer, and elements of the hidden width a token that they move.
    reduction : str
        ``custom`` (one-shot and two-shot kernels for small tensors) or ``library``.
    reduction_factor : float
        Time of the library's all-reduces over their model's.
    attention_ranks : str
        Of an instance whose ranks keep requests of their own: ``even``, as one engine that spreads its work evenly over them, or ``apart``, each with its part of the
        budgets, waiting for the busiest.
    shared_reads : bool
        Whether query heads of a group share the reads of their keys and values.
    source, as_of, status : str
    """

    name: str
    title: str = ""
    scheduler: str = "budget"
    max_sequences: int = 256
    max_tokens: int = 8192
    chunked: bool = True
    block: int = 16
    memory_fraction: float = 0.9
    fraction_of: str = "memory"
    reserve: float = 4e9
    prefix_cache: bool = False
    batch_wait_steps: int = 0
    batch_wait_share: float = 1.0
    graph_sizes: tuple[int, ...] = ()
    step_time: float = 0.0
    request_time: float = 0.0
    prompt_step_time: float = 0.0
    layer_time: float = 0.0
    host_layer_time: float = 0.0
    slowdown: float = 1.0
    sampling_time: float = 0.0
    first_token_time: float = 0.0
    expert_layer_time: float = 0.0
    expert_first_token_time: float = 0.0
    stream_kernels: float = 4.0
    stream_elements: float = 14.0
    reduction: str = "custom"
    reduction_factor: float = 1.0
    attention_ranks: str = "even"
    shared_reads: bool = True
    source: str = ""
    as_of: str = ""
    status: str = ""


_PROVENANCE = ("name", "title", "source", "as_of", "status")
_CHOICES = {
    "scheduler": SCHEDULERS,
    "attention_ranks": RANKS,
    "reduction": REDUCTIONS,
    "fraction_of": FRACTIONS,
}
_SHARES = ("memory_fraction", "batch_wait_share")
_TIMES = frozenset(
    field.name for field in dataclasses.fields(EnginePreset) if field.name.endswith("_time")
)


def engine_names() -> tuple[str, ...]:
    """Every engine of the catalog, in its order."""
    return tuple(_entries())


def engine(name: str) -> EnginePreset:
    """The engine called `name`.

    Raises
    ------
    ScenarioError
        If there is none of that name.
    """
    entries = _entries()
    if name not in entries:
        raise ScenarioError(f"no serving engine {name!r}; {nearest(name, entries)}")
    return _preset(name)


def calibrated(preset: EnginePreset, cluster: Cluster) -> EnginePreset:
    """An engine with the times that were fitted on a machine, where its file has any."""
    measured = cluster.accelerator.calibration
    if measured is None:
        return preset
    times: dict[str, Any] = {
        name: found.value for name, found in measured.under(f"serving.engines.{preset.name}")
    }
    return dataclasses.replace(preset, **times) if times else preset


def override(preset: EnginePreset, fields: Mapping[str, Any]) -> EnginePreset:
    """An engine with some fields replaced, written as in a scenario: quantities with units.

    Raises
    ------
    ScenarioError
        With every field that does not exist or has a wrong value.
    """
    known = {field.name: field for field in dataclasses.fields(EnginePreset)}
    problems: list[Problem] = []
    values: dict[str, Any] = {}
    for key, value in fields.items():
        place = f"serving.engine.{key}"
        if key not in known or key in _PROVENANCE:
            usable = [name for name in known if name not in _PROVENANCE]
            problems.append(Problem(f"unknown key {key!r}; {nearest(key, usable)}", key=place))
            continue
        try:
            values[key] = _checked(key, value, getattr(preset, key))
        except (ValueError, TypeError) as error:
            problems.append(Problem(str(error), key=place))
    if problems:
        raise ScenarioError(problems)
    return dataclasses.replace(preset, **values)


def _checked(key: str, value: Any, usual: Any) -> Any:
    """A field's value as a person wrote it; ValueError if it is not one."""
    value = _value(key, value)
    if key in _CHOICES:
        if value not in _CHOICES[key]:
            raise ValueError(f"got {value!r}; {nearest(str(value), _CHOICES[key])}")
        return value
    if isinstance(usual, bool):
        if not isinstance(value, bool):
            raise ValueError(f"got {value!r}; needed true or false")
        return value
    if isinstance(usual, tuple):
        if not (
            isinstance(value, tuple) and all(isinstance(size, int) and size > 0 for size in value)
        ):
            raise ValueError(f"got {value!r}; needed a list of positive whole numbers")
        return tuple(sorted(value))
    whole = isinstance(usual, int)
    if isinstance(value, bool) or not isinstance(value, int if whole else int | float):
        raise ValueError(f"got {value!r}; needed a {'whole ' if whole else ''}number")
    least = 1 if whole and usual else 0
    share = key in _SHARES
    if not math.isfinite(value) or value < least or (share and value > 1):
        raise ValueError(
            f"got {value!r}; needed {'a share from 0 to 1' if share else 'at least 1' if least else '0 or more'}"
        )
    return value if whole else float(value)


def engine_for(words: str) -> EnginePreset | None:
    """The engine that an engine's name and version mean, such as ``vLLM 0.11.2``; None where none does."""
    for name, entry in _entries().items():
        if re.fullmatch(entry["versions"], words.strip()):
            return engine(name)
    return None


@remembered(64)
def _preset(name: str) -> EnginePreset:
    entry = {key: value for key, value in _entries()[name].items() if key != "versions"}
    values = {key: _value(key, value) for key, value in entry.items()}
    return EnginePreset(name=name, **values)


def _value(key: str, value: Any) -> Any:
    if key in _TIMES:
        return parse_quantity(value, Dimension.TIME)
    if key == "reserve":
        return parse_quantity(value, Dimension.BYTES)
    return tuple(value) if isinstance(value, list) else value


@remembered(1)
def _entries() -> Mapping[str, Mapping[str, Any]]:
    entries: Mapping[str, Mapping[str, Any]] = read_shipped(
        "mpsim.serving.catalog", "engines.yaml"
    )["engines"]
    return entries
