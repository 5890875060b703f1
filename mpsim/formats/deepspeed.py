"""DeepSpeed's ``ds_config.json``, read and written: batches, ZeRO, offloading, buckets and
precision; the model and the degrees are the program's.

A batch is micro-batch x accumulation steps x data-parallel ranks; one of the three may be left out,
one that contradicts the others is refused. ``"auto"`` is for the trainer, and asked for.

References
----------
deepspeedai/DeepSpeed 0.19.8, ``runtime/config.py``, ``runtime/zero/config.py``; dumped defaults.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any, Final

from mpsim.formats.configs import json_config, yaml_config
from mpsim.formats.imported import Imported
from mpsim.formats.launch import put_ranks
from mpsim.formats.ledger import Ledger, flat, nested
from mpsim.formats.outgoing import Exported, check_trains, read_back
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import DATA, Key, keys, keys_to, table
from mpsim.framework import framework
from mpsim.inputs import shown
from mpsim.scenario import Scenario
from mpsim.shipped import say

_NAME: Final = "deepspeed"
_ZERO, _TOTAL = "zero_optimization", "train_batch_size"
_MICRO, _STEPS = "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
_OWN: Final = (_ZERO, _TOTAL, _MICRO, _STEPS)
_SHARE: Final = f"{_ZERO}.offload_optimizer.ratio"


def _is_config(head: Head) -> bool:
    named = head.is_object and any(f'"{word}"' in head.text for word in _OWN)
    return named and any(word in head.document for word in _OWN)


def _read_config(head: Head, options: Options) -> Imported:
    """Read a configuration of DeepSpeed. FormatError names batches or values that are wrong."""
    data, lines = json_config(head) if head.is_object else yaml_config(head)
    stated = flat(data)
    auto = [key for key, value in stated.items() if value == "auto"]
    ledger = Ledger(str(head.path), {**stated, **dict.fromkeys(auto)}, lines)
    for key in auto:
        for to in [row.to for row in keys(_NAME) if row.name == key and row.ask]:
            ledger.ask(to)
    each = 1  # ranks of one data-parallel replica
    for row in (row for row in keys(_NAME) if row.kind == "degree"):
        each *= (degree := ledger.integer(row.name, least=1) or 1)
        if degree > 1:
            ledger.put(row.name, row.to, degree)
    _read_batches(ledger, options, each)
    stage = _read_sharding(ledger)
    _read_precision(ledger, auto)
    _read_habits(ledger, stage)
    return ledger.close(_NAME, tool="DeepSpeed", idle=table(DATA, _NAME)["idle"])


def _read_batches(ledger: Ledger, options: Options, group: int) -> None:
    """Batch, micro-batch and accumulation, any of which follows from the others."""
    total, micro, steps = (ledger.integer(word, least=1) for word in (_TOTAL, _MICRO, _STEPS))
    replicas = None
    if options.ranks is not None:
        put_ranks(ledger, options.ranks, options, "--ranks")
        if options.ranks % group:
            ledger.refuse(f"--ranks {options.ranks} do not divide by a replica's {group}")
            return
        replicas = options.ranks // group
    each = (steps or 1) * (replicas or 1)
    if micro is not None:
        ledger.put(_MICRO, "training.micro_batch", micro)
    elif total is not None and replicas is not None and total % each == 0:
        micro = total // each
        why = f"{total} sequences over {replicas} ranks and {steps or 1} accumulation steps"
        if _MICRO not in ledger:
            ledger.assume("training.micro_batch", micro, why)
    if total is not None:
        ledger.put(_TOTAL, "training.global_batch", total)
    elif micro is not None and replicas is not None:
        ledger.put([_MICRO, _STEPS], "training.global_batch", micro * each)
    else:
        ledger.ask("training.global_batch")
    if total is not None and micro is not None:
        _check_batches(ledger, total, micro, steps, replicas)


def _check_batches(
    ledger: Ledger, total: int, micro: int, steps: int | None, replicas: int | None
) -> None:
    product = micro * (steps or 1) * (replicas or 1)
    if total % product or (None not in (steps, replicas) and product != total):
        words = f"{micro} x accumulation {steps or '?'} x {replicas or '?'}"
        ledger.refuse(say("formats.batch_product", total=total, words=words))


def _read_sharding(ledger: Ledger) -> int:
    """ZeRO's stage and what is offloaded."""
    key = next((row.name for row in keys_to(_NAME, "parallelism.zero") if row.name in ledger), "")
    plain = ledger.get(key) if key else 0
    stage = int(plain) if isinstance(plain, bool) else ledger.integer(key) or 0
    if stage > 3:
        ledger.refuse(f"{ledger.place(key)}: got {stage}; needed 0 to 3")
        return 0
    if key:
        ledger.put(key, "parallelism.zero", stage)
    else:
        ledger.assume("parallelism.zero", 0, "DeepSpeed's default")
    last, where = "", ""
    for row in keys_to(_NAME, "parallelism.offload"):
        device = ledger.get(row.name)
        if not row.values:
            if ledger.switch(row.name):
                last, where = row.name, "cpu"
                ledger.put(row.name, row.to, row.says)
        elif device in row.values:
            last, where = row.name, device
            ledger.put(row.name, row.to, row.values[device])
        elif device not in (None, "none"):
            why = f"got {shown(device)}; needed none, cpu or nvme"
            ledger.refuse(f"{ledger.place(row.name)}: {why}")
    if where == "nvme":
        ledger.put(last, "parallelism.offload_to", where)
    elif "optimizer" in last and isinstance(share := ledger.get(_SHARE), float):
        ledger.put(_SHARE, "parallelism.offload_fraction", share)
    return stage


