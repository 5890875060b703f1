"""torchtitan's TOML, in the spelling of the era that the scenario's framework stands for: degrees, schedule, batches, precision and recomputation."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, Final

from mpsim.formats.keys import key_to
from mpsim.formats.outgoing import Exported, Outgoing, header
from mpsim.formats.words import table
from mpsim.formats.written import toml_text
from mpsim.framework import framework, framework_aliases
from mpsim.scenario import Scenario
from mpsim.workload import Transformer, model

__all__ = ["export_torchtitan"]

_TABLE: Final = ("mpsim.formats.data", "torchtitan")
_USUAL: Final = "torchtitan-2025-12"


def export_torchtitan(scenario: Scenario) -> Exported:
    """Write the configuration of a scenario.

    Raises
    ------
    FormatError
        If it serves.
    """
    writer = _Writer(scenario)
    text = "".join(
        f"# {line}\n" for line in header(scenario, f"torchtitan, spelling of {writer.era}")
    )
    return writer.out.close(
        "torchtitan",
        tool=f"torchtitan, spelling of {writer.era}",
        text=f"{text}\n{toml_text(writer.data)}",
    )


class _Writer:
    """One configuration on its way out."""

    def __init__(self, scenario: Scenario) -> None:
        self.out = Outgoing(scenario)
        self.scenario = scenario
        eras: Mapping[str, str] = dict(table(*_TABLE)["eras"])
        name = framework_aliases().get(scenario.framework.preset, scenario.framework.preset)
        self.preset = name if name in eras else _USUAL
        self.era = eras[self.preset]
        self.data: dict[str, dict[str, object]] = {
            section: {}
            for section in ("model", "training", "parallelism", "experimental", "activation_checkpoint", "compile", "float8")
        }  # fmt: skip
        self._model()
        self._degrees()
        self._schedule()
        self._batches()
        self._precision()
        self._recompute()
        self._framework()
        cluster = scenario.hardware.name
        self.out.lose_cluster(
            f"no key names accelerators, links and NICs: import it with --cluster {cluster}"
        )

    def _write(self, key: str, value: object, *holds: str) -> None:
        section, _, word = key.partition(".")
        self.data[section][word] = value
        self.out.hold(holds, key)

    def _model(self) -> None:
        wanted = self.scenario.transformer
        for name, flavors in table(*_TABLE)["flavors"].items():
            for flavor, preset in flavors.items():
                if _same(wanted, model(preset)):
                    self._write("model.name", name)
                    self._write("model.flavor", flavor)
                    keys = [key for key in self.out.values if key.startswith("model.")]
                    self.out.hold(keys, "model.flavor")
                    return
        self.out.lose_section(
            "model", "is none of torchtitan's flavors; its models are Python tables"
        )

    def _degrees(self) -> None:
        p, training = self.scenario.parallelism, self.era == "2024"
        self._write(
            "training.tensor_parallel_degree" if training else "parallelism.tensor_parallel_degree",
            p.tp,
            "parallelism.tp",
        )
        self._write(
            "experimental.pipeline_parallel_degree"
            if training
            else "parallelism.pipeline_parallel_degree",
            p.pp,
            "parallelism.pp",
        )
        if p.cp > 1:
            section = "experimental" if training else "parallelism"
            self._write(f"{section}.context_parallel_degree", p.cp, "parallelism.cp")
        if p.ep > 1:
            self._write("parallelism.expert_parallel_degree", p.ep, "parallelism.ep")
            if p.etp is not None:
                self._write("parallelism.expert_tensor_parallel_degree", p.etp, "parallelism.etp")
        self._data_parallel()
        if p.tp == 1 or (p.sequence_parallel and self.era != "2026-08"):
            self.out.hold("parallelism.sequence_parallel", "tensor parallelism brings it")
        elif self.era == "2026-08":
            self._write(
                "parallelism.enable_sequence_parallel",
                p.sequence_parallel,
                "parallelism.sequence_parallel",
            )
        else:
            self.out.force(
                "parallelism.sequence_parallel", "comes with tensor parallelism in this era"
            )

    def _data_parallel(self) -> None:
        """Ranks that share one copy of the parameters, and how many copies there are."""
        p = self.scenario.parallelism
        whole = self.scenario.dp * p.cp
        # context parallelism always shares parameters here, so plain replicas of it are lost
        group = (p.shard or whole) if p.zero or p.cp > 1 else 1
        replicate, shard = self.scenario.dp * p.cp // group, group // p.cp
        if self.era == "2024":
            self._write("training.data_parallel_degree", self.scenario.dp, "parallelism.dp")
            if p.zero == 0:
                self._write("training.data_parallel_type", "ddp")
            self.out.lose("parallelism.shard", "all ranks share one copy in 2024")
        else:
            self._write("parallelism.data_parallel_replicate_degree", replicate, "parallelism.dp")
            self._write("parallelism.data_parallel_shard_degree", shard, "parallelism.dp")
            self.out.hold("parallelism.shard", "parallelism.data_parallel_shard_degree")
        is_sharded = (shard > 1 or p.cp > 1) and not (self.era == "2024" and p.zero == 0)
        stays = p.zero == 2 and self.era != "2024"
        if stays and is_sharded:
            self._write("parallelism.fsdp_reshard_after_forward", "never")
        read = 0 if not is_sharded else 2 if stays else 3
        if read == p.zero:
            self.out.hold("parallelism.zero", "parallelism.data_parallel_shard_degree")
        else:
            self.out.force(
                "parallelism.zero", f"torchtitan's FSDP is {read} here, and it has no other"
            )

    def _schedule(self) -> None:
        schedule, p = self.scenario.schedule, self.scenario.parallelism
        known = table(*_TABLE)["schedules"]
        words = {name: (word, chunks) for word, (name, chunks) in reversed(known.items())}
        section = "experimental" if self.era == "2024" else "parallelism"
        if p.pp == 1:
            if schedule.name == "1f1b":
                self.out.hold(["schedule.name", "schedule.virtual_stages"], "one stage")
            return
        if schedule.name not in words:
            self.out.lose_section("schedule", "torchtitan has no such schedule; 1F1B is written")
            self._write(f"{section}.pipeline_parallel_schedule", "1F1B")
            self._ends(section, 1)
            return
        word, usual = words[schedule.name]
        self._write(f"{section}.pipeline_parallel_schedule", word, "schedule.name")
        self.out.hold("schedule.virtual_stages", word)
        chunks = self.scenario.virtual_stages
        if usual == 2 and schedule.name not in ("zb-v", "dualpipe-v"):
            layers = self.scenario.transformer.layers
            if self.era != "2024":
                layers += p.embedding_counts_as_layer + p.loss_counts_as_layer
            each = -(-layers // (p.pp * chunks))
            if -(-layers // each) // p.pp == chunks and self._has_model:
                self._write(f"{section}.pipeline_parallel_layers_per_stage", each)
            elif chunks != usual:
                self.out.force(
                    "schedule.virtual_stages", "layers of a stage need a flavor of the model"
                )
        self._ends(section, self.scenario.virtual_stages)

    @property
    def _has_model(self) -> bool:
        return bool(self.data["model"])

    def _ends(self, section: str, chunks: int) -> None:
        p = self.scenario.parallelism
        for end, word in (("embedding", "first"), ("loss", "last")):
            counts = getattr(p, f"{end}_counts_as_layer")
            key = f"parallelism.{end}_counts_as_layer"
            if self.era == "2024":
                self.out.lose(key, "a split by layers came in 2025")
                continue
            self._write(f"{section}.pipeline_parallel_{word}_stage_less_layers", int(counts), key)
        layers = (
            self.scenario.transformer.layers + p.embedding_counts_as_layer + p.loss_counts_as_layer
        )
        if p.layers_per_stage is not None:
            self.out.lose("parallelism.layers_per_stage", "torchtitan divides layers itself")
        elif self._has_model and layers % (p.pp * chunks):
            self.out.force("parallelism.layers_per_stage", "torchtitan divides layers itself")

    def _batches(self) -> None:
        training, p, dp = self.scenario.training_step, self.scenario.parallelism, self.scenario.dp
        micro, total, length = training.micro_batch, training.global_batch, training.sequence_length
        both = ("training.micro_batch", "training.global_batch")
        if self.era == "2026-08":
            self._write("training.max_context_length", length, "training.sequence_length")
            self._write("training.num_tokens_per_microbatch_per_dp_rank", micro * length, both[0])
            self._write("training.num_tokens_per_train_step", total * length, both[1])
            if p.pp > 1:
                self._write("parallelism.num_pp_microbatches", self.scenario.microbatches)
            return
        self._write("training.seq_len", length, "training.sequence_length")
        local = total // dp if p.pp > 1 else micro
        if self.era == "2025-12":
            self._write("training.local_batch_size", local, both[0])
            self._write("training.global_batch_size", total, both[1])
            if p.pp > 1:
                self._write("parallelism.pipeline_parallel_microbatch_size", micro, both[0])
            return
        whole = total == micro * dp or p.pp > 1
        self._write("training.batch_size", local, *(both if whole else both[:1]))
        if not whole:
            self.out.force(both[1], "gradients are not accumulated in this era")
        if p.pp > 1 and self.era == "2024":
            self._write("experimental.pipeline_parallel_microbatches", self.scenario.microbatches)
        elif p.pp > 1:
            self._write("parallelism.pipeline_parallel_microbatch_size", micro, both[0])

    def _precision(self) -> None:
        precision, key = self.scenario.training_step.precision, "training.precision"
        row = key_to("torchtitan", key)
        word = row.word(precision)
        if word is not None:
            self._write(row.name, word, key)
        elif precision in ("fp8", "fp8_rowwise"):
            if self.era == "2024":
                self._write("float8.enable_float8_linear", True, key)
            else:
                self._write("model.converters", ["float8"], key)
            if precision == "fp8_rowwise":
                self._write("float8.recipe_name", "rowwise", key)
        elif precision == "mxfp8" and self.era != "2024":
            self._write("model.converters", ["mx"], key)
        else:
            self._write(row.name, "bfloat16")
            self.out.lose(key, "torchtitan has no such format")

    def _recompute(self) -> None:
        how, key = self.scenario.training_step.recompute, "training.recompute"
        word = key_to("torchtitan", key).word(how)
        self._write("activation_checkpoint.mode", word or "none")
        if word is None:
            self.out.lose(key, "torchtitan recomputes none, all, or every second product")
            return
        self.out.hold(key, "activation_checkpoint.mode")
        if how == "per-op":
            self._write("activation_checkpoint.selective_ac_option", "op")

    def _framework(self) -> None:
        chosen = self.scenario.framework
        wanted = framework(chosen.preset, chosen.overrides).fields()
        usual = framework(self.preset, {}).fields()
        eager: Mapping[str, Any] = table(*_TABLE)["eager"]
        changes: dict[str, object] = {}
        compiled = sum(wanted[field] == usual[field] for field in eager)
        is_compiled = compiled >= sum(wanted[field] == value for field, value in eager.items())
        if self.era in ("2024", "2025"):
            self._write("training.compile", is_compiled)
        else:
            self._write("compile.enable", is_compiled)
        if not is_compiled:
            changes |= eager
        p = self.scenario.parallelism
        if wanted["tensor_overlap"] == "micro-pipeline" and p.tp > 1:
            section = "experimental" if self.era == "2024" else "parallelism"
            self._write(f"{section}.enable_async_tensor_parallel", True)
            changes["tensor_overlap"] = "micro-pipeline"
        narrow = str(self.scenario.training_step.precision).startswith("fp8") and (
            "converters" in self.data["model"] or "enable_float8_linear" in self.data["float8"]
        )
        if narrow and wanted["gathered_bytes"] == 1:
            self._write("float8.enable_fsdp_float8_all_gather", True)
            changes["gathered_bytes"] = 1
        if narrow and self.scenario.training_step.precision == "fp8_rowwise":
            changes |= {"narrow_gathers": False, "scale_reductions": False}
        self.out.behave(self.preset, changes, tool="the spelling of the file")


def _same(wanted: Transformer, other: Transformer) -> bool:
    """Whether two models differ in their names and sources alone."""
    named = dataclasses.replace(other, name=wanted.name, source=wanted.source, as_of=wanted.as_of)
    return wanted == named
