"""Fine-tuning: the section of a scenario that says which parameters train."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from mpsim.scenario.fields import Section

Method = Literal["full", "lora", "qlora"]
FrozenPart = Literal["embedding", "vision", "attention", "mlp", "head"]
Projection = Literal["qkv", "query", "key", "value", "output", "up", "down", "head"]


class Adapter(Section):
    """Low-rank adapters beside frozen products (LoRA)."""

    rank: Annotated[int, Field(ge=1, le=65536)] = 8
    """Inner width of every adapter, at most the narrower side of the product beside it."""
    modules: Annotated[tuple[Projection, ...], Field(strict=False, min_length=1)] = (
        "qkv",
        "output",
        "up",
        "down",
    )
    """Products with adapters: qkv (or some of query, key, value), output (of attention), up (with the gate), down, head."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Dropout before every adapter, which then keeps an input and a mask of its own."""
    base: Literal["bf16", "fp8", "int8", "nf4", "nf4-single"] | None = None
    """Format of the frozen weights of layers; left out, nf4 for qlora and bf16 for lora; fp8 weights are what products in fp8 read, nf4-single has scales that are not quantised again. What else is narrow is widened before each product."""
