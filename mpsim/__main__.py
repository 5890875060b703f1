"""``python -m mpsim``: the same as the ``mpsim`` command."""

from __future__ import annotations

import sys

from mpsim.cli import main

if __name__ == "__main__":
    sys.exit(main())
