"""Model in Megatron's settings, both ways: sizes, attention, MLP, norms, vocabulary, experts."""

from __future__ import annotations

import re

from mpsim.errors import FormatError
from mpsim.formats.ledger import MOST_LAYERS
from mpsim.formats.megatron_settings import Reading, Writing
from mpsim.formats.words import DATA, table
from mpsim.inputs import shown
from mpsim.shipped import say
from mpsim.workload.variants import Experts

_LATENT = tuple(
    f"model.mla.{field}"
    for field in "q_lora_rank kv_lora_rank qk_nope_head_dim qk_rope_head_dim v_head_dim".split()
)


def read_model(given: Reading) -> int | None:
    """Put the model into the ledger; returns its layers without those of multi-token prediction."""
    name = given.first("num-layers", "encoder-num-layers", "decoder-num-layers")
    layers = given.integer(name, most=MOST_LAYERS)
    further = given.integer("mtp-num-layers", least=0) or 0
    if layers is None:
        given.ledger.ask("model.layers")
    else:
        names = [name, "mtp-num-layers"] if further else [name]
        given.put(names, "model.layers", layers + further)
    if further:
        given.put("mtp-num-layers", "model.mtp_layers", further)
    given.read("model.hidden", "model.heads")
    _read_heads(given)
    if given.on("multi-latent-attention"):
        given.read(*_LATENT)
        width = given.scenario("model.mla.v_head_dim")
        given.put("multi-latent-attention", "model.mla.v_head_dim", width)
    _read_positions(given)
    if "qk-layernorm" in given.keys and not given.on("multi-latent-attention"):
        given.put("qk-layernorm", "model.qk_norm", given.on("qk-layernorm"))
    _read_window(given)
    given.read("model.gated_mlp", "model.ffn_hidden")
    hidden = given.scenario("model.hidden")
    if given.scenario("model.ffn_hidden") is None and hidden is not None:
        narrow = given.scenario("model.gated_mlp") and not given.is_dataclass
        width = int((4 * hidden * 2 / 3) / 64) * 64 if narrow else 4 * hidden
        why = "two thirds of 4 x hidden, by 64" if narrow else "4 x hidden"
        given.ledger.assume("model.ffn_hidden", width, why)
    given.read("model.norm", "model.bias")
    if not given.scenario("model.bias"):
        given.read("model.qkv_bias")
    given.read("model.tied_embeddings", "model.dropout")
    _read_vocabulary(given)
    given.read("model.moe.experts")
    if given.scenario("model.moe.experts") is not None:
        _read_experts(given, layers)
    return layers


