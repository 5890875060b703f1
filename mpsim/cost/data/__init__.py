"""Fitted constants, read by `mpsim.cost.constants`."""
