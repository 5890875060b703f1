"""Serving: prefill, decode and a live stream of requests on the same clusters and models that train.

`make_service` resolves a scenario into a `ServicePlan`, `run_service` serves its requests.
"""

from mpsim.serving.plan import ServiceMemory, ServicePlan
from mpsim.serving.planning import make_service
from mpsim.serving.pools import Pool
from mpsim.serving.requests import Lengths, Requests
from mpsim.serving.result import ServiceResult, run_service
from mpsim.serving.served import Served
from mpsim.serving.service import serve
from mpsim.serving.stream import draw_requests

__all__ = [
    "Lengths",
    "Pool",
    "Requests",
    "Served",
    "ServiceMemory",
    "ServicePlan",
    "ServiceResult",
    "draw_requests",
    "make_service",
    "run_service",
    "serve",
]