def _read_heads(given: Reading) -> None:
    hidden, heads = given.scenario("model.hidden"), given.scenario("model.heads")
    latent, grouped = given.on("multi-latent-attention"), given.on("group-query-attention")
    groups = given.integer("num-query-groups")
    counts = grouped if not given.is_dataclass else groups is not None
    if counts and not latent:
        given.put(["num-query-groups", "group-query-attention"], "model.kv_heads", groups or 1)
    elif heads is not None:
        given.ledger.assume("model.kv_heads", heads, "as many as heads")
    if latent:
        return
    given.read("model.head_dim")
    if given.scenario("model.head_dim") is None and hidden is not None and heads is not None:
        if hidden % heads:
            why = f"--hidden-size {hidden} does not divide among {heads} heads; give --kv-channels"
            given.ledger.refuse(why)
        given.ledger.assume("model.head_dim", hidden // heads, "hidden / heads")


def _read_positions(given: Reading) -> None:
    rotary = given.on("use-rotary-position-embeddings")
    name, positions = "position-embedding-type", "rotary"
    kind = given.text(name)
    if not rotary:
        is_none = kind in (None, "learned_absolute") and given.on("no-position-embedding")
        is_none = is_none or kind == "no_position_embedding"
        positions = "none" if is_none else given.meant(name, "learned_absolute")
    if positions is None:
        return
    names = [name, "use-rotary-position-embeddings", "no-position-embedding"]
    given.put(names, "model.positions", positions)
    rows = given.integer("max-position-embeddings")
    if positions == "learned" and rows is not None:
        given.put("max-position-embeddings", "model.max_positions", rows)
    elif positions == "relative":
        name = "relative-attention-num-buckets"
        given.put(name, "model.max_positions", given.integer(name) or 32)


def _read_window(given: Reading) -> None:
    value = given.values.get("window-size")
    words = " ".join(map(str, value)) if isinstance(value, list) else str(value or "")
    numbers = [int(word) for word in re.findall(r"-?\d{1,12}", words)][:2]
    if not numbers or numbers[0] < 1:
        given.ledger.assume("model.attention", "causal", "a decoder")
        return
    given.put("window-size", "model.attention", "sliding")
    given.put("window-size", "model.window", numbers[0])
    name = "window-attn-skip-freq"
    every = given.integer(name) if re.fullmatch(r"\d+", given.text(name) or "") else None
    if every is not None and every > 1:
        given.put(name, "model.full_every", every)
    elif name in given.keys:
        why = "which layers have a window is not simulated in this spelling; all have it"
        given.ledger.warn(f"{given.place(name)}: {why}")


def _read_vocabulary(given: Reading) -> None:
    padded, rows = given.integer("padded-vocab-size"), given.integer("vocab-size")
    extra = given.integer("vocab-extra-ids", least=0) or 0
    kind = given.text("tokenizer-type")
    known = table(DATA, "megatron")["tokenizers"]
    if padded is not None:
        given.put("padded-vocab-size", "model.vocab", padded)
    elif rows is not None:
        given.put(["vocab-size", "vocab-extra-ids"], "model.vocab", rows + extra)
    elif kind in known:
        given.put(["tokenizer-type", "vocab-extra-ids"], "model.vocab", known[kind] + extra)
    elif {"vocab-file", "merge-file"} <= given.keys.keys() and kind is None:
        # pretrain_gpt.py has GPT2BPETokenizer as its own default, and these two are its files
        why = "GPT2BPETokenizer, of --vocab-file and --merge-file"
        given.ledger.assume("model.vocab", known["GPT2BPETokenizer"] + extra, why)
    else:
        given.ledger.ask("model.vocab")
    multiple = "make-vocab-size-divisible-by"
    if given.integer(multiple) not in (None, 128):
        why = "the simulated table is padded to 128 x tp"
        given.ledger.warn(f"{given.place(multiple)}: {why}")


def _read_experts(given: Reading, layers: int | None) -> None:
    given.read("model.moe.top_k", "model.moe.ffn_hidden")
    name = "moe-shared-expert-intermediate-size"
    shared = given.integer(name, least=0)
    if shared:
        given.put(name, "model.moe.shared_experts", 1)
        given.put(name, "model.moe.shared_ffn_hidden", shared)
    capacity = given.number("moe-expert-capacity-factor")
    if capacity is not None and capacity > 0:
        given.put("moe-expert-capacity-factor", "model.moe.capacity_factor", capacity)
    if (value := given.values.get("moe-layer-freq")) is not None:
        _read_expert_layers(given, value, layers)


def _read_expert_layers(given: Reading, value: object, layers: int | None) -> None:
    """Which layers have experts: every n-th, or as a list of zeros and ones says."""
    name = "moe-layer-freq"
    pattern = value if isinstance(value, list) else _pattern(str(value))
    if pattern is None or layers is None:
        given.refuse(name, f"got {shown(value)}; needed a number, or a list such as ([0]*3+[1]*58)")
        return
    if len(pattern) == 1 and pattern[0] >= 1:
        if pattern[0] > 1:
            given.put(name, "model.moe.every", pattern[0])
            why = "experts stand in the last of each n layers here, in the first there"
            given.ledger.note("model.moe.every", why)
        return
    where = [bool(item) for item in pattern]
    dense = where.index(True) if True in where else layers
    if len(where) == layers and all(where[dense:]):
        if dense:
            given.put(name, "model.moe.dense_layers", dense)
        return
    steps = range(2, layers + 1)
    every = next((n for n in steps if where == [layer % n == 0 for layer in range(layers)]), None)
    if every is None:
        why = "experts neither in every n-th layer nor in all after the first; not simulated"
        given.refuse(name, why)
    else:
        given.put(name, "model.moe.every", every)


def _pattern(text: str) -> list[int] | None:
    """A list as Megatron's flags write it: ``([0]*3+[1]*58)``, ``[1,0]*2``; None if it is none."""
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


def write_model(put: Writing) -> None:
    """Put the model into the settings. FormatError if it has an encoder."""
    model = put.run.transformer
    if model.encoder_layers:
        raise FormatError(say("formats.two_stacks", name=model.name))
    further = model.mtp_layers
    has_further = further and put.put("mtp-num-layers", further)
    put.put("num-layers", model.layers - (further if has_further else 0))
    put.write("model.hidden", "model.heads")
    _write_latent(put) if model.mla is not None else _write_heads(put)
    put.write("model.ffn_hidden")
    _write_vocabulary(put)
    put.write("model.gated_mlp", "model.tied_embeddings")
    if model.norm == "rmsnorm" or put.has_any("model.norm"):
        put.write("model.norm")
    put.write("model.bias")
    if not model.bias:
        put.write("model.qkv_bias")
    put.write("model.dropout")
    put.put("attention-dropout", model.dropout)
    if model.qk_norm and model.mla is None:
        put.put("qk-layernorm", True)
    _write_positions(put)
    if model.attention == "sliding":
        width = [model.window, 0] if put.is_dataclass else f"{model.window},0"
        put.put("window-size", width)
        if model.full_every:
            put.put("window-attn-skip-freq", model.full_every)
    if model.moe is not None:
        _write_experts(put)


def _write_latent(put: Writing) -> None:
    put.put("multi-latent-attention", True)
    put.write(*_LATENT[1:])
    latent = put.run.transformer.mla
    if put.is_dataclass or (latent is not None and latent.q_lora_rank):
        put.write("model.mla.q_lora_rank")


def _write_heads(put: Writing) -> None:
    model = put.run.transformer
    if model.kv_heads != model.heads or put.is_dataclass:
        put.put("num-query-groups", model.kv_heads)
        if put.has("group-query-attention") and not put.is_dataclass:
            put.put("group-query-attention", True)
    if model.heads * model.head_dim != model.hidden:
        put.write("model.head_dim")


def _write_vocabulary(put: Writing) -> None:
    rows = put.run.transformer.vocab
    if put.has("vocab-size"):
        if not put.is_dataclass:
            put.given["tokenizer-type"] = "NullTokenizer"
        put.put("vocab-size", rows)
        return
    known = table(DATA, "megatron")["tokenizers"]
    named = next((name for name, size in known.items() if size == rows), None)
    put.given["tokenizer-type"] = named or "GPT2BPETokenizer"
    put.why["model.vocab"] = "the size of the table is the tokenizer's in this version"


def _write_positions(put: Writing) -> None:
    model = put.run.transformer
    length = put.run.training_step.sequence_length
    learned = model.positions == "learned"
    rows = max(model.max_positions, length) if learned else length
    put.given["max-position-embeddings"] = rows
    if model.positions == "relative":
        put.put("relative-attention-num-buckets", model.max_positions)
    if put.has("position-embedding-type"):
        put.write("model.positions")
        put.given.setdefault("position-embedding-type", "none")
    elif model.positions == "rotary" and put.has("use-rotary-position-embeddings"):
        put.put("use-rotary-position-embeddings", True)
    elif not learned:
        both = ("model.positions", "model.max_positions")
        put.why |= dict.fromkeys(both, "positions are learned in this version")


def _write_experts(put: Writing) -> None:
    model = put.run.transformer
    experts = model.moe
    assert experts is not None
    put.write("model.moe.experts", "model.moe.top_k", "model.moe.ffn_hidden")
    shared = experts.shared_experts * (experts.shared_ffn_hidden or experts.ffn_hidden)
    if shared:
        put.put("moe-shared-expert-intermediate-size", shared)
        if experts.shared_experts > 1:
            words = f"{experts.shared_experts} shared experts are one, as wide as all of them"
            put.notes.append(words)
    _write_expert_layers(put, experts, model.layers - model.mtp_layers)
    if experts.capacity_factor:
        put.put("moe-expert-capacity-factor", experts.capacity_factor)


def _write_expert_layers(put: Writing, experts: Experts, layers: int) -> None:
    """Which layers have experts."""
    dense, every = experts.dense_layers, experts.every
    where = [int(experts.replaces(layer)) for layer in range(layers)]
    if all(where):
        return
    if every == 1 and dense:
        text = where if put.is_dataclass else f"([0]*{dense}+[1]*{layers - dense})"
        put.put("moe-layer-freq", text)
    elif not dense and layers % every == 0:
        # experts in the first of each n layers there, in the last here: as many
        put.put("moe-layer-freq", every)
