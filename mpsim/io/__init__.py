"""Importers and exporters, one module a format."""

from mpsim.io.perfetto import trace_events, write_trace
from mpsim.io.trace_check import check_trace

__all__ = ["check_trace", "trace_events", "write_trace"]
