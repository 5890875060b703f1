"""How a software stack runs the step: what overlaps, what blocks, which kernels, what it keeps."""

from mpsim.framework.behaviour import (
    BlockingSends,
    ContextExchange,
    DataBehaviour,
    ExpertBehaviour,
    ExpertDispatch,
    ExpertOverlap,
    ExpertRegrouping,
    HostBehaviour,
    NarrowChunks,
    ParameterGather,
    PipelineBehaviour,
    Reduction,
    SelectiveRecompute,
    StageSplit,
    TensorBehaviour,
    TensorOverlap,
)
from mpsim.framework.framework import AREAS, Framework, mark_of
from mpsim.framework.presets import (
    Optimizer,
    framework,
    framework_aliases,
    framework_line,
    framework_names,
    optimizer,
    optimizer_names,
    selective_of,
    settled_keys,
    stepped_by,
    uncompiled,
)

__all__ = ["AREAS", "BlockingSends", "ContextExchange", "DataBehaviour", "ExpertBehaviour"]
__all__ += ["ExpertDispatch", "ExpertOverlap", "ExpertRegrouping", "Framework", "HostBehaviour"]
__all__ += ["NarrowChunks", "Optimizer", "ParameterGather", "PipelineBehaviour", "Reduction"]
__all__ += ["SelectiveRecompute", "StageSplit", "TensorBehaviour", "TensorOverlap", "framework"]
__all__ += ["framework_aliases", "framework_line", "framework_names", "mark_of", "optimizer"]
__all__ += ["optimizer_names", "selective_of", "settled_keys", "stepped_by", "uncompiled"]
