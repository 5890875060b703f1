"""Behaviour of a software stack in a step, area by area: the groups of fields of a `Framework`.

Field names are unique across the groups, so that presets and scenarios write them flat. A field
with a default describes a habit that most stacks do not have; a preset states every other field.
"""

import enum
from typing import Annotated, Literal, TypeAlias

from mpsim import structs
from mpsim.nouns import Bytes, Count, Factor, Flag, Number, Plain, Seconds, Whole
from mpsim.workload.expansion import ElementBytes, ElementSize

AttentionKernel: TypeAlias = Literal[
    "flash1", "triton", "flash2", "flash3", "cudnn", "cudnn-2025", "cudnn-fp8", "cudnn-mxfp8"
]
NarrowCasts: TypeAlias = Literal["separate", "norms", "elementwise", "twice"]
ParameterBytes: TypeAlias = Annotated[float, Plain("B a parameter", {"ge": 0.0, "lt": 1e12})]


class TensorOverlap(enum.StrEnum):
    """Products that overlap with the collectives of tensor parallelism."""

    NONE = "none"  # every collective blocks the compute stream
    # the reduction of an input gradient hides behind the weight gradient
    WEIGHT_GRADIENT = "weight-gradient"
    # GEMMs cut in chunks that run beside ring steps, the rest beside other products (user buffers)
    DECOMPOSED = "decomposed"
    # a gather before a product and a reduction behind one are cut, the rest blocks (async TP)
    MICRO_PIPELINE = "micro-pipeline"


class NarrowChunks(enum.StrEnum):
    """Which collectives a micro-pipeline cuts where products are in fp8 or fp4."""

    ALL = "all"
    GATHERS = "gathers"  # a reduction behind a scaled product blocks
    SCATTERS = "scatters"  # a gather before a scaled product blocks


class SelectiveRecompute(enum.StrEnum):
    """Meaning of selective recomputation among a framework's users."""

    CORE_ATTENTION = "core-attention"  # the attention core runs again (Megatron)
    PER_OP = "per-op"  # every second matrix product and attention are kept (torchtitan)


class ContextExchange(enum.StrEnum):
    """How context-parallel ranks see each other's keys and values."""

    ALL_GATHER = "all-gather"  # gathered before attention, blocking
    RING = "ring"  # blocks pass around a ring beside the attention of the block before
    # a ring whose blocks all come by one gather beside the first step (torch)
    GATHERED_RING = "gathered-ring"
    ULYSSES = "ulysses"  # all-to-all from sequence to heads and back, blocking
    HIERARCHICAL = "hierarchical"  # all-to-all inside a scale-up domain, ring across domains


class BlockingSends(enum.StrEnum):
    """Where a rank waits for its messages to other stages between two actions."""

    NEVER = "never"
    PLAIN = "plain"  # in GPipe and 1F1B; all other schedules overlap them
    ALWAYS = "always"
    # always, and a forward's message and a backward's are no exchange: the activation goes first
    ONE_WAY = "one-way"


class StageSplit(enum.StrEnum):
    """Ways in which a framework can divide layers among pipeline stages."""

    EVEN = "even"  # as many on each
    ENDS = "ends"  # the first and the last rank have numbers of their own
    ACCOUNTED = "accounted"  # that, or embedding and loss each take the place of one layer
    ANY = "any"  # any list


class GradientOverlap(enum.StrEnum):
    """When the reduction of gradients over data parallelism may run beside the last backward."""

    NEVER = "never"
    WITHOUT_PIPELINE = (
        "without-pipeline"  # only where one stage holds the whole model (torch DDP under Megatron)
    )
    ALWAYS = "always"
    # of a share beside the backward; sums between copies behind the last (XLA moves them out of its
    # loop over layers)
    SHARDS = "shards"


class Reduction(enum.StrEnum):
    """Which collective sums gradients where each rank needs only its share."""

    REDUCE_SCATTER = "reduce-scatter"
    ALL_REDUCE = "all-reduce"  # of the whole bucket, of which each rank keeps its share
    ROOTED = "rooted-reduce"  # one reduce to each owner


class ParameterGather(enum.StrEnum):
    """Which collective hands out updated parameters of a sharded optimizer."""

    ALL_GATHER = "all-gather"
    BROADCAST = "broadcast"  # one from each owner


