"""The stamp of an output: which mpsim made it, to the last byte of its code and constants."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path
from typing import Final

from mpsim.memo import remembered
from mpsim.version import __version__

_SHORT: Final = 12  # digits of the digest that are shown
_ENDINGS: Final = (".py", ".yaml", ".json", ".csv")


@remembered(1)
def stamp() -> str:
    """Version and digest of code and data, such as ``0.1.0+6804a7d7f7f2``, read in some 10 ms.

    Two outputs of the same stamp were made by the same formulas and constants; a journal's rows of
    another stamp are computed again.
    """
    root = Path(__file__).parent
    # strings, and files opened by them: five hundred paths take three times as long
    files = sorted(
        f"{folder}{os.sep}{name}"
        for folder, _, names in os.walk(root)
        for name in names
        if name.endswith(_ENDINGS)
    )
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.removeprefix(str(root)).encode())
        with io.FileIO(file) as opened:
            digest.update(opened.read())
    return f"{__version__}+{digest.hexdigest()[:_SHORT]}"
