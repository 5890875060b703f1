"""Hugging Face ``config.json``: the model that a configuration of transformers describes, in its
words of version 4 and of version 5.

What the file leaves out, the class of its ``model_type`` decides; the defaults of the classes stand
in ``data/huggingface.yaml``. The count of parameters is that of the class's modules: the simulated
model, and what it leaves out; formulas were compared with the classes' own modules.

References
----------
huggingface/transformers 4.57.6 and 5.23.0, ``models/*/configuration_*.py``, ``modeling_*.py``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from mpsim import structs
from mpsim.errors import FormatError, ScenarioError, nearest
from mpsim.formats.configs import json_config
from mpsim.formats.imported import Imported
from mpsim.formats.ledger import MOST_LAYERS, Ledger, flat, nested
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import DATA, table
from mpsim.inputs import shown
from mpsim.scenario.model import ModelChoice
from mpsim.workload import Transformer

_TOWERS = ("text_config", "llm_config", "language_config", "thinker_config")
_GENERIC: Final = "llama"
_PACKED: Final = "quantization_config"
_NEEDED = ("hidden", "layers", "heads", "vocab")
_ROUTED = ("experts", "top_k", "width", "shared", "shared_width", "dense_first", "every")


def _rules() -> Mapping[str, Any]:
    return table(DATA, "huggingface")


def _is_config(head: Head) -> bool:
    if not head.is_object or '"model_type"' not in head.text:
        return False
    return isinstance(head.document.get("model_type"), str) or any(
        isinstance(head.document.get(tower), dict) for tower in _TOWERS
    )


def _read_config(head: Head, options: Options) -> Imported:
    """Read the model of a configuration. FormatError if its layers cannot be simulated, a size is
    missing or no number, or sizes contradict each other; every reason is named.
    """
    del options  # nothing about a model follows from the cluster
    data, lines = json_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    tower = next((key for key in _TOWERS if isinstance(data.get(key), dict)), "")
    own = data if not tower else data[tower]
    kind = str(own.get("model_type") or data.get("model_type") or "").replace("-", "_")
    reader = _Reader(ledger, f"{tower}." if tower else "", kind, data)
    reader.read()
    names = {key.removeprefix(reader.head).partition(".")[0] for key in ledger.values}
    versions = {"5": {"rope_parameters"}, "4": {"rope_theta", "torch_dtype", "rope_scaling"}}
    spelling = next((version for version, words in versions.items() if words & names), "4 or 5")
    moves = re.compile(_rules()["moves"]).fullmatch
    told = _PACKED if _told_packed(ledger) else None
    return ledger.close(
        "hf",
        tool=f"Hugging Face transformers, {reader.kind}",
        version=f"spelling of version {spelling}",
        moves=lambda key: key.partition(".")[0] != told and moves(key.removeprefix(reader.head)),
        idle=" ".join(f"({reader.head})?{word}" for word in reader.idle),
    )


def _told_packed(ledger: Ledger) -> bool:
    """Say which format of a service has the weights as the checkpoint packs them, if one does."""
    method, layout = (ledger.get(f"{_PACKED}.{key}") for key in ("quant_method", "format"))
    layout = layout or ledger.get(f"{_PACKED}.quant_algo")
    layout = "in blocks" if f"{_PACKED}.weight_block_size" in ledger else layout
    packed, bits = _rules()["packed"], _rules()["bits"]
    form = packed.get(f"{method} {layout}".lower()) or packed.get(method)
    widths = (ledger.get(f"{_PACKED}.{key}") for key in bits.get(form, ()))
    if form is None or any(width not in (None, 4) for width in widths):
        return False  # such as GPTQ of 8 bits, which no format of a service is
    why = f"weights are packed ({method}); of a service give serving.weights: {form}"
    ledger.served["serving.weights"] = form, why
    ledger.warn(why)
    return True


@structs.dataclass(slots=True)
class _Reader:
    """One configuration on its way into a ledger."""

    ledger: Ledger
    head: str  # of the section of the text model, such as ``text_config.``; empty at the top
    kind: str
    data: Mapping[str, Any]
    entry: Mapping[str, Any] = structs.field(default_factory=dict)  # rules of its class
    sizes: dict[str, int] = structs.field(default_factory=dict)
    idle: Sequence[str] = ()  # patterns of keys that move nothing, of a type in no table

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Values of the class where the file has none."""
        return self.entry["defaults"]  # type: ignore[no-any-return]

    def read(self) -> None:
        """Put the model into the ledger, and say what became of every other key."""
        self._check_simulated()
        known = _rules()["types"]
        is_known = self.kind in known
        entry = known[self.kind if is_known else _GENERIC]
        entry = known[entry["like"]] if "like" in entry else entry
        if not is_known:
            self._check_complete()
            self.idle = _rules()["idle"].split()
            entry = {**entry, "defaults": {"tied": entry["defaults"]["tied"]}}
            for role in (role for role in _rules()["parts"] if self._key(role)):
                entry |= _rules()["parts"][role]
        self.entry = entry
        self._model()
        try:
            model = ModelChoice.model_validate(nested(self.ledger.scenario)["model"]).resolve()
        except (ScenarioError, ValueError) as error:
            self.ledger.refuse(f"the model contradicts itself: {error}")
            return
        except KeyError:
            return  # what is missing was refused
        self._count(model, is_known)

    def _check_simulated(self) -> None:
        """Refuse what is no transformer, by name."""
        data = _rules()
        for rule in data["not_simulated"]:
            if re.fullmatch(rule["pattern"], self.kind):
                self._not_simulated(rule["why"])
        section = self.data.get(self.head.rstrip("."), self.data) if self.head else self.data
        kinds = section.get("layer_types") or section.get("layers_block_type") or ()
        if odd := {*kinds} & {*data["layer_types"]["refused"]} if _texts(kinds) else ():
            self._not_simulated(f"has layers of {', '.join(sorted(odd))}")
        if recurrent := ", ".join(key for key in data["state_space_keys"] if section.get(key)):
            self._not_simulated(f"has state-space or linear attention layers ({recurrent})")

    def _not_simulated(self, why: str) -> None:
        mend = _rules()["mend"]
        raise FormatError(f"{self.ledger.file}: model_type {shown(self.kind)} {why}; {mend}")

    def _check_complete(self) -> None:
        """A type that is not in the table is read as the most usual one, if its sizes are there."""
        missing = [role for role in _NEEDED if self._key(role) is None]
        known = _rules()["types"]
        if missing:
            why = (
                f"is unknown and the file has no {', '.join(missing)}; {nearest(self.kind, known)}"
            )
            raise FormatError(f"{self.ledger.file}: model_type {shown(self.kind)} {why}")
        why = f"model_type {shown(self.kind)} is unknown to mpsim; {_rules()['generic']}"
        self.ledger.note("model", why)
        self.ledger.warn(f"{why}; its parameters are not counted")

    def _key(self, role: str) -> str | None:
        """The key of the file that states a quantity, refused where two state it differently."""
        words = _rules()["spellings"].get(role, [role])
        there = [self.head + word for word in words if self.get(word) is not None]
        for word in words:
            if any(key.startswith(f"{self.head}{word}.") for key in self.ledger.values):
                self.ledger.refuse(f"{self.head}{word}: got a mapping; needed a whole number")
        if len({str(self.ledger.get(key)) for key in there}) > 1:
            both = " and ".join(self.ledger.place(key) for key in there)
            self.ledger.refuse(f"{both} say different things; keep one")
        return there[0] if there else None

    def _value(
        self, role: str, default: Any, *, least: int = 1
    ) -> tuple[int | None, tuple[str, ...]]:
        """A size and the keys that state it; the default of the class where none does."""
        key = self._key(role)
        words = _rules()["spellings"].get(role, [role])
        if key is None:
            return default, ()
        return self.ledger.integer(key, least=least), tuple(self._there(*words))

    def _put(self, to: str, value: object, keys: Sequence[str] = (), why: str = "") -> None:
        if keys:
            self.ledger.put(keys, to, value)
        else:
            self.ledger.assume(to, value, why or f"the class of {self.kind} has it")

    def _there(self, *words: str) -> list[str]:
        """Keys of the section by these words, those that the file has."""
        return [key for word in words if (key := self.head + word) in self.ledger]

    def get(self, key: str, default: object = None) -> Any:
        return self.ledger.get(self.head + key, default)

    def integer(self, key: str, *, least: int = 0) -> int | None:
        return self.ledger.integer(self.head + key, least=least)

    def switch(self, key: str) -> bool | None:
        return self.ledger.switch(self.head + key)

    def flag(self, rule: Any) -> tuple[bool, tuple[str, ...]]:
        """Whether something is there: always, never, or as a key says."""
        if isinstance(rule, bool):
            return rule, ()
        ((name, default),) = rule.items()
        value = self.switch(name)
        return (default if value is None else value), (self.head + name,)

    def _model(self) -> None:
        entry, defaults = self.entry, self.defaults
        has_sizes = self._sizes()
        for name, value in entry["model"].items():
            self._put(f"model.{name}", value, ())
        self._put("model.name", self.kind or "model", [self.head + "model_type"])
        self._tied(defaults["tied"])
        self._biases()
        if "positions" in defaults:
            rows, keys_ = self._value("positions", defaults["positions"])
            if rows is not None:
                self._put("model.max_positions", rows + entry.get("position_offset", 0), keys_)
        if "qk_norm" in entry:
            normed, keys_ = self.flag(entry["qk_norm"])
            self._put("model.qk_norm", normed, keys_)
        if "parallel" in entry:
            self._parallel(entry["parallel"])
        self._dropout()
        if not has_sizes:
            return
        layers = self.sizes["layers"]
        if layers > MOST_LAYERS:
            self.ledger.refuse(f"got {layers} layers; needed {MOST_LAYERS} or fewer")
            return
        self._window(entry.get("window"))
        if "moe" in entry:
            self._experts(entry["moe"])
        if "mla" in entry:
            self._latent(entry["mla"])
        if "encoder" in entry:
            self._encoder(entry["encoder"])

    def _tied(self, usual: bool) -> None:
        """Whether the embedding and the head are one table; above the section of the text too."""
        names = dict.fromkeys((f"{self.head}tie_word_embeddings", "tie_word_embeddings"))
        stated = [name for name in names if self.ledger.get(name) is not None]
        tied = self.ledger.switch(stated[0]) if stated else usual
        self._put("model.tied_embeddings", usual if tied is None else tied, stated)

    def _parallel(self, rule: object) -> None:
        """A block of attention and MLP at once, with what Falcon alone says beside it."""
        parallel, keys = self.flag(rule)
        if self.kind == "falcon":
            new, alibi = (self.head + name for name in ("new_decoder_architecture", "alibi"))
            parallel, keys = parallel or bool(self.ledger.switch(new)), (*keys, new)
            if alibi in self.ledger:
                positions = "alibi" if self.ledger.switch(alibi) else "rotary"
                self._put("model.positions", positions, [alibi])
        self._put("model.parallel_block", parallel, keys)

    def _sizes(self) -> bool:
        """Whether the file or its class has the sizes that every model has."""
        for role in _NEEDED:
            value, keys = self._value(role, self.defaults.get(role))
            if value is None:
                return False
            self.sizes[role] = value
            self._put(f"model.{role}", value, keys)
        self._kv_heads()
        if "mla" not in self.entry:  # there it is the rotary part only
            self._head_dim()
        self._ffn()
        return True

    def _head_dim(self) -> None:
        width, keys = self._value("head_dim", self.defaults.get("head_dim"))
        hidden, heads = self.sizes["hidden"], self.sizes["heads"]
        if width is not None:
            self._put("model.head_dim", width, keys)
        elif hidden % heads and not self.entry.get("floor"):
            why = f"hidden {hidden} does not divide among {heads} heads, and no head_dim is given"
            self.ledger.refuse(why)
        else:
            self._put("model.head_dim", hidden // heads, (), "hidden / heads")

    def _kv_heads(self) -> None:
        heads, usual = self.sizes["heads"], self.defaults.get("kv_heads")
        value, keys = self._value("kv_heads", usual or heads)
        why = "" if usual else "as many as heads"
        may_share = self.entry.get("multi_query") or self.kind == "falcon"
        if "mla" in self.entry:
            value, keys, why = heads, (), "latent attention has a key and a value a head"
        elif may_share and not self.switch("new_decoder_architecture"):
            single, keys = self.switch("multi_query") is not False, (self.head + "multi_query",)
            value = 1 if single else heads
            why = "multi_query is the default" if single else "as many as heads"
        if value is not None:
            self._put("model.kv_heads", value, keys, why)

    def _ffn(self) -> None:
        default, why = self.defaults.get("ffn"), ""
        if default in ("4x", None):
            default, why = 4 * self.sizes["hidden"], "4 x hidden"
        if "ffn_key" not in self.entry:
            value, keys = self._value("ffn", default)
        else:  # intermediate_size is an expert's there
            key = self.head + self.entry["ffn_key"]
            stated, why = self.ledger.integer(key, least=1), ""
            value, keys = (default, ()) if stated is None else (stated, (key,))
        if value is not None:
            self.sizes["ffn"] = value
            self._put("model.ffn_hidden", value, keys, why)

    def _biases(self) -> None:
        entry = self.entry
        rules = entry.get("biases") or dict.fromkeys(("inputs", "output", "mlp", "norms"), False)
        flags = {part: self.flag(rule) for part, rule in rules.items()}
        plain = "mla" not in entry and ("moe" not in entry or entry["moe"].get("biases", False))
        everywhere = plain and all(flags[part][0] for part in ("inputs", "output", "mlp"))
        keys = [key for _, names in flags.values() for key in names]
        self._put("model.bias", everywhere, keys)
        if flags["inputs"][0] and not everywhere:
            self._put("model.qkv_bias", True, flags["inputs"][1])

    def _dropout(self) -> None:
        key = self._key("dropout")
        value = self.ledger.get(key) if key else self.defaults.get("dropout", 0.0)
        if not isinstance(value, int | float) or isinstance(value, bool) or not 0 <= value < 1:
            place = self.ledger.place(key or "dropout")
            self.ledger.refuse(f"{place}: got {shown(value)}; needed a probability")
            return
        self._put("model.dropout", float(value), [key] if key else ())

    def _window(self, rule: Mapping[str, Any] | None) -> None:
        """Which layers see a window only."""
        if rule is None:
            self._put("model.attention", "causal", ())
            return
        key, switch = self.head + rule["key"], self.head + rule.get("switch", "")
        there = key in self.ledger
        window = (self.ledger.integer(key) or 0) if there else rule["default"] or 0
        is_on = bool(self.ledger.switch(switch)) if "switch" in rule else True
        words = (rule["key"], rule.get("switch", ""), "layer_types", rule.get("from_layer", "-"))
        keys = self._there(*words)
        windowed = self._windowed(rule)
        if not (window and is_on and any(windowed)):
            named = keys if is_on else [name for name in keys if name != key or not window]
            self._put("model.attention", "causal", named)
            return
        self._put("model.attention", "sliding", keys)
        self._put("model.window", window, [key] if there else ())
        every = _period(windowed)
        if every is None:
            whole = windowed.count(False)
            every = max(2, round(len(windowed) / whole)) if whole else 0
            why = f"{whole} of {len(windowed)} layers see all keys, not every n-th; "
            why += f"every {every}-th stands for them"
            self.ledger.warn(why)
            self.ledger.assume("model.full_every", every, why)
        elif every:
            named = self._there("layer_types", *rule.get("pattern", ()))
            self._put("model.full_every", every, named)

    def _windowed(self, rule: Mapping[str, Any]) -> list[bool]:
        """Whether each layer has a window, as the file lists it or the class has it."""
        layers = self.sizes["layers"]
        words = _rules()["layer_types"]
        listed = self.get("layer_types")
        if _texts(listed) and len(listed) != layers:
            place = self.ledger.place(self.head + "layer_types")
            self.ledger.refuse(f"{place}: lists {len(listed)} layers of {layers}")
        if _texts(listed) and listed:
            return [word in words["window"] for word in listed]
        rotated = self.get(rule["of"]) if "of" in rule else None
        if isinstance(rotated, list) and len(rotated) == layers:
            return [bool(turned) for turned in rotated]
        every = rule.get("every", 0)
        for name in rule.get("pattern", ()):
            every = self.integer(name) or every
        first = self.integer(rule["from_layer"]) if "from_layer" in rule else 0
        first = 28 if first is None else first  # the classes' own default of max_window_layers
        return [n >= first and not (every and (n + 1) % every == 0) for n in range(layers)]

    def _experts(self, rule: Mapping[str, Any]) -> None:
        values: dict[str, int | None] = {}
        keys: dict[str, tuple[str, ...]] = {}
        for role in _ROUTED:
            least = 0 if role in ("shared", "shared_width", "dense_first") else 1
            values[role], keys[role] = self._value(role, rule.get(role), least=least)
        if "width_key" in rule:
            own = self.integer(rule["width_key"], least=1)
            values["width"] = own or rule["width"]
            keys["width"] = (self.head + rule["width_key"],)
        if values["experts"] is None:
            return
        if values["top_k"] is None:
            place = self.ledger.place(self.head + "num_experts_per_tok")
            self.ledger.refuse(f"{place}: is null or absent, and the class has no default; give it")
            return
        names = {"shared": "shared_experts", "shared_width": "shared_ffn_hidden"}
        for role in ("experts", "top_k", *names):
            name = names.get(role, role)
            if values[role]:
                self._put(f"model.moe.{name}", values[role], keys[role])
        width = values["width"] or self.sizes.get("ffn", self.sizes["hidden"])
        why = "" if values["width"] else "as wide as ffn_hidden"
        self._put("model.moe.ffn_hidden", width, keys["width"], why)
        self._places(values, keys)

    def _places(
        self, values: Mapping[str, int | None], keys: Mapping[str, tuple[str, ...]]
    ) -> None:
        """Which layers have experts: leading dense ones, then every n-th."""
        layers, where = self.sizes["layers"], self._routed(values)
        source = [key for name in ("every", "dense_first") for key in keys[name]]
        source = [key for key in source if key in self.ledger]
        source += self._there("moe_layers", "mlp_only_layers", "mlp_layer_types")
        dense = where.index(True) if True in where else layers
        every = next((n for n in range(1, layers + 1) if where == _every(n, 0, layers)), 0)
        if every:
            dense = 0
        elif where == _every(1, dense, layers):
            every = 1
        else:
            some = [layer for layer, has in enumerate(where) if has][:8]
            why = "neither every n-th nor all after the first; not simulated"
            self.ledger.refuse(f"experts stand in layers {some}...: {why}")
            return
        if dense:
            self._put("model.moe.dense_layers", dense, source)
        if every > 1 or not dense:
            self._put("model.moe.every", every, source)

    def _routed(self, values: Mapping[str, int | None]) -> list[bool]:
        """Whether each layer has experts, as the file lists them or counts."""
        layers = self.sizes["layers"]
        listed, only = self.get("moe_layers"), self.get("mlp_only_layers")
        where = _every(values["every"] or 1, values["dense_first"] or 0, layers)
        if _texts(kinds := self.get("mlp_layer_types")) and len(kinds) == layers:
            where = [kind != "dense" for kind in kinds]
        if isinstance(listed, list) and listed:
            where = [layer in listed for layer in range(layers)]
        if isinstance(only, list):
            where = [has and layer not in only for layer, has in enumerate(where)]
        return where

    def _latent(self, defaults: Mapping[str, int]) -> None:
        for role, default in defaults.items():
            key = self.head + role
            there = key in self.ledger
            value = self.ledger.integer(key) if there else default
            if value is None and role != "q_lora_rank":
                self.ledger.refuse(f"{self.ledger.place(key)}: is null; latent attention needs it")
                continue
            self._put(f"model.mla.{role}", value or 0, [key] if there else ())

    def _encoder(self, rule: Mapping[str, Any]) -> None:
        """An encoder and a decoder, whose layers a scenario counts together."""
        encoder = self.sizes["layers"]
        decoder = self.integer(rule["decoder_layers"], least=1) or encoder
        keys = self._there(rule["layers"], rule["decoder_layers"])
        self._put("model.layers", encoder + decoder, keys)
        self._put("model.encoder_layers", encoder, keys[:1])
        buckets = self.integer(rule["buckets"], least=1) or 32
        self._put("model.max_positions", buckets, [self.head + rule["buckets"]])
        gated = str(self.get(rule["gated"], rule["activation"])).startswith("gated")
        self._put("model.gated_mlp", gated, [self.head + rule["gated"]])
        self._put("model.bias", False, ())
        self._put("model.attention", "causal", ())
        why = "as the encoder's in T5's own pretraining; set it to the run's"
        self.ledger.assume("model.decoder_length", 512, why)

    def _count(self, model: Transformer, is_known: bool) -> None:
        """Parameters of the class's modules: of the simulated model and what it leaves out."""
        total = model.parameters().total
        left_out = _difference(self, model)
        if is_known:  # of a class that is in no table the count would be a guess
            self.ledger.model_parameters = total + left_out
        if left_out and is_known:
            what = f"{left_out:+,} parameters of {self.kind} (norms, biases, gates)"
            self.ledger.note("model", f"{what} are not in the simulated model, of {total:,}")


def _texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(word, str) for word in value)


