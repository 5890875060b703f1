"""Settings of Megatron as a scenario, whether a command line, a YAML file or a recipe of NeMo or Megatron-Bridge states them.

Every setting has the name of its flag without dashes. What is absent takes Megatron's default, which is one thing on the command line and another in the
dataclasses that YAML files fill.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mpsim.framework import framework
from mpsim.importers.launch import Launch
from mpsim.importers.ledger import Ledger, shortened
from mpsim.importers.source import Options
from mpsim.importers.words import table
from mpsim.importers.world import put_cluster

__all__ = ["Settings", "put_scenario"]

_SHARDING: Final = {"no_shard": 0, "optim": 1, "optim_grads": 2, "optim_grads_params": 3}
_EXCHANGES: Final = {
    "p2p": "ring",
    "a2a": "ulysses",
    "allgather": "all-gather",
    "a2a+p2p": "hierarchical",
}
_DISPATCH: Final = {
    "allgather": "all-gather",
    "alltoall": "all-to-all",
    "alltoall_seq": "all-to-all",
    "flex": "fused",
}
_NARROW: Final = {
    "delayed": "fp8",
    "tensorwise": "fp8",
    "mxfp8": "mxfp8",
    "blockwise": "fp8_block",
    "custom": "fp8",
}
_MODULES: Final = (
    "core_attn",
    "layernorm",
    "mlp",
    "moe_act",
    "moe",
    "shared_experts",
    "mla_up_proj",
)


@dataclasses.dataclass(slots=True)
class Settings:
    """Settings of one run, and the ledger they go into.

    Parameters
    ----------
    ledger : Ledger
    keys : mapping of str to str
        Key of the file that states each setting.
    values : mapping of str to object
        What each says: a switch true or false, text, or a list.
    preset : str
        Framework preset of the era.
    since : int
        Place of the era's first tag among all tags.
    is_dataclass : bool
        Whether absent settings take the defaults of the dataclasses instead of those of the command line.
    """

    ledger: Ledger
    keys: Mapping[str, str]
    values: Mapping[str, Any]
    preset: str
    since: int
    is_dataclass: bool

    def on(self, name: str) -> bool:
        """Whether a switch is set."""
        value = self.values.get(name)
        if value is None or value is True or value is False:
            return bool(value)
        return str(value).strip().lower() in ("true", "1", "yes")

    def text(self, name: str) -> str | None:
        """Text of a setting; None where it is absent."""
        value = self.values.get(name)
        return (
            None
            if value is None or value is True
            else value
            if isinstance(value, str)
            else str(value)
        )

    def integer(self, name: str, *, least: int = 0) -> int | None:
        """A whole number; None where it is absent, refused by name where it is none."""
        value = self.values.get(name)
        if value is None:
            return None
        number = _whole(value)
        if number is None or not least <= number <= 10**12:
            self.ledger.refuse(
                f"{self.place(name)}: got {shortened(value)}; needed a whole number of at least {least}"
            )
            return None
        return number

    def number(self, name: str) -> float | None:
        """A number; None where it is absent, refused by name where it is none."""
        value = self.values.get(name)
        if value is None:
            return None
        try:
            number = float(value)
        except (TypeError, ValueError):
            number = float("nan")
        if not abs(number) < 1e15:
            self.ledger.refuse(f"{self.place(name)}: got {shortened(value)}; needed a number")
            return None
        return number

    def place(self, name: str) -> str:
        """Where a setting stands in the file."""
        return self.ledger.place(self.keys.get(name, name))

    def put(
        self, names: str | Sequence[str], to: str, value: object, why: str = "Megatron's default"
    ) -> None:
        """Give a key of the scenario its value, mapped from those settings that are stated, else assumed."""
        listed = [names] if isinstance(names, str) else names
        stated = [self.keys[name] for name in listed if name in self.keys]
        if stated:
            self.ledger.put(stated, to, value)
        else:
            self.ledger.assume(to, value, why)

    def ignore(self, names: str | Sequence[str], why: str) -> None:
        """Say why stated settings change nothing."""
        listed = [names] if isinstance(names, str) else names
        self.ledger.ignore([self.keys[name] for name in listed if name in self.keys], why)

    def since_tag(self, tag: str) -> bool:
        """Whether the era begins with this tag or a later one."""
        tags: list[str] = table("mpsim.importers.data", "megatron")["tags"]
        return self.since >= tags.index(tag)


def _whole(value: object) -> int | None:
    if isinstance(value, bool):
        return None
    try:
        number = float(str(value).replace("_", ""))
    except ValueError:
        return None
    return int(number) if abs(number) < 1e15 and number == int(number) else None


def put_scenario(settings: Settings, launch: Launch, options: Options) -> None:
    """Put everything that the settings say into their ledger."""
    ranks = put_cluster(settings.ledger, launch, options)
    _check_exclusive(settings)
    layers = _model(settings)
    mesh = _parallelism(settings)
    _schedule(settings, mesh, layers)
    _training(settings, mesh, ranks)
    _framework(settings, mesh)
    _check_mesh(settings, mesh, ranks)


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


# --- model


def _model(settings: Settings) -> int | None:
    s = settings
    layers, names = (
        None,
        [
            name
            for name in ("num-layers", "encoder-num-layers", "decoder-num-layers")
            if name in s.keys
        ],
    )
    for name in names[:1]:
        layers = s.integer(name, least=1)
    further = s.integer("mtp-num-layers") or 0
    if layers is not None:
        s.put(
            [*names[:1], *(["mtp-num-layers"] if further else [])], "model.layers", layers + further
        )
    else:
        s.ledger.ask("model.layers")
    s.ignore([*names[1:], "mtp-num-layers"], "none, or the same as --num-layers")
    if further:
        s.put("mtp-num-layers", "model.mtp_layers", further)
    hidden, heads = s.integer("hidden-size", least=1), s.integer("num-attention-heads", least=1)
    for name, to, value in (
        ("hidden-size", "model.hidden", hidden),
        ("num-attention-heads", "model.heads", heads),
    ):
        if value is None:
            s.ledger.ask(to)
        else:
            s.put(name, to, value)
    _attention(s, hidden, heads)
    _mlp(s, hidden)
    _norms_and_ends(s)
    _experts(s, layers)
    return layers


def _attention(s: Settings, hidden: int | None, heads: int | None) -> None:
    groups = s.integer("num-query-groups", least=1)
    latent = s.on("multi-latent-attention")
    if latent or not (s.on("group-query-attention") or s.is_dataclass) or groups is None:
        if s.on("group-query-attention") and not latent and not s.is_dataclass:
            s.put("group-query-attention", "model.kv_heads", groups or 1)
        elif heads is not None:
            s.ledger.assume("model.kv_heads", heads, "as many as heads")
        why = (
            "latent attention has a key and a value a head"
            if latent
            else "without --group-query-attention it does nothing"
        )
        s.ignore(["num-query-groups", "group-query-attention"], why)
    else:
        s.put(["num-query-groups", "group-query-attention"], "model.kv_heads", groups)
    channels = s.integer("kv-channels", least=1)
    if latent:
        s.ignore("kv-channels", "latent attention has widths of its own")
    elif channels is not None:
        s.put("kv-channels", "model.head_dim", channels)
    elif hidden is not None and heads is not None:
        if hidden % heads:
            s.ledger.refuse(
                f"--hidden-size {hidden} does not divide among {heads} heads; give --kv-channels"
            )
        s.ledger.assume("model.head_dim", hidden // heads, "hidden / heads")
    if latent:
        _latent(s)
    else:
        s.ignore(
            ["q-lora-rank", "kv-lora-rank", "qk-head-dim", "qk-pos-emb-head-dim", "v-head-dim"],
            "without latent attention it does nothing",
        )
        s.ignore(
            [
                "multi-latent-attention",
                "no-multi-latent-attention",
                "disable-multi-latent-attention",
            ],
            "attention is plain",
        )
    _positions(s)
    normed = s.on("qk-layernorm")
    if "qk-layernorm" in s.keys and not latent:
        s.put("qk-layernorm", "model.qk_norm", normed)
    s.ignore("qk-layernorm", "latent attention has norms of its own")
    _window(s)


def _latent(s: Settings) -> None:
    default = 512 if s.is_dataclass else 32
    rank = s.integer("q-lora-rank", least=1)
    s.put(
        ["q-lora-rank"],
        "model.mla.q_lora_rank",
        rank or (512 if s.is_dataclass and "q-lora-rank" not in s.keys else 0),
    )
    for name, to, usual in (
        ("kv-lora-rank", "kv_lora_rank", default),
        ("qk-head-dim", "qk_nope_head_dim", 128),
        ("qk-pos-emb-head-dim", "qk_rope_head_dim", 64),
        ("v-head-dim", "v_head_dim", 128),
    ):
        value = s.integer(name, least=1)
        s.put(name, f"model.mla.{to}", usual if value is None else value)
    s.ignore("multi-latent-attention", "")
    s.put(
        "multi-latent-attention", "model.mla.v_head_dim", s.ledger.scenario["model.mla.v_head_dim"]
    )


def _positions(s: Settings) -> None:
    kind = s.text("position-embedding-type") or (
        "rope" if s.on("use-rotary-position-embeddings") else "learned_absolute"
    )
    rotary = ("rope", "mrope", "yarn")
    if kind in rotary or s.on("use-rotary-position-embeddings"):
        words = "rotary"
    elif kind in ("none", "no_position_embedding"):
        words = "none"
    elif kind == "relative":
        words = "relative"
    elif kind == "learned_absolute":
        words = "learned"
    else:
        s.ledger.refuse(
            f"{s.place('position-embedding-type')}: got {shortened(kind)}; needed learned_absolute, rope, mrope, yarn, relative or none"
        )
        return
    if s.on("no-position-embedding") and words == "learned":
        words = "none"
    names = ["position-embedding-type", "use-rotary-position-embeddings", "no-position-embedding"]
    s.put(names, "model.positions", words)
    rows = s.integer("max-position-embeddings", least=1)
    if words == "learned" and rows is not None:
        s.put("max-position-embeddings", "model.max_positions", rows)
    elif words == "relative":
        buckets = s.integer("relative-attention-num-buckets", least=1) or 32
        s.put("relative-attention-num-buckets", "model.max_positions", buckets)
    s.ignore(
        ["max-position-embeddings", "relative-attention-num-buckets"],
        "no table of positions is learned",
    )


def _window(s: Settings) -> None:
    text = s.values.get("window-size")
    words = " ".join(map(str, text)) if isinstance(text, list) else str(text or "")
    numbers = [int(word) for word in re.findall(r"-?\d+", words)][:2]
    if not numbers or numbers[0] < 1:
        s.ignore(["window-size", "window-attn-skip-freq"], "without a window it does nothing")
        s.ledger.assume("model.attention", "causal", "a decoder")
        return
    s.put("window-size", "model.attention", "sliding")
    s.put("window-size", "model.window", numbers[0])
    every = (
        s.integer("window-attn-skip-freq", least=1)
        if re.fullmatch(r"\d+", s.text("window-attn-skip-freq") or "")
        else None
    )
    if every is not None and every > 1:
        s.put("window-attn-skip-freq", "model.full_every", every)
    elif "window-attn-skip-freq" in s.keys:
        s.ledger.ignore(
            s.keys["window-attn-skip-freq"],
            "which layers have a window is not simulated in this spelling; all have it",
            matters=True,
        )


def _mlp(s: Settings, hidden: int | None) -> None:
    gated = s.on("swiglu") or s.on("quick-geglu") or s.on("gated-linear-unit")
    s.put(["swiglu", "quick-geglu", "gated-linear-unit"], "model.gated_mlp", gated)
    width = s.integer("ffn-hidden-size", least=1)
    if width is not None:
        s.put("ffn-hidden-size", "model.ffn_hidden", width)
    elif hidden is not None:
        narrow = int((4 * hidden * 2 / 3) / 64) * 64
        cut = gated and not s.is_dataclass
        s.ledger.assume(
            "model.ffn_hidden",
            narrow if cut else 4 * hidden,
            "two thirds of 4 x hidden, by 64" if cut else "4 x hidden",
        )


def _norms_and_ends(s: Settings) -> None:
    norm = (s.text("normalization") or "LayerNorm").lower()
    if norm not in ("layernorm", "rmsnorm"):
        s.ledger.refuse(
            f"{s.place('normalization')}: got {shortened(norm)}; needed LayerNorm or RMSNorm"
        )
    s.put("normalization", "model.norm", "rmsnorm" if norm == "rmsnorm" else "layernorm")
    bias = not s.on("disable-bias-linear")
    s.put("disable-bias-linear", "model.bias", bias)
    if s.on("add-qkv-bias") and not bias:
        s.put("add-qkv-bias", "model.qkv_bias", True)
    s.ignore("add-qkv-bias", "all projections have a bias" if bias else "off")
    s.put(
        "untie-embeddings-and-output-weights",
        "model.tied_embeddings",
        not s.on("untie-embeddings-and-output-weights"),
    )
    hidden, inner = s.number("hidden-dropout"), s.number("attention-dropout")
    dropout = 0.1 if hidden is None else hidden
    s.put("hidden-dropout", "model.dropout", dropout)
    s.ignore("attention-dropout", "the dropout of the residual stream stands for both")
    if (0.1 if inner is None else inner) != dropout:
        s.ledger.note(
            "model.dropout",
            "attention and residual stream drop unequally; that of the residual stream stands for both",
            dropout,
        )
    _vocabulary(s)


def _vocabulary(s: Settings) -> None:
    padded, rows = s.integer("padded-vocab-size", least=1), s.integer("vocab-size", least=1)
    extra = s.integer("vocab-extra-ids") or 0
    kind = s.text("tokenizer-type")
    known = table("mpsim.importers.data", "megatron")["tokenizers"]
    if padded is not None:
        s.put("padded-vocab-size", "model.vocab", padded)
    elif rows is not None:
        s.put(["vocab-size", "vocab-extra-ids"], "model.vocab", rows + extra)
    elif kind in known:
        s.put(["tokenizer-type", "vocab-extra-ids"], "model.vocab", known[kind] + extra)
    else:
        s.ledger.ask("model.vocab")
    s.ignore(
        ["vocab-size", "vocab-extra-ids", "tokenizer-type"],
        "how many rows the table has is not in it, or stated elsewhere",
    )
    multiple = s.integer("make-vocab-size-divisible-by", least=1)
    if multiple not in (None, 128):
        s.ledger.ignore(
            s.keys["make-vocab-size-divisible-by"],
            "the simulated table is padded to 128 x tp",
            matters=True,
        )
    s.ignore(
        ["make-vocab-size-divisible-by", "no-pad-vocab-size", "disable-pad-vocab-size"],
        "the simulated table is padded to 128 x tp",
    )


def _experts(s: Settings, layers: int | None) -> None:
    names = ("num-experts", "num-moe-experts")
    stated = next((name for name in names if name in s.keys), names[0])
    experts = s.integer(stated, least=1)
    others = (
        "moe-router-topk moe-ffn-hidden-size moe-layer-freq moe-shared-expert-intermediate-size moe-expert-capacity-factor moe-token-dispatcher-type "
        "moe-grouped-gemm moe-shared-expert-overlap moe-enable-deepep moe-flex-dispatcher-backend moe-extended-tp moe-layer-recompute"
    ).split()
    if experts is None:
        s.ignore([*names, *others], "without experts it does nothing")
        return
    s.put(stated, "model.moe.experts", experts)
    s.put("moe-router-topk", "model.moe.top_k", s.integer("moe-router-topk", least=1) or 2)
    width = s.integer("moe-ffn-hidden-size", least=1)
    if width is not None:
        s.put("moe-ffn-hidden-size", "model.moe.ffn_hidden", width)
    shared = s.integer("moe-shared-expert-intermediate-size") or 0
    if shared:
        s.put("moe-shared-expert-intermediate-size", "model.moe.shared_experts", 1)
        s.put("moe-shared-expert-intermediate-size", "model.moe.shared_ffn_hidden", shared)
    capacity = s.number("moe-expert-capacity-factor")
    if capacity is not None and capacity > 0:
        s.put("moe-expert-capacity-factor", "model.moe.capacity_factor", capacity)
    s.ignore(["moe-shared-expert-intermediate-size", "moe-expert-capacity-factor"], "none")
    _expert_layers(s, layers)


def _expert_layers(s: Settings, layers: int | None) -> None:
    """Which layers have experts: every n-th, or as a list of zeros and ones says."""
    value = s.values.get("moe-layer-freq")
    if value is None:
        return
    pattern = value if isinstance(value, list) else _pattern(str(value))
    if pattern is None or layers is None:
        s.ledger.refuse(
            f"{s.place('moe-layer-freq')}: got {shortened(value)}; needed a number, or a list such as ([0]*3+[1]*58)"
        )
        return
    if len(pattern) == 1 and pattern[0] >= 1:
        if pattern[0] > 1:
            s.put("moe-layer-freq", "model.moe.every", pattern[0])
            s.ledger.note(
                "model.moe.every",
                "experts stand in the last of each n layers here, in the first there",
            )
        s.ignore("moe-layer-freq", "every layer has experts")
        return
    where = [bool(item) for item in pattern]
    dense = where.index(True) if True in where else layers
    if len(where) != layers or not all(where[dense:]):
        every = next(
            (
                n
                for n in range(2, layers + 1)
                if where == [layer % n == 0 for layer in range(layers)]
            ),
            None,
        )
        if every is None:
            s.ledger.refuse(
                f"{s.place('moe-layer-freq')}: experts neither in every n-th layer nor in all after the first; not simulated"
            )
        else:
            s.put("moe-layer-freq", "model.moe.every", every)
        return
    if dense:
        s.put("moe-layer-freq", "model.moe.dense_layers", dense)
    s.ignore("moe-layer-freq", "every layer has experts")


def _pattern(text: str) -> list[int] | None:
    """A list as Megatron's flags write it, such as ``([0]*3+[1]*58)`` or ``[1,0]*2``; None where it is none."""
    bare = re.sub(r"[\s()'\"]", "", text)
    if re.fullmatch(r"\d{1,6}", bare):
        return [int(bare)]
    items: list[int] = []
    for term in bare.split("+"):
        match = re.fullmatch(r"\[(\d(?:,\d)*)\](?:\*(\d{1,5}))?", term)
        if match is None or len(items) > 100_000:
            return None
        items += [int(item) for item in match[1].split(",")] * int(match[2] or 1)
    return items


