"""Data of the studies."""
