"""Write docs/reference/formats.md from the tables of keys: ``python scripts/format_reference.py``.

A test holds the page to the tables, so nobody edits it by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mpsim.formats import FORMATS, WRITERS
from mpsim.formats.words import TABLES, Key, keys

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "formats.md"
HEAD = """\
# Formats of other tools

Files that `mpsim import` reads and `mpsim export` writes, and which keys say which value of a scenario (generated from the tables that both use). Any other key is ignored: `mpsim import`
lists every one, warns of those known to move time or memory, and refuses models that cannot be simulated. See [how to import](../how-to/import.md) and [how to export](../how-to/export.md).
"""
TITLES = {
    "megatron": "Flags of Megatron-LM (`megatron`, `slurm`)",
    "megatron-yaml": "YAML of Megatron-LM, Megatron-Bridge and NeMo (`megatron-yaml`, `megatron-bridge`, `nemo`)",
    "torchtitan": "torchtitan (`torchtitan`)",
    "deepspeed": "DeepSpeed's ds_config (`deepspeed`)",
    "huggingface": "config.json of Hugging Face transformers (`hf`)",
    "vllm": "Options of vLLM's server (`vllm`)",
    "sglang": "Options of SGLang's server (`sglang`)",
    "trtllm": "Options of trtllm-serve (`trtllm`)",
}
WORDS = {
    "megatron-yaml": "Fields of Megatron's dataclasses say what the flag of the same name says (`tensor_model_parallel_size` as `--tensor-model-parallel-size`); these are spelled otherwise.",
    "huggingface": "The most usual spelling; others of the same quantity are read too (`n_embd`, `d_model`, `n_layer`, `num_kv_heads`, ...), and what is absent takes the default of the model's class.",
}


def render() -> str:
    """The page as text."""
    return (
        "\n".join([HEAD, *_formats(), *(line for name in TABLES for line in _table(name))]) + "\n"
    )


def _formats() -> Iterator[str]:
    """The formats by what they give, those that are written too with a mark."""
    written = {writer.name for writer in WRITERS}
    given: dict[str, list[str]] = {}
    for item in FORMATS:
        mark = ", also written" if item.name in written else ""
        given.setdefault(item.gives, []).append(f"`{item.name}` ({item.title}{mark})")
    yield "| gives | format |\n| --- | --- |"
    yield from (f"| {gives} | {', '.join(names)} |" for gives, names in given.items())
    yield ""


def _table(name: str) -> Iterator[str]:
    """A heading, and the keys of the format by the value of a scenario that they say."""
    yield f"## {TITLES[name]}\n"
    if name in WORDS:
        yield f"{WORDS[name]}\n"
    spelled: dict[str, list[str]] = {}
    for key in keys(name):
        spelled.setdefault(key.to, []).append(_spelled(key))
    yield "| value of the scenario | keys |\n| --- | --- |"
    yield from (f"| `{value}` | {', '.join(names)} |" for value, names in spelled.items())
    yield ""


def _spelled(key: Key) -> str:
    """A key with what there is to know about it: words whose value is called otherwise, and its note."""
    words = [
        f"`{word}`={str(value).lower() if isinstance(value, bool) else value}"
        for word, value in key.values.items()
        if word.lower() != value
    ]
    note = "; ".join(filter(None, [", ".join(words), key.note]))
    return f"`{key.name}` ({note})" if note else f"`{key.name}`"


__all__ = ["Key", "render"]

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
