"""Pictures: a Display takes numbers, ``plot()`` draws them, ``save()`` writes a file.

Importing this package does not import matplotlib; drawing does.
"""

from mpsim.plot.answer import AnswerDisplay
from mpsim.plot.attribution import AttributionDisplay
from mpsim.plot.bubbles import BubbleDisplay
from mpsim.plot.comparison import ComparisonDisplay
from mpsim.plot.display import FORMATS, Display
from mpsim.plot.heat import HeatDisplay
from mpsim.plot.links import LinksDisplay
from mpsim.plot.memory import MemoryCurveDisplay, MemoryDisplay, MemoryKindsDisplay
from mpsim.plot.multiples import SweepMultiplesDisplay, draw_sweep
from mpsim.plot.plan import PlanDisplay
from mpsim.plot.plots import Plots
from mpsim.plot.recorded import TimelinesDisplay
from mpsim.plot.roofline import RooflineDisplay
from mpsim.plot.scaling import ScalingDisplay
from mpsim.plot.schedules import SchedulesDisplay
from mpsim.plot.search import SearchDisplay
from mpsim.plot.sensitivity import SensitivityDisplay
from mpsim.plot.service import LatencyDisplay, OccupancyDisplay, ServicePlots
from mpsim.plot.service_study import ServiceFrontDisplay, ServiceRateDisplay
from mpsim.plot.sweep import SweepDisplay
from mpsim.plot.timeline import TimelineDisplay, draw_timeline
from mpsim.plot.utilisation import UtilisationDisplay
from mpsim.plot.validation import AgreementDisplay, ErrorDisplay

__all__ = [
    "FORMATS",
    "AgreementDisplay",
    "AnswerDisplay",
    "AttributionDisplay",
    "BubbleDisplay",
    "ComparisonDisplay",
    "Display",
    "ErrorDisplay",
    "HeatDisplay",
    "LatencyDisplay",
    "LinksDisplay",
    "MemoryCurveDisplay",
    "MemoryDisplay",
    "MemoryKindsDisplay",
    "OccupancyDisplay",
    "PlanDisplay",
    "Plots",
    "RooflineDisplay",
    "ScalingDisplay",
    "SchedulesDisplay",
    "SearchDisplay",
    "SensitivityDisplay",
    "ServiceFrontDisplay",
    "ServicePlots",
    "ServiceRateDisplay",
    "SweepDisplay",
    "SweepMultiplesDisplay",
    "TimelineDisplay",
    "TimelinesDisplay",
    "UtilisationDisplay",
    "draw_sweep",
    "draw_timeline",
]
