"""The version of mpsim, for modules that may not import the package's front door."""

__version__ = "0.1.0"
