"""Calibration files of collectives, read strictly: every mistake with its line (`mpsim.cost.curves` shows one)."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from pathlib import Path

from mpsim.cost.curves import SWITCH_JUMP, CollectiveCurves, Curve, Place
from mpsim.cost.traffic import COLLECTIVES
from mpsim.document import Document, read_document
from mpsim.errors import CalibrationError, Problem, ScenarioError, nearest
from mpsim.inputs import shown

_SCHEMA = 1
_REQUIRED = ("schema", "name", "source", "as_of", "curves")
_TEXTS = ("name", "source", "as_of", "library", "accelerator")
_KEYS = (*_REQUIRED, "library", "accelerator", "switch_jump")
_CURVE_REQUIRED = ("collective", "ranks", "bytes", "seconds")
_CURVE_KEYS = (*_CURVE_REQUIRED, "domains")


def load_curves(path: str | Path) -> CollectiveCurves:
    """Read a calibration file. CalibrationError with every mistake found and its line."""
    try:
        document = read_document(path)
    except ScenarioError as error:
        raise CalibrationError(str(error)) from error
    problems = [*document.problems, *_problems(document)]
    curves: dict[Place, Curve] = {}
    if not problems:
        curves, problems = _curves(document)
    if problems:
        raise CalibrationError(str(ScenarioError(map(document.locate, problems))))
    texts = {key: str(document.data[key]) for key in _TEXTS if key in document.data}
    return CollectiveCurves(curves=curves, **texts)


def _problems(document: Document) -> Iterator[Problem]:
    """Mistakes in the form of the file."""
    data = document.data
    if "curves" not in data:  # nothing is told of a file that is none
        yield Problem("is no calibration file; needed schema, name, source, as_of and curves")
        return
    yield from _wrong_keys(data, _KEYS, _REQUIRED, "")
    if data.get("schema", _SCHEMA) != _SCHEMA:
        yield Problem(f"got {shown(data['schema'])}; this version reads schema {_SCHEMA}", "schema")
    for key in _TEXTS:
        if key in data and (not isinstance(data[key], str) or not data[key]):
            yield Problem(f"got {shown(data[key])}; needed a text", key)
    if isinstance(data.get("as_of"), str) and not _is_date(data["as_of"]):
        yield Problem(f"got {shown(data['as_of'])}; needed a date such as 2026-11-21", "as_of")
    jump = data.get("switch_jump", SWITCH_JUMP)
    if not _is_number(jump) or jump <= 0:
        yield Problem(f"got {shown(jump)}; needed a number above 0", "switch_jump")
    entries = data.get("curves", [{}])
    if not isinstance(entries, list) or not entries:
        yield Problem("needed a list of one curve or more", "curves")
        return
    for index, entry in enumerate(entries if "curves" in data else []):
        yield from _curve_problems(entry, f"curves.{index}")


def _curve_problems(entry: object, key: str) -> Iterator[Problem]:
    if not isinstance(entry, dict):
        yield Problem(f"got {shown(entry)}; needed collective, ranks, bytes and seconds", key)
        return
    yield from _wrong_keys(entry, _CURVE_KEYS, _CURVE_REQUIRED, f"{key}.")
    if (kind := entry.get("collective", COLLECTIVES[0])) not in COLLECTIVES:
        yield Problem(f"got {shown(kind)}; {nearest(str(kind), COLLECTIVES)}", f"{key}.collective")
    for name, least in (("ranks", 2), ("domains", 1)):
        value = entry.get(name, least)
        if type(value) is not int or value < least:
            yield Problem(f"got {shown(value)}; needed {least} or more", f"{key}.{name}")
    for name in ("bytes", "seconds"):
        values = entry.get(name, [])
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            yield Problem("needed a list of plain numbers, in B and in s", f"{key}.{name}")


def _curves(document: Document) -> tuple[dict[Place, Curve], list[Problem]]:
    curves: dict[Place, Curve] = {}
    problems = []
    jump = float(document.data.get("switch_jump", SWITCH_JUMP))
    for index, entry in enumerate(document.data["curves"]):
        place = (entry["collective"], entry["ranks"], entry.get("domains", 1))
        key = f"curves.{index}"
        if entry["ranks"] % place[2]:
            problems.append(Problem(f"{place[1]} ranks do not fill {place[2]} domains", key))
        if place in curves:
            problems.append(Problem(f"{place[0]} of {place[1]} ranks was given before", key))
        try:
            times = tuple(map(float, entry["seconds"]))
            curves[place] = Curve(tuple(map(float, entry["bytes"])), times, jump)
        except CalibrationError as error:
            problems.append(Problem(str(error), key))
    return curves, problems


def _wrong_keys(
    data: Mapping[str, object], known: tuple[str, ...], required: tuple[str, ...], head: str
) -> Iterator[Problem]:
    for key in data:
        if key not in known:
            yield Problem(f"unknown key; {nearest(str(key), known)}", f"{head}{key}")
    for key in required:
        if key not in data:
            yield Problem("missing", f"{head}{key}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_date(text: str) -> bool:
    try:
        dt.date.fromisoformat(text if text.count("-") > 1 else f"{text}-01")
    except ValueError:
        return False
    return True
