"""Hugging Face Accelerate: the YAML that ``accelerate config`` writes, for FSDP, DeepSpeed, DDP and Megatron-LM.

It holds no model and no batch. FSDP's first version names its sharding (older files number it), its second says whether parameters are dropped after forward; the
keys of ``parallelism_config`` carry their prefix twice.

References
----------
huggingface/accelerate 1.15.0, ``commands/config/config_args.py``, ``utils/dataclasses.py``.
"""

from __future__ import annotations

import re
from typing import Final

from mpsim.formats import values_of
from mpsim.formats.words import table
from mpsim.importers.configs import yaml_config
from mpsim.importers.imported import Imported
from mpsim.importers.launch import Launch, Stated
from mpsim.importers.ledger import Ledger, flat, shortened
from mpsim.importers.source import Format, Head, Options
from mpsim.importers.world import put_cluster

__all__ = ["ACCELERATE"]

_PACKAGE = "mpsim.formats.data"
_KINDS: Final = ("FSDP", "DEEPSPEED", "MULTI_GPU", "MEGATRON_LM", "NO", "MULTI_CPU", "MULTI_XPU")


def _is_config(head: Head) -> bool:
    return (
        not head.is_object
        and re.search(
            r"^(distributed_type|compute_environment|fsdp_config):", head.text, re.MULTILINE
        )
        is not None
    )


def _read_config(head: Head, options: Options) -> Imported:
    """Read a configuration of Accelerate.

    Raises
    ------
    FormatError
        If it is for a device or a way of distributing that is not simulated, or degrees do not divide; it is named.
    """
    data, lines = yaml_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    kind = str(ledger.get("distributed_type", "NO")).upper()
    if kind not in _KINDS:
        ledger.refuse(
            f"{ledger.place('distributed_type')}: {shortened(kind)} is not simulated; needed one of {', '.join(_KINDS)}"
        )
    ledger.ignore("distributed_type", f"{kind}: which of the sections below counts")
    ranks = put_cluster(ledger, _launch(ledger), options)
    degrees = _degrees(ledger)
    each = degrees["tp"] * degrees["cp"] * degrees["sp"]
    if ranks is not None and ranks % (each * degrees["replicate"]):
        ledger.refuse(
            f"{ranks} processes do not divide by tp {degrees['tp']} x cp {degrees['cp'] * degrees['sp']} x replicas {degrees['replicate']}"
        )
    if kind == "FSDP":
        _fsdp(ledger, degrees, ranks)
    elif kind == "DEEPSPEED":
        _deepspeed(ledger)
    elif kind == "MEGATRON_LM":
        _megatron(ledger)
    else:
        ledger.assume("parallelism.zero", 0, "plain data parallelism")
        ledger.assume(
            "framework.preset",
            "torch-ddp-autocast"
            if ledger.get("mixed_precision") in ("fp16", "bf16")
            else "torch-ddp",
            "DistributedDataParallel under Accelerate",
        )
    _precision(ledger)
    for key in ledger.values:
        for rule in table(_PACKAGE, "accelerate")["ignored"]:
            if re.fullmatch(rule["pattern"], key):
                ledger.ignore(
                    key,
                    rule["why"],
                    matters=rule.get("matters", False)
                    and ledger.get(key) not in (None, False, "", "NO", "no", 0, "false", {}, []),
                )
                break
    return ledger.close("accelerate", tool=f"Hugging Face Accelerate, {kind}")


