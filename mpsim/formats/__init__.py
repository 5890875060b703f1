"""Files of other tools, one module a tool: scenarios, measured points, timelines, steps.

`recognise` says which format a file has, by what it holds and not by its name; `read` gives what it
says, `export` writes. Which key of a tool says which value of a scenario stands in tables
(``data/``), written once for reading and writing. Every reader takes its file through
`mpsim.formats.source`, which unpacks and bounds it.
"""

from mpsim.formats.chakra.writer import write_chakra
from mpsim.formats.imported import Assumed, Imported, Mapped, MeasuredPoint, Points, Recorded
from mpsim.formats.outgoing import Exported, Held, Lost
from mpsim.formats.perfetto import trace_events, write_events, write_trace
from mpsim.formats.registry import FORMATS, WRITERS, Writer, export, read, recognise, writer
from mpsim.formats.source import Format
from mpsim.formats.step_trace import (
    service_events,
    step_events,
    write_service_trace,
    write_step_trace,
)

__all__ = ["FORMATS", "WRITERS", "Assumed", "Exported", "Format", "Held", "Imported", "Lost"]
__all__ += ["Mapped", "MeasuredPoint", "Points", "Recorded", "Writer", "export", "read"]
__all__ += ["recognise", "service_events", "step_events", "trace_events", "write_chakra"]
__all__ += ["write_events", "write_service_trace", "write_step_trace", "write_trace", "writer"]
