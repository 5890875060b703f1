"""Where the members of a communicator sit."""

from __future__ import annotations

import dataclasses

__all__ = ["GroupShape"]


@dataclasses.dataclass(frozen=True, slots=True)
class GroupShape:
    """A communicator as a cost model sees it.

    Parameters
    ----------
    ranks : int
        Members.
    per_domain : int
        Members in each scale-up domain (the fewest, where domains differ).
    domains : int
        Scale-up domains touched.
    ring_slowdown, exchange_slowdown : float or None
        How many times longer links of the fabric make what a ring, or an all-to-all, sends over NICs (`mpsim.parallel.crossing`);
        None where nobody counted: then all of it is taken to cross every tier that as many neighbouring nodes span.
    """

    ranks: int
    per_domain: int
    domains: int
    ring_slowdown: float | None = None
    exchange_slowdown: float | None = None

    @property
    def crosses(self) -> bool:
        """Whether traffic has to leave the scale-up domain."""
        return self.domains > 1
