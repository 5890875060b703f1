"""Operators: what one layer asks of the hardware, before anybody divides it.

An `Operator` is one kernel of the model for one microbatch on one data- and context-parallel rank,
not divided by tensor parallelism; ``split`` says which of its dimensions tensor parallelism
divides, so that `mpsim.parallel` can shard it without knowing what it is.

Backward operators keep the ``split`` of their forward: the input gradient of a COLUMN GEMM is the
one whose result is reduced, that of a ROW GEMM the one whose incoming gradient is whole.

What an operator is for stands in its `Role` and in the `Module` it belongs to, never in its name: a
name is what a trace shows. Gradients keep role and module of their forward operator, and so do the
casts of what a product reads.

Only forward operators report saved bytes. Every kept tensor is reported once, by an operator placed
so that dropping the ``saved`` of the attention core is exactly what running it again saves: what
goes into the core (q, k, v) is reported before it, what comes out of it by the output projection.
"""

from __future__ import annotations

import enum

from mpsim import structs


class OperatorKind(enum.StrEnum):
    """Which cost form applies."""

    GEMM = "gemm"  # batch x (m, k) @ (k, n)
    # batch experts, each (m, k) @ (k, n); m is the mean of tokens an expert gets
    GROUPED_GEMM = "grouped_gemm"
    ATTENTION = "attention"  # one fused kernel
    SCAN = "scan"  # a state along a sequence, in chunks: kernels of small products
    NORM = "norm"  # memory bound, fused row reduction
    SOFTMAX = "softmax"  # memory bound
    ELEMENTWISE = "elementwise"  # memory bound
    EAGER = "eager"  # memory bound, kernels of the framework that nothing fuses
    EMBEDDING = "embedding"  # memory bound gather or scatter-add
    GATHER = "gather"  # memory bound, rows of tokens in the order of their experts, or summed back
    LOSS = "loss"  # memory bound, over the vocabulary
    QUANTISE = "quantise"  # memory bound, cast to a narrow format


class Module(enum.StrEnum):
    """Part of the model of an operator; norm and residual belong to the module between them."""

    EMBEDDING = "embedding"
    ATTENTION = "attention"
    CROSS_ATTENTION = "cross_attention"  # of a decoder, to the output of the encoder
    MLP = "mlp"
    STATE = "state"  # a mixer that carries a state along the sequence, in place of attention
    VISION = "vision"  # a tower over patches of images, before the first layer
    EXPERTS = "experts"  # router, dispatch and routed experts
    SHARED_EXPERTS = "shared_experts"
    HEAD = "head"
    NONE = "none"  # a kernel on its own, or one that only sharding brings


