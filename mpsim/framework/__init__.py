"""How a software stack runs the step: what overlaps, what blocks, which kernels, what it keeps."""

from mpsim.framework.behaviour import (
    BlockingSends,
    ContextExchange,
    DataBehaviour,
    ExpertBehaviour,
    ExpertDispatch,
    ExpertOverlap,
    GradientOverlap,
    HostBehaviour,
    KernelBehaviour,
    NarrowChunks,
    OptimizerBehaviour,
    ParameterGather,
    PipelineBehaviour,
    Reduction,
    TensorBehaviour,
    TensorOverlap,
)
from mpsim.framework.framework import ATTENTION_KERNELS, DIMENSIONS, UNITS, Framework, from_mapping
from mpsim.framework.presets import framework, framework_aliases, framework_names

__all__ = [
    "ATTENTION_KERNELS",
    "DIMENSIONS",
    "UNITS",
    "BlockingSends",
    "ContextExchange",
    "DataBehaviour",
    "ExpertBehaviour",
    "ExpertDispatch",
    "ExpertOverlap",
    "Framework",
    "GradientOverlap",
    "HostBehaviour",
    "KernelBehaviour",
    "NarrowChunks",
    "OptimizerBehaviour",
    "ParameterGather",
    "PipelineBehaviour",
    "Reduction",
    "TensorBehaviour",
    "TensorOverlap",
    "framework",
    "framework_aliases",
    "framework_names",
    "from_mapping",
]