# --- parallelism and schedule


def _parallelism(s: Settings) -> dict[str, int]:
    tensor = (
        "model-parallel-size" if "model-parallel-size" in s.keys else "tensor-model-parallel-size"
    )
    degrees = {
        "tp": tensor,
        "pp": "pipeline-model-parallel-size",
        "cp": "context-parallel-size",
        "ep": "expert-model-parallel-size",
    }
    mesh: dict[str, int] = {}
    for axis, name in degrees.items():
        mesh[axis] = s.integer(name, least=1) or 1
        if axis in ("tp", "pp") or name in s.keys:
            s.put(name, f"parallelism.{axis}", mesh[axis])
    has_experts = "model.moe.experts" in s.ledger.scenario
    etp = s.integer("expert-tensor-parallel-size", least=1)
    if etp is not None and has_experts:
        s.put("expert-tensor-parallel-size", "parallelism.etp", etp)
        mesh["etp"] = etp
    s.ignore("expert-tensor-parallel-size", "without experts it does nothing")
    sequence = s.on("sequence-parallel") and mesh["tp"] > 1
    s.put("sequence-parallel", "parallelism.sequence_parallel", sequence)
    if s.on("sequence-parallel") and not sequence:
        s.ledger.note(
            "parallelism.sequence_parallel", "without tensor parallelism Megatron switches it off"
        )
    _sharding(s)
    if s.on("use-tp-pp-dp-mapping"):
        s.put("use-tp-pp-dp-mapping", "parallelism.order", "tp-cp-ep-pp-dp")
    return mesh


