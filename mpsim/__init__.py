"""mpsim: a discrete-event simulator of model-parallel training."""
__version__ = "0.1.0"
