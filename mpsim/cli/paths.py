"""Paths that a command writes to, checked before any work starts."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import typer


def check_picture(path: Path | None) -> Path | None:
    """`path` if a picture can be written there."""
    if path is None:
        return None
    from mpsim.plot import FORMATS

    return _check_named(path, FORMATS)


def check_page(path: Path | None) -> Path | None:
    """`path` if a page can be written there."""
    return _check_named(path, (".html", ".htm"))


def check_trace(path: Path | None) -> Path | None:
    """`path` if a trace can be written there."""
    return _check_named(path, (".json", ".json.gz"))


def check_file(path: Path | None) -> Path | None:
    """`path` if a file can be written there, in a folder that is there; else BadParameter."""
    if path is None:
        return None
    try:
        there, folder = path.exists(), path.parent.is_dir()
    except (OSError, ValueError) as error:  # too long, or with a null character
        raise typer.BadParameter(f"got {_short(path)}: {_reason(error)}") from None
    if path.is_dir():
        raise typer.BadParameter(f"got {_short(path)}, which is a folder; give a file in it")
    if not folder:
        raise typer.BadParameter(
            f"got {_short(path)}, but there is no folder {_short(path.parent)}; make it first, or "
            "give a file in another"
        )
    if not os.access(path if there else path.parent, os.W_OK):
        blocked = path if there else path.parent
        raise typer.BadParameter(f"got {_short(path)}, but {_short(blocked)} is not writable")
    return path


def check_file_and_folder(path: Path | None) -> Path | None:
    """`path` if a file can be written there, in a folder that is there or can be made."""
    if path is not None:
        check_folder(path.parent)
    return check_file(path) if path is not None and path.parent.is_dir() else path


def check_folder(path: Path | None) -> Path | None:
    """`path` if it is, or can become, a folder for files; typer.BadParameter says why it is not."""
    if path is None:
        return None
    try:
        nearest = next(
            ancestor for ancestor in (path, *path.absolute().parents) if ancestor.exists()
        )
    except (OSError, ValueError) as error:
        raise typer.BadParameter(f"got {_short(path)}: {_reason(error)}") from None
    if not nearest.is_dir():
        raise typer.BadParameter(
            f"got {_short(path)}, but {_short(nearest)} is a file; give a folder, which is made if"
            " need be"
        )
    if not os.access(nearest, os.W_OK):
        raise typer.BadParameter(f"got {_short(path)}, but {_short(nearest)} is not writable")
    return path


def _check_named(path: Path | None, suffixes: Sequence[str]) -> Path | None:
    """`path` if a file of such a name can be written there."""
    if path is not None and not path.name.lower().endswith(tuple(suffixes)):
        wanted = ", ".join(suffixes[:-1]) + f" or {suffixes[-1]}"
        raise typer.BadParameter(f"got {_short(path)}; needed a name that ends in {wanted}")
    return check_file(path)


def _short(path: Path) -> str:
    """`path` in quotes, the end of it if nobody would read all."""
    text = str(path)
    return repr(text if len(text) <= 200 else f"...{text[-100:]}")


def _reason(error: Exception) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
