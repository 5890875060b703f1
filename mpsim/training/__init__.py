"""A training step: who runs what, its operations, and what data parallelism adds."""

from mpsim.training.build import build_program
from mpsim.training.pipeline import from_orders
from mpsim.training.plan import Plan
from mpsim.training.planning import make_plan

__all__ = ["Plan", "build_program", "from_orders", "make_plan"]
