"""Searched schedules: orders found for given times within a memory limit."""

from mpsim.schedule.search.v_block import v_half, v_min
from mpsim.schedule.search.v_search import zb_v_search
from mpsim.schedule.search.zb_auto import zb_1p, zb_2p

__all__ = ["v_half", "v_min", "zb_1p", "zb_2p", "zb_v_search"]
