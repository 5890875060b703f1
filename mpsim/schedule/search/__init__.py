"""Searched schedules: orders found for given times within a memory limit."""
