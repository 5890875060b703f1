"""Design: which cluster for some work under a budget; a loop of search and plan."""

from mpsim.study.design.option import Option
from mpsim.study.design.outcome import Design
from mpsim.study.design.run import design

__all__ = ["Design", "Option", "design"]
