"""Serving engines: how a stack batches, what it keeps, and what it costs beside the device."""

from collections.abc import Mapping
from typing import Literal, TypeAlias

from mpsim import structs
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.hardware import Cluster
from mpsim.memo import remembered
from mpsim.nouns import Bytes, Count, Flag, MistakenError, Number, Seconds, Share, Whole, read
from mpsim.scenario.servers import SERVERS, preset_of
from mpsim.shipped import read_shipped

Scheduler: TypeAlias = Literal["budget", "prefill-first", "no-evict", "max-utilisation", "static"]


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class EnginePreset:
    """A serving engine of one era."""

    name: str
    title: str = ""
    scheduler: Scheduler = "budget"  # see `mpsim.serving.batching`
    max_sequences: Count = 256
    """Sequences that run at once, on each rank that keeps requests of its own (`attention_dp`)."""
    max_tokens: Count = 8192
    """Tokens of an iteration, on each rank that keeps requests of its own (`attention_dp`)."""
    chunked: Flag = True  # whether a prompt may be cut into chunks
    block: Count = 16  # tokens of a block of cache
    memory_fraction: Share = 0.9  # share of the device memory that the engine may fill
    fraction_of: Literal["memory", "free"] = "memory"
    """Base of `memory_fraction`: the whole `memory`, or what weights and reserve leave `free`."""
    reserve: Bytes = 4e9  # memory that context, libraries and graphs take [B]
    window_cache: Flag = False
    """Whether layers with a window keep no more than its tokens, where others see all."""
    prefix_cache: Flag = False  # whether leading blocks that prompts share are computed once
    # prefixes that the device has no room for: memory of the host, and room on its drives for
    # those that this has none for, of an instance [B]
    host_cache: Bytes = 0.0
    disk_cache: Bytes = 0.0
    batch_wait_steps: Whole = 0
    """Decoding iterations for which prompts may be kept back until more of them have come."""
    batch_wait_share: Share = 1.0
    """Share of `max_tokens` from which an iteration takes its prompts without waiting."""
    poll_steps: Count = 1
    """Decoding iterations after which the engine looks for requests that have come."""
    graph_sizes: tuple[Count, ...] = ()
    """Sequences of each rank that keeps its own that graphs were captured for, ascending."""
    graph_padding: Flag = True
    """Whether a batch runs in the next larger graph; else it has its own graph, or none."""
    piecewise_graphs: Flag = False
    """Whether iterations without a graph are compiled and run as pieces of graphs."""
    step_time: Seconds = 0.0  # host time of an iteration that the device waits for [s]
    request_time: Seconds = 0.0  # host time of each sequence of an iteration [s]
    layer_time: Seconds = 0.0  # host time of a layer that the device waits for [s]
    host_layer_time: Seconds = 0.0
    """Time of an x86 host for a layer: no iteration without a graph is shorter [s]."""
    slowdown: Number = 1.0  # time of the device over that of the kernels alone
    sampling_time: Seconds = 0.0
    first_token_time: Seconds = 0.0
    """Time to the first token beside queue and prompt: server, tokenizer, network [s]. A
    user of a closed loop is away from the engine for as long between two requests."""
    tokenizer_time: Seconds = 0.0
    """Time of the server for a token of a prompt before it is queued, one prompt after another
    [s]."""
    stream_time: Seconds = 0.0
    """Time of the server for each piece of an answer, one piece after another [s]."""
    stream_interval: Count = 1  # tokens of a piece
    narrow_prompts: Flag = False
    """Whether attention of prompts multiplies in 8 bits where the cache has 8."""
    mixes: Flag = True
    """Whether prompts and decoding sequences of an iteration pass the layers together."""
    expert_kernel: Literal["auto", "trtllm", "triton", "marlin", "cutlass", "deepgemm"] = "auto"
    """Kernel of the experts' products; ``auto``, as engines choose it for the accelerator."""
    expert_padding: Whole = 0
    """Rows that DeepGEMM passes at least of each expert in 8-bit blocks, of those without tokens
    too, where it is launched before anybody knows their numbers; 0 where it is not."""
    padded_families: tuple[str, ...] = ()  # of accelerators where it does; all without any
    padded_below: Whole = 0
    """Ranks that divide an expert, from which on another kernel runs that pads nothing; 0: none."""
    two_batch_overlap: Flag = False
    """Whether half of a batch computes while the tokens of the other half travel to experts."""
    eplb: Flag = False  # whether experts are placed by their load, hot ones with copies
    redundant_experts: Whole = 0  # slots for copies of experts, of all ranks together, with `eplb`
    stream_kernels: Number = 4.0  # memory-bound kernels of a layer
    stream_elements: Number = 14.0  # elements of the hidden width a token that they move
    reduction: Literal["custom", "library"] = "custom"
    """`custom` (one-shot and two-shot kernels for small tensors) or `library`."""
    reduction_time: Seconds = 0.0
    """Time of the host at each of the library's all-reduces, which the device waits for [s]."""
    attention_ranks: Literal["even", "apart"] = "even"
    """Requests of ranks that keep their own: `even`, as of one engine, or `apart`."""
    shared_reads: Flag = True
    """Whether query heads of a group share the reads of their keys and values."""
    source: str = ""
    as_of: str = ""
    status: str = ""


