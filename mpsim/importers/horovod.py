"""Timelines of Horovod: collectives of fused tensors, and what ranks waited for each other before them.

References
----------
horovod/horovod 2626dc87, ``timeline.cc``, ``common.h``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.importers.imported import Recorded
from mpsim.importers.kineto import Event
from mpsim.importers.source import Format, Head, Options, open_text
from mpsim.importers.spans import Span, Spans, is_number

__all__ = ["HOROVOD"]

_MICRO = 1e-6
_LARGEST_LINE: Final = 1 << 20
Interval = tuple[float, float]


def _is_horovod(head: Head) -> bool:
    return (
        head.text.lstrip().startswith("[")
        and re.search(
            r"NEGOTIATE_|process_name|start_time_since_epoch_in_micros|CYCLE_START|MEMCPY_IN_FUSION_BUFFER",
            head.text,
        )
        is not None
    )


def _read_horovod(head: Head, options: Options) -> Recorded:
    """Read a timeline of Horovod, whole or cut: a run that was killed has no closing bracket.

    Raises
    ------
    FormatError
        If a line is no event, or there is no tensor.
    """
    names: dict[int, str] = {}
    stacks: dict[int, list[tuple[str, float]]] = {}
    spans: dict[str, dict[Interval, int]] = {}
    negotiated: list[Interval] = []
    for event in _lines(head.path):
        place, phase = event.get("pid"), event.get("ph")
        if not isinstance(place, int):
            continue
        if phase == "M":
            args = event.get("args")
            if event.get("name") == "process_name" and isinstance(args, dict):
                names[place] = _text(args.get("name"))
            continue
        time = event.get("ts")
        if not is_number(time):
            continue
        assert isinstance(time, int | float)
        name = _text(event.get("name"))
        if phase == "B":
            stacks.setdefault(place, []).append((name, time))
        elif phase == "E" and stacks.get(place):
            opened, start = stacks[place].pop()
            _span(opened, (start, max(start, time)), spans, negotiated)
        elif phase == "X" and is_number(length := event.get("dur")) and length >= 0:
            _span(name, (time, time + length), spans, negotiated)
    tensors = {place: name for place, name in names.items() if place or stacks.get(place)}
    if not tensors and not spans:
        raise FormatError(f"{head.path}: names no tensor; needed a timeline of Horovod")
    every = [interval for found in spans.values() for interval in found]
    facts: dict[str, Any] = {
        "tensors": len(tensors),
        "fused": sum(count > 1 for found in spans.values() for count in found.values()),
        "collective_s": sum(end - start for start, end in every) * _MICRO,
        "wait_s": sum(end - start for start, end in negotiated) * _MICRO,
        "collectives": [
            {"kind": kind, "times": len(found), "tensors": sum(found.values())}
            for kind, found in spans.items()
        ],
    }
    if options.ranks is not None:
        facts["ranks"] = options.ranks
    cut = sum(len(stack) for stack in stacks.values())
    warnings = (f"{cut} operations were under way where the file ends",) if cut else ()
    return Recorded(
        format="horovod",
        tool="Horovod timeline",
        files=(str(head.path),),
        facts=facts,
        warnings=warnings,
        spans=(_spans(spans, negotiated),) if options.spans else (),
    )


def _spans(spans: dict[str, dict[Interval, int]], negotiated: list[Interval]) -> Spans:
    """Collectives, those of fused tensors once, and waiting before them."""
    found = [
        Span(
            start * _MICRO,
            end * _MICRO,
            "collective",
            f"{kind} of {count} tensors" if count > 1 else kind,
            axis="dp",
        )
        for kind, intervals in spans.items()
        for (start, end), count in intervals.items()
    ]
    found += [
        Span(start * _MICRO, end * _MICRO, "wait", "negotiation") for start, end in negotiated
    ]
    return Spans("coordinator", 0, tuple(sorted(found, key=lambda span: (span.start, span.end))))


def _span(
    name: str, interval: Interval, spans: dict[str, dict[Interval, int]], negotiated: list[Interval]
) -> None:
    """Count an interval: fused tensors repeat that of their collective."""
    if re.match(r"(NCCL|MPI|GLOO|CCL|DDL)_(?!BCAST_WAIT)\w+", name):
        found = spans.setdefault(name, {})
        found[interval] = found.get(interval, 0) + 1
    elif name.startswith("NEGOTIATE_"):
        negotiated.append(interval)


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _lines(path: Path) -> Iterator[Event]:
    """Events of a list, one a line; the last may be cut."""
    decode = json.JSONDecoder().raw_decode
    with open_text(path, needed="a timeline of Horovod") as stream:
        number = 0
        while line := stream.readline(_LARGEST_LINE):
            number += 1
            if line == "\n":
                continue
            place = 0
            text = line.strip().lstrip("[").strip().rstrip(",]").strip()
            while place < len(text):
                try:
                    event, place = decode(text, place)
                except (ValueError, RecursionError) as error:
                    if stream.readline(_LARGEST_LINE):
                        raise FormatError(
                            f"{path}:{number}: is no event; the file is damaged"
                        ) from error
                    return
                while place < len(text) and text[place] in ", \t":
                    place += 1
                if isinstance(event, dict):
                    yield event


HOROVOD: Final = Format("horovod", "timeline of Horovod", "timeline", _is_horovod, _read_horovod)
