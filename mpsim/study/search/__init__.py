"""Search: the best layouts of a model on a cluster."""

from mpsim.study.search.find import search
from mpsim.study.search.found import Found
from mpsim.study.search.outcome import OBJECTIVES, REASONS, Search
from mpsim.study.search.space import AXES, Frame, Layout, Space

__all__ = ["AXES", "OBJECTIVES", "REASONS", "Found", "Frame", "Layout", "Search", "Space", "search"]
