"""Constants of results."""