def _sharding(s: Settings) -> None:
    """Which states data-parallel ranks share."""
    names = [
        "use-distributed-optimizer",
        "use-megatron-fsdp",
        "use-custom-fsdp",
        "use-torch-fsdp2",
        "data-parallel-sharding-strategy",
    ]
    strategy = s.text("data-parallel-sharding-strategy")
    if strategy is not None and strategy not in _SHARDING:
        s.ledger.refuse(
            f"{s.place('data-parallel-sharding-strategy')}: got {shortened(strategy)}; needed one of {', '.join(_SHARDING)}"
        )
        return
    if s.on("use-torch-fsdp2"):
        stays = s.on("torch-fsdp2-no-reshard-after-forward")
        s.put(
            ["use-torch-fsdp2", "torch-fsdp2-no-reshard-after-forward"],
            "parallelism.zero",
            2 if stays else 3,
        )
    elif s.on("use-megatron-fsdp") or s.on("use-custom-fsdp"):
        usual = "optim_grads_params" if s.since_tag("core_v0.18.0") else "no_shard"
        stage = _SHARDING[strategy or usual]
        s.put(names[1:], "parallelism.zero", max(stage, int(s.on("use-distributed-optimizer"))))
    else:
        s.put(
            "use-distributed-optimizer", "parallelism.zero", int(s.on("use-distributed-optimizer"))
        )
    s.ignore(
        [*names, "torch-fsdp2-no-reshard-after-forward"], "another flag decides what is sharded"
    )
    if s.on("optimizer-cpu-offload"):
        fraction = s.number("optimizer-offload-fraction")
        s.put(
            ["optimizer-cpu-offload", "optimizer-offload-fraction"],
            "parallelism.offload",
            "optimizer",
        )
        if fraction not in (None, 1.0):
            s.ledger.warn(
                f"{s.place('optimizer-offload-fraction')}: a part of the optimizer is offloaded; all of it is simulated"
            )
    s.ignore(["optimizer-cpu-offload", "optimizer-offload-fraction"], "nothing is offloaded")


