"""Explain: a recording of a step beside the simulated one, and why the two differ."""

from mpsim.explain.account import Account, account
from mpsim.explain.causes import Expected
from mpsim.explain.explanation import Explanation, explain, is_log, log_step, read_ranks

__all__ = ["Account", "Expected", "Explanation", "account", "explain", "is_log", "log_step"]
__all__ += ["read_ranks"]
