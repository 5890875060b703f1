"""Readers: files of other tools as the records of `mpsim measure`.

A file is recognised by what it holds, not by its name: `mpsim measure`, nccl-tests (text, or JSON of ``-J``), a Kineto trace of
torch.profiler, or CSV.
"""

from mpsim.importers.recognise import read_any
from mpsim.importers.source import Source

__all__ = ["Source", "read_any"]
