"""Results: what any job's timeline means, from the use of compute and links to energy and price."""

from mpsim.result.intervals import Waits
from mpsim.result.memory import Memory, MemoryCurve
from mpsim.result.result import JobResult, Result
from mpsim.result.utilisation import Utilisation

__all__ = ["JobResult", "Memory", "MemoryCurve", "Result", "Utilisation", "Waits"]