_PROVENANCE = ("name", "title", "source", "as_of", "status")


def engine_names() -> tuple[str, ...]:
    """Every engine of the catalog, in its order."""
    return tuple(_entries())


def engine(name: str) -> EnginePreset:
    """The engine called `name`, or meant by a server's. ScenarioError if there is none."""
    if (preset := preset_of(name)) not in (entries := _entries()):
        message = f"no engine {name[:60]!r}; {nearest(name, (*entries, *SERVERS))}"
        raise ScenarioError([Problem(message, key="serving.engine")])
    return _preset(preset)


def calibrated(preset: EnginePreset, cluster: Cluster) -> EnginePreset:
    """An engine with the times that were fitted on a machine, where its file has any."""
    measured = cluster.accelerator.calibration
    if measured is None:
        return preset
    found = measured.under(f"serving.engines.{preset.name}")
    fields: dict[str, object] = {name: constant.value for name, constant in found}
    return structs.replace(preset, **fields)  # type: ignore[arg-type]


def override(
    preset: EnginePreset, fields: Mapping[str, object], *, section: str = "serving"
) -> EnginePreset:
    """An engine with some fields replaced, written as in that section of a scenario: quantities
    with units. ScenarioError names every field that does not exist or has a wrong value.
    """
    usable = [name for name in EnginePreset.__dataclass_fields__ if name not in _PROVENANCE]
    wrong = {f: f"unknown key {f[:60]!r}; {nearest(f, usable)}" for f in fields if f not in usable}
    known = {key: value for key, value in fields.items() if key in usable}
    values: dict[str, object] = {}
    try:
        parsed = read(EnginePreset, {**known, "name": preset.name})
        values = {key: getattr(parsed, key) for key in known}
    except MistakenError as error:
        wrong |= {mistake.key: str(mistake) for mistake in error.mistakes}
    if wrong:
        raise ScenarioError([Problem(text, f"{section}.engine.{f}") for f, text in wrong.items()])
    if "graph_sizes" in values:
        values["graph_sizes"] = tuple(sorted(parsed.graph_sizes))
    return structs.replace(preset, **values)  # type: ignore[arg-type]


@remembered(64)
def _preset(name: str) -> EnginePreset:
    entry = {key: value for key, value in _entries()[name].items() if key != "versions"}
    return read(EnginePreset, {**entry, "name": name})


@remembered(1)
def _entries() -> Mapping[str, Mapping[str, str]]:
    catalog = read_shipped("mpsim.serving.catalog", "engines.yaml")
    entries: Mapping[str, Mapping[str, str]] = catalog["engines"]
    return entries
