"""Serving: a live stream of requests on the same clusters and models that train.

`make_service` resolves a scenario into a `ServicePlan`, `run_service` serves its requests.
"""

from mpsim.serving.plan import ServicePlan
from mpsim.serving.planning import make_service
from mpsim.serving.requests import Served
from mpsim.serving.result import ServiceResult, run_service

__all__ = ["Served", "ServicePlan", "ServiceResult", "make_service", "run_service"]
