"""Speculation: tokens that a draft guesses and the model verifies in one iteration.

Of `tokens` drafted ones the leading right ones are kept, and one more that the model itself gives:
``1 + a + a^2 + ... + a^s`` in the mean, for `s` tokens that are right with probability `a` each
[1]_; ``1 + a1 + a1 a2 + ...`` where later ones are right less often.

References
----------
.. [1] Leviathan, Kalman, Matias, Fast Inference from Transformers via Speculative Decoding, ICML
   2023, equation 1.
"""

from __future__ import annotations

import itertools
import math
import operator

from mpsim import structs
from mpsim.serving.work import RankWork
from mpsim.workload import Transformer

HEADS = "mtp"  # a layer of the model's own kind with its head drafts
N_GRAM = "n-gram"  # tokens are looked up in what was said before


@structs.dataclass(frozen=True, slots=True)
class Draft:
    """Drafted tokens of every decoding sequence in each iteration."""

    acceptance: tuple[float, ...]  # probability of each that it is right if those before it are
    # one pass of the draft on a rank; None where drafting costs nothing
    work: RankWork | None = None
    weight_bytes: float = 0.0  # weights on a rank that the draft adds [B]

    @property
    def tokens(self) -> int:
        """Tokens drafted for a sequence in an iteration."""
        return len(self.acceptance)

    @property
    def passes(self) -> int:
        """Passes of the draft: the depth of a tree, whose tokens off the path are wrong."""
        return sum(chance > 0.0 for chance in self.acceptance) or self.tokens

    @property
    def gain(self) -> float:
        """Tokens that a sequence gains in an iteration, in the mean."""
        return 1.0 + math.fsum(itertools.accumulate(self.acceptance, operator.mul))


def last_layer(model: Transformer) -> Transformer:
    """The last layer of a model with its embedding and its head."""
    moe = model.moe
    if moe is not None:
        moe = structs.replace(moe, dense_layers=0, every=1)
    return structs.replace(model, layers=1, mtp_layers=0, moe=moe, full_every=0)
