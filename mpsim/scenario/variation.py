"""The ``variation:`` section: accelerators and links that are not all alike, operations that do not always take as long."""

from __future__ import annotations

from typing import Annotated

import pydantic
from pydantic import Field

from mpsim.scenario.fields import Section, Time

__all__ = ["Outage", "SlowPart", "ThinLink", "Variation"]

Share = Annotated[float, Field(gt=0, le=1)]
Coefficient = Annotated[float, Field(ge=0, le=1)]
Index = Annotated[int, Field(ge=0, le=1_000_000)]


class SlowPart(Section):
    """Accelerators that compute slower than the others."""

    node: Index | None = None
    """All of one node."""
    ranks: Annotated[tuple[Index, ...], Field(strict=False, min_length=1)] | None = None
    """Or these ranks."""
    speed: Share
    """Speed over that of the others, such as 0.8."""

    @pydantic.model_validator(mode="after")
    def _check_one(self) -> SlowPart:
        if (self.node is None) == (self.ranks is None):
            raise ValueError("needed one of node and ranks, such as {ranks: [12], speed: 0.8}")
        return self


class ThinLink(Section):
    """NICs of a node that have lost bandwidth, always or now and then."""

    node: Index
    """The node."""
    bandwidth: Share
    """What is left of it, such as 0.5 when one of two ports is down."""
    time: Share = 1.0
    """Share of the time in which it is so; below 1 the link flaps."""


class Outage(Section):
    """A node that is down for a while; of services."""

    node: Index
    """The node."""
    at: Time
    """When it fails, from the start of the run."""
    duration: Time
    """How long it is down."""


class Variation(Section):
    """Differences from rank to rank and from step to step; drawn by simulation.seed."""

    speed: Coefficient = 0.0
    """Coefficient of variation of the speeds of ranks, drawn for every machine."""
    jitter: Coefficient = 0.0
    """Coefficient of variation of the time of every operation of a rank, drawn for every step."""
    network_jitter: Coefficient = 0.0
    """The same of messages and collectives between operations."""
    experts: Coefficient = 0.0
    """Coefficient of variation of the load of the busiest rank of experts, drawn for every operation; for a mixture of experts."""
    slow: Annotated[tuple[SlowPart, ...], Field(strict=False)] = ()
    """Accelerators that are slow in every step."""
    links: Annotated[tuple[ThinLink, ...], Field(strict=False)] = ()
    """Links that are degraded or flap."""
    outages: Annotated[tuple[Outage, ...], Field(strict=False)] = ()
    """Nodes of a service that fail: what their instances had goes on elsewhere."""
    samples: Annotated[int, Field(ge=1, le=1_000_000)] = 200
    """Steps to draw."""

    @property
    def is_random(self) -> bool:
        """Whether steps differ from each other."""
        flaps = any(link.time < 1 for link in self.links)
        return flaps or any((self.speed, self.jitter, self.network_jitter, self.experts))
