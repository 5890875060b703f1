"""Exporters: timelines in the formats that others read, one module a format."""

from mpsim.exporters.perfetto import trace_events, write_events, write_trace

__all__ = ["trace_events", "write_events", "write_trace"]
