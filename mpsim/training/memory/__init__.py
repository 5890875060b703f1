"""Memory of a plan: model states, activations over the order of actions, buffers, overhead."""

from mpsim.training.memory.account import (
    COMPONENTS,
    account_memory,
    at_the_peak,
    memory_constants,
    outside_allocator,
    overhead,
)
from mpsim.training.memory.activations import Kept, held_by_rank, kept_by_stage, offloaded
from mpsim.training.memory.fresh import Fresh, fresh_gradients
from mpsim.training.memory.states import buffers, gradient_scratch, model_states, step_scratch

__all__ = [
    "COMPONENTS",
    "Fresh",
    "Kept",
    "account_memory",
    "at_the_peak",
    "buffers",
    "fresh_gradients",
    "gradient_scratch",
    "held_by_rank",
    "kept_by_stage",
    "memory_constants",
    "model_states",
    "offloaded",
    "outside_allocator",
    "overhead",
    "step_scratch",
]
