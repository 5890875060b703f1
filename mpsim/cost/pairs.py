"""All-to-all with unequal parts (all-to-allv): how much its busiest link carries."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpsim.errors import HardwareError
from mpsim.parallel.group import GroupShape

__all__ = ["equal_share", "rail_bytes"]

Floats = NDArray[np.float64]


def equal_share(pair_bytes: ArrayLike, group: GroupShape, *, pxn: bool = True) -> float:
    """Send buffer of an even all-to-all that loads its links as much as this one loads its busiest [B].

    Parameters
    ----------
    pair_bytes : array
        What rank i sends to rank j, n by n; ranks are numbered domain by domain, evenly [B]. The diagonal costs nothing.
    group : GroupShape
    pxn : bool
        Whether a message to another domain leaves by the NIC of its destination's rail (NCCL's PXN), so that NICs even out what
        the ranks of a domain send; else by its sender's.

    Notes
    -----
    An even all-to-all of S sends ``(m-1)/n S`` over each scale-up link (``(m-1)/m S`` where messages to other domains are handed over
    too) and ``(n-m)/n S`` over each NIC, so either kind of link gives an S that would load it as much; the larger counts.
    """
    pairs = _checked(pair_bytes, group)
    n, m = group.ranks, group.per_domain
    shares = [0.0]
    if m > 1:
        out, into = _handed_over(pairs, group, pxn=pxn)
        even = (m - 1) / (m if pxn else n)
        shares.append(float(max(out.max(), into.max())) / even)
    if n > m:
        out, into = rail_bytes(pairs, group, pxn=pxn)
        shares.append(float(max(out.max(), into.max())) * n / (n - m))
    return max(shares)


def _handed_over(pairs: Floats, group: GroupShape, *, pxn: bool) -> tuple[Floats, Floats]:
    """Bytes that each rank sends and receives over its scale-up link [B]."""
    m, d = group.per_domain, group.domains
    by_rail = (pairs if pxn else np.where(_same_domain(group), pairs, 0.0)).reshape(d, m, d, m)
    inside = by_rail.sum(
        axis=2
    )  # by domain of the sender, its place there, and the receiver's place
    inside[:, np.arange(m), np.arange(m)] = 0.0  # on the right rail already
    out: Floats = inside.sum(axis=2).reshape(-1)
    into: Floats = inside.sum(axis=1).reshape(-1)
    return out, into


def rail_bytes(
    pair_bytes: ArrayLike, group: GroupShape, *, pxn: bool = True
) -> tuple[Floats, Floats]:
    """Bytes that each rank's NIC sends and receives [B]."""
    pairs = _checked(pair_bytes, group)
    n, m = group.ranks, group.per_domain
    outside = np.where(_same_domain(group), 0.0, pairs)
    if not pxn:
        return outside.sum(axis=1), outside.sum(axis=0)
    by_rail = outside.reshape(group.domains, m, group.domains, m)
    sent: Floats = by_rail.sum(axis=(1, 2)).reshape(n)  # domain of the sender, rail of the receiver
    return sent, outside.sum(axis=0)


def _same_domain(group: GroupShape) -> NDArray[np.bool_]:
    domain = np.arange(group.ranks) // group.per_domain
    same: NDArray[np.bool_] = domain[:, None] == domain[None, :]
    return same


def _checked(pair_bytes: ArrayLike, group: GroupShape) -> Floats:
    pairs = np.array(pair_bytes, dtype=np.float64)
    n = group.ranks
    if pairs.shape != (n, n):
        raise HardwareError(f"pair_bytes has shape {pairs.shape}, needed ({n}, {n}), one a pair")
    if n != group.per_domain * group.domains:
        raise HardwareError(
            f"{n} ranks do not fill {group.domains} domains of {group.per_domain}; "
            "uneven domains are not supported here"
        )
    if not np.all(np.isfinite(pairs)) or np.any(pairs < 0):
        raise HardwareError("pair_bytes holds a number that is negative or not finite")
    np.fill_diagonal(pairs, 0.0)
    return pairs