def _schedule(s: Settings, mesh: Mapping[str, int], layers: int | None) -> None:
    pp = mesh["pp"]
    layout = s.text("pipeline-model-parallel-layout")
    each, chunks = s.integer("num-layers-per-virtual-pipeline-stage", least=1), None
    names = [
        "num-layers-per-virtual-pipeline-stage",
        "num-virtual-stages-per-pipeline-rank",
        "virtual-pipeline-model-parallel-size",
    ]
    for name in names[1:]:
        chunks = chunks or s.integer(name, least=1)
    uneven = any(name in s.keys for name in _ENDS)
    if layout is not None:
        chunks = _from_layout(s, layout, pp, layers)
    elif each is not None and layers is not None:
        ends = int(s.on("account-for-embedding-in-pipeline-split")) + int(
            s.on("account-for-loss-in-pipeline-split")
        )
        if (layers + ends) % (pp * each):
            s.ledger.refuse(
                f"{s.place('num-layers-per-virtual-pipeline-stage')}: {layers + ends} layers on {pp} stages are no whole chunks of {each}; needed a divisor of "
                f"{(layers + ends) // pp}"
            )
            return
        chunks = (layers + ends) // pp // each
    chunks = chunks or 1
    if pp == 1 and chunks > 1:
        s.ledger.refuse(
            f"{s.keys[next(name for name in (*names, 'pipeline-model-parallel-layout') if name in s.keys)]}: virtual stages need pipeline parallelism"
        )
        return
    s.put(
        [name for name in names if name in s.keys] or ["pipeline-model-parallel-layout"],
        "schedule.name",
        "interleaved-1f1b" if chunks > 1 else "1f1b",
    )
    if chunks > 1:
        s.put(
            [name for name in names if name in s.keys] or ["pipeline-model-parallel-layout"],
            "schedule.virtual_stages",
            chunks,
        )
    for name, to in (
        ("account-for-embedding-in-pipeline-split", "embedding_counts_as_layer"),
        ("account-for-loss-in-pipeline-split", "loss_counts_as_layer"),
    ):
        if s.on(name):
            s.put(name, f"parallelism.{to}", True)
        s.ignore(name, "off")
    if uneven and layout is None and layers is not None:
        _uneven(s, pp, chunks, layers)
    s.ignore(_ENDS, "the layout decides")


