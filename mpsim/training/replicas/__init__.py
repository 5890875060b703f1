"""Data parallelism in a step: what is gathered and reduced, when, and what waits for it."""
