"""Search: the best layouts of a model on a cluster, to train it or to serve it; one branch and bound over two spaces.

Services are in `mpsim.study.search.services`, whose imports a search of trainings has no use for.
"""

from mpsim.study.search.found import Found
from mpsim.study.search.outcome import Search
from mpsim.study.search.service_outcome import FoundService, ServiceSearch
from mpsim.study.search.trainings import search

__all__ = ["Found", "FoundService", "Search", "ServiceSearch", "search"]