def _every(n: int, dense: int, layers: int) -> list[bool]:
    return [layer >= dense and (layer - dense + 1) % n == 0 for layer in range(layers)]


def _period(windowed: Sequence[bool]) -> int | None:
    """n where every n-th layer (the last of n) has no window, 0 where none, else None."""
    if all(windowed):
        return 0
    for n in range(2, len(windowed) + 1):
        if all(has == bool((layer + 1) % n) for layer, has in enumerate(windowed)):
            return n
    return None


def _difference(reader: _Reader, model: Transformer) -> int:
    """Parameters that the class has and the simulated model has not, less those that only the model
    has: gates, sinks and norms of its own, biases of some products.
    """
    extras = sum(_EXTRAS[name](reader, model) for name in reader.entry.get("extras", ()))
    return _bias_difference(reader, model) + extras


def _bias_difference(reader: _Reader, model: Transformer) -> int:
    """Biases of the class beyond the model's, which are all, none, or of queries, keys, values."""
    rules = reader.entry.get("biases")
    if rules is None or model.encoder_layers:
        return 0
    inputs, output, mlp, norms = (
        reader.flag(rules[part])[0] for part in ("inputs", "output", "mlp", "norms")
    )
    routed = sum(kind.experts for kind in model.kinds)
    dense = model.layers - routed
    if model.bias:  # of a parallel block the model has one output bias for both halves
        return model.layers * model.hidden * model.parallel_block
    difference = output * model.layers * model.hidden
    if model.mla is not None:
        narrow = model.mla.q_lora_rank + model.mla.kv_lora_rank + model.mla.qk_rope_head_dim
        difference += inputs * model.layers * narrow
    if mlp:
        difference += dense * (model.fc1_features + model.hidden)
    if mlp and model.moe is not None and model.moe.shared_features:
        shared = model.moe.shared_features * (2 if model.gated_mlp else 1)
        difference += routed * (shared + model.hidden)
    if mlp and model.moe is not None and reader.entry["moe"].get("biases"):
        width = model.moe.ffn_hidden * (2 if model.gated_experts else 1) + model.hidden
        difference += routed * model.moe.experts * (width + 1)  # 1: the router's
    if norms:
        difference += (model.layers * (2 - model.parallel_block) + 1) * model.hidden
    return difference


