"""Exporters: timelines in the formats that others read, one module a format."""

from mpsim.exporters.perfetto import trace_events, write_events, write_trace
from mpsim.exporters.service import service_events, write_service_trace

__all__ = [
    "service_events",
    "trace_events",
    "write_events",
    "write_service_trace",
    "write_trace",
]
