"""Exporters: timelines in the formats that others read, one module a format."""

from mpsim.exporters.perfetto import trace_events, write_trace
from mpsim.exporters.trace_check import check_trace

__all__ = ["check_trace", "trace_events", "write_trace"]