def _falcon_norms(reader: _Reader, model: Transformer) -> int:
    """Two norms a layer in the new decoder architecture, unless the file says one."""
    new = reader.switch("new_decoder_architecture")
    norms = reader.integer("num_ln_in_parallel_attn")
    both = (2 if norms is None else norms) == 2
    return model.layers * 2 * model.hidden if new and both else 0


def _word_projections(reader: _Reader, model: Transformer) -> int:
    """OPT-350M: words are narrower than the model, with a projection in and one out."""
    width = reader.integer("word_embed_proj_dim")
    if width is None or width == model.hidden:
        return 0
    tables = 1 if model.tied_embeddings else 2
    return tables * model.vocab * (width - model.hidden) + 2 * width * model.hidden


def _opt_final_norm(reader: _Reader, model: Transformer) -> int:
    """Norms after attention and MLP leave none for the end."""
    before = reader.switch("do_layer_norm_before")
    removed = reader.switch("_remove_final_layer_norm")
    return -2 * model.hidden if before is False or removed else 0


_EXTRAS: Final[Mapping[str, Callable[[_Reader, Transformer], int]]] = {
    "shared_gate": lambda _, model: sum(kind.experts for kind in model.kinds) * model.hidden,
    # a parallel block that norms attention and MLP apart
    "second_norm": lambda _, model: model.layers * 2 * model.hidden * model.parallel_block,
    "falcon_norms": _falcon_norms,
    "head_bias": lambda _, model: model.vocab,
    "word_projections": _word_projections,
    "opt_final_norm": _opt_final_norm,
    "sinks": lambda _, model: model.layers * model.heads,
    "router_bias": lambda _, model: sum(
        model.moe.experts for kind in model.kinds if kind.experts and model.moe is not None
    ),
    "no_norms": lambda _, model: -(2 * model.layers + 1) * model.hidden,
}
"""Parameters of a class that the simulated model leaves out, or has and the class has not."""


HUGGING_FACE: Final = Format("hf", _is_config, _read_config)
