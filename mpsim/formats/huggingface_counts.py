"""Parameters of the classes of transformers: what their modules have beyond the simulated model, or lack.

The simulated model has biases everywhere or nowhere, and two norms a layer; classes have gates, sinks and norms of their own. Formulas were compared with the classes' own modules.

References
----------
huggingface/transformers 4.57.6 and 5.23.0, ``models/*/modeling_*.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

from mpsim.formats.ledger import Ledger
from mpsim.workload import Transformer

__all__ = ["Counted", "difference"]


class Counted(Protocol):
    """A configuration of which parameters are counted."""

    @property
    def ledger(self) -> Ledger:
        """Keys of the file."""

    @property
    def head(self) -> str:
        """Section of the text model, such as ``text_config.``."""

    def flag(self, rule: Any) -> tuple[bool, tuple[str, ...]]:
        """Whether something is there: always, never, or as a key says."""

    def integer(self, key: str) -> int | None:
        """A whole number of the section."""


def difference(reader: Counted, model: Transformer, entry: Mapping[str, Any]) -> int:
    """Parameters that the class has and the simulated model has not, less those that only the model has.

    Parameters
    ----------
    entry : mapping
        Of the class, in ``huggingface.yaml``.
    """
    extras = sum(_EXTRAS[name](reader, model) for name in entry.get("extras", ()))
    return _biases(reader, model, entry) + extras


def _biases(reader: Counted, model: Transformer, entry: Mapping[str, Any]) -> int:
    """Biases that the class has and the simulated model, which has all, none, or those of queries, keys and values, has not."""
    rules = entry.get("biases")
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
    if mlp and model.moe is not None and entry["moe"].get("biases"):
        width = model.moe.ffn_hidden * (2 if model.gated_experts else 1) + model.hidden
        difference += routed * model.moe.experts * (width + 1)  # 1: the router's
    if norms:
        difference += (model.layers * (2 - model.parallel_block) + 1) * model.hidden
    return difference


def _second_norm(reader: Counted, model: Transformer) -> int:
    """A parallel block that norms attention and MLP apart."""
    del reader
    return model.layers * 2 * model.hidden if model.parallel_block else 0


def _falcon_norms(reader: Counted, model: Transformer) -> int:
    """Two norms a layer in the new decoder architecture, unless the file says one."""
    new = reader.ledger.switch(reader.head + "new_decoder_architecture")
    norms = reader.integer("num_ln_in_parallel_attn")
    both = (2 if norms is None else norms) == 2
    return model.layers * 2 * model.hidden if new and both else 0


def _word_projections(reader: Counted, model: Transformer) -> int:
    """OPT-350M: words are narrower than the model, with a projection in and one out."""
    width = reader.integer("word_embed_proj_dim")
    if width is None or width == model.hidden:
        return 0
    tables = 1 if model.tied_embeddings else 2
    return tables * model.vocab * (width - model.hidden) + 2 * width * model.hidden


def _opt_final_norm(reader: Counted, model: Transformer) -> int:
    """Norms after attention and MLP leave none for the end."""
    before = reader.ledger.switch(reader.head + "do_layer_norm_before")
    removed = reader.ledger.switch(reader.head + "_remove_final_layer_norm")
    return -2 * model.hidden if before is False or removed else 0


_EXTRAS: Final[Mapping[str, Callable[[Counted, Transformer], int]]] = {
    "shared_gate": lambda _, model: sum(kind.experts for kind in model.kinds) * model.hidden,
    "second_norm": _second_norm,
    "falcon_norms": _falcon_norms,
    "head_bias": lambda _, model: model.vocab,
    "word_projections": _word_projections,
    "opt_final_norm": _opt_final_norm,
    "sinks": lambda _, model: model.layers * model.heads,
    "whole_qk_norm": lambda _, model: (
        model.layers * (model.heads + model.kv_heads) * model.head_dim
    ),
    "router_bias": lambda _, model: sum(
        model.moe.experts for kind in model.kinds if kind.experts and model.moe is not None
    ),
    "no_norms": lambda _, model: -(2 * model.layers + 1) * model.hidden,
}
"""Parameters of a class that the simulated model leaves out, or has and the class has not."""
