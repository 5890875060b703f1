"""Megatron-LM's launch script: torchrun and the flags of one version, which the script names."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from mpsim.formats.out_megatron_flags import settings_of
from mpsim.formats.out_megatron_settings import Settings
from mpsim.formats.outgoing import Exported, header
from mpsim.scenario import Scenario

__all__ = ["export_megatron"]

_GROUPS = (
    ("MODEL_ARGS", "num-layers hidden-size"),
    ("PARALLEL_ARGS", "tensor-model-parallel-size model-parallel-size"),
    ("TRAINING_ARGS", "micro-batch-size batch-size"),
    ("SOFTWARE_ARGS", ""),
)
"""Arrays of the script, and the flags with which each begins."""


def export_megatron(scenario: Scenario) -> Exported:
    """Write the training command of a scenario.

    Raises
    ------
    FormatError
        If it has an encoder, or serves.
    """
    settings = settings_of(scenario)
    tool = f"Megatron-LM {settings.tag}"
    settings.out.notes.append(
        "data and the schedule of the learning rate are yours: MORE_ARGS in the script"
    )
    return settings.out.close("megatron", tool=tool, text="\n".join(_lines(settings, tool)) + "\n")


def _lines(settings: Settings, tool: str) -> Iterator[str]:
    scenario = settings.scenario
    cluster, p = scenario.hardware, scenario.parallelism
    yield "#!/bin/bash"
    yield from (f"# {line}" for line in header(scenario, tool))
    yield ""
    if p.tp > 1 or p.cp > 1:
        yield "export CUDA_DEVICE_MAX_CONNECTIONS=1   # kernels start in the order in which they are issued"
        yield ""
    yield f"LAUNCH=(torchrun --nnodes {cluster.nodes} --nproc-per-node {cluster.node.accelerators})"
    arrays = list(_arrays(settings))
    for name, flags in arrays:
        yield f"{name}=("
        yield from (f"    {flag}" for flag in flags)
        yield ")"
    more = [
        "--train-iters 20",
        "--lr 1.0e-4",
        *(["--mock-data"] if settings.has("mock-data") else []),
    ]
    yield f"MORE_ARGS=({' '.join(more)})"
    yield ""
    words = " ".join(f'"${{{name}[@]}}"' for name in ("LAUNCH", *(name for name, _ in arrays)))
    first, rest = words.split(" ", 1)
    yield f'{first} pretrain_gpt.py {rest} "${{MORE_ARGS[@]}}"'


def _arrays(settings: Settings) -> Iterator[tuple[str, list[str]]]:
    """Flags in groups, in the order in which they were decided."""
    groups: dict[str, list[str]] = {}
    current = _GROUPS[0][0]
    for name, value in settings.given.items():
        current = next((group for group, first in _GROUPS if name in first.split()), current)
        group = "SOFTWARE_ARGS" if name in _SOFTWARE else current
        groups.setdefault(group, []).append(_flag(name, value))
    yield from groups.items()


_SOFTWARE = frozenset(
    "overlap-grad-reduce overlap-param-gather DDP-impl grad-reduce-in-bf16 accumulate-allreduce-grads-in-fp32 no-gradient-accumulation-fusion ddp-bucket-size "
    "clip-grad fp8-param-gather transformer-impl use-flash-attn attention-backend cross-entropy-loss-fusion no-masked-softmax-fusion no-bias-swiglu-fusion "
    "no-bias-gelu-fusion no-bias-dropout-fusion tp-comm-overlap no-async-tensor-model-parallel-allreduce cp-comm-type no-overlap-p2p-communication "
    "overlap-p2p-communication overlap-p2p-communication-warmup-flush no-scatter-gather-tensors-in-pipeline moe-token-dispatcher-type "
    "overlap-moe-expert-parallel-comm moe-shared-expert-overlap".split()
)


def _flag(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    plain = name == "recompute-modules"  # several words
    return f"--{name} {text if plain else shlex.quote(text)}"
