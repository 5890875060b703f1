"""The MLP of a layer: plain, or routed to experts with some that every token passes."""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.workload.builders import LABEL_BYTES, STATISTIC_BYTES, gemm_flops, linear, moving
from mpsim.workload.expansion import Step
from mpsim.workload.operators import Module, OperatorKind, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.transformer import Transformer
from mpsim.workload.variants import Experts


def plain_mlp(part: Part) -> Iterator[Step]:
    """Expand the MLP between its norm and its residual addition."""
    model = part.model
    weights = gate_and_up(model)
    up = Module.MLP, Role.UP
    yield part.column(up, "fc1", model.fc1_features, model.fc1_features, weights=weights)
    yield from activation(part)
    yield part.row((Module.MLP, Role.DOWN), "fc2", model.ffn_hidden)


def gate_and_up(model: Transformer) -> int:
    """Weights of the first projection of a plain MLP."""
    return 2 if model.gated_mlp else 1


def activation(part: Part) -> Iterator[Step]:
    """Expand what lies between the two GEMMs of the plain MLP."""
    model = part.model
    elements = model.ffn_hidden * part.tokens.count
    yield from _activation(part, Module.MLP, elements, gated=model.gated_mlp)


def expert_mlp(part: Part, moe: Experts) -> Iterator[Step]:
    """Expand router, dispatch, experts and combination; then the shared experts.

    Yields
    ------
    Step
        Rows that are sent to experts are counted for all experts of the model, as if one rank had
        them: `Split.EXPERT` leaves to `mpsim.parallel` how they are divided.

    Notes
    -----
    `permute` gathers the rows of each expert and keeps them for the weight gradient of the first
    GEMM; `unpermute` weighs and sums them. With `weighted_activation` the weights enter in the
    activation, else the output of the experts is kept for their gradient.
    """
    model, rows = part.model, moe.rows(part.tokens.count)
    inner, gated = moe.ffn_hidden, model.gated_experts
    fc1 = inner * (2 if gated else 1)
    size = part.lowering.activation_bytes
    yield part.replicated((Module.EXPERTS, Role.ROUTER), "router", moe.experts)
    yield _choice(part, moe)
    yield _permute(part, rows)
    if part.lowering.eager_routing:
        yield _eager_routing(part, round(rows * model.hidden))
    biased = model.bias and not part.lowering.fused_grouped_mlp
    yield _grouped(part, moe, Role.UP, (fc1, model.hidden), size * rows * fc1)
    clamped = biased and gated and not part.lowering.compiled_experts
    if biased and part.lowering.compiled_experts:
        yield _expert_bias(part, "repeated_bias", "experts_fc1_bias", round(rows * fc1))
    yield from _expert_activation(part, round(rows * inner), gated=gated, clamped=clamped)
    yield _grouped(part, moe, Role.DOWN, (model.hidden, inner), size * rows * inner)
    if biased:
        passes = "wide_expert_bias" if part.lowering.wide_routing else "expert_bias"
        yield _expert_bias(part, passes, "experts_fc2_bias", round(rows * model.hidden))
    yield _unpermute(part, rows)
    if moe.shared_features:
        yield from _shared(part, moe.shared_features)


def _shared(part: Part, inner: int) -> Iterator[Step]:
    model, tokens = part.model, part.tokens.count
    weights = gate_and_up(model)
    features = inner * weights
    shared = Module.SHARED_EXPERTS
    yield part.column((shared, Role.UP), "shared_fc1", features, features, weights=weights)
    yield from _activation(part, shared, inner * tokens, gated=model.gated_mlp)
    yield part.row((shared, Role.DOWN), "shared_fc2", inner)
    added, role = tokens * model.hidden, Role.EXPERT_SUM
    yield part.stream("residual_add", shared, added, "shared_add", role=role, split=Split.SEQUENCE)


_PREFIXES = {Module.MLP: "", Module.EXPERTS: "experts_", Module.SHARED_EXPERTS: "shared_"}


def _activation(
    part: Part, module: Module, elements: int, *, gated: bool, split: Split = Split.TENSOR
) -> Iterator[Step]:
    """Expand an activation of so many elements: bias, gate and product, fused or apart."""
    lowering, prefix = part.lowering, _PREFIXES[module]

    def kernel(passes: str, count: int, saved: float = 0.0, name: str = "") -> Step:
        return part.stream(
            passes, module, count, prefix + (name or passes), split=split, saved=saved
        )

    fused = lowering.fused_bias_activation
    if part.model.bias and not fused and module is not Module.EXPERTS:
        name = "fc1_bias" if module is Module.MLP else "bias"
        yield kernel("bias", elements * (2 if gated else 1), name=name)
    if gated and not fused:
        yield kernel("gate", elements, float(lowering.activation_bytes * elements))
        yield kernel("gate_times_up", elements)
    else:
        yield kernel("gated_activation" if gated else "activation", elements, name="activation")


