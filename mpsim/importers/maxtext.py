"""MaxText: its YAML configuration, or the part of it that a run writes.

Keys that the file leaves out take the defaults of ``base.yml``. Batches count what one device gets, and one axis of the mesh may be -1, so the number of
accelerators is asked for where the degrees do not multiply to it.

References
----------
AI-Hypercomputer/maxtext, ``configs/base.yml`` at 000e93554 (2024-08) and e591f30c (2026).
"""

from __future__ import annotations

import re
from typing import Any, Final

from mpsim.errors import nearest
from mpsim.formats import values_of
from mpsim.formats.words import table
from mpsim.importers.configs import yaml_config
from mpsim.importers.imported import Imported
from mpsim.importers.ledger import Ledger, flat, shortened
from mpsim.importers.source import Format, Head, Options
from mpsim.importers.world import put_ranks

__all__ = ["MAXTEXT"]

_PACKAGE: Final = "mpsim.formats.data"
_WORDS = r"^(base_emb_dim|per_device_batch_size|ici_\w+_parallelism|dcn_\w+_parallelism|max_target_length|base_num_decoder_layers):"


def _is_maxtext(head: Head) -> bool:
    return not head.is_object and len(set(re.findall(_WORDS, head.text, re.MULTILINE))) >= 2


def _read_maxtext(head: Head, options: Options) -> Imported:
    """Read a configuration of MaxText.

    Raises
    ------
    FormatError
        If degrees do not divide, a name is unknown, or a value is no number; it is named.
    """
    data, lines = yaml_config(head)
    reader = _Reader(Ledger(str(head.path), flat(data), lines))
    reader.model()
    mesh, ranks = reader.mesh(options)
    reader.training(mesh, ranks)
    reader.framework()
    for key in reader.ledger.values:
        for rule in table(_PACKAGE, "maxtext")["ignored"]:
            if re.fullmatch(rule["pattern"], key):
                reader.ledger.ignore(key, rule["why"])
                break
    return reader.ledger.close("maxtext", tool="MaxText")


