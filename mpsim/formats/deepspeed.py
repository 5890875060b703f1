"""DeepSpeed's ``ds_config.json``: batches, ZeRO, offloading, buckets and precision.

A batch is micro-batch x accumulation steps x data-parallel ranks; any one of the three may be left out, and one that contradicts the others is refused. ``"auto"``
is for the trainer to fill, and asked for.

References
----------
deepspeedai/DeepSpeed 0.19.8, ``runtime/config.py``, ``runtime/zero/config.py``; defaults dumped from its classes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from mpsim.formats.configs import json_config, yaml_config
from mpsim.formats.imported import Imported
from mpsim.formats.keys import values_of
from mpsim.formats.ledger import Ledger, flat, shortened
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import table
from mpsim.formats.world import put_ranks
from mpsim.framework import framework

__all__ = ["DEEPSPEED", "put_deepspeed"]

_PACKAGE = "mpsim.formats.data"
_OWN = (
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "gradient_accumulation_steps",
)


def _is_config(head: Head) -> bool:
    return (
        head.is_object
        and any(f'"{word}"' in head.text for word in _OWN)
        and any(word in head.document for word in _OWN)
    )


def _read_config(head: Head, options: Options) -> Imported:
    """Read a configuration of DeepSpeed.

    Raises
    ------
    FormatError
        If its batches contradict each other, or a value is no number; it is named.
    """
    data, lines = json_config(head) if head.is_object else yaml_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    put_deepspeed(ledger, "", options)
    return ledger.close("deepspeed", tool="DeepSpeed")


def put_deepspeed(ledger: Ledger, head: str, options: Options) -> None:
    """Put a configuration of DeepSpeed into a ledger.

    Parameters
    ----------
    ledger : Ledger
    head : str
        What its keys begin with, where they stand inside another file.
    options : Options
    """
    for key, value in ledger.values.items():
        if key.startswith(head) and value == "auto":
            to = table(_PACKAGE, "deepspeed")["asked"].get(key.removeprefix(head))
            ledger.ignore(
                key, "auto: the trainer fills it in" + (f"; asked for as {to}" if to else "")
            )
            if to:
                ledger.ask(to)
    reader = _Reader(ledger, head)
    tp = reader.integer("tensor_parallel.autotp_size") or 1
    if tp > 1:
        ledger.put(head + "tensor_parallel.autotp_size", "parallelism.tp", tp)
    reader.batches(options, tp)
    stage = reader.sharding()
    precision = reader.precision()
    reader.framework(stage, precision)
    for key in ledger.values:
        for rule in table(_PACKAGE, "deepspeed")["ignored"]:
            if key.startswith(head) and re.fullmatch(rule["pattern"], key.removeprefix(head)):
                on = ledger.get(key) not in (None, False, 0, "", [], {}, "none", "false")
                ledger.ignore(key, rule["why"], matters=rule.get("matters", False) and on)
                break


class _Reader:
    """One configuration on its way into a ledger."""

    def __init__(self, ledger: Ledger, head: str) -> None:
        self.ledger = ledger
        self.head = head

    def get(self, key: str) -> Any:
        """Value of a key; None where it is absent or ``auto``."""
        value = self.ledger.get(self.head + key)
        return None if value == "auto" else value

    def integer(self, key: str, *, least: int = 1) -> int | None:
        """A whole number; None where it is absent or ``auto``."""
        return None if self.get(key) is None else self.ledger.integer(self.head + key, least=least)

    def switch(self, key: str) -> bool | None:
        """A truth value; None where it is absent or ``auto``."""
        return None if self.get(key) is None else self.ledger.switch(self.head + key)

    def batches(self, options: Options, tp: int) -> None:
        """The identity of batches."""
        ledger, head = self.ledger, self.head
        words = (
            "train_batch_size",
            "train_micro_batch_size_per_gpu",
            "gradient_accumulation_steps",
        )
        total, micro, steps = (self.integer(word) for word in words)
        replicas = None
        if options.ranks is not None:
            put_ranks(ledger, options.ranks, options, "--ranks")
            if options.ranks % tp:
                ledger.refuse(f"--ranks {options.ranks} do not divide by autotp_size {tp}")
                return
            replicas = options.ranks // tp
        if (
            micro is None
            and total is not None
            and replicas is not None
            and total % (replicas * (steps or 1)) == 0
        ):
            micro = total // replicas // (steps or 1)
            if head + words[1] not in ledger:
                ledger.assume(
                    "training.micro_batch",
                    micro,
                    f"{total} sequences over {replicas} ranks and {steps or 1} accumulation steps",
                )
        elif micro is not None:
            ledger.put(head + words[1], "training.micro_batch", micro)
        if total is not None:
            ledger.put(head + words[0], "training.global_batch", total)
        elif micro is not None and replicas is not None:
            ledger.put(
                [head + words[1], head + words[2]],
                "training.global_batch",
                micro * (steps or 1) * replicas,
            )
        else:
            ledger.ask("training.global_batch")
        if None not in (total, micro, replicas):
            each = (micro or 1) * (replicas or 1)
            product = each * (steps or 1)
            if (total or 0) % each or (steps is not None and product != total):
                ledger.refuse(
                    f"train_batch_size {total} is not micro-batch {micro} x accumulation {steps if steps is not None else '?'} x {replicas} data-parallel ranks; "
                    "mend one of them, or --ranks where pipeline or sequence parallelism divides them"
                )
        elif None not in (total, micro, steps) and (total or 0) % ((micro or 1) * (steps or 1)):
            ledger.refuse(
                f"train_batch_size {total} is no multiple of micro-batch {micro} x accumulation {steps}"
            )
        ledger.ignore(head + words[2], "follows from the batch, the micro-batch and the ranks")

    def sharding(self) -> int:
        """ZeRO's stage and what is offloaded."""
        ledger, zero = self.ledger, "zero_optimization."
        plain = self.ledger.get(self.head + "zero_optimization")
        key = (
            self.head + "zero_optimization"
            if isinstance(plain, bool)
            else self.head + zero + "stage"
        )
        stage = (
            int(plain) if isinstance(plain, bool) else self.integer(zero + "stage", least=0) or 0
        )
        if stage > 3:
            ledger.refuse(f"{ledger.place(key)}: got {stage}; needed 0 to 3")
            return 0
        if key in ledger:
            ledger.put(key, "parallelism.zero", stage)
        else:
            ledger.assume("parallelism.zero", 0, "DeepSpeed's default")
        states, where = None, None
        for word, level in (("offload_optimizer", "optimizer"), ("offload_param", "parameters")):
            device = self.get(f"{zero}{word}.device")
            if device not in (None, "none", "cpu", "nvme"):
                ledger.refuse(
                    f"{ledger.place(self.head + zero + word + '.device')}: got {shortened(device)}; needed none, cpu or nvme"
                )
            elif device in ("cpu", "nvme"):
                states, where = level, device
                ledger.put(f"{self.head}{zero}{word}.device", "parallelism.offload", level)
        for word, level in (("cpu_offload", "optimizer"), ("cpu_offload_params", "parameters")):
            if self.switch(zero + word):
                states, where = level, "cpu"
                ledger.put(f"{self.head}{zero}{word}", "parallelism.offload", level)
        if where == "nvme":
            word = "offload_param" if states == "parameters" else "offload_optimizer"
            ledger.put(f"{self.head}{zero}{word}.device", "parallelism.offload_to", "nvme")
        return stage

    def precision(self) -> str | None:
        """Number format of products."""
        on = {
            name: self.switch(f"{section}.enabled")
            for name, section in (
                ("bf16", "bf16"),
                ("fp16", "fp16"),
                ("bf16-old", "bfloat16"),
                ("amp", "amp"),
            )
        }
        if on["bf16"] and on["fp16"]:
            self.ledger.refuse("bf16.enabled and fp16.enabled contradict each other; keep one")
        auto = [
            section
            for section in ("bf16", "fp16")
            if self.ledger.get(f"{self.head}{section}.enabled") == "auto"
        ]
        names = {"bf16": "bf16", "fp16": "fp16", "bf16-old": "bf16", "amp": "fp16"}
        chosen = next((name for name, enabled in on.items() if enabled), None)
        if chosen is None and auto:
            return None
        sections = {
            "bf16": "bf16.enabled",
            "fp16": "fp16.enabled",
            "bf16-old": "bfloat16.enabled",
            "amp": "amp.enabled",
        }
        word = names[chosen] if chosen else "fp32"
        if chosen:
            self.ledger.put(self.head + sections[chosen], "training.precision", word)
        else:
            self.ledger.assume("training.precision", word, "neither fp16 nor bf16 is enabled")
        self.ledger.ignore([self.head + section for section in sections.values()], "off")
        return word

    def framework(self, stage: int, precision: str | None) -> None:
        """The preset of the stage, and the switches that differ from it."""
        ledger, zero = self.ledger, "zero_optimization."
        preset = table(_PACKAGE, "deepspeed")["presets"][str(stage)]
        ledger.assume("framework.preset", preset, "DeepSpeed of 2024 on, by its stage")
        habits = framework(preset, {}).fields()
        changes: dict[str, tuple[str, object]] = {}
        overlap = self.switch(zero + "overlap_comm")
        if overlap is not None:
            changes["gradient_overlap"] = (zero + "overlap_comm", "always" if overlap else "never")
        size = {"bf16": 2, "fp16": 2}.get(precision or "bf16", 4)
        bucket = self.integer(zero + "reduce_bucket_size")
        if bucket is not None:
            changes["bucket_bytes"] = (zero + "reduce_bucket_size", float(bucket * size))
        scatter = self.switch(zero + "reduce_scatter")
        if scatter is not None and stage in (1, 2):
            usual = getattr(habits["gradient_reduction"], "value", habits["gradient_reduction"])
            changes["gradient_reduction"] = (
                zero + "reduce_scatter",
                usual if scatter else "all-reduce",
            )
        travels = values_of("deepspeed", "communication_data_type").get(
            str(self.get("communication_data_type"))
        )
        if travels is not None:
            changes["reduced_bytes"] = ("communication_data_type", travels)
        clip = self.get("gradient_clipping")
        if isinstance(clip, int | float) and not isinstance(clip, bool):
            changes["gradient_norm"] = ("gradient_clipping", clip > 0)
        for field, (key, value) in changes.items():
            usual = getattr(habits[field], "value", habits[field])
            same = usual == value
            if same:
                ledger.ignore(self.head + key, f"the preset {preset} has it")
            else:
                ledger.put(
                    self.head + key,
                    f"framework.{field}",
                    f"{value:.0f} B" if field == "bucket_bytes" else value,
                )


DEEPSPEED: Final = Format(
    "deepspeed", "ds_config of DeepSpeed", "scenario", _is_config, _read_config
)
