"""Rates that kernels of serving reach, by family of accelerators; each group names its source."""
