"""Pools: equal instances of a service, and how prompts get from one pool to another."""

from __future__ import annotations

import dataclasses
from typing import NamedTuple

from mpsim.scenario.serving import Autoscale
from mpsim.serving.batching import BatchRules
from mpsim.serving.prices import IterationPrices
from mpsim.serving.transfers import CacheNetwork

__all__ = ["Handover", "Outage", "Pool"]


class Outage(NamedTuple):
    """Time in which an instance is down [s]."""

    instance: int
    start: float
    end: float


@dataclasses.dataclass(frozen=True, slots=True)
class Pool:
    """Equal instances that do the same.

    Parameters
    ----------
    blocks : int
        Blocks of cache of each instance.
    apart : bool
        Whether ranks that keep requests of their own are simulated one by one, each with its part of sequences, tokens and blocks, not as one that spreads them evenly.
    paces : tuple of float
        Time of each instance over that of one without slow ranks; all 1 if empty.
    """

    prices: IterationPrices
    rules: BatchRules
    blocks: int
    replicas: int = 1
    apart: bool = False
    paces: tuple[float, ...] = ()
    outages: tuple[Outage, ...] = ()
    scaling: Autoscale | None = None

    def pace(self, replica: int) -> float:
        """Time of an instance over that of one without slow ranks."""
        return self.paces[replica] if self.paces else 1.0

    @property
    def ranks(self) -> int:
        """Ranks of an instance that are simulated one by one."""
        return self.prices.work.attention_dp if self.apart else 1

    @property
    def rank_rules(self) -> BatchRules:
        """How one of them forms iterations."""
        rules, ranks = self.rules, self.ranks
        return dataclasses.replace(
            rules,
            max_sequences=max(1, rules.max_sequences // ranks),
            max_tokens=max(1, rules.max_tokens // ranks),
        )

    @property
    def lanes(self) -> int:
        """Batches that run beside each other: one a pipeline stage of every instance."""
        return self.replicas * self.prices.work.pp

    @property
    def room(self) -> int:
        """Tokens that the cache of one batch holds, or of one rank of it that keeps requests of its own."""
        return self.blocks // (self.prices.work.pp * self.ranks) * self.rules.block


@dataclasses.dataclass(frozen=True, slots=True)
class Handover:
    """How prompts get from the pool that computes them to the one that decodes.

    Parameters
    ----------
    network : CacheNetwork
        From instances that compute prompts to those that decode.
    token_bytes : float
        Keys and values of a token, on all ranks that decode it [B].
    samples_first : bool
        Whether the pool that decodes gives the first token, not the one that computed the prompt.
    """

    prefill: Pool
    network: CacheNetwork
    token_bytes: float
    samples_first: bool = False
