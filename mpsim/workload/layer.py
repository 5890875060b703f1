"""One transformer layer as operators: serial, a parallel block, of an encoder or decoder; its MLP
is plain, or routed to experts with some that every token passes.
"""

from __future__ import annotations

from collections.abc import Iterator

from mpsim import structs
from mpsim.workload import attention
from mpsim.workload.builders import LABEL_BYTES, STATISTIC_BYTES, gemm_flops, linear, moving
from mpsim.workload.expansion import Expansion, Lowering, Step, Tokens
from mpsim.workload.operators import Module, OperatorKind, Role, Split
from mpsim.workload.parts import Part
from mpsim.workload.transformer import LayerKind, Transformer
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


def expand_layer(
    model: Transformer,
    lowering: Lowering,
    *,
    sequences: int,
    sequence_length: int,
    context: int = 1,
    kind: str = "dense",
    document: int = 0,
) -> Expansion:
    """Expand one layer for one microbatch on one rank, before tensor parallelism.

    `lowering`: what the framework fuses, and the size of its elements. `sequences`: sequences of
    the microbatch, at least 1. `sequence_length`: tokens of each; `context` divides it. Where there
    is an encoder it is the encoder's; decoders have ``model.decoder_length``. `context`:
    context-parallel degree: this rank holds ``sequence_length / context`` tokens of every sequence
    and attends to all keys (balanced, so that causal work halves evenly). `kind`: one of
    ``model.layer_kinds``. `document`: tokens that attend to each other where several samples share
    a sequence; 0 for all [tokens].

    Returns: forward in order of execution, backward in reverse. Raises WorkloadError: if the
    sequence does not divide among the context-parallel ranks, or the model has no layer of this
    kind.

    Notes
    -----
    A GPT layer (b sequences, s tokens, h hidden) has ``24 b s h^2 (1 + s / 6h)`` FLOP forward and
    saves ``s b h (34 + 5 a s / h)`` bytes with a heads, unfused attention and dropout.

    References
    ----------
    Narayanan et al., Efficient Large-Scale Language Model Training (SC'21), appendix; Korthikanti
    et al. (2022), equation 1; Chowdhery et al., PaLM (2022), section 2 for the parallel block.

    Examples
    --------
    >>> from mpsim.workload import Lowering, model
    >>> layer = expand_layer(model("gpt2-small"), Lowering(), sequences=1, sequence_length=1024)
    >>> [operator.role.value for operator in layer.forward][:4]
    ['norm', 'qkv', 'attention', 'projection']
    """
    layer = model.kind(kind)
    tokens = Tokens.of(sequences, sequence_length, context)
    if layer.cross:
        mine = Tokens.of(sequences, model.decoder_length, context)
        memory = structs.replace(tokens, queries=tokens.keys)  # every rank needs all of them
        part = Part(model, lowering, mine)
        steps = _decoder_block(part, layer, memory)
    else:
        part = Part(model, lowering, tokens, document)
        steps = (_parallel_block if model.parallel_block else serial_block)(part, layer)
    inputs = part.size(model.hidden, stream=True)
    return Expansion.of(steps, input_bytes=inputs, input_split=Split.SEQUENCE)


def serial_block(part: Part, kind: LayerKind) -> Iterator[Step]:
    """Expand a layer whose mixer and MLP follow each other."""
    if kind.mixer == "state" and part.model.state is not None:
        from mpsim.workload.scan import state_mixer

        yield part.norm(Module.STATE, "norm1")
        yield from state_mixer(part, part.model.state)
        yield from part.add(Module.STATE, "1")
    elif kind.mixer == "attention":
        yield part.norm(Module.ATTENTION, "norm1")
        yield from attention.own_attention(part, kind)
        yield from part.add(Module.ATTENTION, "1")
    if kind.mlp:
        yield from _mlp(part, kind)


def _decoder_block(part: Part, kind: LayerKind, memory: Tokens) -> Iterator[Step]:
    yield part.norm(Module.ATTENTION, "norm1")
    yield from attention.own_attention(part, kind)
    yield from part.add(Module.ATTENTION, "1")
    yield part.norm(Module.CROSS_ATTENTION, "norm_cross")
    yield from attention.cross_attention(part, kind, memory)
    yield from part.add(Module.CROSS_ATTENTION, "_cross")
    yield from _mlp(part, kind)


def _mlp(part: Part, kind: LayerKind) -> Iterator[Step]:
    yield part.norm(Module.MLP, "norm2")
    moe = part.model.moe
    yield from expert_mlp(part, moe) if kind.experts and moe else plain_mlp(part)
    yield from part.add(Module.MLP, "2")


def _parallel_block(part: Part, kind: LayerKind) -> Iterator[Step]:
    model = part.model
    yield part.norm(Module.ATTENTION, "norm1")
    features = model.qkv_features + model.fc1_features
    weights = attention.QKV_WEIGHTS + gate_and_up(model)
    saved = attention.kept_of_qkv(part) + model.fc1_features
    yield part.column((Module.ATTENTION, Role.QKV_UP), "qkv_fc1", features, saved, weights=weights)
    yield from activation(part)
    yield from attention.positions(part)
    yield from attention.attention_core(attention.Core.of(model, kind), part.lowering, part.tokens)
    down = Module.ATTENTION, Role.PROJECTION_DOWN
    yield part.row(down, "proj_fc2", model.query_features + model.ffn_hidden)
    yield from part.add(Module.ATTENTION, "1")
