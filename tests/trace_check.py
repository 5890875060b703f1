"""Whether a Chrome trace is one that viewers draw as it was meant."""

from __future__ import annotations

import bisect
import gzip
import itertools
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

__all__ = ["check_trace"]

_NS_PER_US = 1000
Track = tuple[int, int]
Slice = tuple[int, int, str]


def check_trace(path: str | Path) -> list[str]:
    """Find what is wrong with a trace file.

    Parameters
    ----------
    path : str or Path
        Chrome trace JSON; gzipped when it ends in ``.gz``.

    Returns
    -------
    list of str
        One sentence a problem, none for a sound trace: slices of one track that overlap without one containing the other, flows
        without exactly one start and one end in this order, flow ends that touch no slice, tracks without a name or with two, slices
        of negative length, counters below zero, and counters whose series change.
    """
    data = Path(path).read_bytes()
    text = gzip.decompress(data) if Path(path).suffix == ".gz" else data
    events = json.loads(text)["traceEvents"]
    tracks = _tracks(events)
    return [
        *_lengths(events),
        *_overlaps(tracks),
        *_flows(events, tracks),
        *_unnamed(events, tracks),
        *_counters(events),
    ]


def _ns(microseconds: float) -> int:
    return round(microseconds * _NS_PER_US)


def _track(event: dict[str, Any]) -> Track:
    return event["pid"], event["tid"]


def _tracks(events: Iterable[dict[str, Any]]) -> dict[Track, list[Slice]]:
    """Slices of each track by start, the longer first: start, end [ns], name."""
    tracks: defaultdict[Track, list[Slice]] = defaultdict(list)
    for event in events:
        if event["ph"] == "X":
            start = _ns(event["ts"])
            tracks[_track(event)].append((start, start + _ns(event["dur"]), event["name"]))
    for slices in tracks.values():
        slices.sort(key=lambda one: (one[0], -one[1]))
    return dict(tracks)


def _overlaps(tracks: dict[Track, list[Slice]]) -> Iterator[str]:
    for track, slices in tracks.items():
        open_slices: list[Slice] = []
        for one in slices:
            while open_slices and open_slices[-1][1] <= one[0]:
                open_slices.pop()
            if open_slices and one[1] > open_slices[-1][1]:
                yield f"{one[2]!r} at {one[0]} ns overlaps {open_slices[-1][2]!r} on track {track}"
            open_slices.append(one)


def _lengths(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    for event in events:
        if event["ph"] == "X" and (event["dur"] < 0 or event["ts"] < 0):
            yield f"slice {event['name']!r} at {event['ts']} us lasts {event['dur']} us"


def _flows(events: Iterable[dict[str, Any]], tracks: dict[Track, list[Slice]]) -> Iterator[str]:
    ends: defaultdict[object, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event["ph"] in ("s", "f"):
            ends[event["id"]].append(event)
    reach = {track: _reach(slices) for track, slices in tracks.items()}
    for flow, pair in ends.items():
        if [event["ph"] for event in pair] != ["s", "f"]:
            yield f"flow {flow} has {[event['ph'] for event in pair]}; needed one s, then one f"
        elif pair[0]["ts"] > pair[1]["ts"]:
            yield f"flow {flow} ends before it starts"
        for event in pair:
            if not _touches(reach.get(_track(event)), _ns(event["ts"])):
                yield f"flow {flow} touches no slice on track {_track(event)}"


def _reach(slices: list[Slice]) -> tuple[list[int], list[int]]:
    """Starts of sorted slices, and the latest end of all up to each."""
    starts = [start for start, _, _ in slices]
    return starts, list(itertools.accumulate((end for _, end, _ in slices), max))


def _touches(reach: tuple[list[int], list[int]] | None, time: int) -> bool:
    """Whether a slice contains `time`, its ends included."""
    if reach is None:
        return False
    begun = bisect.bisect_right(reach[0], time)
    return begun > 0 and reach[1][begun - 1] >= time


def _unnamed(events: Iterable[dict[str, Any]], tracks: dict[Track, list[Slice]]) -> Iterator[str]:
    names = [
        _track(event) for event in events if event["ph"] == "M" and event["name"] == "thread_name"
    ]
    yield from (f"track {track} has no name" for track in sorted(set(tracks) - set(names)))
    yield from (
        f"track {track} has two names" for track in sorted(set(names)) if names.count(track) > 1
    )


def _counters(events: Iterable[dict[str, Any]]) -> Iterator[str]:
    series: dict[tuple[int, str], set[str]] = {}
    for event in events:
        if event["ph"] != "C":
            continue
        counter = event["pid"], event["name"]
        if min(event["args"].values()) < 0:
            yield f"counter {event['name']!r} of process {event['pid']} is below zero at {event['ts']} us"
        if series.setdefault(counter, set(event["args"])) != set(event["args"]):
            yield f"counter {event['name']!r} of process {event['pid']} changes its series at {event['ts']} us"