def _launch(ledger: Ledger) -> Launch:
    """Processes count the whole job; machines are nodes."""
    world, nodes = ledger.integer("num_processes", least=1), ledger.integer("num_machines", least=1)
    if world is not None and nodes is not None and world % nodes:
        ledger.refuse(
            f"{ledger.place('num_processes')}: {world} processes do not divide among {nodes} machines"
        )
    even = world is not None and nodes is not None and world % nodes == 0
    return Launch(
        program="",
        arguments=(),
        line=0,
        nodes=Stated(nodes, "num_machines") if nodes is not None else None,
        per_node=Stated(world // nodes, "num_processes") if even and world and nodes else None,
        world=Stated(world, "num_processes") if world is not None else None,
    )


def _degrees(ledger: Ledger) -> dict[str, int]:
    found: dict[str, int] = {}
    for name, word in (
        ("tp", "tp_size"),
        ("cp", "cp_size"),
        ("sp", "sp_size"),
        ("replicate", "dp_replicate_size"),
        ("shard", "dp_shard_size"),
    ):
        keys = [
            key
            for key in (
                f"parallelism_config.parallelism_config_{word}",
                f"parallelism_config.{word}",
            )
            if key in ledger
        ]
        value = ledger.integer(keys[0], least=1) if keys else None
        found[name] = value or 1
        if name in ("tp", "cp") and keys and found[name] > 1:
            ledger.put(keys[0], f"parallelism.{name}", found[name])
        elif name == "sp" and found[name] > 1:
            ledger.put(keys[0], "parallelism.cp", found[name])
            ledger.assume(
                "framework.context_exchange",
                "ulysses",
                "sequence parallelism of Accelerate is DeepSpeed's Ulysses",
            )
        elif keys and found[name] == 1 and name not in ("replicate", "shard"):
            ledger.ignore(keys[0], "1: not divided")
    return found


def _fsdp(ledger: Ledger, degrees: dict[str, int], ranks: int | None) -> None:
    """Parameters that FSDP shards, the ranks that share them, and layers that run again."""
    head = "fsdp_config.fsdp_"
    version = ledger.integer(head + "version", least=1) or 1
    ledger.put(
        [head + "version"], "framework.preset", "torch-fsdp2" if version == 2 else "torch-fsdp1"
    )
    if head + "version" not in ledger:
        ledger.assume("framework.preset", "torch-fsdp1", "version 1 is Accelerate's default")
    after, named = head + "reshard_after_forward", head + "sharding_strategy"
    word = str(ledger.get(named, ledger.get(after, "FULL_SHARD")))
    stages = values_of("accelerate", named)
    word = list(stages)[int(word) - 1] if word in "12345" and word else word.upper()
    stays = {"TRUE": "FULL_SHARD", "FALSE": "SHARD_GRAD_OP"}
    strategy = stays.get(word, word)
    keys = [key for key in (named, after) if key in ledger]
    if strategy not in stages:
        ledger.refuse(
            f"{ledger.place(keys[0])}: got {shortened(word)}; needed one of {', '.join(stages)}, true or false"
        )
        return
    if keys:
        ledger.put(keys[:1], "parallelism.zero", stages[strategy])
        ledger.ignore(keys[1:], "the strategy decides")
    else:
        ledger.assume("parallelism.zero", 3, "FULL_SHARD is the default")
    _shards(ledger, degrees, strategy, ranks, keys)
    if ledger.switch(head + "offload_params"):
        ledger.put(head + "offload_params", "parallelism.offload", "parameters")
    ledger.ignore(head + "offload_params", "off")
    again = ledger.switch(head + "activation_checkpointing")
    if again is not None:
        ledger.put(
            head + "activation_checkpointing", "training.recompute", "full" if again else "none"
        )
    spelled = [head + word for word in ("backward_prefetch", "backward_prefetch_policy")]
    key = next((key for key in spelled if key in ledger), spelled[0])
    prefetch = str(ledger.get(key, "BACKWARD_PRE")).upper()
    if prefetch in ("NO_PREFETCH", "BACKWARD_POST", "NONE", "2"):
        ledger.put(key, "framework.prefetch_backward", False)


def _shards(
    ledger: Ledger, degrees: dict[str, int], strategy: str, ranks: int | None, keys: list[str]
) -> None:
    """Ranks that share one copy: as stated, or those of a node under a hybrid strategy."""
    words = (
        "parallelism_config_dp_shard_size",
        "parallelism_config_dp_replicate_size",
        "dp_shard_size",
        "dp_replicate_size",
    )
    stated = [
        f"parallelism_config.{word}" for word in words if f"parallelism_config.{word}" in ledger
    ]
    if degrees["replicate"] > 1:
        ledger.put(stated, "parallelism.shard", degrees["shard"] * degrees["cp"] * degrees["sp"])
        whole = (
            degrees["tp"] * degrees["cp"] * degrees["sp"] * degrees["replicate"] * degrees["shard"]
        )
        if ranks is not None and whole != ranks:
            ledger.refuse(
                f"{', '.join(stated)}: the degrees multiply to {whole}, and there are {ranks} processes"
            )
    elif strategy.startswith("HYBRID"):
        node = ledger.scenario.get("cluster.accelerators_per_node")
        if node is None:
            ledger.ask("parallelism.shard")
        else:
            ledger.put(keys, "parallelism.shard", node)
    ledger.ignore(stated, "one copy over all ranks")


def _deepspeed(ledger: Ledger) -> None:
    head = "deepspeed_config."
    file = head + "deepspeed_config_file"
    if file in ledger:
        ledger.ignore(
            file,
            "DeepSpeed's own file has the rest: import it and lay it over this with --onto",
            matters=True,
        )
        return
    stage = ledger.integer(head + "zero_stage") if head + "zero_stage" in ledger else 2
    stage = 2 if stage is None else stage
    preset = table(_PACKAGE, "deepspeed")["presets"].get(str(stage))
    if preset is None:
        ledger.refuse(f"{ledger.place(head + 'zero_stage')}: got {stage}; needed 0 to 3")
        return
    if head + "zero_stage" in ledger:
        ledger.put(head + "zero_stage", "parallelism.zero", stage)
    else:
        ledger.assume("parallelism.zero", stage, "Accelerate's default")
    ledger.assume("framework.preset", preset, "DeepSpeed of 2024 on, by its stage")
    for word, level in (
        ("offload_optimizer_device", "optimizer"),
        ("offload_param_device", "parameters"),
    ):
        device = str(ledger.get(head + word, "none")).lower()
        if device in ("cpu", "nvme"):
            ledger.put(head + word, "parallelism.offload", level)
            if device == "nvme":
                ledger.put(head + word, "parallelism.offload_to", "nvme")
        ledger.ignore(head + word, "none")
    ledger.ask("training.micro_batch")


def _megatron(ledger: Ledger) -> None:
    head = "megatron_lm_config.megatron_lm_"
    for word, to in (("tp_degree", "tp"), ("pp_degree", "pp")):
        degree = ledger.integer(head + word, least=1)
        if degree is not None:
            ledger.put(head + word, f"parallelism.{to}", degree)
    for word, to in (
        ("sequence_parallelism", "parallelism.sequence_parallel"),
        ("recompute_activations", "training.recompute"),
    ):
        value = ledger.switch(head + word)
        if value is not None:
            ledger.put(
                head + word,
                to,
                value if to.startswith("parallelism") else "selective" if value else "none",
            )
    value = ledger.switch(head + "use_distributed_optimizer")
    if value is not None:
        ledger.put(head + "use_distributed_optimizer", "parallelism.zero", int(value))
    ledger.assume("framework.preset", "megatron-core", "Megatron-LM under Accelerate")


def _precision(ledger: Ledger) -> None:
    word = str(ledger.get("mixed_precision", "no")).lower()
    word = "no" if word in ("false", "none") else word
    known = values_of("accelerate", "mixed_precision")
    if word not in known:
        ledger.refuse(
            f"{ledger.place('mixed_precision')}: got {shortened(word)}; needed one of {', '.join(known)}"
        )
        return
    if "mixed_precision" in ledger:
        ledger.put("mixed_precision", "training.precision", known[word])
    else:
        ledger.assume("training.precision", "fp32", "Accelerate's default")


ACCELERATE: Final = Format(
    "accelerate", "configuration of Hugging Face Accelerate", "scenario", _is_config, _read_config
)
