"""Scenarios: the YAML file a person writes, read strictly, every mistake reported with its line."""

from mpsim.scenario.checks import check, wrong_values
from mpsim.scenario.scenario import Scenario, json_schema, load

__all__ = ["Scenario", "check", "json_schema", "load", "wrong_values"]
