"""Faults spliced into real recordings of gloo ranks: their operators, gaps and noise are real, and what is added is known to the microsecond.

Time is let into a rank's recording at moments of its main thread; whatever runs then lasts longer, and whatever follows comes later. Ranks leave a collective together, so who arrives first waits.
"""

from __future__ import annotations

import bisect
import copy
import gzip
import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

__all__ = ["FAULTS", "splice"]

Event = dict[str, Any]
Let = list[tuple[float, float]]
"""Moments at which time is let in, and how much [us]."""
_KINDS = {
    "product": ("aten::mm", "aten::addmm", "aten::bmm"),
    "attention": ("aten::_scaled_dot_product_flash_attention_for_cpu", "aten::_scaled_dot_product_flash_attention_for_cpu_backward"),
    "gelu": ("aten::gelu", "aten::gelu_backward"),
}  # fmt: skip


class Rank:
    """One rank's recording, and what is done to it."""

    def __init__(self, file: Path) -> None:
        self.data = json.loads(gzip.decompress(file.read_bytes()))
        self.events = [event for event in self.data["traceEvents"] if event.get("ph") == "X"]
        marks = [e for e in self.events if e["name"].startswith("ProfilerStep#")]
        self.thread = marks[0]["tid"]
        # the marks of a host's annotations may be written twice, once for each thread
        self.steps = sorted({(e["ts"], e["ts"] + e["dur"]) for e in marks if e["tid"] == self.thread})  # fmt: skip
        calls = [e for e in self.events if e["name"].startswith("gloo:") and e["name"][5:] not in ("send", "recv")]  # fmt: skip
        self.calls = sorted(calls, key=lambda e: float(e["ts"]))
        operators = [
            e
            for e in self.events
            if e["cat"] == "cpu_op" and "::" in e["name"] and e["tid"] == self.thread
        ]
        self.operators = sorted(operators, key=lambda e: float(e["ts"]))
        self.added: list[Event] = []

    def of(self, names: Sequence[str]) -> list[Event]:
        """Operators by name."""
        return [event for event in self.operators if event["name"] in names]

    def layers(self) -> list[float]:
        """Moments between operators at which layers begin [us]."""
        return [e["ts"] - 0.5 for e in self.of(("aten::layer_norm",))]


def _each(rank: Rank, moments: Sequence[float], total: float) -> Let:
    """So much a step, in equal parts at moments."""
    let = []
    for start, end in rank.steps:
        inside = [moment for moment in moments if start <= moment < end]
        let += [(moment, 1e6 * total / len(inside)) for moment in inside]
    return let


def _longer(rank: Rank, operators: Sequence[Event], total: float) -> Let:
    """Operators longer by a factor, so that a step is longer by so much."""
    let = []
    for start, end in rank.steps:
        inside = [e for e in operators if start <= e["ts"] < end]
        work = sum(e["dur"] for e in inside)
        let += [(e["ts"] + e["dur"] * 0.999, 1e6 * total * e["dur"] / work) for e in inside]
    return let


def _slower(rank: Rank, total: float) -> Let:
    """All operators longer by one factor, each in what it does itself."""
    alone, inside = [], [(float("inf"), {"dur": 0.0})]
    for event in rank.operators:
        while inside[-1][0] <= event["ts"]:
            inside.pop()
        alone.append({**event})
        inside[-1][1]["dur"] -= event["dur"]
        inside.append((event["ts"] + event["dur"], alone[-1]))
    let = []
    for start, end in rank.steps:
        mine = [(e["ts"] + 0.999 * e["dur"], own["dur"]) for e, own in zip(rank.operators, alone, strict=True) if start <= e["ts"] < end]  # fmt: skip
        work = sum(own for _, own in mine if own > 0)
        let += [(moment, 1e6 * total * own / work) for moment, own in mine if own > 0]
    return let


def _loader(rank: Rank, total: float) -> Let:
    for start, _ in rank.steps:
        rank.added.append({"ph": "X", "cat": "user_annotation", "name": "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", "pid": 1, "tid": rank.thread, "ts": start + 1.0, "dur": 2.0})  # fmt: skip
    return [(start + 2.0, 1e6 * total) for start, _ in rank.steps]


def _unnamed(rank: Rank, total: float) -> Let:
    rank.events = [event for event in rank.events if not event["name"].startswith("enumerate(")]
    return [(start + 1.0, 1e6 * total) for start, _ in rank.steps]


def _barriers(rank: Rank, total: float) -> Let:
    let = _each(rank, rank.layers(), total)
    for moment, _ in let:
        rank.added.append({"ph": "X", "cat": "user_annotation", "name": "gloo:barrier", "pid": 1, "tid": 1, "ts": moment - 0.4, "dur": 0.8})  # fmt: skip
    return let


