"""The ``design:`` section: the work of a cluster, which may do it, what they may cost."""

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

from mpsim.scenario.fields import Count, Field, Name, Power, Read, Section, Within
from mpsim.scenario.sections import SweepValues
from mpsim.units import Dimension, parse_count

Span: TypeAlias = Annotated[float, Within(Dimension.TIME, 1.0, 1e10)]
_COUNT = {"anyOf": [{"type": "number"}, {"type": "string"}]}
Tokens: TypeAlias = Annotated[float, Read(parse_count, json=lambda *_: _COUNT)]
Dollars: TypeAlias = Annotated[float, Field(ge=0, le=1e13)]


class Job(Section):
    """One job of the cluster: a training of so many tokens, or a service."""

    scenario: Name | None = None
    """Scenario file of the job, its cluster aside; left out, this file's own."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the nodes; jobs run side by side."""
    tokens: Tokens | None = None
    """Tokens of the training, such as 15T."""
    deadline: Span | None = None
    """Longest time of the training, such as '60 d'."""
    rate: Annotated[float, Field(gt=0, le=1e9)] | None = None
    """Requests/s that the service has to hold within its limits."""


class Bounds(Section):
    """Bounds of the cluster."""

    capital: Annotated[float, Field(gt=0, le=1e13)] | None = None
    """Price of everything that is bought [USD]."""
    hourly: Annotated[float, Within(Dimension.PRICE_RATE, 1e-6, 1e9)] | None = None
    """Cost of an hour."""
    power: Annotated[float, Within(Dimension.POWER, 1.0, 1e9)] | None = None
    """Power at the meter, such as '2 MW'."""
    racks: Count | None = None
    """Racks; a scale-up domain of several nodes is one."""
    rack_power: Power | None = None
    """Power of one rack, which says how many nodes it holds."""


class Money(Section):
    """Rent or purchase."""

    basis: Literal["rent", "purchase"] = "rent"
    """Accelerators by the hour, or every part with a life, and electricity."""
    offer: Literal["on-demand", "spot", "reserved-1y", "reserved-3y", "block"] | None = None
    """Kind of offer of what is rented; left out, on demand."""
    life: Span | None = None
    """Time to pay off what is bought; left out, that of `purchase.yaml`."""
    tariff: Dollars | None = None
    """Price of electricity [USD/kWh]."""


class Place(Section):
    """Site of the cluster."""

    pue: Annotated[float, Field(ge=1, le=10)] | Name | None = None
    """PUE, or an operator such as google."""
    region: Name | None = None
    """Region of the electricity grid."""


class DesignChoice(Section):
    """Study of ``mpsim design``."""

    jobs: Annotated[dict[str, Job], Field(min_length=1, max_length=20)]
    """Jobs by name."""
    choices: Annotated[dict[str, SweepValues], Field(min_length=1)]
    """Values by dotted key of the cluster; the price of a chip contains the first of each."""
    bounds: Bounds = Bounds()
    """Bounds of the cluster; left out, none."""
    money: Money = Money()
    """Rent or purchase."""
    prices: Mapping[str, Dollars] = {}
    """Own prices by part (h100-sxm, host, nic-400, switch-64x400, cable-400; `key=value` of a
    choice: of an accelerator) [USD, or USD/h of rent]."""
    place: Place = Place()
    """Where it stands."""
