"""Operators of a vision tower for the images of one microbatch."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.expansion import Step, Tokens
from mpsim.workload.layer import serial_block
from mpsim.workload.lowering import Lowering
from mpsim.workload.operators import Module, Role
from mpsim.workload.parts import Part
from mpsim.workload.transformer import Transformer
from mpsim.workload.vision import VisionTower


def tower_steps(tower: VisionTower, lowering: Lowering, sequences: int, out: int) -> Iterator[Step]:
    """Expand patches, layers and merger of all images of so many sequences, to tokens of width `out`."""
    images = max(round(sequences * tower.images), 1)
    whole = Transformer(
        name="vision",
        layers=tower.layers,
        hidden=tower.hidden,
        heads=tower.heads,
        kv_heads=tower.heads,
        head_dim=tower.hidden // tower.heads,
        ffn_hidden=tower.ffn_hidden,
        vocab=1,
        attention="full",
        positions="none",
    )
    part = Part(whole, lowering, Tokens(images, tower.patches, tower.patches))
    merged = dataclasses.replace(
        part, tokens=Tokens(images, tower.patches // tower.merge, tower.patches // tower.merge)
    )
    first = Module.VISION, Role.PATCHES
    steps = [part.replicated(first, "patches", tower.hidden, features_in=tower.pixels)]
    (kind,) = set(whole.kinds)
    for _ in range(tower.layers):
        steps += serial_block(part, kind)
    inner, joined = (Module.VISION, Role.UP), tower.joined
    steps.append(merged.column(inner, "merge1", joined, joined, features_in=joined))
    wide = dataclasses.replace(merged, model=dataclasses.replace(whole, hidden=out))
    steps.append(wide.row((Module.VISION, Role.DOWN), "merge2", tower.joined))
    for step in steps:
        yield step.each(
            lambda each: dataclasses.replace(each, module=Module.VISION, name=f"vision {each.name}")
        )
