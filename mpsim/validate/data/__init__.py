"""Frameworks of the steps that mpsim measure runs."""
