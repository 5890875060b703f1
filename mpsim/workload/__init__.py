"""The workload: a transformer, its parameters, and the operators that one microbatch asks for."""

from mpsim.workload.builders import (
    attention_flops,
    gemm_flops,
    make_attention,
    make_elementwise,
    make_gemm,
    orthogonal_products,
)
from mpsim.workload.casts import Casting, kept_narrow, with_casts
from mpsim.workload.ends import expand_embedding, expand_head, model_flops, part_flops
from mpsim.workload.expansion import Expansion, Lowering
from mpsim.workload.layer import expand_layer
from mpsim.workload.models import model, model_names, model_year
from mpsim.workload.operators import Module, Operator, OperatorKind, Phase, Role, Split
from mpsim.workload.parameters import Count, Parameters
from mpsim.workload.transformer import Transformer
from mpsim.workload.tuning import ADAPTERS, ALL_TRAINED, Tuning
from mpsim.workload.variants import Experts, LatentAttention, StateMixer, VisionTower

__all__ = ["ADAPTERS", "ALL_TRAINED", "Casting", "Count", "Expansion", "Experts", "LatentAttention"]
__all__ += ["Lowering", "Module", "Operator", "OperatorKind", "Parameters", "Phase", "Role"]
__all__ += ["Split", "StateMixer", "Transformer", "Tuning", "VisionTower", "attention_flops"]
__all__ += ["expand_embedding", "expand_head", "expand_layer", "gemm_flops", "kept_narrow"]
__all__ += ["make_attention", "make_elementwise", "make_gemm", "model", "model_flops"]
__all__ += ["model_names", "model_year", "orthogonal_products", "part_flops", "with_casts"]
