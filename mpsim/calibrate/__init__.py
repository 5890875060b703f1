"""Fits: measurements into a few constants of the cost models, curves, and a machine file."""

from mpsim.calibrate.calibrate import Calibrated, calibrate, calibrate_serving
from mpsim.calibrate.parts import Fit, Score
from mpsim.calibrate.recorded import calibrate_recorded
from mpsim.calibrate.runs import Run, calibrate_runs

__all__ = ["Calibrated", "Fit", "Run", "Score", "calibrate", "calibrate_recorded"]
__all__ += ["calibrate_runs", "calibrate_serving"]
