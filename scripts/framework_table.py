"""Refresh the table of docs/explanation/frameworks.md: one model, 64 GPUs, every stack in a layout of its own (``python scripts/framework_table.py``).

A test holds the page to it. A stack whose layout this version refuses is left out and named on the error stream.
"""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import mpsim
from mpsim.errors import MpsimError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "frameworks.md"
MODEL = "llama3-8b"
CLUSTER = {"preset": "dgx-h100", "nodes": 8}
TRAINING = {"global_batch": 128, "micro_batch": 1, "sequence_length": 8192, "precision": "bf16"}
EXPOSED = ("tp", "cp", "pp", "dp")
MARK = re.compile(r"(<!-- exposed-communication -->).*?(<!-- end -->)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True)
class Layout:
    """How a stack would run the model.

    Parameters
    ----------
    preset : str
    words : str
        The layout for people.
    parallelism : mapping
    recompute : str
    schedule : str
    """

    preset: str
    words: str
    parallelism: Mapping[str, Any]
    recompute: str = "none"
    schedule: str = "1f1b"

    def scenario(self) -> dict[str, Any]:
        """As a file would hold it."""
        return {
            "schema": 1,
            "name": self.preset,
            "model": MODEL,
            "cluster": CLUSTER,
            "parallelism": dict(self.parallelism),
            "schedule": self.schedule,
            "training": {**TRAINING, "recompute": self.recompute},
            "framework": self.preset,
        }


SHARDED = {"zero": 3}
STATES = {"zero": 1}
LAYOUTS = (
    Layout("megatron-2021", "tp 8", {"tp": 8}, "full"),
    Layout("megatron-2022", "tp 4, sp", {"tp": 4, "sequence_parallel": True}, "selective"),
    Layout("zero-bubble-2023", "tp 4, pp 4, zb-1p", {"tp": 4, "pp": 4}, "selective", "zb-1p"),
    Layout(
        "megatron-core-2023", "tp 2, sp, zero 1", {"tp": 2, "sequence_parallel": True, **STATES}
    ),
    Layout("megatron-core", "tp 2, sp, zero 1", {"tp": 2, "sequence_parallel": True, **STATES}),
    Layout("megatron-bridge", "cp 2, zero 1", {"cp": 2, **STATES}),
    Layout("megatron-fsdp", "zero 3", SHARDED, "full"),
    Layout("deepspeed-zero1", "zero 1", STATES, "full"),
    Layout("deepspeed-zero2", "zero 2", {"zero": 2}, "full"),
    Layout("deepspeed-zero3-2021", "zero 3", SHARDED, "full"),
    Layout("deepspeed-zero3", "zero 3", SHARDED, "full"),
    Layout("gpt-neox", "tp 2, pp 4, zero 1", {"tp": 2, "pp": 4, **STATES}, "full"),
    Layout("bloom-bf16", "tp 4, pp 4, zero 1", {"tp": 4, "pp": 4, **STATES}, "full"),
    Layout("torch-fsdp1-2022", "zero 3", SHARDED, "full"),
    Layout("torch-fsdp2", "zero 3", SHARDED, "full"),
    Layout("torchtitan-2025", "zero 3", SHARDED, "full"),
    Layout("fms-fsdp", "zero 3 in a node", {"zero": 3, "shard": 8}, "full"),
    Layout("horovod", "replicas", {}, "full"),
    Layout("tf-multiworker-mirrored", "replicas", {}, "full"),
    Layout("maxtext-gpu", "zero 3", SHARDED, "full"),
)


def rows() -> Iterator[tuple[str, ...]]:
    """Cells of each stack that is simulated."""
    for layout in LAYOUTS:
        try:
            result = mpsim.simulate(mpsim.Scenario.from_mapping(layout.scenario()))
        except MpsimError as error:
            sys.stderr.write(f"{layout.preset} left out: {error}\n")
            continue
        yield _cells(layout, result.summary, result.breakdown)


def _cells(
    layout: Layout, summary: Mapping[str, Any], parts: Mapping[str, float]
) -> tuple[str, ...]:
    exposed = [parts[f"exposed_{axis}"] for axis in EXPOSED]
    step = summary["step_time_s"]
    again = "" if layout.recompute == "none" else f", recompute {layout.recompute}"
    fits = "yes" if summary["fits_memory"] else "no"
    return (
        f"`{layout.preset}`",
        f"{layout.words}{again}",
        f"{step:.2f}",
        *(_milliseconds(one) for one in (*exposed, parts["bubble"], parts["host"])),
        f"{sum(exposed) / step:.1%}",
        fits,
    )


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.0f}" if seconds else ""


def render(text: str) -> str:
    """`text` with the table as it is now."""
    head = ("preset", "layout", "step s", *EXPOSED, "bubble", "host", "exposed", "fits")
    lines = [head, ("---", "---", *["---:"] * (len(head) - 3), "---"), *rows()]
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines)
    text, count = MARK.subn(lambda found: f"{found[1]}\n\n{table}\n\n{found[2]}", text)
    if count != 1:
        raise SystemExit(f"{PAGE} has {count} marked tables; needed one")
    return text


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
