"""``mpsim --version --verbose``: which mpsim this is, what it runs on, how old its data are."""

from __future__ import annotations

import importlib.metadata
import platform
import re
from pathlib import Path
from typing import Final

import mpsim
from mpsim.stamp import stamp
from mpsim.version import __version__

_DATE: Final = re.compile(r"""as_of["']?:\s*["']?(\d{4}(?:-\d\d){0,2})""")
_WIDTH: Final = 14


def about() -> str:
    """Version, digest of code and data, Python, dependencies, dates of each folder of data."""
    lines = [f"mpsim {__version__}", f"{'digest':{_WIDTH}}{stamp().partition('+')[2]}"]
    lines.append(
        f"{'python':{_WIDTH}}{platform.python_version()} on {platform.system()}"
        f" {platform.machine()}"
    )
    lines.append("dependencies")
    lines += [f"  {name:{_WIDTH}}{version}" for name, version in _dependencies()]
    lines.append("data, newest and oldest date")
    lines += [f"  {folder:{_WIDTH}}{max(dates)}  {min(dates)}" for folder, dates in _data().items()]
    return "\n".join(lines)


def _dependencies() -> list[tuple[str, str]]:
    """Dependencies of the core and of every extra but the developers', with installed versions."""
    try:
        needed = importlib.metadata.requires("mpsim") or []
    except importlib.metadata.PackageNotFoundError:  # run from a folder, not installed
        return [("unknown", "mpsim is not installed as a package")]
    found = []
    for requirement in needed:
        name = re.split(r"[^\w.-]", requirement, maxsplit=1)[0]
        extra = re.search(r"""extra == ['"](\w+)""", requirement)
        if extra and extra[1] in {"test", "dev", "docs"}:
            continue
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            version = f"not installed (extra '{extra[1]}')" if extra else "not installed"
        found.append((name, version))
    return found


def _data() -> dict[str, list[str]]:
    """Dates among the ``as_of`` of the data files of each package that has any."""
    root = Path(mpsim.__file__).parent
    dates: dict[str, list[str]] = {}
    for file in sorted(root.rglob("*.yaml")):
        found = _DATE.findall(file.read_text(encoding="utf-8"))
        dates.setdefault(file.relative_to(root).parts[0], []).extend(found)
    return {folder: found for folder, found in dates.items() if found}
