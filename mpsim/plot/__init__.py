"""Pictures: a function makes a Chart of numbers, ``plot()`` draws it, ``save()`` writes a file.

Importing this package does not import matplotlib; drawing does.
"""

from mpsim.plot.accuracy import Scored, agreement_chart, error_chart, residual_chart
from mpsim.plot.chart import Axis, Bars, Chart, Heat, Limit, Lines, Panels, Part, Series
from mpsim.plot.fabric import fabric_chart
from mpsim.plot.fronts import plan_chart, schedules_chart, search_chart, service_front_chart
from mpsim.plot.pen import FORMATS, Display
from mpsim.plot.plots import Plots, ServicePlots, draw_timeline
from mpsim.plot.service import (
    batch_chart,
    cache_chart,
    goodput_rate_chart,
    itl_chart,
    latency_chart,
    latency_rate_chart,
)
from mpsim.plot.step import (
    attribution_chart,
    blame_chart,
    bubble_chart,
    heat_chart,
    links_chart,
    memory_chart,
    memory_curve_chart,
    memory_kinds_chart,
    roofline_chart,
    utilisation_chart,
)
from mpsim.plot.studies import (
    METRICS,
    answer_chart,
    comparison_chart,
    goodput_chart,
    line_chart,
    scaling_chart,
    sensitivity_chart,
    sweep_chart,
)
from mpsim.plot.timeline import Actions, Timeline, timeline_chart, timelines_chart

__all__ = [
    "FORMATS",
    "METRICS",
    "Actions",
    "Axis",
    "Bars",
    "Chart",
    "Display",
    "Heat",
    "Limit",
    "Lines",
    "Panels",
    "Part",
    "Plots",
    "Scored",
    "Series",
    "ServicePlots",
    "Timeline",
    "agreement_chart",
    "answer_chart",
    "attribution_chart",
    "batch_chart",
    "blame_chart",
    "bubble_chart",
    "cache_chart",
    "comparison_chart",
    "draw_timeline",
    "error_chart",
    "fabric_chart",
    "goodput_chart",
    "goodput_rate_chart",
    "heat_chart",
    "itl_chart",
    "latency_chart",
    "latency_rate_chart",
    "line_chart",
    "links_chart",
    "memory_chart",
    "memory_curve_chart",
    "memory_kinds_chart",
    "plan_chart",
    "residual_chart",
    "roofline_chart",
    "scaling_chart",
    "schedules_chart",
    "search_chart",
    "sensitivity_chart",
    "service_front_chart",
    "sweep_chart",
    "timeline_chart",
    "timelines_chart",
    "utilisation_chart",
]
