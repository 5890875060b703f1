"""Memory of a plan: model states, activations over the order of actions, buffers, overhead."""

from mpsim.result.memory.account import (
    COMPONENTS,
    Memory,
    account_memory,
    joined_memory,
    memory_constants,
)
from mpsim.result.memory.activations import Held, Kept, held_by_rank, kept_by_part, kept_by_stage
from mpsim.result.memory.curve import MemoryCurve, memory_curve
from mpsim.result.memory.states import buffers, gradient_scratch, model_states

__all__ = [
    "COMPONENTS",
    "Held",
    "Kept",
    "Memory",
    "MemoryCurve",
    "account_memory",
    "buffers",
    "gradient_scratch",
    "held_by_rank",
    "joined_memory",
    "kept_by_part",
    "kept_by_stage",
    "memory_constants",
    "memory_curve",
    "model_states",
]