class Role(enum.StrEnum):
    """Purpose of an operator in its module."""

    # before the first layer
    EMBEDDING = "embedding"
    ONE_HOT = "one_hot"
    POSITIONS = "positions"
    PATCHES = "patches"
    # between modules
    NORM = "norm"
    POST_NORM = "post_norm"
    RESIDUAL_BIAS = "residual_bias"
    RESIDUAL_DROPOUT = "residual_dropout"
    RESIDUAL_ADD = "residual_add"
    BIAS_DROPOUT_ADD = "bias_dropout_add"
    # attention: into the core
    QKV = "qkv"
    QKV_UP = "qkv_up"  # of a parallel block: both first projections
    QUERY = "query"
    KEY_VALUE = "key_value"
    QUERY_DOWN = "query_down"
    QUERY_NORM = "query_norm"
    QUERY_UP = "query_up"
    KEY_VALUE_DOWN = "key_value_down"
    KEY_VALUE_NORM = "key_value_norm"
    KEY_VALUE_UP = "key_value_up"
    QK_NORM = "qk_norm"
    ROTARY = "rotary"
    REPEAT = "repeat"  # keys and values of grouped heads, to all heads
    # attention: the core
    ATTENTION = "attention"
    SCORES = "scores"
    SCALE = "scale"
    MASK = "mask"
    SOFTMAX = "softmax"
    ATTENTION_DROPOUT = "attention_dropout"
    CONTEXT = "context"
    # attention: out of the core
    PROJECTION = "projection"
    PROJECTION_DOWN = "projection_down"  # of a parallel block: both last projections
    ATTENTION_GATE = "attention_gate"
    # state mixer
    STATE_IN = "state_in"
    CONVOLUTION = "convolution"
    SCAN = "scan"
    STATE_NORM = "state_norm"
    STATE_OUT = "state_out"
    # MLP, plain or of experts
    UP = "up"  # with the gate's where there is one
    BIAS = "bias"
    GATE = "gate"
    GATE_TIMES_UP = "gate_times_up"
    ACTIVATION = "activation"
    DOWN = "down"
    # experts
    ROUTER = "router"
    TOP_K = "top_k"
    PERMUTE = "permute"
    UNPERMUTE = "unpermute"
    EXPERT_SUM = "expert_sum"
    # after the last layer
    JOIN = "join"  # of states and the next token's embedding, in multi-token prediction
    LOGITS = "logits"
    LOSS = "loss"
    # what fine-tuning adds
    ADAPTER_DROPOUT = "adapter_dropout"
    ADAPTER_DOWN = "adapter_down"
    ADAPTER_UP = "adapter_up"
    ADAPTER_SUM = "adapter_sum"
    DEQUANTISE = "dequantise"
    # what sharding adds
    COPY = "copy"
    SUM = "sum"
    # a kernel by itself, as benchmarks run it
    KERNEL = "kernel"


ATTENTION_CORE = frozenset(
    {
        Role.ATTENTION,
        Role.SCORES,
        Role.SCALE,
        Role.MASK,
        Role.SOFTMAX,
        Role.ATTENTION_DROPOUT,
        Role.CONTEXT,
    }
)
"""Roles of the attention core: one fused kernel, or the kernels it stands for."""


class Phase(enum.StrEnum):
    """When it runs: forward, input gradient (I) or weight gradient (W)."""

    FORWARD = "forward"
    INPUT_GRADIENT = "input_gradient"
    WEIGHT_GRADIENT = "weight_gradient"

    def of(self, what: str) -> str:
        """Name of a tensor in this phase: itself going forward, its gradient going back."""
        return what if self is Phase.FORWARD else f"{what} gradient"


