"""Mends of causes."""