def _expert_activation(part: Part, elements: int, *, gated: bool, clamped: bool) -> Iterator[Step]:
    """Expand the activation of routed experts; with a fused grouped MLP only what it keeps is left,
    which costs no time of its own.

    A gate beside biases is scaled and clamped (GPT-OSS), for which Megatron-Core runs torch's
    kernels one by one (TEGroupedMLP.forward, glu).
    """
    if clamped:
        passes = "wide_clamped_gate" if part.lowering.wide_routing else "clamped_gate"
        name, split = "experts_activation", Split.EXPERT
        yield part.stream(passes, Module.EXPERTS, elements, name, split=split)
        return
    for step in _activation(part, Module.EXPERTS, elements, gated=gated, split=Split.EXPERT):
        free = step.each(lambda kernel: structs.replace(kernel, bytes=0.0))
        yield free if part.lowering.fused_grouped_mlp else step


def _expert_bias(part: Part, passes: str, name: str, elements: int) -> Step:
    """Biases of experts: the second product's are weighed by routing (TEGroupedMLP._apply_bias).

    Those of the first ride in its epilogue there (its `skip_bias_add` is false), not in AutoModel
    (components/moe/experts.py, _apply_bias).
    """
    return part.stream(passes, Module.EXPERTS, elements, name, split=Split.EXPERT)


def _choice(part: Part, moe: Experts) -> Step:
    """Scores of all experts in float32 and the best of them; scores and their places are kept."""
    scores = part.tokens.count * moe.experts
    places = part.tokens.count * moe.top_k * (STATISTIC_BYTES + LABEL_BYTES)
    moved = float((part.lowering.activation_bytes + STATISTIC_BYTES) * scores + places)
    return moving(
        Role.TOP_K,
        Split.SEQUENCE,
        (moved, moved),
        module=Module.EXPERTS,
        name="topk",
        saved=float(STATISTIC_BYTES * scores + places),
        saved_split=Split.SEQUENCE,
    )


def _permute(part: Part, rows: float) -> Step:
    """Copy the rows of every expert together; backward sums the gradients of a token's copies."""
    sent = part.lowering.activation_bytes * rows * part.model.hidden
    return moving(
        Role.PERMUTE,
        Split.SEQUENCE,
        (2 * sent, sent + part.size(part.model.hidden)),
        kind=OperatorKind.GATHER,
        module=Module.EXPERTS,
        saved_for_weight=sent,
        saved_split=Split.EXPERT,
    )


def _eager_routing(part: Part, elements: int) -> Step:
    """Kernels around the gather and the sum; rows in float32 are kept for the weights' gradient."""
    kept = float(STATISTIC_BYTES * elements)
    split = Split.SEQUENCE
    return part.stream("eager_routing", Module.EXPERTS, elements, split=split, saved=kept)


def _unpermute(part: Part, rows: float) -> Step:
    """Weigh and sum what the experts of a token return."""
    sent = part.lowering.activation_bytes * rows * part.model.hidden
    saved = 0.0 if part.lowering.weighted_activation else sent
    return moving(
        Role.UNPERMUTE,
        Split.SEQUENCE,
        (sent + part.size(part.model.hidden), 2 * sent + saved),
        kind=OperatorKind.GATHER,
        module=Module.EXPERTS,
        saved=saved,
        saved_split=Split.EXPERT,
    )


def _grouped(part: Part, moe: Experts, role: Role, features: tuple[int, int], saved: float) -> Step:
    """Build the same GEMM of every expert, on the mean of its rows; FLOPs count rows exactly."""
    rows = moe.rows(part.tokens.count)
    out, into = features
    column = role is Role.UP
    step = linear(
        role,
        Split.COLUMN if column else Split.ROW,
        tokens=max(1, round(rows / moe.experts)),
        features_out=out,
        features_in=into,
        lowering=part.lowering,
        module=Module.EXPERTS,
        name="experts_fc1" if column else "experts_fc2",
    )
    grouped = step.each(
        lambda product: structs.replace(
            product,
            kind=OperatorKind.GROUPED_GEMM,
            split=Split.EXPERT,
            batch=moe.experts,
            flops=gemm_flops(rows, out, into),
            bytes=moe.experts * product.bytes,
        )
    )
    saving = structs.replace(
        grouped.forward,
        saved=saved if column else 0.0,
        saved_for_weight=0.0 if column else saved,
        saved_split=Split.EXPERT,
    )
    return Step(saving, grouped.backward)
