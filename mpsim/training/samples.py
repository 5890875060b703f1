"""Samples of fine-tuning: how long sequences are that are padded to their longest, and how far attention reaches among samples packed together."""

from __future__ import annotations

import math
import statistics
from typing import NamedTuple

from mpsim.scenario import Scenario
from mpsim.scenario.serving import LengthChoice

__all__ = ["Samples", "longest_of", "samples_of"]

_POINTS = 1000  # quantiles of a distribution: the mean of the longest of some thousands is within a per cent


class Samples(NamedTuple):
    """Sequences that samples of some lengths make.

    Parameters
    ----------
    computed : int
        Tokens of a sequence as it is computed, on average.
    document : int
        Tokens that attend to each other where samples share a sequence; 0 where each has one.
    used : float
        Tokens of samples over those computed.
    """

    computed: int
    document: int = 0
    used: float = 1.0


def samples_of(scenario: Scenario) -> Samples:
    """Sequences of a training step.

    Notes
    -----
    Packed samples fill a sequence, and the pairs of a token are ``E[l^2] / E[l]``. Padded ones are as long as the longest of a microbatch, whose mean is the integral of
    ``1 - F(l)^n`` over n samples; where a step has one microbatch every replica waits for the longest of all. Lengths end at the sequence length.
    """
    training = scenario.training_step
    length, lengths = training.sequence_length, training.lengths
    if lengths is None:
        return Samples(length)
    drawn = [min(each, length) for each in _quantiles(lengths)]
    mean = statistics.fmean(drawn)
    if training.packing:
        squares = statistics.fmean(each * each for each in drawn)
        return Samples(length, min(round(squares / mean), length))
    count = training.micro_batch * (scenario.dp if scenario.microbatches == 1 else 1)
    shares = [(place / _POINTS) ** count for place in range(_POINTS + 1)]
    longest = sum(
        each * (later - earlier)
        for each, earlier, later in zip(drawn, shares, shares[1:], strict=False)
    )
    step = scenario.parallelism.tp * scenario.parallelism.cp
    computed = min(math.ceil(longest / step) * step, length)
    return Samples(computed, 0, min(mean / computed, 1.0))


def longest_of(scenario: Scenario) -> int:
    """Tokens of the longest sequence that comes."""
    training = scenario.training_step
    lengths = training.lengths
    if lengths is None or lengths.kind == "lognormal":
        return training.sequence_length
    return min(lengths.tokens, training.sequence_length)


def _quantiles(lengths: LengthChoice) -> list[float]:
    """Lengths at the middle of equal shares of all samples, shortest first."""
    shares = [(place + 0.5) / _POINTS for place in range(_POINTS)]
    tokens = float(lengths.tokens)
    if lengths.kind == "uniform":
        least = lengths.shortest * tokens
        return [least + share * (tokens - least) for share in shares]
    if lengths.kind == "lognormal" and lengths.spread:
        variance = math.log1p(lengths.spread**2)
        normal = statistics.NormalDist(math.log(tokens) - variance / 2, math.sqrt(variance))
        return [math.exp(normal.inv_cdf(share)) for share in shares]
    return [tokens] * _POINTS
