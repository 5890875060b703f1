"""Exporters: scenarios and timelines in the formats that others read, one module a format."""

from mpsim.exporters.chakra import ChakraExport, write_chakra
from mpsim.exporters.formats import WRITERS, Writer, export, writer
from mpsim.exporters.outgoing import Exported, Held, Lost
from mpsim.exporters.perfetto import trace_events, write_events, write_trace
from mpsim.exporters.service import service_events, write_service_trace
from mpsim.exporters.step_trace import step_events, write_step_trace

__all__ = [
    "WRITERS",
    "ChakraExport",
    "Exported",
    "Held",
    "Lost",
    "Writer",
    "export",
    "service_events",
    "step_events",
    "trace_events",
    "write_chakra",
    "write_events",
    "write_service_trace",
    "write_step_trace",
    "write_trace",
    "writer",
]
