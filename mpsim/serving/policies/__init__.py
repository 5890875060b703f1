"""Scheduler policies by name: one line here and one module each, a class of four decisions.

``budget`` is vLLM V1's, ``prefill-first`` SGLang's, ``no-evict`` and ``max-utilisation``
TensorRT-LLM's (the latter admits and preempts as ``budget`` does), ``static`` that of a batch.
"""

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
    "max-utilisation": Budget,
    "static": Static,
}
