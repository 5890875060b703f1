"""Operators of state mixers: projections, convolution, and the scan, over a whole sequence or one token of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from mpsim.workload.builders import make_elementwise, moving, streaming
from mpsim.workload.expansion import Step
from mpsim.workload.operators import Module, Operator, OperatorKind, Phase, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.state import StateMixer

__all__ = ["scan_token", "state_mixer"]

_BACKWARD: float = 2.5  # two gradients of each product, and states made again
_FLOAT32 = 4


def state_mixer(part: Part, mixer: StateMixer) -> Iterator[Step]:
    """Expand a state mixer between its norm and its residual addition.

    Yields
    ------
    Step
        The first projection keeps what it returns, from which the backward makes convolution and states anew; the last one its input.

    References
    ----------
    state-spaces/mamba, mamba_ssm/ops/triton/ssd_combined.py (mamba_split_conv1d_scan_combined); fla-org/flash-linear-attention, fla/ops/gated_delta_rule/chunk.py.
    """
    tokens = part.tokens.count
    yield part.column((Module.STATE, Role.STATE_IN), "in_proj", mixer.features, mixer.features)
    yield streaming(
        "activation",
        Split.TENSOR,
        elements=tokens * mixer.channels,
        lowering=part.lowering,
        role=Role.CONVOLUTION,
        module=Module.STATE,
        name="conv",
    )
    yield _scan(part, mixer)
    yield streaming(
        "gated_activation",
        Split.TENSOR,
        elements=tokens * mixer.inner,
        lowering=part.lowering,
        role=Role.STATE_NORM,
        module=Module.STATE,
        name="gated_norm",
        saved=part.size(mixer.inner),
    )
    yield part.row((Module.STATE, Role.STATE_OUT), "out_proj", mixer.inner)


def _scan(part: Part, mixer: StateMixer) -> Step:
    """The chunked scan with what its kernels move: projected tokens, and float32 states of every chunk."""
    tokens = part.tokens
    chunk = min(mixer.chunk, tokens.queries)
    chunks = tokens.sequences * -(-tokens.queries // chunk)
    flops = mixer.scan_flops(tokens.count, chunk)
    read = part.size(mixer.channels + mixer.inner)
    states = (
        2.0 * _FLOAT32 * chunks * mixer.inner * mixer.state
    )  # written, and read by the chunk behind
    forward, backward = (
        dataclasses.replace(
            make_elementwise(
                Role.SCAN,
                phase,
                moved=times * (read + states),
                kind=OperatorKind.SCAN,
                module=Module.STATE,
                split=Split.TENSOR,
            ),
            flops=work * flops,
        )
        for phase, times, work in (
            (Phase.FORWARD, 1.0, 1.0),
            (Phase.INPUT_GRADIENT, 2.0, _BACKWARD),
        )
    )
    return Step(forward, (backward,))


def scan_token(mixer: StateMixer, sequences: int, *, state_bytes: float = _FLOAT32) -> Operator:
    """One token of each sequence through a mixer's convolution and state, which are read and written."""
    moved = 2.0 * sequences * mixer.state_bytes(state_bytes)
    return moving(
        Role.SCAN, Split.TENSOR, (moved, moved), module=Module.STATE, name="scan token"
    ).forward
