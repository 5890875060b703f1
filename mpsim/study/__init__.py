"""Studies: more than one simulation, and what the difference between them is."""

from mpsim.study.comparison import Comparison, compare
from mpsim.study.grid import Row, Sweep, sweep

__all__ = ["Comparison", "Row", "Sweep", "compare", "sweep"]
