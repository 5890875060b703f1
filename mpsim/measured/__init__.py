"""Recordings of `mpsim measure`: their format, and how they are written and read."""
