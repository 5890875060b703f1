"""Results: attribution, utilisation, memory and summary of a simulated step."""

from mpsim.result.memory import Memory
from mpsim.result.result import Result
from mpsim.result.utilisation import Utilisation

__all__ = ["Memory", "Result", "Utilisation"]
