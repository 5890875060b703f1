"""Output: files that are whole or not there, names within their folder, clean text."""

from __future__ import annotations

import contextlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_UNSAFE: Final = re.compile(r"[^\w.+=@-]+")
_LONGEST: Final = 100  # characters of a file's name made from somebody's text
_CONTROL: Final = {
    **{
        code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if code not in (9, 10)
    },
    # marks that turn the direction of text hide what stands in a line
    **{code: f"\\u{code:04x}" for code in (*range(0x202A, 0x202F), *range(0x2066, 0x206A))},
}


def printable(text: str) -> str:
    r"""`text` with control characters spelled out, tabs and ends of lines left, for terminals.

    Examples
    --------
    >>> print(printable("a\x1b[2Jb"))
    a\x1b[2Jb
    """
    return text.translate(_CONTROL)


def safe_name(text: str) -> str:
    """A file's name from somebody's text: letters, digits, a few marks, never hidden or empty.

    Examples
    --------
    >>> safe_name("../../etc/passwd"), safe_name("gpt3 175b"), safe_name("..")
    ('etc-passwd', 'gpt3-175b', 'unnamed')
    """
    return _UNSAFE.sub("-", text).strip(".-")[:_LONGEST].strip(".-") or "unnamed"


@contextlib.contextmanager
def whole(path: str | Path) -> Iterator[Path]:
    """A path beside `path` that takes its place at the end; an error leaves what was there.

    What is no regular file (``/dev/stdout``, a pipe) is written to as it is.
    """
    target = Path(path)
    if target.exists() and not stat.S_ISREG(target.stat().st_mode):
        yield target
        return
    target = target.resolve()  # a link keeps pointing to the file that is replaced
    suffix = "".join(target.suffixes[-2:])
    handle, name = tempfile.mkstemp(suffix, f".{target.name[:_LONGEST]}.", target.parent)
    os.close(handle)
    beside = Path(name)
    try:
        yield beside
        mode = target.stat().st_mode if target.exists() else 0o666 & ~_umask()
        beside.chmod(stat.S_IMODE(mode))
        beside.replace(target)
    except OSError as error:  # a write names no file, a move the one beside it
        error.filename = str(path) if error.filename in {None, name} else error.filename
        raise
    finally:
        beside.unlink(missing_ok=True)


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file that is whole or not there; text as UTF-8, its ends of lines as they are."""
    with whole(path) as beside:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
