"""Operators of state mixers: projections, convolution, and the scan."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.workload.builders import STATISTIC_BYTES, moving
from mpsim.workload.expansion import Step
from mpsim.workload.operators import Module, OperatorKind, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.variants import StateMixer

_BACKWARD: float = 2.5  # two gradients of each product, and states made again


def state_mixer(part: Part, mixer: StateMixer) -> Iterator[Step]:
    """Expand a state mixer between its norm and its residual addition.

    Yields
    ------
    Step
        The first projection keeps what it returns, from which the backward makes convolution and
        states anew; the last one its input.

    References
    ----------
    state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py (mamba_split_conv1d_scan_combined);
    fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py.
    """
    tokens = part.tokens.count
    yield part.column((Module.STATE, Role.STATE_IN), "in_proj", mixer.features, mixer.features)
    convolved, normed, saved = tokens * mixer.channels, tokens * mixer.inner, part.size(mixer.inner)
    yield part.stream("activation", Module.STATE, convolved, "conv", role=Role.CONVOLUTION)
    yield _scan(part, mixer)
    role, name = Role.STATE_NORM, "gated_norm"
    yield part.stream("gated_activation", Module.STATE, normed, name, role=role, saved=saved)
    yield part.row((Module.STATE, Role.STATE_OUT), "out_proj", mixer.inner)


def _scan(part: Part, mixer: StateMixer) -> Step:
    """The chunked scan with its kernels' traffic: tokens, and float32 states of chunks."""
    tokens = part.tokens
    chunk = min(mixer.chunk, tokens.queries)
    chunks = tokens.sequences * -(-tokens.queries // chunk)
    flops = mixer.scan_flops(tokens.count, chunk)
    read = part.size(mixer.channels + mixer.inner)
    # written, and read by the chunk behind
    states = 2.0 * STATISTIC_BYTES * chunks * mixer.inner * mixer.state
    moved, kind = (read + states, 2.0 * (read + states)), OperatorKind.SCAN
    step = moving(Role.SCAN, Split.TENSOR, moved, kind=kind, module=Module.STATE)
    backward = (structs.replace(each, flops=_BACKWARD * flops) for each in step.backward)
    return Step(structs.replace(step.forward, flops=flops), tuple(backward))
