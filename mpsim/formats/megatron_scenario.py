"""A scenario of Megatron's settings, whichever file they come from."""

from __future__ import annotations

from mpsim.formats.launch import Launch
from mpsim.formats.megatron_framework import put_framework
from mpsim.formats.megatron_layout import check_mesh, put_parallelism, put_schedule
from mpsim.formats.megatron_model import put_model
from mpsim.formats.megatron_settings import Settings
from mpsim.formats.megatron_training import put_training
from mpsim.formats.source import Options
from mpsim.formats.world import put_cluster

__all__ = ["put_scenario"]


def put_scenario(settings: Settings, launch: Launch, options: Options) -> None:
    """Put everything that the settings say into their ledger; the launch has nodes and processes."""
    ranks = put_cluster(settings.ledger, launch, options)
    _check_exclusive(settings)
    layers = put_model(settings)
    mesh = put_parallelism(settings)
    put_schedule(settings, mesh, layers)
    put_training(settings, mesh, ranks)
    put_framework(settings, mesh)
    check_mesh(settings, mesh, ranks)


def _check_exclusive(settings: Settings) -> None:
    for pair in (
        ("fp16", "bf16"),
        ("fp8-e4m3", "fp8-hybrid"),
        ("fp8-format", "fp4-format"),
        ("num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank"),
        ("swiglu", "squared-relu"),
        ("use-torch-fsdp2", "use-megatron-fsdp"),
        ("use-torch-fsdp2", "use-distributed-optimizer"),
        ("model-parallel-size", "tensor-model-parallel-size"),
    ):
        stated = [
            name
            for name in pair
            if settings.values.get(name) not in (None, False, "False", "false")
        ]
        if len(stated) == 2:
            both = " and ".join(settings.keys[name] for name in pair)
            settings.ledger.refuse(f"{both} contradict each other; keep one")
