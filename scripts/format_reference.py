"""Write docs/reference/formats.md from the tables of keys: ``python scripts/format_reference.py``.

A test holds the page to the tables, so nobody edits it by hand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsim.formats import FORMATS, WRITERS
from mpsim.formats.keys import TABLES, Key, keys

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "formats.md"
HEAD = """\
# Formats of other tools

Files that `mpsim import` reads and `mpsim export` writes, and which of their keys say which value of a scenario (this page is generated from the tables that both use; do not
edit it). A key that stands here is read into that value; where a format is written too, it is written from it. Any other key of a file is ignored: `mpsim import` lists every one,
warns of those known to move the time or the memory of a step, and refuses models that cannot be simulated by name. See [how to import](../how-to/import.md) and
[how to export](../how-to/export.md).
"""
TITLES = {
    "megatron": "Flags of Megatron-LM (`megatron`, `slurm`)",
    "megatron-yaml": "YAML of Megatron-LM, Megatron-Bridge and NeMo (`megatron-yaml`, `megatron-bridge`, `nemo`)",
    "torchtitan": "torchtitan (`torchtitan`)",
    "deepspeed": "DeepSpeed's ds_config (`deepspeed`)",
    "huggingface": "config.json of Hugging Face transformers (`hf`)",
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
    written = {writer.name for writer in WRITERS} | {"chakra"}
    yield "| format | what it is | gives | read | written |\n| --- | --- | --- | --- | --- |"
    for item in FORMATS:
        wrote = "yes" if item.name in written else ""
        yield f"| `{item.name}` | {item.title} | {item.gives} | yes | {wrote} |".replace(
            "|  |", "| |"
        )
    yield ""


def _table(name: str) -> Iterator[str]:
    yield f"## {TITLES[name]}\n"
    if name in WORDS:
        yield f"{WORDS[name]}\n"
    yield "| key | value of the scenario | words | note |\n| --- | --- | --- | --- |"
    for key in keys(name):
        yield f"| `{key.name}` | `{key.to}` | {_words(key.values)} | {key.note} |".replace(
            "|  |", "| |"
        ).replace("|  |", "| |")
    yield ""


def _words(values: Mapping[str, object]) -> str:
    return ", ".join(
        f"`{word}`: {str(value).lower() if isinstance(value, bool) else value}"
        for word, value in values.items()
    )


__all__ = ["Key", "render"]

if __name__ == "__main__":
    PAGE.write_text(render(), encoding="utf-8")