class _Reader:
    """One configuration on its way into a ledger."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self.defaults: dict[str, Any] = table(_PACKAGE, "maxtext")["defaults"]

    def size(self, key: str, to: str) -> int | None:
        """Put a size of the model, of the file or of base.yml."""
        value = self.ledger.integer(key, least=1)
        if value is not None:
            self.ledger.put(key, to, value)
        elif key in self.defaults:
            value = int(self.defaults[key])
            self.ledger.assume(to, value, "base.yml")
        return value

    def model(self) -> None:
        """The model by its name, or by its sizes."""
        names = table(_PACKAGE, "maxtext")["names"]
        name = str(self.ledger.get("model_name", "default"))
        if name in names:
            self.ledger.put("model_name", "model.preset", names[name])
            return
        if name not in ("default", "None"):
            self.ledger.refuse(
                f"{self.ledger.place('model_name')}: got {shortened(name)}; {nearest(name, names)}, or spell its sizes out"
            )
            return
        self.ledger.ignore("model_name", "its sizes are spelled out")
        for key, to in (
            ("base_emb_dim", "hidden"),
            ("base_num_decoder_layers", "layers"),
            ("base_num_query_heads", "heads"),
            ("base_num_kv_heads", "kv_heads"),
            ("head_dim", "head_dim"),
            ("base_mlp_dim", "ffn_hidden"),
            ("vocab_size", "vocab"),
        ):
            self.size(key, f"model.{to}")
        self._block()
        activations = self.ledger.get("mlp_activations")
        gated = not isinstance(activations, list) or len(activations) > 1
        self._put("mlp_activations", "model.gated_mlp", gated)
        tied = bool(self.ledger.switch("logits_via_embedding"))
        self._put("logits_via_embedding", "model.tied_embeddings", tied)
        rate = self.ledger.get("dropout_rate", 0.0)
        if not isinstance(rate, int | float) or isinstance(rate, bool) or not 0 <= rate < 1:
            self.ledger.refuse(
                f"{self.ledger.place('dropout_rate')}: got {shortened(rate)}; needed a probability"
            )
            rate = 0.0
        self._put("dropout_rate", "model.dropout", float(rate))
        self._attention()
        self._experts()

    def _put(self, key: str, to: str, value: object, why: str = "base.yml") -> None:
        if key in self.ledger:
            self.ledger.put(key, to, value)
        else:
            self.ledger.assume(to, value, why)

    def _block(self) -> None:
        blocks = table(_PACKAGE, "maxtext")["blocks"]
        name = str(self.ledger.get("decoder_block", "llama2"))
        if name not in blocks:
            self.ledger.refuse(
                f"{self.ledger.place('decoder_block')}: got {shortened(name)}; {nearest(name, blocks)}"
            )
            return
        for field, value in blocks[name].items():
            self._put("decoder_block", f"model.{field}", value)
        rows = self.ledger.integer("trainable_position_size", least=-1)
        if rows is not None and rows > 0:
            self.ledger.put("trainable_position_size", "model.max_positions", rows)
            self.ledger.put("trainable_position_size", "model.positions", "learned")

    def _attention(self) -> None:
        kind = str(self.ledger.get("attention_type", "global"))
        if kind == "mla":
            for word in ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"):  # fmt: skip
                value = self.ledger.integer(word)
                if value is None and word != "q_lora_rank":
                    self.ledger.refuse(f"{word}: is absent; latent attention needs it")
                else:
                    self._put(word, f"model.mla.{word}", value or 0)
            self.ledger.put("attention_type", "model.attention", "causal")
        elif kind in ("local_sliding", "chunk"):
            window = self.ledger.integer("sliding_window_size" if kind != "chunk" else "chunk_attn_window_size", least=1)  # fmt: skip
            if window is None:
                self.ledger.refuse(f"{self.ledger.place('attention_type')}: {kind} needs a window")
                return
            self.ledger.put("attention_type", "model.attention", "sliding")
            self.ledger.put(
                ["sliding_window_size", "chunk_attn_window_size"], "model.window", window
            )
        else:
            self._put("attention_type", "model.attention", "causal")
        self.ledger.ignore(
            ["sliding_window_size", "chunk_attn_window_size", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim"],
            "of an attention that is off",
        )  # fmt: skip

    def _experts(self) -> None:
        experts = self.ledger.integer("num_experts", least=1) or 1
        rest = ("num_experts_per_tok", "base_moe_mlp_dim", "shared_experts", "first_num_dense_layers", "interleave_moe_layer_step")  # fmt: skip
        if experts == 1:
            self.ledger.ignore(["num_experts", *rest], "no experts")
            return
        self.ledger.put("num_experts", "model.moe.experts", experts)
        top = self.ledger.integer("num_experts_per_tok", least=1) or 1
        self._put("num_experts_per_tok", "model.moe.top_k", top)
        for word, to in (
            ("base_moe_mlp_dim", "ffn_hidden"),
            ("shared_experts", "shared_experts"),
            ("first_num_dense_layers", "dense_layers"),
            ("interleave_moe_layer_step", "every"),
        ):
            value = self.ledger.integer(word)
            if value:
                self.ledger.put(word, f"model.moe.{to}", value)
            self.ledger.ignore(word, "none")

    def mesh(self, options: Options) -> tuple[dict[str, int], int | None]:
        """Degrees of the mesh, inside slices and across, and the accelerators."""
        degrees, words = self._degrees()
        free = [axis for axis, degree in degrees.items() if degree < 0]
        if len(free) > 1:
            self.ledger.refuse(f"{' and '.join(free)} are -1; one axis takes what is left")
            return degrees, None
        each = 1
        for degree in degrees.values():
            each *= max(degree, 1)
        ranks = options.ranks if free else each
        if options.ranks is not None and not free and options.ranks != each:
            self.ledger.refuse(
                f"--ranks {options.ranks}: the axes multiply to {each}; leave one out"
            )
        if ranks is None:
            self.ledger.ask("cluster.nodes")
        elif ranks % each:
            self.ledger.refuse(f"{ranks} accelerators do not divide by the axes, {each}")
            return degrees, None
        else:
            if free:
                degrees[free[0]] = ranks // each
            put_ranks(self.ledger, ranks, options, "--ranks" if free else "the axes together")
        for axis, to in (("tensor", "tp"), ("pipeline", "pp"), ("context", "cp"), ("expert", "ep")):
            if degrees[axis] > 1 or axis in ("tensor", "pipeline"):
                self._put_degree(words[axis], f"parallelism.{to}", degrees[axis])
            self.ledger.ignore(words[axis], "1: not divided")
        self._sharding(degrees, words)
        self._schedule(degrees["pipeline"])
        return degrees, ranks

    def _degrees(self) -> tuple[dict[str, int], dict[str, list[str]]]:
        degrees: dict[str, int] = {}
        words: dict[str, list[str]] = {}
        for axis in ("tensor", "pipeline", "context", "expert", "fsdp", "data"):
            spelled = [axis, "sequence"] if axis == "context" else [axis]
            names = [f"{net}_{word}_parallelism" for net in ("ici", "dcn") for word in spelled]
            words[axis] = [name for name in names if name in self.ledger]
            product = 1
            for name in names:
                usual = self.defaults.get(name, 1)
                value = self.ledger.integer(name, least=-1) if name in self.ledger else usual
                product *= 1 if value in (None, 0) else int(value or 1)
            degrees[axis] = product
        return degrees, words

    def _put_degree(self, words: list[str], to: str, degree: int) -> None:
        if words:
            self.ledger.put(words, to, degree)
        else:
            self.ledger.assume(to, degree, "base.yml")

    def _sharding(self, degrees: dict[str, int], words: dict[str, list[str]]) -> None:
        fsdp, data = degrees["fsdp"], degrees["data"]
        self._put_degree(words["fsdp"], "parallelism.zero", 3 if fsdp != 1 else 0)
        if fsdp > 1 and data > 1:
            shard = fsdp * degrees["expert"] * degrees["context"]
            self._put_degree(words["fsdp"] + words["data"], "parallelism.shard", shard)
        elif fsdp != 1 and (data < 0 or fsdp < 0) and data != 1:
            self.ledger.ask("parallelism.shard")
        self.ledger.ignore(words["data"], "copies follow from the accelerators")
        offloaded = self.ledger.switch("optimizer_memory_host_offload")
        if offloaded:
            self.ledger.put("optimizer_memory_host_offload", "parallelism.offload", "optimizer")
        self.ledger.ignore("optimizer_memory_host_offload", "off")

    def _schedule(self, pp: int) -> None:
        repeats = self.ledger.integer("num_pipeline_repeats", least=-1)
        chunks = repeats if pp > 1 and repeats is not None and repeats > 1 else 1
        name = "interleaved-1f1b" if chunks > 1 else "1f1b"
        self._put("num_pipeline_repeats", "schedule.name", name, "the nearest to its circular pipeline")  # fmt: skip
        if chunks > 1:
            self.ledger.put("num_pipeline_repeats", "schedule.virtual_stages", chunks)
        if pp > 1:
            self.ledger.note("schedule", "forwards of all microbatches come first in MaxText's pipeline; 1F1B stands for it")  # fmt: skip

    def training(self, mesh: dict[str, int], ranks: int | None) -> None:
        """Length, batches, precision and what runs again."""
        self.size("max_target_length", "training.sequence_length")
        self._batches(mesh, ranks)
        narrow = str(self.ledger.get("quantization") or "")
        wide = str(self.ledger.get("dtype") or "bfloat16")
        kinds, wides = values_of("maxtext", "quantization"), values_of("maxtext", "dtype")
        if narrow and narrow not in kinds:
            self.ledger.refuse(
                f"{self.ledger.place('quantization')}: got {shortened(narrow)}; needed one of {', '.join(kinds)}, or none"
            )
        elif narrow:
            self.ledger.put("quantization", "training.precision", kinds[narrow])
        elif wide not in wides:
            self.ledger.refuse(
                f"{self.ledger.place('dtype')}: got {shortened(wide)}; needed one of {', '.join(wides)}"
            )
        else:
            self._put("dtype", "training.precision", wides[wide])
        self.ledger.ignore(["quantization", "dtype"], "what is not in the narrow format")
        policy = str(self.ledger.get("remat_policy", "full"))
        known = values_of("maxtext", "remat_policy")
        self._put("remat_policy", "training.recompute", known.get(policy, "none"))
        if policy not in known:
            self.ledger.warn(
                f"{self.ledger.place('remat_policy')}: {shortened(policy)} keeps named tensors; that nothing is kept out is simulated, with what lies between products in the preset"
            )

    def _batches(self, mesh: dict[str, int], ranks: int | None) -> None:
        value = self.ledger.get("per_device_batch_size", self.defaults["per_device_batch_size"])
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 < value < 1e6:
            self.ledger.refuse(
                f"{self.ledger.place('per_device_batch_size')}: got {shortened(value)}; needed a number above 0"
            )
            return
        steps = self.ledger.integer("gradient_accumulation_steps", least=1) or 1
        rounds = self.ledger.integer("num_pipeline_microbatches", least=-1)
        if ranks is None:
            self.ledger.ask("training.global_batch")
            self.ledger.ignore(
                ["per_device_batch_size", "gradient_accumulation_steps", "num_pipeline_microbatches"],
                "of one device; the batch needs --ranks",
            )  # fmt: skip
            return
        total = value * ranks * steps
        replicas = ranks // (mesh["tensor"] * mesh["pipeline"] * mesh["context"])
        if mesh["pipeline"] > 1:
            steps *= rounds if rounds is not None and rounds > 0 else mesh["pipeline"]
        if total != int(total) or total % (replicas * steps):
            self.ledger.refuse(
                f"{self.ledger.place('per_device_batch_size')}: {value} a device on {ranks} devices is {total:g} sequences, which do not divide among {replicas} replicas x {steps} microbatches"
            )
            return
        keys = ["per_device_batch_size", "gradient_accumulation_steps", "num_pipeline_microbatches"]
        self.ledger.put(keys[:2], "training.global_batch", int(total))
        self.ledger.put(keys, "training.micro_batch", int(total) // replicas // steps)

    def framework(self) -> None:
        """The preset of the hardware, and the attention kernel."""
        kinds = values_of("maxtext", "hardware")
        kind = str(self.ledger.get("hardware", "tpu"))
        if kind not in kinds:
            self.ledger.refuse(
                f"{self.ledger.place('hardware')}: got {shortened(kind)}; needed one of {', '.join(kinds)}"
            )
            return
        self._put("hardware", "framework.preset", kinds[kind])
        attention = values_of("maxtext", "attention").get(str(self.ledger.get("attention")))
        if attention is False:
            self.ledger.put("attention", "framework.fused_attention", False)
        self.ledger.ignore("attention", f"the preset {kinds[kind]} has it")
        clip = self.ledger.get("gradient_clipping_threshold")
        if isinstance(clip, int | float) and not isinstance(clip, bool):
            self.ledger.put("gradient_clipping_threshold", "framework.gradient_norm", clip > 0)


MAXTEXT: Final = Format(
    "maxtext", "configuration of MaxText", "scenario", _is_maxtext, _read_maxtext
)
