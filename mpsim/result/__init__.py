"""Results: attribution, utilisation, memory and summary of a simulated step."""

from mpsim.result.memory import Memory
from mpsim.result.result import Result, check_order, simulate
from mpsim.result.utilisation import Utilisation

__all__ = ["Memory", "Result", "Utilisation", "check_order", "simulate"]
