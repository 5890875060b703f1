"""Work of matrix products as they run, beside the full attention that papers count."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from mpsim.cost.formulas import Floats, attention_pairs
from mpsim.workload.builders import attention_flops
from mpsim.workload.operators import Operator, OperatorKind

__all__ = ["executed_flops"]


def executed_flops(operators: Sequence[Operator]) -> Floats:
    """FLOPs of each operator that really run: of fused attention the pairs that mask and window leave, all else as it is counted [FLOP].

    Never above `Operator.flops`. Attention whose scores are kernels of their own computes every pair, masked or not.
    """
    return np.array([_executed(operator) for operator in operators], dtype=np.float64)


def _executed(o: Operator) -> float:
    if o.kind is not OperatorKind.ATTENTION:
        return o.flops
    pairs = attention_pairs(o.queries, o.keys, causal=o.causal, window=o.window, diagonal=True)
    worked_on = o.sequences * o.heads * float(pairs)
    return attention_flops(worked_on, o.head_dim, o.head_dim_v, o.phase)
