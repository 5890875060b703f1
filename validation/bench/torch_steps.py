"""Small training steps of torch's own stack: what is divided how, and in words of a scenario."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping

import mpsim
from mpsim.training.memory.account import account_memory

__all__ = ["EAGER", "MODELS", "Case", "cases", "parts_of", "scenario_of"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A step of one rank: a model of Llama's kind, how it is divided, what runs again, which optimizer.

    Parameters
    ----------
    fsdp, tp : int
        Ranks; 1 and 1 for a model in bfloat16 on one device, whose states are bfloat16 too.
    recompute : str
        ``none``, ``full`` or ``per-op`` (every second product and attention kept).
    optimizer : str
        ``adamw`` (fused), ``foreach`` (AdamW by lists) or ``sgd`` with momentum (fused).
    root : bool
        Whether embedding, final norm and head are left to FSDP's root, or embedding is a unit and norm and head another.
    autocast : bool
        Whether torch's autocast narrows products, or FSDP's policy of mixed precision all parameters.
    """

    model: str
    fsdp: int
    tp: int
    recompute: str
    optimizer: str
    microbatches: int = 1
    root: bool = True
    autocast: bool = False

    @property
    def wide(self) -> bool:
        """Whether norms are chains of float32 kernels."""
        return self.model in WIDE

    @property
    def name(self) -> str:
        """What it is, in a word."""
        units = "" if self.root or self.fsdp == 1 else "-units"
        units += "-autocast" * self.autocast
        return (
            f"{self.model}-fsdp{self.fsdp}-tp{self.tp}-{self.recompute}-{self.optimizer}"
            f"-mb{self.microbatches}{units}"
        )


MODELS: Mapping[str, Mapping[str, int]] = {
    # published shapes, fewer layers; a sequence of such a length that either states or activations or logits are most
    "llama-1b": {"layers": 6, "hidden": 2048, "heads": 32, "kv_heads": 8, "ffn_hidden": 8192, "vocab": 128256, "sequence": 2048, "micro_batch": 1},
    "llama-8b": {"layers": 4, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256, "sequence": 8192, "micro_batch": 1},
    "llama2-7b": {"layers": 8, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn_hidden": 11008, "vocab": 32000, "sequence": 4096, "micro_batch": 2},
    "llama-70b": {"layers": 3, "hidden": 8192, "heads": 64, "kv_heads": 8, "ffn_hidden": 28672, "vocab": 128256, "sequence": 4096, "micro_batch": 1},
    "narrow": {"layers": 12, "hidden": 1024, "heads": 16, "kv_heads": 16, "ffn_hidden": 2816, "vocab": 32000, "sequence": 1024, "micro_batch": 8},
    # scores are tensors, and their softmax is of torch's own kernels
    "scores": {"layers": 4, "hidden": 2048, "heads": 32, "kv_heads": 32, "ffn_hidden": 5504, "vocab": 32000, "sequence": 2048, "micro_batch": 4},
    # whole models, for what an allocator loses between tensors
    "whole-8b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 8, "ffn_hidden": 14336, "vocab": 128256, "sequence": 8192, "micro_batch": 1},
    "whole-7b": {"layers": 32, "hidden": 4096, "heads": 32, "kv_heads": 32, "ffn_hidden": 11008, "vocab": 32000, "sequence": 4096, "micro_batch": 4},
}  # fmt: skip
PARTS = tuple(name for name in MODELS if not name.startswith(("whole", "scores")))
WIDE, EAGER = ("llama2-7b", "narrow"), ("scores",)
LAYOUTS = ((1, 1), (8, 1), (64, 1), (4, 2), (8, 8))
RECOMPUTE = ("none", "full", "per-op")
OPTIMIZERS = ("adamw", "sgd", "foreach")


def cases() -> list[Case]:
    """Three hundred of a few layers, and some of whole models."""
    plain = itertools.product(PARTS, LAYOUTS, RECOMPUTE, OPTIMIZERS)
    return [
        *(Case(model=m, fsdp=f, tp=t, recompute=r, optimizer=o) for m, (f, t), r, o in plain),
        *(
            Case(model=m, fsdp=f, tp=t, recompute=r, optimizer="adamw", microbatches=2, root=root)
            for m in PARTS
            for (f, t), root in (((8, 1), True), ((8, 1), False), ((4, 2), False), ((64, 1), False), ((1, 1), True))
            for r in RECOMPUTE
        ),
        *(
            Case(model=m, fsdp=f, tp=1, recompute=r, optimizer="adamw", root=False)
            for m in MODELS
            if m.startswith("whole")
            for f in (8, 64)
            for r in RECOMPUTE
        ),
        *(
            Case(model=m, fsdp=f, tp=t, recompute=r, optimizer="adamw")
            for m in EAGER
            for f, t in LAYOUTS
            for r in ("none", "full")
        ),
        *(
            Case(model=m, fsdp=f, tp=1, recompute=r, optimizer="foreach", autocast=True)
            for m in PARTS
            for f in (1, 8, 64)
            for r in ("none", "full")
        ),
    ]  # fmt: skip


def scenario_of(case: Case) -> dict[str, object]:
    """The case in words of a scenario: a preset of torch, and what this model does otherwise than the preset's."""
    sizes = dict(MODELS[case.model])
    batch, sequence = sizes.pop("micro_batch"), sizes.pop("sequence")
    moments = 2 if case.optimizer != "sgd" else 1
    alone = case.fsdp * case.tp == 1
    narrow = alone and not case.autocast
    element = 2 if narrow else 4
    states = {
        "optimizer_bytes": element * moments,
        "step_scratch": element if case.optimizer == "foreach" else 0,
        **(
            {"parameter_bytes": element, "gradient_bytes": element}
            if alone
            else {"root_unit": case.root}
        ),
    }
    return {
        "schema": 1,
        "name": case.name,
        "model": {**sizes, "gated_mlp": True, "norm": "rmsnorm", "positions": "rotary", "bias": False, "tied_embeddings": False},
        "cluster": {"preset": "dgx-h100", "nodes": -(-case.fsdp * case.tp // 8)}
        | ({"accelerators_per_node": case.fsdp * case.tp} if case.fsdp * case.tp < 8 else {}),
        "parallelism": {
            "dp": case.fsdp,
            "tp": case.tp,
            "zero": 0 if alone else 3,
            "sequence_parallel": case.tp > 1,
        },
        "training": {
            "global_batch": batch * case.microbatches * case.fsdp,
            "micro_batch": batch,
            "sequence_length": sequence,
            "precision": "bf16",
            "recompute": case.recompute,
        },
        "framework": {
            "preset": "torch-ddp" if alone else "torch-fsdp2",
            "wide_norms": case.wide,
            "fused_rotary": True,
            **({"fused_attention": False, "fused_softmax": False} if case.model in EAGER else {}),
            "loss_kept_bytes": 4,  # the loop does not hold logits, so their log-softmax alone
            "loss_peak_bytes": 12,
            "keeps_gathered": case.tp > 1,  # autograd keeps what DTensor has gathered
            **({"autocast": True, "gathered_bytes": 4, "weight_grad_bytes": 4} if case.autocast else {}),
            **states,
        },
    }  # fmt: skip


def parts_of(case: Case) -> Mapping[str, float]:
    """Bytes of each part that the fullest rank allocates at its fullest."""
    memory = account_memory(mpsim.prepare(mpsim.Scenario.from_mapping(scenario_of(case))).plan)
    return {
        name: float(sizes[0]) for name, sizes in memory.components.items() if name != "overhead"
    }
