"""Lowering, how software turns a model into kernels, and what comes of it, an expansion: operators
of one part of the model, both passes, in order of execution.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Annotated, TypeAlias

from mpsim import structs
from mpsim.errors import WorkloadError
from mpsim.nouns import Flag, Plain
from mpsim.workload.operators import Operator, Split

ElementSize: TypeAlias = Annotated[int, Plain("B an element", {"ge": 1})]
ElementBytes: TypeAlias = Annotated[int, Plain("B an element", {"ge": 0})]
LogitBytes: TypeAlias = Annotated[float, Plain("B a logit", {"ge": 0, "lt": 1e12})]


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Lowering:
    """How software turns the model into kernels (chosen by the framework preset).

    Raises
    ------
    WorkloadError
        If a size is not positive.
    """

    fused_attention: Flag = True
    """One FlashAttention-like kernel, or scores materialised (two GEMMs, softmax, dropout)."""
    fused_softmax: Flag = True
    """With materialised scores: scale, mask and softmax in one kernel, or three."""
    fused_bias_activation: Flag = True
    """One kernel each, or one kernel an operation."""
    fused_bias_dropout_add: Flag = True
    """One kernel each, or one kernel an operation."""
    merged_qkv: Flag = False
    """Whether queries, keys and values are one tensor, all of which is kept because the values are
    a view of it, or three."""
    separate_projections: Flag = False
    """Whether q, k and v, and gate and up, are products, whose input gradients a kernel adds up
    (each reduced over tensor parallelism, if the sequence is not divided), or one."""
    repeated_keys: Flag = False
    """Whether keys and values of grouped heads are copied out to all heads before attention
    (`repeat_kv`), and kept and sent so."""
    embedding_product: Flag = False
    """Whether tokens are looked up by a product of the table with one-hot rows, as on TPUs, instead
    of a gather."""
    fused_grouped_mlp: Flag = False
    """Whether biases, activation and casts between the products of experts are fused into these
    (Transformer Engine's fused grouped MLP), or kernels of their own, biases one expert after the
    other."""
    compiled_experts: Flag = False
    """Without `fused_grouped_mlp`: whether a clamped gate is one compiled kernel and biases are
    added to all rows at once (AutoModel)."""
    wide_routing: Flag = True
    """Whether weights of routed experts are float32, which every kernel that they enter is then, or
    as wide as activations."""
    weighted_activation: Flag = False
    """Whether the weights of routed experts enter in their activation, so that their output need
    not be kept, or after the experts."""
    eager_routing: Flag = False
    """Whether torch's kernels of one operation each weigh rows of experts in float32, pad and sort
    them and put them back, or one kernel each way."""
    fused_rotary: Flag = True
    """Whether queries and keys are rotated by one kernel, or by kernels of one operation each in
    float32."""
    wide_norms: Flag = False
    """Whether an RMS norm is a chain of float32 kernels that keeps its input and result in float32,
    or one kernel that keeps its input as it came."""
    autocast: Flag = False
    """Whether torch's autocast runs the model: layers keep their input in float32, 16-bit copies of
    all weights stay until the loss is there."""
    activation_bytes: ElementSize = 2
    """Bytes of an activation element (2 for bf16/fp16, 4 for fp32)."""
    weight_grad_bytes: ElementBytes = 4
    """Bytes of an element of the gradient that weight gradients are added into."""
    adapter_bytes: ElementBytes = 0
    """Bytes of an element of adapters and of what they read and return; 0 for as activations are
    (PEFT makes adapters of a 16-bit base float32)."""
    narrow_inputs: ElementBytes = 0
    """Inputs of a product with narrow frozen weights that are kept unread: 1 of this microbatch
    (bitsandbytes before 0.44), 2 with that before it, whose graph is alive still."""
    loss_bytes_per_logit: LogitBytes = 30.0
    """Memory traffic of the loss, forward and backward together [B per logit]."""
    loss_kept_bytes: LogitBytes = 0.0
    """Kept from the loss's forward to its backward [B per logit]; 0 for logits as activations and
    their softmax in float32."""
    loss_peak_bytes: LogitBytes = 0.0
    """Alive at the fullest moment of the loss's backward, what was kept included [B per logit]; 0
    for no more than the output projection's gradients need after it."""

    def __post_init__(self) -> None:
        mistakes = [
            f"lowering: {field} is {getattr(self, field)!r}; it must be a positive number of bytes"
            for field in ("activation_bytes", "weight_grad_bytes", "loss_bytes_per_logit")
            if not getattr(self, field) > 0
        ]
        if mistakes:
            raise WorkloadError("\n".join(mistakes))


@structs.dataclass(frozen=True, slots=True)
class Tokens:
    """The part of a microbatch that one context-parallel rank works on."""

    sequences: int  # sequences of the microbatch
    queries: int  # tokens of each that live on this rank
    keys: int  # tokens of each that its queries attend to: the whole sequence

    @classmethod
    def of(cls, sequences: int, sequence_length: int, context: int) -> Tokens:
        """Divide sequences among `context` ranks; WorkloadError if they do not divide."""
        given = {"sequences": sequences, "sequence_length": sequence_length, "context": context}
        mistakes = [
            f"{name} is {value!r}; it must be a whole number of at least 1"
            for name, value in given.items()
            if type(value) is not int or value < 1
        ]
        if not mistakes and sequence_length % context:
            mistakes.append(
                f"sequence_length {sequence_length} does not divide by the context-parallel degree "
                f"{context}; pad the sequence or choose another degree"
            )
        if mistakes:
            raise WorkloadError("\n".join(mistakes))
        return cls(sequences, sequence_length // context, sequence_length)

    @property
    def count(self) -> int:
        """Tokens on this rank."""
        return self.sequences * self.queries


@structs.dataclass(frozen=True, slots=True)
class Step:
    """One forward operator with the backward operators that answer it, in order."""

    forward: Operator
    backward: tuple[Operator, ...]

    def each(self, change: Callable[[Operator], Operator]) -> Step:
        """The step with all of its operators changed."""
        return Step(change(self.forward), tuple(map(change, self.backward)))


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The operators of one layer, of the embedding or of the head."""

    # forward, backward: In order; a weight gradient follows its GEMM's input gradient.
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    input_bytes: float
    """The input of this part, all that full recomputation keeps of it [B]. It is also in the saved
    bytes of the operator that reads it: add one or the other, never both."""
    input_split: Split
    """How tensor parallelism divides `input_bytes`."""

    @classmethod
    def of(cls, steps: Iterable[Step], *, input_bytes: float, input_split: Split) -> Expansion:
        """Run `steps` forward, and backward in reverse."""
        ordered = tuple(steps)
        return cls(
            forward=tuple(step.forward for step in ordered),
            backward=tuple(gradient for step in reversed(ordered) for gradient in step.backward),
            input_bytes=input_bytes,
            input_split=input_split,
        )

    @property
    def forward_flops(self) -> float:
        """Matrix work of the forward pass, before tensor parallelism [FLOP]."""
        return math.fsum(operator.flops for operator in self.forward)

    @property
    def backward_flops(self) -> float:
        """Matrix work of the backward pass, before tensor parallelism [FLOP]."""
        return math.fsum(operator.flops for operator in self.backward)

    def saved_bytes(
        self, *, tp: int = 1, sequence_parallel: bool = False, selective: bool = False
    ) -> float:
        """Activation bytes that one tensor-parallel rank keeps from forward to backward.

        `tp`: tensor-parallel degree, at least 1. `sequence_parallel`: whether what lies between row
        and column GEMMs is divided too. `selective`: whether the attention core is recomputed
        instead of saved.

        Returns: until the input gradient and until the weight gradient together [B].

        References
        ----------
        Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022),
        equations 1, 2, 4 and 6.
        """
        share = dict.fromkeys(Split, 1.0 / tp)
        share[Split.NONE] = 1.0
        share[Split.SEQUENCE] = 1.0 / tp if sequence_parallel else 1.0
        return math.fsum(
            (operator.saved + operator.saved_for_weight) * share[operator.saved_split]
            for operator in self.forward
            if not (selective and operator.in_attention_core)
        )
