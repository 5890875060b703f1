"""Settings of Megatron that describe the model: sizes, attention, MLP, norms, vocabulary and experts."""

from __future__ import annotations

import re

from mpsim.formats.ledger import MOST_LAYERS, shortened
from mpsim.formats.megatron_settings import Settings
from mpsim.formats.words import table

__all__ = ["put_model"]


def put_model(settings: Settings) -> int | None:
    """Put the model into the ledger; returns its layers without those of multi-token prediction."""
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
        layers = s.integer(name, least=1, most=MOST_LAYERS)
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
    words = (
        "rotary"
        if s.on("use-rotary-position-embeddings")
        else "none"
        if kind == "no_position_embedding"
        else s.meant("position-embedding-type", kind)
    )
    if words is None:
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
    known = table("mpsim.formats.data", "megatron")["tokenizers"]
    if padded is not None:
        s.put("padded-vocab-size", "model.vocab", padded)
    elif rows is not None:
        s.put(["vocab-size", "vocab-extra-ids"], "model.vocab", rows + extra)
    elif kind in known:
        s.put(["tokenizer-type", "vocab-extra-ids"], "model.vocab", known[kind] + extra)
    elif {"vocab-file", "merge-file"} <= s.keys.keys() and kind is None:
        # pretrain_gpt.py has GPT2BPETokenizer as its own default, and these two are its files
        why = "GPT2BPETokenizer, of --vocab-file and --merge-file"
        s.ledger.assume("model.vocab", known["GPT2BPETokenizer"] + extra, why)
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
