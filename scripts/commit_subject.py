"""Refuse a commit whose subject is longer than 72 characters: ``python scripts/commit_subject.py MESSAGE_FILE``."""

from __future__ import annotations

import sys
from pathlib import Path

LIMIT = 72

if __name__ == "__main__":
    subject = Path(sys.argv[1]).read_text(encoding="utf-8").partition("\n")[0]
    if len(subject) > LIMIT:
        sys.exit(
            f"the subject has {len(subject)} characters, {LIMIT} at most; the rest goes into the body"
        )
