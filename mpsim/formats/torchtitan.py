"""torchtitan: its TOML files of 2024 to 2026, and the JSON it saves of a configuration.

Batches count what one data-parallel rank gets, so their total needs the number of accelerators: from the degrees where all are given, else from the user.

References
----------
pytorch/torchtitan 11509441 (2024-08), db52d57c (2025), cbdb3113 (2025-12), b5bcd76c (2026-08): ``config_manager.py``, ``job_config.py``, ``trainer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Final

from mpsim.formats.configs import json_config, toml_config
from mpsim.formats.imported import Imported
from mpsim.formats.keys import values_of
from mpsim.formats.ledger import MOST_LAYERS, Ledger, flat, shortened
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import table
from mpsim.formats.world import put_ranks
from mpsim.framework import framework

__all__ = ["TORCHTITAN"]

_PACKAGE = "mpsim.formats.data"
_ERAS: Final = (
    ("2026-08", "torchtitan-2026", ("training.num_tokens_per_microbatch_per_dp_rank", "training.max_context_length", "training.num_tokens_per_train_step")),
    ("2025-12", "torchtitan-2025-12", ("training.local_batch_size", "training.global_batch_size")),
    ("2024", "torchtitan-2024", ("training.data_parallel_degree", "training.tensor_parallel_degree", "experimental.pipeline_parallel_degree", "float8.enable_float8_linear", "training.enable_float8_linear")),
    ("2025", "torchtitan-2025", ()),
)  # fmt: skip


def _is_torchtitan(head: Head) -> bool:
    if head.is_object:
        return (
            '"data_parallel_shard_degree"' in head.text
            or '"data_parallel_replicate_degree"' in head.text
        )
    sections = set(re.findall(r"^[ \t]*\[(\w+)[.\]]", head.text, re.MULTILINE))
    return "training" in sections and bool(
        sections & {"parallelism", "activation_checkpoint", "experimental", "model", "job"}
    )


def _read_torchtitan(head: Head, options: Options) -> Imported:
    """Read a configuration of any of the four eras.

    Raises
    ------
    FormatError
        If degrees do not divide, a name is unknown, or a value is no number; it is named.
    """
    data, lines = json_config(head) if head.is_object else toml_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    era, preset, _ = next(
        item for item in _ERAS if not item[2] or any(key in ledger for key in item[2])
    )
    reader = _Reader(ledger, era)
    layers = reader.model()
    mesh, ranks = reader.parallelism(options)
    reader.schedule(mesh, layers)
    reader.batches(mesh, ranks)
    reader.precision()
    reader.recompute(mesh, layers)
    reader.framework(preset, mesh)
    _ignore(ledger)
    return ledger.close("torchtitan", tool="torchtitan", version=f"spelling of {era}")


class _Reader:
    """One configuration of one era on its way into a ledger."""

    def __init__(self, ledger: Ledger, era: str) -> None:
        self.ledger = ledger
        self.era = era

    def key(self, *words: str) -> str | None:
        """The first of these words that the file has, in whichever section its era keeps it."""
        sections = ("parallelism", "training", "experimental", "compile", "float8")
        return next(
            (
                f"{section}.{word}"
                for word in words
                for section in sections
                if f"{section}.{word}" in self.ledger
            ),
            None,
        )

    def integer(self, *words: str, least: int = 1) -> tuple[int | None, str | None]:
        """A whole number and its key."""
        key = self.key(*words)
        return (None if key is None else self.ledger.integer(key, least=least)), key

    def put(
        self, key: str | None, to: str, value: object, why: str = "torchtitan's default"
    ) -> None:
        """Map a value from a key, or assume it."""
        if key is None:
            self.ledger.assume(to, value, why)
        else:
            self.ledger.put(key, to, value)

    def model(self) -> int | None:
        """The model by the name of its flavor; its layers where the preset is known."""
        from mpsim.workload import model

        name, flavor = (
            str(self.ledger.get("model.name", "")),
            str(self.ledger.get("model.flavor", "")),
        )
        keys = [key for key in ("model.name", "model.flavor") if key in self.ledger]
        preset = table(_PACKAGE, "torchtitan")["flavors"].get(name, {}).get(flavor)
        if preset is None:
            why = (
                f"flavor {shortened(flavor)} of {shortened(name)} is in no table here"
                if keys
                else "which model it trains is not in the file"
            )
            self.ledger.ask("model")
            self.ledger.ignore(keys, why, matters=True)
            return None
        self.ledger.put(keys, "model.preset", preset)
        return model(preset).layers

    def parallelism(self, options: Options) -> tuple[dict[str, int], int | None]:
        """Degrees, what is sharded, and the number of accelerators."""
        mesh: dict[str, int] = {}
        for axis, word in (
            ("tp", "tensor_parallel_degree"),
            ("pp", "pipeline_parallel_degree"),
            ("cp", "context_parallel_degree"),
            ("ep", "expert_parallel_degree"),
            ("etp", "expert_tensor_parallel_degree"),
        ):
            degree, key = self.integer(word)
            mesh[axis] = degree or 1
            if axis == "etp" and mesh["ep"] > 1:
                # torchtitan's default: each expert is whole on a rank
                self.put(key, "parallelism.etp", mesh["etp"])
            elif key is not None and (axis in ("tp", "pp") or mesh[axis] > 1):
                self.ledger.put(key, f"parallelism.{axis}", mesh[axis])
            elif key is not None:
                self.ledger.ignore(key, "1: not divided")
        each = mesh["tp"] * mesh["pp"] * mesh["cp"]
        ranks, replicate = self._ranks(mesh, each, options)
        switch = self.key("enable_sequence_parallel")
        wanted = self.ledger.switch(switch) if switch else True
        self.put(
            switch,
            "parallelism.sequence_parallel",
            bool(wanted) and mesh["tp"] > 1,
            "on with tensor parallelism",
        )
        self._sharding(mesh, ranks, replicate)
        return mesh, ranks

    def _ranks(self, mesh: dict[str, int], each: int, options: Options) -> tuple[int | None, int]:
        replicate, _ = self.integer("data_parallel_replicate_degree")
        shard, _ = self.integer("data_parallel_shard_degree", "data_parallel_degree", least=-1)
        replicate = replicate or 1
        mesh["shard"] = -1 if shard is None else shard
        stated = None if mesh["shard"] < 1 else each * replicate * mesh["shard"]
        if options.ranks is not None and stated is not None and stated != options.ranks:
            self.ledger.refuse(
                f"--ranks {options.ranks}: the degrees multiply to {stated}; leave one out"
            )
        ranks = stated or options.ranks
        if ranks is not None and ranks % (each * replicate):
            self.ledger.refuse(
                f"{ranks} accelerators do not divide by tp {mesh['tp']} x pp {mesh['pp']} x cp {mesh['cp']} x replicas {replicate} = {each * replicate}"
            )
            return None, replicate
        if ranks is None:
            self.ledger.ask("cluster.nodes")
        else:
            mesh["shard"] = ranks // each // replicate
            put_ranks(
                self.ledger, ranks, options, "--ranks" if stated is None else "the degrees together"
            )
        return ranks, replicate

    def _sharding(self, mesh: Mapping[str, int], ranks: int | None, replicate: int) -> None:
        kind = str(self.ledger.get("training.data_parallel_type", "fsdp"))
        keys = [
            key
            for word in (
                "data_parallel_shard_degree",
                "data_parallel_degree",
                "data_parallel_type",
                "fsdp_reshard_after_forward",
            )
            if (key := self.key(word))
        ]
        stays = str(self.ledger.get("parallelism.fsdp_reshard_after_forward", "default"))
        is_sharded = kind == "fsdp" and (mesh["shard"] != 1 or mesh["cp"] > 1)
        zero = 0 if not is_sharded else 2 if stays == "never" else 3
        if stays not in ("default", "always", "never"):
            self.ledger.refuse(
                f"{self.ledger.place('parallelism.fsdp_reshard_after_forward')}: got {shortened(stays)}; needed default, always or never"
            )
        if keys:
            self.ledger.put(keys, "parallelism.zero", zero)
        else:
            self.ledger.assume(
                "parallelism.zero", zero, "data_parallel_shard_degree -1: all that is left"
            )
        key = self.key("data_parallel_replicate_degree")
        if replicate > 1 and is_sharded and ranks is not None:
            self.ledger.put([key or "", *keys[:1]], "parallelism.shard", mesh["shard"] * mesh["cp"])
        elif replicate > 1 and is_sharded:
            self.ledger.ask("parallelism.shard")
        if key is not None:
            self.ledger.ignore(
                key, "1: one copy" if replicate == 1 else "copies follow from the accelerators"
            )

    def schedule(self, mesh: Mapping[str, int], layers: int | None) -> None:
        """The schedule and its virtual stages."""
        key = self.key("pipeline_parallel_schedule")
        word = str(self.ledger.get(key, "1F1B")) if key else "1F1B"
        names = {
            name.lower(): known
            for name, known in table(_PACKAGE, "torchtitan")["schedules"].items()
        }
        if mesh["pp"] == 1:
            if key is not None:
                self.ledger.ignore(key, "without stages it does nothing")
            return
        csv = self.key("pipeline_parallel_schedule_csv")
        if csv is not None and self.ledger.get(csv):
            self.ledger.ignore(
                csv, "an order from a CSV file: give it as schedule.file", matters=True
            )
        if word.lower() not in names:
            self.ledger.refuse(
                f"{self.ledger.place(key or '')}: schedule {shortened(word)} is not simulated; needed one of {', '.join(table(_PACKAGE, 'torchtitan')['schedules'])}"
            )
            return
        name, chunks = names[word.lower()]
        self.put(key, "schedule.name", name)
        per_stage, stage_key = self.integer("pipeline_parallel_layers_per_stage")
        if chunks == 2 and name not in ("zb-v", "dualpipe-v"):
            if per_stage is not None and layers is not None:
                # torchtitan counts the layers that its ends have less (pipeline_parallel.py: ceil of the sum over layers a stage)
                stages = -(-(layers + sum(self._less())) // per_stage)
                self.ledger.put(
                    stage_key or "", "schedule.virtual_stages", max(1, stages // mesh["pp"])
                )
            else:
                self.ledger.assume(
                    "schedule.virtual_stages",
                    2,
                    "torchtitan's default of schedules with several stages a rank",
                )
        self._ends(mesh, layers)

    def _less(self) -> tuple[int, ...]:
        """Layers that the first and the last stage have less than the others; one each since 2025."""
        counts = (
            self.integer(f"pipeline_parallel_{end}_stage_less_layers", least=0)[0]
            for end in ("first", "last")
        )
        usual = 0 if self.era == "2024" else 1
        return tuple(usual if count is None else count for count in counts)

    def _ends(self, mesh: Mapping[str, int], layers: int | None) -> None:
        """Fewer layers beside the embedding and the loss, the rest as evenly as they go: earlier stages have one more."""
        less = (
            ("pipeline_parallel_first_stage_less_layers", "embedding"),
            ("pipeline_parallel_last_stage_less_layers", "loss"),
        )
        for word_, end in less:
            count, end_key = self.integer(word_, least=0)
            count = (1 if self.era != "2024" else 0) if count is None else count
            if count > 1:
                self.ledger.refuse(
                    f"{self.ledger.place(end_key or '')}: {count} layers fewer on an end; 0 or 1 is simulated"
                )
            elif count or end_key is not None:
                self.put(end_key, f"parallelism.{end}_counts_as_layer", bool(count))
        ends = [
            bool(self.ledger.scenario.get(f"parallelism.{end}_counts_as_layer")) for _, end in less
        ]
        stages = mesh["pp"] * (
            self.ledger.scenario.get("schedule.virtual_stages")
            or (2 if self.ledger.scenario.get("schedule.name") in ("zb-v", "dualpipe-v") else 1)
        )
        if layers is None or stages > MOST_LAYERS or (layers + sum(ends)) % stages == 0:
            return
        base, extra = divmod(layers + sum(ends), stages)
        counts = [base + (stage < extra) for stage in range(stages)]
        counts[0] -= ends[0]
        counts[-1] -= ends[1]
        for _, end in less:
            self.ledger.drop(f"parallelism.{end}_counts_as_layer")
        self.ledger.assume(
            "parallelism.layers_per_stage",
            counts,
            "as torchtitan divides them: one fewer on the ends, one more on the first",
        )

    def batches(self, mesh: Mapping[str, int], ranks: int | None) -> None:
        """Sequence length, microbatch and batch of a step."""
        length_key = self.key("seq_len", "max_context_length")
        length = (self.ledger.integer(length_key, least=1) if length_key else None) or (
            None if length_key else 2048
        )
        if length is None:
            return
        self.put(length_key, "training.sequence_length", length)
        each = mesh["tp"] * mesh["pp"] * mesh["cp"]
        replicas = None if ranks is None else ranks // each
        if self.era == "2026-08":
            self._tokens(length, replicas)
            return
        local, key = self.integer("local_batch_size", "batch_size")
        local = local or 8
        micro, keys = local, [key] if key else []
        if mesh["pp"] > 1:
            count, count_key = self.integer("pipeline_parallel_microbatches")
            size, size_key = self.integer("pipeline_parallel_microbatch_size")
            if self.era == "2024":
                count = count or mesh["pp"]
                if local % count:
                    self.ledger.refuse(
                        f"{self.ledger.place(key or '')}: {local} sequences do not divide into {count} microbatches"
                    )
                    return
            micro = local // count if self.era == "2024" and count else size or 1
            keys = [item for item in (count_key, size_key) if item] or keys
        if keys:
            self.ledger.put(keys, "training.micro_batch", micro)
        else:
            self.ledger.assume("training.micro_batch", micro, "torchtitan's default")
        self._global(local, key, replicas)

    def _global(self, local: int, key: str | None, replicas: int | None) -> None:
        total, total_key = self.integer("global_batch_size", least=-1)
        keys = [item for item in (key, total_key) if item]
        if total is not None and total > 0:
            self.ledger.put(keys[-1:], "training.global_batch", total)
        elif replicas is not None:
            if keys:
                self.ledger.put(keys, "training.global_batch", local * replicas)
            else:
                self.ledger.assume(
                    "training.global_batch",
                    local * replicas,
                    f"{local} for each data-parallel rank",
                )
        else:
            self.ledger.ask("training.global_batch")
            self.ledger.ignore(keys, "of one data-parallel rank; the batch needs --ranks")
        if key is not None:
            self.ledger.ignore(key, "of one data-parallel rank")

    def _tokens(self, length: int, replicas: int | None) -> None:
        """Batches of 2026 count tokens."""
        tokens, key = self.integer("num_tokens_per_microbatch_per_dp_rank")
        tokens = tokens or 16384
        if tokens % length:
            self.ledger.refuse(
                f"{self.ledger.place(key or '')}: {tokens} tokens are no whole sequences of {length}"
            )
            return
        micro = tokens // length
        self.put(key, "training.micro_batch", micro)
        total, total_key = self.integer("num_tokens_per_train_step", least=-1)
        count, count_key = self.integer("num_pp_microbatches")
        if total is not None and total > 0:
            self.ledger.put(total_key or "", "training.global_batch", total // length)
        elif replicas is not None:
            self.put(
                count_key or total_key,
                "training.global_batch",
                micro * replicas * (count or 1),
                "a microbatch for each data-parallel rank",
            )
        else:
            self.ledger.ask("training.global_batch")
        for item in (count_key, total_key):
            if item is not None:
                self.ledger.ignore(item, "the tokens of a step decide")

    def precision(self) -> None:
        """Number format of products."""
        found = [
            name
            for name in ("model.converters", "quantize.linear", "model.quantization")
            if name in self.ledger
        ]
        converters = self.ledger.get(found[0]) if found else []
        words = " ".join(map(str, converters)) if isinstance(converters, list) else str(converters)
        switch = self.key("enable_float8_linear")
        narrow = bool(re.search(r"float8", words)) or bool(switch and self.ledger.switch(switch))
        recipe_key = next(
            (
                key
                for key in ("float8.recipe_name", "quantize.linear.float8.recipe_name")
                if key in self.ledger
            ),
            None,
        )
        recipe = str(self.ledger.get(recipe_key) or "tensorwise") if recipe_key else "tensorwise"
        keys = [key for key in (*found, switch, recipe_key) if key]
        if re.search(r"\bmx", words):
            self.ledger.put(found, "training.precision", "mxfp8")
            return
        if narrow:
            self.ledger.put(
                keys, "training.precision", "fp8_rowwise" if "rowwise" in recipe else "fp8"
            )
            return
        self.ledger.ignore(keys, "no narrow format")
        param = self.key("mixed_precision_param")
        word = str(self.ledger.get(param, "bfloat16")) if param else "bfloat16"
        formats = values_of("torchtitan", "training.mixed_precision_param")
        if word not in formats:
            self.ledger.refuse(
                f"{self.ledger.place(param or '')}: got {shortened(word)}; needed one of {', '.join(formats)}"
            )
            return
        self.put(param, "training.precision", formats[word])

    def recompute(self, mesh: Mapping[str, int], layers: int | None) -> None:
        """Activation checkpointing."""
        mode_key, option_key = (
            "activation_checkpoint.mode",
            "activation_checkpoint.selective_ac_option",
        )
        mode = str(self.ledger.get(mode_key, "selective")).lower()
        option = str(self.ledger.get(option_key, "2" if self.era in ("2024", "2025") else "op"))
        key = mode_key if mode_key in self.ledger else None
        if mode == "none":
            self.put(key, "training.recompute", "none")
        elif mode == "full":
            self.put(key, "training.recompute", "full")
        elif mode == "selective" and option == "op":
            self.ledger.put(
                [mode_key, option_key], "training.recompute", "per-op"
            ) if key else self.put(None, "training.recompute", "per-op")
        elif mode == "selective" and option.isdigit() and int(option) > 0:
            self.ledger.put([mode_key, option_key], "training.recompute", "full")
            if int(option) > 1 and layers is not None:
                count = max(1, layers // mesh["pp"] // int(option))
                self.ledger.put([mode_key, option_key], "training.recompute_method", "block")
                self.ledger.put([mode_key, option_key], "training.recompute_layers", count)
                self.ledger.note(
                    "training.recompute",
                    f"every {option}th layer runs again there; here the first {count} of a stage",
                    "full",
                )
        elif mode == "memory_budget":
            self.put(key, "training.recompute", "per-op")
            self.ledger.warn(
                f"{self.ledger.place(mode_key)}: what runs again under a memory budget is not known; every second product does here"
            )
        else:
            self.ledger.refuse(
                f"{self.ledger.place(mode_key)}: got {shortened(mode)} with option {shortened(option)}; needed none, selective or full"
            )
        self.ledger.ignore(option_key, "without selective recomputation it does nothing")

    def framework(self, preset: str, mesh: Mapping[str, int]) -> None:
        """The preset of the era and what differs from it."""
        self.ledger.assume("framework.preset", preset, "the preset of the spelling")
        habits = framework(preset, {}).fields()
        compiled = self.key("compile") or (
            "compile.enable" if "compile.enable" in self.ledger else None
        )
        is_compiled = bool(self.ledger.switch(compiled)) if compiled else False
        changes: dict[str, tuple[Sequence[str | None], object]] = {}
        if not is_compiled:
            changes |= {
                name: ([compiled], value)
                for name, value in table(_PACKAGE, "torchtitan")["eager"].items()
            }
        async_key = self.key("enable_async_tensor_parallel")
        if async_key and self.ledger.switch(async_key) and mesh["tp"] > 1:
            changes["tensor_overlap"] = ([async_key], "micro-pipeline")
        gather = next(
            (
                key
                for key in (
                    "float8.enable_fsdp_float8_all_gather",
                    "quantize.linear.float8.enable_fsdp_float8_all_gather",
                )
                if key in self.ledger
            ),
            None,
        )
        if (
            gather
            and self.ledger.switch(gather)
            and str(self.ledger.scenario.get("training.precision", "")).startswith("fp8")
        ):
            changes["gathered_bytes"] = ([gather], 1)
        if self.ledger.scenario.get("training.precision") == "fp8_rowwise":
            changes |= {"narrow_gathers": ([None], False), "scale_reductions": ([None], False)}
        for name, (keys, value) in changes.items():
            if getattr(habits[name], "value", habits[name]) == value:
                continue
            known = [key for key in keys if key]
            if known:
                self.ledger.put(known, f"framework.{name}", value)
            else:
                self.ledger.assume(
                    f"framework.{name}",
                    value,
                    "torch.compile is off"
                    if name in table(_PACKAGE, "torchtitan")["eager"]
                    else "row-wise scales",
                )
        for key in (compiled, async_key, gather):
            if key is not None:
                self.ledger.ignore(
                    key,
                    f"the preset {preset} has it"
                    if key == compiled
                    else "off, or without effect here",
                )


def _ignore(ledger: Ledger) -> None:
    """Say why other keys change nothing."""
    for key in ledger.values:
        for rule in table(_PACKAGE, "torchtitan")["ignored"]:
            if re.fullmatch(rule["pattern"], key):
                ledger.ignore(
                    key,
                    rule["why"],
                    matters=rule.get("matters", False)
                    and ledger.get(key) not in (None, False, "", [], 0),
                )
                break


TORCHTITAN: Final = Format(
    "torchtitan",
    "configuration of torchtitan (TOML, saved JSON)",
    "scenario",
    _is_torchtitan,
    _read_torchtitan,
)
