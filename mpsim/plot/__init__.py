"""Pictures: a function makes a Chart of numbers, ``plot()`` draws it, ``save()`` writes a file.

Importing this package imports no matplotlib; drawing does. Charts are methods of ``result.plot``.
"""

from mpsim.plot.chart import Axis, Bars, Chart, Heat, Limit, Lines, Panels, Part, Series
from mpsim.plot.fabric import fabric_chart
from mpsim.plot.fronts import (
    design_chart,
    plan_chart,
    schedules_chart,
    search_chart,
    service_front_chart,
)
from mpsim.plot.pen import FORMATS, Display
from mpsim.plot.plots import Plots, ServicePlots, draw_timeline
from mpsim.plot.step import blame_chart
from mpsim.plot.studies import (
    Scored,
    agreement_chart,
    answer_chart,
    comparison_chart,
    error_chart,
    goodput_chart,
    line_chart,
    residual_chart,
    scaling_chart,
    sensitivity_chart,
    sweep_chart,
)
from mpsim.plot.timeline import Actions, Timeline, timeline_chart, timelines_chart

__all__ = ["FORMATS", "Actions", "Axis", "Bars", "Chart", "Display", "Heat", "Limit", "Lines"]
__all__ += ["Panels", "Part", "Plots", "Scored", "Series", "ServicePlots", "Timeline"]
__all__ += ["agreement_chart", "answer_chart", "blame_chart", "comparison_chart", "design_chart"]
__all__ += ["draw_timeline", "error_chart", "fabric_chart", "goodput_chart", "line_chart"]
__all__ += ["plan_chart", "residual_chart", "scaling_chart", "schedules_chart", "search_chart"]
__all__ += ["sensitivity_chart", "service_front_chart", "sweep_chart", "timeline_chart"]
__all__ += ["timelines_chart"]
