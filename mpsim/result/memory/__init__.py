"""Memory of a plan: model states, activations over the order of actions, buffers, overhead."""

from mpsim.result.memory.account import COMPONENTS, Memory, account_memory
from mpsim.result.memory.activations import Held, Kept, held_by_rank, kept_by_stage
from mpsim.result.memory.curve import MemoryCurve, memory_curve

__all__ = [
    "COMPONENTS",
    "Held",
    "Kept",
    "Memory",
    "MemoryCurve",
    "account_memory",
    "held_by_rank",
    "kept_by_stage",
    "memory_curve",
]