class ExpertDispatch(enum.StrEnum):
    """How tokens reach their experts."""

    ALL_TO_ALL = "all-to-all"
    ALL_GATHER = "all-gather"  # every rank gets every token and keeps its own
    FUSED = "fused"  # one kernel permutes and sends (DeepEP, HybridEP)


class ExpertRegrouping(enum.StrEnum):
    """Where rows that a fused kernel brought are put in the order of their experts, and back."""

    KERNEL = "kernel"  # between exchange and experts (DeepEP)
    BESIDE = "beside"  # on the stream of the exchange, with which it hides (HybridEP)
    FUSED = "fused"  # inside the exchange (HybridEP, --moe-permute-fusion-into-hybridep)


class ExpertOverlap(enum.StrEnum):
    """Kernels that overlap with dispatch and combine of experts."""

    NONE = "none"
    SHARED_EXPERT = "shared-expert"  # the shared expert's MLP
    MICROBATCH = "microbatch"  # the attention and MLP of another microbatch in the opposite pass


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class KernelBehaviour:
    """Which kernels run."""

    attention_kernel: AttentionKernel
    """Generation of the fused attention kernel (`flash1`, `triton`, which is that in Triton,
    `flash2`, `flash3`, `cudnn`, `cudnn-2025` before its releases of 2025-12, `cudnn-fp8` and
    `cudnn-mxfp8` for narrow attention on Blackwell); unused where scores are materialised."""
    memory_kernel_factor: Factor
    """Time of memory-bound kernels relative to the cost model's default: above 1 for eager kernels
    that are not fused, below 1 for compiled ones."""
    narrow_head: Flag = False
    """Whether the output projection, too, runs in a narrow `training.precision`."""
    narrow_casts: NarrowCasts = "separate"
    """Kernels that make tensors fp8 with one scale: `separate` ones, norms of what products read
    (`norms`, delayed scaling of Transformer Engine), elementwise ones too (`elementwise`, XLA), or
    separate ones that read all but a norm's output `twice` (current scaling)."""
    softmax_group: Whole = 0
    """The fused softmax needs a microbatch's heads on a rank to be a multiple of this, else it
    falls apart; 0 for any number."""
    recompute_selective: SelectiveRecompute = SelectiveRecompute.CORE_ATTENTION
    """Meaning of `training.recompute: selective` without modules, as the stack's users have it."""
    recompute_stops_early: Flag = False
    """Whether full recomputation of a layer ends with the last value that a gradient reads (torch's
    non-reentrant checkpoint from 2.1 on), so that the last product does not run again."""
    recompute_prunes: Flag = False
    """Whether nothing runs again that no gradient reads, whatever kernel it is in, because the
    backward pass is compiled."""
    recompute_keeps_fp4: Flag = True
    """Whether per-op recomputation keeps what products in fp4 return: their operators are on the
    list of those that it saves."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class TensorBehaviour:
    """Tensor and context parallelism."""

    tensor_overlap: TensorOverlap
    narrow_chunks: NarrowChunks = NarrowChunks.ALL
    """With `tensor_overlap` micro-pipeline, in fp8 or fp4."""
    narrow_gathers: Flag = False
    """Whether gathers before products in fp8 or fp4 carry elements that are cast already."""
    scale_reductions: Flag = False
    """Whether the scale of every tensor in fp8 is found by an all-reduce over tensor parallelism,
    of inputs, gradients and weights in every pass (dynamic scales of whole tensors)."""
    keeps_gathered: Flag = False
    """Whether a gathered input stays until the weight gradient, which else gathers it again."""
    copies_parts: Flag = False
    """Whether gathers and reduce-scatters of tokens copy the whole tensor, because the collectives
    work along the first dimension and tokens are the second (torch's functional collectives)."""
    loss_reductions: Whole = 3
    """All-reduces of one float32 a token in the vocabulary-parallel loss; 0 where logits are
    gathered for a loss that every rank computes whole."""
    context_exchange: ContextExchange = ContextExchange.RING
    eager_context_sums: Flag = False
    """Whether the steps of a ring are summed in float32 by kernels of one operation each (torch's
    experimental context parallelism), or by one kernel in the precision of activations."""
    norm_reductions: Whole = 0
    """All-reduces of a norm's weight or bias over tensor parallelism in each forward of a layer
    (BLOOM)."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class PipelineBehaviour:
    """Messages between stages."""

    scatter_gather: Flag
    """A stage sends 1/tp of its output from each tensor-parallel rank and gathers it over scale-up
    links on arrival."""
    blocking_sends: BlockingSends
    overlap_warmup_flush: Flag
    """Whether overlapped messages are so in warm-up and flush too."""
    stage_gathers: Whole = 0
    """With `scatter_gather`, further full-size all-gathers over tensor parallelism for each
    backward of a stage (DeepSpeed rebuilds its own output)."""
    send_messages: Count = 1
    """Messages in which one tensor travels; each pays the latency."""
    stage_split: StageSplit = StageSplit.ANY
    """How layers can be divided among stages."""
    has_pipeline: Flag = True
    """Whether the engine runs a pipeline: `parallelism.pp` above 1."""
    has_chunks: Flag = True
    """Whether a rank may hold several chunks of layers, as interleaved schedules need."""
    whole_groups: Flag = False
    """Whether interleaved schedules run whole groups of `parallelism.pp` microbatches alone
    (Megatron-LM where `microbatch_group_size_per_vp_stage` is left out)."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class DataBehaviour:
    """Data parallelism: gradients and parameters between replicas."""

    gradient_overlap: GradientOverlap
    parameter_gather_overlap: Flag
    """With a sharded optimizer, gather parameters beside the first forward instead of after the
    optimizer."""
    bucket_bytes: Bytes
    """Gradients are reduced in buckets of at least this size when overlapped [B]."""
    bucket_copies: Whole = 0
    """Buckets in memory beside the gradients, at most as many as those fill; 0 where buckets are
    parts of the gradients themselves."""
    gradient_reduction: Reduction = Reduction.REDUCE_SCATTER
    """With a sharded optimizer; otherwise gradients are all-reduced."""
    reduce_every_microbatch: Flag = False
    """Reduce after every backward instead of the last one of a step. Always so where gradients are
    sharded (ZeRO 2 and 3) unless `defer_reduction`."""
    defer_reduction: Flag = False
    """With sharded gradients or parameters and several microbatches, keep whole gradients and
    reduce once a step (pipelining under FSDP)."""
    first_bucket_bytes: Bytes = 0.0
    """Size of the first bucket to be reduced; 0 for as the others (torch DDP: 1 MiB) [B]."""
    buckets_in_flight: Whole = 0
    """Reductions under way before the compute stream waits for the oldest; 0 for any number."""
    bucket_bytes_per_replica: Bytes = 0.0
    """Buckets are no smaller than this for each replica (Megatron-Core: they grow with data
    parallelism) [B]."""
    first_chunk_buckets: Flag = False
    """Whether only the first chunk of the first pipeline rank is cut into buckets and every other
    chunk is one (Megatron-Core)."""
    reduced_bytes: ElementBytes = 0
    """Bytes of a gradient element as it travels; 0 for as it is kept."""
    gathered_bytes: ElementBytes = 0
    """Bytes of a parameter element as it is gathered; 0 for as it is computed with."""
    owned_tensors: Whole = 0
    """Tensors of a layer that are dealt out whole to owners (InternEvo); 0 where every rank owns an
    even share."""
    parameter_gather: ParameterGather = ParameterGather.ALL_GATHER
    unit_layers: Count = 1
    """Layers gathered together where parameters are sharded (FSDP unit)."""
    units_in_flight: Count = 2
    """Gathered units alive at a time: the gather of one may run beside the compute of the one
    before it with 2; 1 exposes every gather."""
    prefetch_backward: Flag = True
    """Whether the gather of the next unit of a backward pass is queued before the reduction of the
    present one."""
    reshard_after_forward: Flag = True
    """Whether a unit is gathered again for the backward pass."""
    root_unit: Flag = True
    """Whether embedding, final norm and head are one unit that is gathered first and kept (FSDP
    root), not one each."""
    pipeline_unsharded: Flag = True
    """Whether, with several stages, a stage gathers its parameters once a schedule and reduces
    their gradients once, after its last backward (torch.distributed.pipelining), whatever
    `reshard_after_forward` says; once a step of several schedules with `defer_reduction`."""
    zero_limit: Whole = 3
    """Highest stage of sharding (`parallelism.zero`) that the stack has."""
    pipeline_zero_limit: Whole = 3
    """Highest stage of sharding that the stack has with several pipeline stages."""
    gather_rank_time: Seconds = 0.0
    """Further time of the gather or reduction of a unit for each of its ranks: views and copies of
    a collective that gives or takes a list of tensors [s]."""
    gather_copy_traffic: ParameterBytes = 0.0
    """Memory traffic on the compute stream to lay out a gathered unit [B per parameter]."""
    reduce_copy_traffic: ParameterBytes = 0.0
    """Memory traffic on the compute stream before reducing a unit [B per parameter]."""
    accumulation_traffic: ParameterBytes = 0.0
    """Memory traffic per parameter and microbatch, but the first where `drops_gradients`, to add
    whole gradients to those kept, beyond what the weight gradient itself moves [B]."""
    fusion_cycle: Seconds = 0.0
    """Time between two looks for gradients to reduce (Horovod); 0 where reductions start as soon as
    they are ready [s]."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerBehaviour:
    """Model states and the optimizer step."""

    gradient_bytes: ElementSize
    """Bytes of a gradient element as kept."""
    parameter_bytes: ElementSize
    """Bytes of a parameter as kept: as computed with, or an fp32 copy cast before each use [B]."""
    optimizer_bytes: ParameterBytes
    """Bytes of the optimizer's state, master copy and moments, of a parameter [B]."""
    optimizer_traffic: ParameterBytes
    """Memory traffic of the optimizer step per owned parameter [B]."""
    gradient_norm: Flag
    """A global gradient norm synchronises all stages before the optimizer."""
    host_optimizer_traffic: ParameterBytes = 28.0
    """Traffic of the host's memory where the optimizer steps there [B per owned parameter]: states,
    gradients and parameters once with a fused kernel, several times with one operation each."""
    gradient_scratch: ElementBytes = 0
    """Bytes per element of a buffer for every distinct shape of a layer's weights (Transformer
    Engine's dummy gradients); 0 without."""
    microbatch_gradients: ElementBytes = 0
    """Bytes per element of the gradients that a whole backward collects before they are added to
    those kept (DeepSpeed's BF16_Optimizer); 0 where each is added, or is kept, at once."""
    step_scratch: ParameterBytes = 0.0
    """Bytes of each owned parameter alive only while the optimizer steps: lists of torch's foreach
    kernels, or fp32 copies of gradients."""
    paged_bytes: ParameterBytes = 0.0
    """State of each owned parameter in managed memory, outside the allocator (paged optimizers): it
    goes to the device and back in every step unless there is room for all of it."""
    tensor_scratch: ParameterBytes = 0.0
    """Bytes of each element of the largest weight alive while that one steps."""
    orthogonal_iterations: Whole = 0
    """Iterations of Newton and Schulz on each matrix of a layer before its update (Muon)."""
    orthogonal_gather: ElementBytes = 0
    """Bytes of each element of those matrices that ranks which share the state gather before."""
    other_states: ParameterBytes = 0.0
    """State of a parameter of no matrix of a layer, beyond that of the matrices [B]."""
    repeated_share: Number = 0.0
    """Share of a step's forwards and backwards that the optimizer runs again for its estimates."""
    host_threads: Whole = 1
    """Cores on which a rank steps where the host has its state (torchrun sets OMP_NUM_THREADS to
    1); 0 for as many as the host's memory keeps busy."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBehaviour:
    """Lifetimes of tensors: kept, made again, narrow or divided, and of what is gathered."""

    keeps_narrow: Flag = False
    """Whether inputs of products in a narrow format are kept as they were cast (Transformer
    Engine), or wide and cast again in backward (torchao)."""
    narrow_activations: Flag = False
    """Whether inputs of the activations of MLP and experts are kept narrow too (Megatron-Core's
    `activation_func_fp8_input_store`)."""
    transposed_weights: Flag = True
    """Whether narrow copies of wide weights, and transposed ones of narrow weights where products
    need them, stay from one use to the next."""
    remade_products: Flag = False
    """Whether what an activation returns is made again in the backward, from what the activation
    read, instead of kept (fused SwiGLU; policies of XLA that save products)."""
    remade_norms: Flag = False
    """Whether what a norm returns is made again from its input."""
    stacks_kept: Flag = False
    """Whether what a layer keeps is copied into a stack of all layers and out of it (XLA's scans,
    beside kernels of libraries)."""
    frees_weights: Flag = False
    """Whether each gathered weight is freed after its product and each gradient reduced at once,
    instead of whole units (XLA, DeepSpeed's ZeRO-3)."""
    divides_kept: Flag = False
    """Whether what is kept between products is divided over tensor parallelism without sequence
    parallelism too, as XLA divides it over every axis of its mesh."""
    drops_gradients: Flag = False
    """Whether gradients are freed after the optimizer (torch's `zero_grad`): on one device, or more
    where `frees_weights`, a step of one microbatch keeps its activations before there are any."""
    places_buffers: Flag = False
    """Whether a compiler places every buffer ahead, so that no memory is lost between them."""
    expandable_segments: Flag = False
    """Whether torch's allocator grows one segment a pool (``expandable_segments:True`` of
    PYTORCH_ALLOC_CONF), on chips of NVIDIA."""
    steps_in_backward: Flag = False
    """Whether each parameter is updated as soon as its gradient is there, which is freed then; for
    one microbatch a step on one stage."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class HostBehaviour:
    """Work of the host while the device computes: launches, waits, and what they cost."""

    launch_cost: Seconds
    """Host time of one kernel launch on an x86 server where it cannot run ahead of the device, 0
    where launches are hidden or captured; Grace takes 2.5 times as long for all host times [s]."""
    layer_launches_forward: Whole
    """Kernels that one layer launches in each direction, without recomputation."""
    layer_launches_backward: Whole
    """Kernels that one layer launches in each direction, without recomputation."""
    step_overhead: Seconds
    """Serial host time per step: logging, data, bookkeeping [s]."""
    backward_launch_cost: Seconds = 0.0
    """Host time of one kernel launch in a backward pass, where autograd's engine calls instead of
    Python; 0 for as `launch_cost` [s]."""
    collective_launch_cost: Seconds = 0.0
    """Host time of issuing a collective of a layer or an end where it cannot run ahead; 0 where
    `layer_launches_forward` and its like count it [s]."""
    softmax_launches: Whole = 0
    """Further launches of each pass of a layer where the fused softmax falls apart."""
    step_rank_time: Seconds = 0.0
    """Serial host time per step for each rank of the job: collectives of metrics whose output is
    one tensor a rank [s]."""
    narrow_launches: Number = 1.0
    """Host time of a layer in fp8 or fp4 over that in 16 bits, at least 1: scales, casts and their
    bookkeeping."""
    collective_cost: Seconds = 0.0
    """Further time of a collective inside a layer over a benchmark of its library: its launch,
    and events between two streams [s]."""
    layer_host_time: Seconds = 0.0
    """Host time of each pass of a layer beyond its launches, such as Python hooks of its submodules
    [s]."""
    launch_blocking: Flag = False
    """Every launch waits for its kernel: host time adds up instead of hiding, and nothing overlaps
    (CUDA_LAUNCH_BLOCKING)."""
    layer_synchronizations: Whole = 0
    """Times each pass of a layer waits for the device, after which the first kernel's launch is
    exposed."""
    stage_synchronizations: Whole = 0
    """Times each action of a stage (the forward or backward of one microbatch) waits for the
    device."""
    synchronization_cost: Seconds = 0.0
    """Exposed time of one wait of a layer or a stage [s]."""


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class ExpertBehaviour:
    """Mixture of experts."""

    expert_dispatch: ExpertDispatch = ExpertDispatch.ALL_TO_ALL
    expert_regrouping: ExpertRegrouping = ExpertRegrouping.KERNEL
    expert_overlap: ExpertOverlap = ExpertOverlap.NONE
    grouped_gemm: Flag = True
    """One kernel for all local experts, or one each."""
    expert_launches: Whole = 0
    """Kernels shorter than their launch that router, dispatch and combine launch in each pass of a
    layer."""
    product_launch_cost: Seconds = 0.0
    """Host time of one expert's product, or of the cast before it, where one call of the framework
    issues all of them (a loop in C++); 0 for as any launch [s]."""
    expert_synchronizations: Whole = 1
    """Times a forward of an expert layer waits for the device to know its token counts."""
    consecutive_experts: Flag = False
    """Whether a forced routing gives a token experts that follow each other, which few ranks have
    (AutoModel's fake balanced gate); without it they are any."""
    expert_padding: Flag = False
    """Whether rows of experts in fp8 or fp4 are copied to counts that such products take, and back,
    where no fused dispatch does it on its way (Transformer Engine's Fp8Padding)."""
