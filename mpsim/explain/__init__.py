"""Explain: a recording of a step beside the simulated one, and why the two differ."""

from mpsim.explain.explanation import Explanation, explain

__all__ = ["Explanation", "explain"]
