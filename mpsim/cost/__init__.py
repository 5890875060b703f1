"""Seconds: kernels on one accelerator, collectives and messages between accelerators.

The formulas are pure functions on floats and arrays; a model binds them to one accelerator or
cluster and accounts for every constant.
"""

from mpsim.cost.collectives import CollectiveModel
from mpsim.cost.constants import Constant, Constants, Status, host_constants
from mpsim.cost.curves import CollectiveCurves, Curve, load_curves
from mpsim.cost.formulas import (
    GemmConstants,
    attention_pairs,
    attention_seconds,
    copy_seconds,
    gemm_seconds,
    memory_seconds,
    update_seconds,
)
from mpsim.cost.interference import (
    Interference,
    interference_of,
    straggling_constants,
    straggling_seconds,
)
from mpsim.cost.kernels import KernelModel
from mpsim.cost.layout import LayoutCosts, StageCosts, Transfer, Used
from mpsim.cost.libraries import default_library, library_names
from mpsim.cost.network import COLLECTIVES
from mpsim.cost.power import KERNELS, Board, Load, PowerCurve, load_of, unheld_caps

__all__ = ["COLLECTIVES", "KERNELS", "Board", "CollectiveCurves", "CollectiveModel", "Constant"]
__all__ += ["Constants", "Curve", "GemmConstants", "Interference", "KernelModel", "LayoutCosts"]
__all__ += ["Load", "PowerCurve", "StageCosts", "Status", "Transfer", "Used", "attention_pairs"]
__all__ += ["attention_seconds", "copy_seconds", "default_library", "gemm_seconds"]
__all__ += ["host_constants", "interference_of", "library_names", "load_curves", "load_of"]
__all__ += ["memory_seconds", "straggling_constants", "straggling_seconds", "unheld_caps"]
__all__ += ["update_seconds"]
