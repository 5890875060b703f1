"""Seconds: kernels on one accelerator, collectives and messages between accelerators. Pure functions on floats and arrays."""