class Split(enum.StrEnum):
    """How tensor parallelism of degree t divides an operator."""

    COLUMN = "column"  # GEMM with sharded output features: input replicated (or gathered), n / t
    ROW = "row"  # GEMM with sharded input features: k / t, output to be reduced
    TENSOR = "tensor"  # work divided by t (heads, or activations between column and row)
    SEQUENCE = "sequence"  # divided by t only with sequence parallelism
    # experts divided by expert parallelism, their features by expert-tensor parallelism
    EXPERT = "expert"
    NONE = "none"  # never divided


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """One kernel of one phase of one microbatch."""

    name: str
    """What traces show: ``qkv``, ``attention``, ``proj``, ``fc1``, ``norm1``, ``dropout_add`` ...
    Nothing is read out of it."""
    kind: OperatorKind
    role: Role
    phase: Phase
    module: Module = Module.NONE
    split: Split = Split.NONE
    # m, n, k, batch: GEMM shape in *this* phase's own product, (batch x) (m, k) @ (k, n); 0 for
    # other kinds. For a column GEMM in FORWARD (tokens, out, in): COLUMN divides n; its dgrad is
    # (tokens, in, out): COLUMN divides k; its wgrad is (out, in, tokens): divides m. Which one is
    # divided is `sharded_dim`.
    m: int = 0
    n: int = 0
    k: int = 0
    batch: int = 1
    sharded_dim: str = ""
    """``"m"``, ``"n"``, ``"k"``, ``"batch"`` or ``""``: the GEMM dimension that tensor parallelism
    divides."""
    # heads, kv_heads, head_dim, head_dim_v, queries, keys, sequences: Shape of a fused attention
    # kernel; `queries` and `keys` are sequence lengths, `sequences` the batch. A lookup in a table
    # has the last and `queries` too.
    heads: int = 0
    kv_heads: int = 0
    head_dim: int = 0
    head_dim_v: int = 0
    queries: int = 0
    keys: int = 0
    sequences: int = 0
    attends: str = ""
    """What m, n and k of a product of the attention core are, such as ``qkd``: queries, keys,
    features (d)."""
    causal: bool = True
    """Whether the kernel skips the masked half (time); FLOPs are counted in full either way."""
    window: int = 0
    """Sliding window [tokens], 0 for none; like `causal` it shortens the time, not `flops`."""
    flops: float = 0.0
    """Matrix products only, a multiply-add is 2; every query against every key, masked or not
    [FLOP]. Memory-bound kernels count 0."""
    bytes: float = 0.0
    """Moved to and from device memory, every operand once [B]."""
    saved: float = 0.0
    """Activation bytes kept from forward until the input gradient ran, and freed then [B]."""
    saved_for_weight: float = 0.0
    """Activation bytes kept longer, until the weight gradient ran [B]; not part of `saved`. A
    tensor that both gradients need is here, since the weight gradient never runs before the input
    gradient of its layer."""
    saved_split: Split = Split.NONE
    """How tensor parallelism divides `saved` and `saved_for_weight`: TENSOR by t, SEQUENCE by t
    with sequence parallelism only, NONE never."""
    accumulate_bytes: float = 0.0
    """Bytes of an element of the buffer a weight gradient adds into, 0 for other operators; reading
    and writing that buffer is counted in `bytes` instead of writing the product."""
    operand_bytes: float = 0.0
    """Bytes of an element of both inputs of a product where they were cast to a narrow format, 0
    where they were not."""
    weights: int = 1
    """Products with weights of their own that it stands for: their tokens are read, and the
    gradients of those written, once for each."""

    @property
    def place(self) -> tuple[Module, Role]:
        """Where in a layer it stands: a forward operator shares it with gradients and casts."""
        return self.module, self.role

    @property
    def is_cast(self) -> bool:
        """Whether it converts what the product in its place reads."""
        return self.kind is OperatorKind.QUANTISE

    @property
    def in_attention_core(self) -> bool:
        """Whether it is the attention core, or one of its kernels where they are not fused."""
        return self.role in ATTENTION_CORE

    def dimension(self, letter: str) -> str:
        """Which of a core product's m, n, k is queries (``q``), keys (``k``), features (``d``)."""
        return "mnk"[self.attends.index(letter)]

    @property
    def operands(self) -> tuple[int, int, int]:
        """Elements of the two operands of a product, and of its result."""
        return operands_of(self.batch, self.m, self.n, self.k)

    @property
    def repeated_bytes(self) -> float:
        """Moved beyond `bytes` where weights share what is multiplied: read or written anew [B]."""
        if self.weights == 1:
            return 0.0
        left, right, out = self.operands
        ins = left + right
        element = self.operand_bytes
        if self.accumulate_bytes:
            element = (self.bytes - 2 * self.accumulate_bytes * out) / ins
        element = element or self.bytes / (ins + out)
        if self.phase is Phase.INPUT_GRADIENT:
            written = (self.bytes - element * ins) / out
            return (self.weights - 1) * written * out
        shared = left if self.phase is Phase.FORWARD else right
        return (self.weights - 1) * element * shared


def operands_of(batch: int, m: int, n: int, k: int) -> tuple[int, int, int]:
    """Elements of the two operands of a product of some shape, and of its result."""
    return batch * m * k, batch * k * n, batch * m * n