_ENDS: Final = (
    "decoder-first-pipeline-num-layers",
    "decoder-last-pipeline-num-layers",
    "num-layers-in-first-pipeline-stage",
    "num-layers-in-last-pipeline-stage",
)


def _uneven(s: Settings, pp: int, chunks: int, layers: int) -> None:
    """Fewer or more layers on the first and the last pipeline rank; each rank's are divided evenly among its chunks."""
    first = next((s.integer(name, least=1) for name in _ENDS[::2] if name in s.keys), None)
    last = next((s.integer(name, least=1) for name in _ENDS[1::2] if name in s.keys), None)
    inner = pp - (first is not None) - (last is not None)
    rest = layers - (first or 0) - (last or 0)
    stated = [name for name in _ENDS if name in s.keys]
    each = rest // inner if inner > 0 else 0
    counts = [each] * pp
    if first is not None:
        counts[0] = first
    if last is not None:
        counts[-1] = last
    if rest < 0 or inner < 0 or sum(counts) != layers or any(count % chunks for count in counts):
        s.ledger.refuse(
            f"{', '.join(s.keys[name] for name in stated)}: {layers} layers do not divide among {pp} stages of {chunks} chunks with these ends"
        )
        return
    s.put(
        stated,
        "parallelism.layers_per_stage",
        [counts[rank] // chunks for _ in range(chunks) for rank in range(pp)],
    )


def _from_layout(s: Settings, text: str, pp: int, layers: int | None) -> int | None:
    """Layers of every stage as a layout string lists them; returns the chunks of a rank."""
    expanded = _expanded_layout(text)
    if expanded is None:
        s.ledger.refuse(
            f"{s.place('pipeline-model-parallel-layout')}: got {shortened(text)}; needed stages such as 'Et*3|(tt|)*29,m|L'"
        )
        return None
    stages = expanded.split("|")
    counts = [stage.count("t") + stage.count("m") for stage in stages]
    further = sum(stage.count("m") for stage in stages)
    if len(stages) % pp or (layers is not None and sum(counts) - further != layers):
        s.ledger.refuse(
            f"{s.place('pipeline-model-parallel-layout')}: {len(stages)} stages with {sum(counts) - further} layers; needed a multiple of {pp} stages with {layers} layers"
        )
        return None
    s.put("pipeline-model-parallel-layout", "parallelism.layers_per_stage", counts)
    return len(stages) // pp


def _expanded_layout(text: str) -> str | None:
    """A layout string with its repetitions written out; None where it is none."""
    text = re.sub(r"[\s,'\"]", "", text)
    while (match := re.search(r"\(([^()]*)\)\*(\d{1,4})", text)) is not None:
        text = text[: match.start()] + match[1] * int(match[2]) + text[match.end() :]
        if len(text) > 20_000:
            return None
    if sum(int(count) for count in re.findall(r"\*(\d{1,6})", text)) > 20_000:
        return None
    text = re.sub(r"([A-Za-z|])\*(\d{1,4})", lambda match: match[1] * int(match[2]), text)
    return text if re.fullmatch(r"[EtmL|]+", text) else None


# --- training


def _training(s: Settings, mesh: Mapping[str, int], ranks: int | None) -> None:
    micro_name = "batch-size" if "batch-size" in s.keys else "micro-batch-size"
    micro = s.integer(micro_name, least=1)
    if micro is None:
        s.ledger.ask("training.micro_batch")
    else:
        s.put(micro_name, "training.micro_batch", micro)
    each = mesh["tp"] * mesh["pp"] * mesh["cp"]
    replicas = ranks // each if ranks is not None and ranks % each == 0 else None
    batch = s.integer("global-batch-size", least=1)
    if batch is not None:
        s.put("global-batch-size", "training.global_batch", batch)
    elif micro is not None and replicas:
        s.ledger.assume(
            "training.global_batch",
            micro * replicas,
            "one microbatch for each data-parallel replica",
        )
    else:
        s.ledger.ask("training.global_batch")
    s.ledger.ignore(
        [s.keys[name] for name in ("rampup-batch-size",) if name in s.keys],
        "the batch it grows to is simulated",
    )
    names = [
        name
        for name in ("seq-length", "encoder-seq-length", "decoder-seq-length")
        if name in s.keys
    ]
    length = s.integer(names[0], least=1) if names else None
    if length is None:
        s.ledger.ask("training.sequence_length")
    else:
        s.put(names[:1], "training.sequence_length", length)
    s.ignore(names[1:], "one sequence length is simulated")
    _precision(s)
    _recompute(s)


def _precision(s: Settings) -> None:
    narrow = s.text("fp8-format") or (
        "hybrid" if s.on("fp8-hybrid") else "e4m3" if s.on("fp8-e4m3") else None
    )
    recipe = s.text("fp8-recipe") or "delayed"
    names = ["fp8-format", "fp8-hybrid", "fp8-e4m3", "fp8-recipe"]
    wide = "bf16" if s.on("bf16") else "fp16" if s.on("fp16") else "fp32"
    if s.text("fp4-format") not in (None, "None", "null"):
        s.put(["fp4-format", "fp4-recipe"], "training.precision", "nvfp4")
    elif narrow not in (None, "None", "null"):
        if recipe not in _NARROW:
            s.ledger.refuse(
                f"{s.place('fp8-recipe')}: got {shortened(recipe)}; needed one of {', '.join(_NARROW)}"
            )
            return
        s.put(names, "training.precision", _NARROW[recipe])
    else:
        s.put(["bf16", "fp16"], "training.precision", wide)
    s.ignore([*names, "fp4-format", "fp4-recipe"], "without a narrow format it does nothing")
    s.ignore(["bf16", "fp16"], "what is not in the narrow format")


def _recompute(s: Settings) -> None:
    granularity = s.text("recompute-granularity")
    granularity = None if granularity in ("None", "null", "none") else granularity
    old = [
        name
        for name in ("checkpoint-activations", "activations-checkpoint-method")
        if name in s.keys and s.values[name] not in (None, False)
    ]
    if granularity is None and s.on("recompute-activations"):
        granularity = "selective"
    if old:
        granularity = "full"
    if granularity not in (None, "full", "selective"):
        s.ledger.refuse(
            f"{s.place('recompute-granularity')}: got {shortened(granularity)}; needed full or selective"
        )
        return
    s.put(
        ["recompute-granularity", "recompute-activations", *old],
        "training.recompute",
        granularity or "none",
    )
    names = [
        "recompute-method",
        "recompute-num-layers",
        "activations-checkpoint-method",
        "activations-checkpoint-num-layers",
        "checkpoint-num-layers",
    ]
    if granularity == "full":
        _full(s)
    elif granularity == "selective":
        modules = s.values.get("recompute-modules")
        listed = (
            modules
            if isinstance(modules, list)
            else str(modules).replace(",", " ").split()
            if modules not in (None, True)
            else []
        )
        known = [module for module in listed if module in _MODULES]
        if known:
            s.put("recompute-modules", "training.recompute_modules", known)
        if len(known) < len(listed):
            others = ", ".join(str(module)[:20] for module in listed if module not in _MODULES)
            s.ledger.warn(f"{s.place('recompute-modules')}: {others} are not simulated")
    s.ignore([*names, "recompute-modules"], "without that recomputation it does nothing")
    s.ignore(["recompute-activations"], "--recompute-granularity decides")
    for name in ("distribute-saved-activations", "distribute-checkpointed-activations"):
        if name in s.keys:
            s.ledger.ignore(
                s.keys[name],
                "not simulated: saved activations are not divided among tensor-parallel ranks",
                matters=True,
            )
    if s.on("moe-layer-recompute") and granularity is None:
        s.put("moe-layer-recompute", "training.recompute", "selective")
        s.put("moe-layer-recompute", "training.recompute_modules", ["moe"])
    s.ignore("moe-layer-recompute", "recomputation is stated otherwise")


def _full(s: Settings) -> None:
    for name in ("recompute-method", "activations-checkpoint-method"):
        method = s.text(name)
        if method in ("uniform", "block"):
            s.put(name, "training.recompute_method", method)
        elif method is not None:
            s.ledger.refuse(f"{s.place(name)}: got {shortened(method)}; needed uniform or block")
    for name in (
        "recompute-num-layers",
        "activations-checkpoint-num-layers",
        "checkpoint-num-layers",
    ):
        count = s.integer(name, least=1)
        if count is not None:
            s.put(name, "training.recompute_layers", count)


# --- framework


def _framework(s: Settings, mesh: Mapping[str, int]) -> None:
    """The preset of the era, and the switches that differ from its habits."""
    fsdp = (
        s.on("use-megatron-fsdp")
        and s.since_tag("core_v0.14.0")
        and s.ledger.scenario.get("parallelism.zero") == 3
    )
    preset = "megatron-fsdp" if fsdp else s.preset
    stated = [name for name in ("use-megatron-fsdp",) if fsdp]
    s.put(stated, "framework.preset", preset, "the preset of the version")
    habits = framework(preset, {}).fields()
    for names, field, value in _switches(s, mesh):
        usual = habits[field]
        if getattr(usual, "value", usual) == value:
            keys = [s.keys[name] for name in names if name in s.keys]
            s.ledger.ignore(keys, f"the preset {preset} has it")
        else:
            s.put(names, f"framework.{field}", value)
    for name in _SWITCHES:
        s.ignore(name, "off, or not simulated apart from the preset")


_SWITCHES: Final = (
    "overlap-grad-reduce overlap-param-gather tp-comm-overlap no-async-tensor-model-parallel-allreduce grad-reduce-in-bf16 "
    "accumulate-allreduce-grads-in-fp32 no-gradient-accumulation-fusion use-flash-attn attention-backend transformer-impl cross-entropy-loss-fusion "
    "fp8-param-gather moe-token-dispatcher-type moe-grouped-gemm moe-shared-expert-overlap moe-enable-deepep moe-flex-dispatcher-backend "
    "overlap-moe-expert-parallel-comm cp-comm-type hierarchical-context-parallel-sizes no-overlap-p2p-communication overlap-p2p-communication "
    "overlap-p2p-comm overlap-p2p-communication-warmup-flush no-scatter-gather-tensors-in-pipeline DDP-impl ddp-bucket-size no-masked-softmax-fusion "
    "no-scaled-masked-softmax-fusion no-bias-gelu-fusion no-bias-swiglu-fusion no-bias-dropout-fusion clip-grad use-megatron-fsdp moe-extended-tp"
).split()


def _switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    """Fields of the framework that the settings decide, with the settings that do."""
    core = s.since_tag("core_v0.4.0")
    found: list[tuple[list[str], str, object]] = []
    if core and not s.on("use-torch-fsdp2"):
        found.append(
            (
                ["overlap-grad-reduce"],
                "gradient_overlap",
                "always" if s.on("overlap-grad-reduce") else "never",
            )
        )
        if s.ledger.scenario.get("parallelism.zero"):
            found.append(
                (["overlap-param-gather"], "parameter_gather_overlap", s.on("overlap-param-gather"))
            )
    if s.text("DDP-impl") in ("local", "torch"):
        local = "never" if not s.since_tag("v2.0") else "without-pipeline"
        found.append(
            (["DDP-impl"], "gradient_overlap", "always" if s.text("DDP-impl") == "torch" else local)
        )
    found += (
        _tensor_switches(s, mesh)
        + _gradient_switches(s)
        + _kernel_switches(s, mesh)
        + _pipeline_switches(s, mesh)
    )
    if "model.moe.experts" in s.ledger.scenario:
        found += _expert_switches(s)
    return found


def _tensor_switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    if mesh["tp"] == 1:
        return []
    if s.on("tp-comm-overlap"):
        if s.ledger.scenario.get("parallelism.sequence_parallel"):
            return [(["tp-comm-overlap"], "tensor_overlap", "decomposed")]
        s.ledger.refuse(f"{s.place('tp-comm-overlap')}: needs --sequence-parallel")
    if s.on("no-async-tensor-model-parallel-allreduce"):
        return [(["no-async-tensor-model-parallel-allreduce"], "tensor_overlap", "none")]
    return []


def _gradient_switches(s: Settings) -> list[tuple[list[str], str, object]]:
    wide = s.on("accumulate-allreduce-grads-in-fp32")
    if "accumulate-allreduce-grads-in-fp32" not in s.values:  # bf16 switches it on
        wide = s.on("bf16") and s.since_tag("v2.5") and not s.on("grad-reduce-in-bf16")
    names = ["accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16", "bf16"]
    names = [name for name in names[:2] if name in s.keys] or names[2:]
    found: list[tuple[list[str], str, object]] = []
    if wide or s.on("grad-reduce-in-bf16"):
        found += [
            (names, "gradient_bytes", 4 if wide else 2),
            (names, "weight_grad_bytes", 4 if wide else 2),
        ]
        if wide and not s.on("no-gradient-accumulation-fusion"):
            found.append((names, "accumulation_traffic", 0.0))
    if s.on("no-gradient-accumulation-fusion"):
        found.append(
            (["no-gradient-accumulation-fusion"], "accumulation_traffic", 8.0 if wide else 4.0)
        )
    bucket = s.integer("ddp-bucket-size", least=1)
    if bucket is not None:
        found += [
            (["ddp-bucket-size"], "bucket_bytes", f"{bucket * (4 if wide else 2)} B"),
            (["ddp-bucket-size"], "bucket_bytes_per_replica", "0 B"),
        ]
    clip = s.number("clip-grad")
    if clip is not None:
        found.append((["clip-grad"], "gradient_norm", clip > 0))
    if s.on("fp8-param-gather") and s.ledger.scenario.get("parallelism.zero"):
        found.append((["fp8-param-gather"], "gathered_bytes", 1))
    return found


def _kernel_switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    found: list[tuple[list[str], str, object]] = []
    local = s.text("transformer_impl") == "local" or s.text("transformer-impl") == "local"
    usual_local = (
        s.since_tag("core_v0.4.0")
        and not s.since_tag("core_v0.6.0")
        and s.text("transformer-impl") is None
    )
    backend = s.text("attention-backend")
    fused = s.on("use-flash-attn") or backend in ("flash", "fused")
    names = [
        name
        for name in ("transformer-impl", "use-flash-attn", "attention-backend")
        if name in s.keys
    ]
    if backend in ("unfused", "local") or ((local or usual_local) and not fused):
        found.append((names, "fused_attention", False))
    elif fused or s.text("transformer-impl") == "transformer_engine":
        found.append((names, "fused_attention", True))
        if s.on("use-flash-attn") and not s.since_tag("core_v0.4.0"):
            found.append(
                (names, "attention_kernel", "flash2" if s.since_tag("23.06") else "flash1")
            )
    if s.on("cross-entropy-loss-fusion"):
        found.append((["cross-entropy-loss-fusion"], "loss_bytes_per_logit", 24.0))
    for name, field in (
        ("no-masked-softmax-fusion", "fused_softmax"),
        ("no-scaled-masked-softmax-fusion", "fused_softmax"),
        ("no-bias-gelu-fusion", "fused_bias_activation"),
        ("no-bias-swiglu-fusion", "fused_bias_activation"),
        ("no-bias-dropout-fusion", "fused_bias_dropout_add"),
    ):
        gelu = name == "no-bias-gelu-fusion" and s.ledger.scenario.get("model.gated_mlp")
        if s.on(name) and not gelu:
            found.append(([name], field, False))
    exchange = s.values.get("cp-comm-type")
    word = str(exchange[0] if isinstance(exchange, list) else exchange)
    if mesh["cp"] > 1 and exchange is not None:
        if word not in _EXCHANGES:
            s.ledger.refuse(
                f"{s.place('cp-comm-type')}: got {shortened(word)}; needed one of {', '.join(_EXCHANGES)}"
            )
        else:
            found.append(
                (
                    ["cp-comm-type", "hierarchical-context-parallel-sizes"],
                    "context_exchange",
                    _EXCHANGES[word],
                )
            )
    return found


def _pipeline_switches(s: Settings, mesh: Mapping[str, int]) -> list[tuple[list[str], str, object]]:
    if mesh["pp"] == 1:
        return []
    found: list[tuple[list[str], str, object]] = []
    if s.on("no-overlap-p2p-communication"):
        found.append((["no-overlap-p2p-communication"], "blocking_sends", "always"))
    elif s.on("overlap-p2p-communication") or s.on("overlap-p2p-comm"):
        found.append((["overlap-p2p-communication", "overlap-p2p-comm"], "blocking_sends", "plain"))
    if s.on("overlap-p2p-communication-warmup-flush"):
        found.append((["overlap-p2p-communication-warmup-flush"], "overlap_warmup_flush", True))
    if s.on("no-scatter-gather-tensors-in-pipeline"):
        found.append((["no-scatter-gather-tensors-in-pipeline"], "scatter_gather", False))
    return found


def _expert_switches(s: Settings) -> list[tuple[list[str], str, object]]:
    found: list[tuple[list[str], str, object]] = []
    kind = s.text("moe-token-dispatcher-type")
    if kind is not None and kind not in _DISPATCH:
        s.ledger.refuse(
            f"{s.place('moe-token-dispatcher-type')}: got {shortened(kind)}; needed one of {', '.join(_DISPATCH)}"
        )
    elif kind is not None or not s.is_dataclass:
        names = ["moe-token-dispatcher-type", "moe-enable-deepep", "moe-flex-dispatcher-backend"]
        found.append((names, "expert_dispatch", _DISPATCH[kind or "allgather"]))
    if s.on("overlap-moe-expert-parallel-comm"):
        found.append((["overlap-moe-expert-parallel-comm"], "expert_overlap", "microbatch"))
    elif s.on("moe-shared-expert-overlap"):
        found.append((["moe-shared-expert-overlap"], "expert_overlap", "shared-expert"))
    return found


# --- checks


def _check_mesh(s: Settings, mesh: Mapping[str, int], ranks: int | None) -> None:
    """Refuse degrees that do not divide what they must."""
    scenario = s.ledger.scenario
    each = mesh["tp"] * mesh["pp"] * mesh["cp"]
    words = f"tp {mesh['tp']} x pp {mesh['pp']} x cp {mesh['cp']} = {each}"
    if ranks is not None and ranks % each:
        s.ledger.refuse(f"{ranks} accelerators do not divide by {words}")
        return
    heads = scenario.get("model.heads")
    if heads is not None and heads % mesh["tp"]:
        s.ledger.refuse(
            f"{s.place('num-attention-heads')}: {heads} heads do not divide among tp {mesh['tp']}"
        )
    layers = (scenario.get("model.layers") or 0) - (scenario.get("model.mtp_layers") or 0)
    ends = sum(
        bool(scenario.get(f"parallelism.{name}_counts_as_layer")) for name in ("embedding", "loss")
    )
    stages = mesh["pp"] * (scenario.get("schedule.virtual_stages") or 1)
    if layers and "parallelism.layers_per_stage" not in scenario and (layers + ends) % stages:
        s.ledger.refuse(
            f"{s.place('num-layers')}: {layers + ends} layers do not divide among {stages} stages"
        )
    experts = scenario.get("model.moe.experts")
    if experts is not None and experts % mesh["ep"]:
        s.ledger.refuse(
            f"{s.place('expert-model-parallel-size')}: {experts} experts do not divide among ep {mesh['ep']}"
        )
    micro, batch = scenario.get("training.micro_batch"), scenario.get("training.global_batch")
    if ranks is not None and micro and batch and batch % (micro * (ranks // each)):
        s.ledger.refuse(
            f"{s.place('global-batch-size')}: {batch} sequences do not divide by micro-batch {micro} x dp {ranks // each}"
        )
