"""Attention: kinds, windows and latent sizes that the words of a row's column mean."""

from __future__ import annotations

import re
from typing import Any

from bench.shapes import counted, kin_of, stated, tables
from bench.tables import lookup, table
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells

__all__ = ["attention_of"]


def attention_of(
    cells: Cells, column: str = "attention_type"
) -> tuple[dict[str, Any], tuple[Assumed, ...]]:
    """Fields of a model that the words for its attention say, and what they leave open.

    Raises
    ------
    CalibrationError
        If such attention is not simulated.

    Examples
    --------
    >>> attention_of(Cells({"attention_type": "gqa, SWA 4096 on 3 of 4 layers"}))[0]
    {'attention': 'sliding', 'window': 4096, 'full_every': 4}
    """
    text = cells.text(column)
    entry, parts = lookup("training", "attention", text), table("training")["attention_parts"]
    fields = dict(entry.get("model", {}))
    assumed = [Assumed("attention", "", entry["assumed"])] if "assumed" in entry else []
    if re.search(parts["parallel"], text, re.IGNORECASE):
        fields["parallel_block"] = True
    if "stacks" in entry:
        return fields | _stacks(text, cells, assumed), tuple(assumed)
    kin = kin_of(cells)
    # who gives a model's name and sizes need not say of its heads that they are latent
    if "latent" in entry or (kin is not None and kin.mla is not None):
        return fields | {"mla": _latent(text, cells, assumed)}, tuple(assumed)
    if re.search(parts["windows"], text, re.IGNORECASE):
        fields |= _window(text, assumed)
    elif kin is not None and kin.full_every and "attention" not in fields:
        fields |= {"attention": kin.attention, "window": kin.window, "full_every": kin.full_every}
        assumed.append(Assumed("window", str(kin.window), f"{kin.name} has these sizes"))
    return fields, tuple(assumed)


def _stacks(text: str, cells: Cells, assumed: list[Assumed]) -> dict[str, int]:
    """Layers of an encoder and in all, as words or parameters tell, and the tokens that its decoder has of each sequence."""
    words = table("training")["stacks"]
    length, layers = cells.required("seq_len"), cells.required("layers")
    encoder, decoder = layers, layers
    if found := re.search(words["layers"], text):
        encoder, decoder = int(found[1]), int(found[2])
    elif known := stated(cells):
        # one stack's layers, or those of both
        inside = counted(cells, gated=bool(cells.flag("gated_mlp")))
        heads, width = cells.required("heads"), cells.required("hidden")
        each = cells.whole("head_dim") or width // heads
        inside += 2.0 * layers * width * each * heads  # half of them attend to the encoder too
        one, both = (abs((times * inside + tables(cells)) / known - 1) for times in (2, 1))
        encoder = decoder = layers if one <= both or layers % 2 else layers // 2
    target = re.search(words["target"], f"{text}; {cells.text('notes')}", re.IGNORECASE)
    tokens = int(target[1]) if target else round(length * words["of"][0] / words["of"][1])
    if target is None:
        assumed.append(Assumed("decoder_length", str(tokens), words["why"]))
    return {"layers": encoder + decoder, "encoder_layers": encoder, "decoder_length": tokens}


def _latent(text: str, cells: Cells, assumed: list[Assumed]) -> dict[str, int]:
    """Sizes of latent attention, where words leave them out those of the model with such sizes or of the one that began with it."""
    usual = dict(table("inference")["latent"])
    why, kin = usual.pop("why"), kin_of(cells)
    if kin is not None and kin.mla is not None:
        usual = {size: getattr(kin.mla, size) for size in usual}
        why = f"{kin.name} has these sizes"
    patterns = table("training")["attention_parts"]["latent"]
    found = {size: re.search(pattern, text, re.IGNORECASE) for size, pattern in patterns.items()}
    stated = {size: int(match[1]) for size, match in found.items() if match}
    sizes = usual | stated
    if width := cells.whole("head_dim"):
        rotary = sizes["qk_rope_head_dim"]
        # some state the width of queries whole, with its rotary part
        whole = width == sizes["v_head_dim"] + rotary
        stated.setdefault("qk_nope_head_dim", width - rotary if whole else width)
    if "kv_lora_rank" in stated and not kin:
        stated.setdefault("q_lora_rank", 0)  # queries that nobody speaks of come from one product
    assumed += [Assumed(size, str(usual[size]), why) for size in usual if size not in stated]
    return usual | stated


def _window(text: str, assumed: list[Assumed]) -> dict[str, Any]:
    """The window, and how often a layer attends to all before it, where words say so."""
    parts = table("training")["attention_parts"]
    found = re.search(parts["window"], text, re.IGNORECASE)
    if found is None:
        why = "every token attends to all before it: the window is not stated"
        assumed.append(Assumed("window", "", why))
        return {}
    window = {"attention": "sliding", "window": int(found[1] or found[2])}
    for entry in parts["full_every"]:
        if match := re.search(entry["pattern"], text, re.IGNORECASE):
            return window | {"full_every": entry.get("value") or _every(*match.groups())}
    return window


def _every(windowed: str, of: str | None = None) -> int:
    """Layers among which one attends to all: of ``5 local : 1 global`` six, of ``3 of 4 layers`` four."""
    if of is None:
        return int(windowed) + 1
    full = int(of) - int(windowed)
    return int(of) // max(1, full if int(windowed) > 1 else 1)
