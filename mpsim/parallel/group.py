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
    """

    ranks: int
    per_domain: int
    domains: int

    @property
    def crosses(self) -> bool:
        """Whether traffic has to leave the scale-up domain."""
        return self.domains > 1
