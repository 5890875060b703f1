"""The search of services: layouts of instances or pools under limits of latency, memory, price and power; beside the search of training steps, which has other axes and bounds."""

from mpsim.study.service_search.find import search_services
from mpsim.study.service_search.outcome import (
    SERVICE_OBJECTIVES,
    SERVICE_REASONS,
    FoundService,
    ServiceSearch,
)
from mpsim.study.service_search.rate import LargestRate, largest_rate

__all__ = [
    "SERVICE_OBJECTIVES",
    "SERVICE_REASONS",
    "FoundService",
    "LargestRate",
    "ServiceSearch",
    "largest_rate",
    "search_services",
]
