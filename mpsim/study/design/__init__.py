"""Design: which cluster for some work under a budget; a loop over clusters of the search and the plan that mpsim has."""

from mpsim.study.design.option import Option
from mpsim.study.design.outcome import Design
from mpsim.study.design.run import design

__all__ = ["Design", "Option", "design"]
