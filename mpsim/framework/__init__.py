"""How a software stack runs the step: what overlaps, what blocks, which kernels, what it keeps."""

from mpsim.framework.framework import (
    ATTENTION_KERNELS,
    BlockingSends,
    Framework,
    GradientOverlap,
    TensorOverlap,
    from_mapping,
)
from mpsim.framework.presets import framework, framework_names

__all__ = [
    "ATTENTION_KERNELS",
    "BlockingSends",
    "Framework",
    "GradientOverlap",
    "TensorOverlap",
    "framework",
    "framework_names",
    "from_mapping",
]
