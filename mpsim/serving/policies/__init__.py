"""Scheduler policies by name: one line here and one module each, an engine with four decisions."""

from collections.abc import Mapping

from mpsim.serving.policies.budget import Budget
from mpsim.serving.policies.no_evict import NoEvict
from mpsim.serving.policies.prefill_first import PrefillFirst
from mpsim.serving.policies.static import Static

__all__ = ["POLICIES", "Budget"]

POLICIES: Mapping[str, type[Budget]] = {
    "budget": Budget,
    "prefill-first": PrefillFirst,
    "no-evict": NoEvict,
    "max-utilisation": Budget,  # TensorRT-LLM's other one preempts, too
    "static": Static,
}
