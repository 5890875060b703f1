"""Importers and exporters, one module a format."""

from mpsim.io.perfetto import trace_events, write_trace

__all__ = ["trace_events", "write_trace"]