def _pauses(rank: Rank, total: float) -> Let:
    moments = [rank.layers()[n] for n in (len(rank.layers()) // 7, len(rank.layers()) // 2)]
    second = [m + rank.steps[n][0] - rank.steps[0][0] for n in range(1, len(rank.steps)) for m in moments]  # fmt: skip
    layers = np.array(rank.layers())
    return _each(rank, [*moments, *(float(layers[abs(layers - m).argmin()]) for m in second)], total)  # fmt: skip


def _wire(rank: Rank, total: float) -> Let:
    return _longer(rank, [call for call in rank.calls if call["name"] != "gloo:barrier"], total)


FAULTS: dict[str, tuple[str, Callable[[Rank, float], Let], bool]] = {
    # how: the cause, what it adds to a rank, whether one rank alone has it
    "one rank sleeps in layers": ("slow_rank", lambda rank, total: _each(rank, rank.layers(), total), True),
    "one rank is throttled": ("slow_rank", _slower, True),
    "collectives last longer": ("slow_link", _wire, False),
    "a hook waits before collectives": ("slow_link", lambda rank, total: _each(rank, [c["ts"] - 60 for c in rank.calls], total), False),
    "products are slow": ("slow_kernel", lambda rank, total: _longer(rank, rank.of(_KINDS["product"]), total), False),
    "attention is slow": ("slow_kernel", lambda rank, total: _longer(rank, rank.of(_KINDS["attention"]), total), False),
    "activations are slow": ("slow_kernel", lambda rank, total: _longer(rank, rank.of(_KINDS["gelu"]), total), False),
    "loops between layers": ("host_bound", lambda rank, total: _each(rank, rank.layers(), total), False),
    "the loader stalls": ("data_stall", _loader, False),
    "the batch comes late": ("data_stall", _unnamed, False),
    "the loader of one rank stalls": ("data_stall", _loader, True),
    "the collector runs": ("garbage_collection", _pauses, False),
    "all ranks are throttled": ("clock_drop", _slower, False),
    "barriers in layers": ("synchronisation", _barriers, False),
}  # fmt: skip


def _moved(let: Let, time: float, *, end: bool = False) -> float:
    """How much later a moment is; what ends at a moment at which time is let in does not last longer [us]."""
    place = bisect.bisect_left(let, (time, -1.0)) if end else bisect.bisect_right(let, (time, 1e18))
    return sum(length for _, length in let[:place])


def _together(ranks: Sequence[Rank], lets: list[Let], *, wire: bool) -> None:
    """Let time into the waits of those who arrive first at a collective."""
    own = [list(let) for let in lets]
    matched = list(zip(*(rank.calls for rank in ranks), strict=True))
    for calls in sorted(matched, key=lambda calls: float(calls[0]["ts"] + calls[0]["dur"])):
        bases = [rank.data["baseTimeNanoseconds"] / 1e3 for rank in ranks]
        base = min(bases)
        arrived = [call["ts"] + b - base for call, b in zip(calls, bases, strict=True)]
        ends = [call["ts"] + call["dur"] + b - base for call, b in zip(calls, bases, strict=True)]
        later = [a + _moved(let, call["ts"]) for a, call, let in zip(arrived, calls, lets, strict=True)]  # fmt: skip
        # with the wire itself longer, so is the collective; what else was let in meanwhile held nobody up
        wires = [_moved(let, c["ts"] + c["dur"], end=True) - _moved(let, c["ts"]) if wire else 0.0 for c, let in zip(calls, own, strict=True)]  # fmt: skip
        until = max(later) + max(0.0, max(ends) - max(arrived)) + max(wires)
        for call, let, end in zip(calls, lets, ends, strict=True):
            moment = call["ts"] + call["dur"]
            wait = until - (end + _moved(let, moment, end=True)) - (max(ends) - end)
            if wait > 0:
                bisect.insort(let, (moment - 0.01, wait))


def splice(files: Sequence[Path], fault: str, seconds: float, folder: Path, late: int = 0) -> list[Path]:  # fmt: skip
    """Write recordings into which a fault of so many seconds a step was spliced."""
    ranks = [Rank(file) for file in files]
    _, make, one = FAULTS[fault]
    lets = [sorted(make(rank, seconds)) if not one or n == late else [] for n, rank in enumerate(ranks)]  # fmt: skip
    _together(ranks, lets, wire=make is _wire)
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, (rank, let) in enumerate(zip(ranks, lets, strict=True)):
        data = {**rank.data, "traceEvents": list(_later([*rank.events, *rank.added], let))}
        written.append(folder / f"rank{number}.json")
        written[-1].write_text(json.dumps(data))
    return written


def _later(events: Sequence[Event], let: Let) -> Iterator[Event]:
    moments = [moment for moment, _ in let]
    sums = np.concatenate([[0.0], np.cumsum([length for _, length in let])])
    for event in events:
        end = event["ts"] + event["dur"]
        start = float(sums[bisect.bisect_right(moments, event["ts"])])
        until = float(sums[bisect.bisect_left(moments, end)])
        yield {**copy.copy(event), "ts": event["ts"] + start, "dur": event["dur"] + until - start}