def _read_precision(ledger: Ledger, auto: Sequence[str]) -> None:
    """Number format of products."""
    rows = keys_to(_NAME, "training.precision")
    on = [row for row in rows if ledger.switch(row.name)]
    if len({row.says for row in on}) > 1:
        ledger.refuse(f"{' and '.join(row.name for row in on)} contradict each other; keep one")
    if on:
        ledger.put(on[0].name, on[0].to, on[0].says)
    elif not any(row.name in auto for row in rows):
        ledger.assume("training.precision", "fp32", "neither fp16 nor bf16 is enabled")


def _habits(stage: int) -> Iterator[tuple[Key, str]]:
    """Rows that say a field of the framework, and the field."""
    for row in keys(_NAME):
        if row.to.startswith("framework.") and (row.when != "scatters" or stage in (1, 2)):
            yield row, row.to.removeprefix("framework.")


def _read_habits(ledger: Ledger, stage: int) -> None:
    """The preset of the stage, and the switches that differ from it."""
    preset = table(DATA, _NAME)["presets"][str(stage)]
    ledger.assume("framework.preset", preset, "DeepSpeed of 2024 on, by its stage")
    habits = framework(preset, {}).fields()
    for row, field in _habits(stage):
        value = _habit(ledger, row, habits[field])
        if value not in (None, habits[field]):
            ledger.put(row.name, row.to, f"{value:.0f} B" if row.kind == "elements" else value)


def _habit(ledger: Ledger, row: Key, usual: object) -> object:
    """Value of a field of the framework that a key of the file states, or None."""
    if row.kind == "elements":
        count = ledger.integer(row.name, least=1)
        size = 4 if ledger.scenario.get("training.precision") == "fp32" else 2
        return None if count is None else float(count * size)
    if row.kind == "positive":
        number = ledger.get(row.name)
        is_number = isinstance(number, int | float) and not isinstance(number, bool)
        return number > 0 if is_number else None
    if row.kind == "switch":
        on = ledger.switch(row.name)
        return None if on is None else usual if on else row.says
    word = (ledger.switch if "true" in row.values else ledger.get)(row.name)
    return row.values.get(str(word).lower())


def export_deepspeed(scenario: Scenario) -> Exported:
    """Write the ds_config of a scenario. FormatError if it serves."""
    check_trains(scenario)
    training, p = scenario.training_step, scenario.parallelism
    steps, left = divmod(training.global_batch, training.micro_batch * scenario.dp)
    data: dict[str, object] = {_TOTAL: training.global_batch, _MICRO: training.micro_batch}
    if not left:
        data[_STEPS] = steps
    data[keys_to(_NAME, "parallelism.zero")[0].name] = p.zero
    if p.offload != "none":
        rows = [row for row in keys_to(_NAME, "parallelism.offload") if row.values]
        for row in rows[: 2 if p.offload == "parameters" else 1]:
            data[row.name] = "nvme" if p.offload_to == "nvme" else "cpu"
    rows = list(keys_to(_NAME, "training.precision"))
    row = next((row for row in rows if row.says == training.precision), rows[0])
    if training.precision != "fp32":
        data[row.name] = True
    _write_habits(scenario, data)
    text = json.dumps(nested(data), indent=2) + "\n"
    return read_back(scenario, DEEPSPEED, text, tool="DeepSpeed", habits="zero_optimization.stage")


def _write_habits(scenario: Scenario, data: dict[str, object]) -> None:
    chosen, stage = scenario.framework, scenario.parallelism.zero
    wanted = framework(chosen.preset, chosen.overrides).fields()
    usual = framework(table(DATA, _NAME)["presets"][str(stage)], {}).fields()
    for row, field in _habits(stage):
        word = _word(row, wanted[field], usual[field], scenario.training_step.precision)
        if word is not None:
            data[row.name] = word


def _word(row: Key, value: Any, usual: object, precision: str) -> object:
    """Value that a key gives a field of the framework; None where it has no word for it."""
    if row.kind == "elements":
        size = 4 if precision == "fp32" else 2  # as the file has it
        return int(value // size) if value % size == 0 else None
    if row.kind == "positive":
        return 1.0 if value else 0.0
    if row.kind == "switch":
        return True if value == usual else False if value == row.says else None
    word = row.word(value)
    if word is not None and "true" in row.values:
        return word == "true"
    if value == 2:
        return "fp16" if precision == "fp16" else "bfp16"
    return word


DEEPSPEED: Final = Format(_NAME, _is_config, _read_config)
