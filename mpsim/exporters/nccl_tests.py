"""Measured collectives as the table that nccl-tests prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.version import __version__

__all__ = ["nccl_tests_text"]

_PROGRAMS: Final = {
    "all_reduce": "all_reduce_perf",
    "all_gather": "all_gather_perf",
    "reduce_scatter": "reduce_scatter_perf",
    "all_to_all": "alltoall_perf",
    "broadcast": "broadcast_perf",
    "reduce": "reduce_perf",
    "send_recv": "sendrecv_perf",
}
_SIZES: Final = {"int8": 1, "uint8": 1, "half": 2, "bfloat16": 2, "float": 4, "int32": 4, "uint32": 4, "double": 8, "int64": 8, "uint64": 8, "f8e4m3": 1, "f8e5m2": 1}  # fmt: skip
_REDUCES: Final = frozenset({"all_reduce", "reduce_scatter", "reduce"})
_MICRO, _GIGA = 1e-6, 1e9


def nccl_tests_text(rows: Sequence[Mapping[str, Any]], *, nodes: int = 1) -> str:
    """The report of one collective among one number of ranks.

    Parameters
    ----------
    rows : sequence of mapping
        Points as importers give them: ``collective``, ``bytes``, ``ranks``, ``time_s``, and where there are any ``algbw_Bps``, ``busbw_Bps``, ``dtype`` and
        the same with ``in_place_`` before them.
    nodes : int
        Hosts that the ranks sit on, equally many on each.

    Raises
    ------
    FormatError
        If there is none, a row has no time, or collectives or ranks are mixed; one report holds one of each.
    """
    kinds = {(row.get("collective"), row.get("ranks")) for row in rows}
    if len(kinds) != 1:
        words = ", ".join(f"{kind} of {ranks}" for kind, ranks in sorted(kinds, key=str)[:6])
        raise FormatError(
            f"a report of nccl-tests holds one collective among one number of ranks; got {words or 'no point'}"
        )
    ((kind, ranks),) = kinds
    if kind not in _PROGRAMS or not isinstance(ranks, int):
        raise FormatError(
            f"got collective {kind!r} among {ranks!r} ranks; needed one of {', '.join(_PROGRAMS)} and how many ranks"
        )
    if nodes < 1 or ranks % nodes:
        raise FormatError(f"{ranks} ranks do not divide among {nodes} nodes")
    head = [
        f"# {_PROGRAMS[kind]}: points written by mpsim {__version__} in the form of nccl-tests",
        "# nThread 1 nGpus 1 minBytes 0 maxBytes 0 step: 2(factor) warmup iters: 0 iters: 0 agg iters: 1 validation: 0 graph: 0",
        "#",
        "# Using devices",
        *(
            f"#  Rank {rank:2d} Group  0 Pid      0 on node{rank // (ranks // nodes)} device {rank:2d} [0000:00:00] unknown"
            for rank in range(ranks)
        ),
        "#",
        "#                                                              out-of-place                       in-place",
        "#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong",
        "#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)",
    ]
    lines = [_row(kind, row) for row in rows]
    rates = [row["busbw_Bps"] / _GIGA for row in rows if row.get("busbw_Bps")]
    mean = sum(rates) / len(rates) if rates else 0.0
    foot = ["# Out of bounds values : 0 OK", f"# Avg bus bandwidth    : {mean:.6g}", "#"]
    return "\n".join([*head, *lines, *foot]) + "\n"


def _row(kind: str, row: Mapping[str, Any]) -> str:
    size, dtype = int(row["bytes"]), str(row.get("dtype") or "float")
    if not row.get("time_s"):
        raise FormatError(f"the point of {size} bytes has no time")
    count = size // _SIZES.get(dtype, 4)
    first = _half(row, "")
    swapped = row.get("out_of_place") is False
    second = _half(row, "out_of_place_" if swapped else "in_place_")
    if swapped and not row.get("out_of_place_time_s"):
        second = first  # there was no other run: both halves say the same
    redop = "sum" if kind in _REDUCES else "none"
    return f"{size:12d}  {count:12d}  {dtype:>8s}  {redop:>6s}  {-1:6d}  {first}  {second}"


def _half(row: Mapping[str, Any], head: str) -> str:
    """Time and bandwidths of one run; every digit of the time, so that reading it back loses none."""
    time = row.get(f"{head}time_s", row["time_s"] if head else None)
    assert time is not None
    rates = [row.get(f"{head}{name}_Bps", row.get(f"{name}_Bps")) for name in ("algbw", "busbw")]
    texts = [f"{rate / _GIGA!r:>7s}" if rate else "    N/A" for rate in rates]
    return f"{time / _MICRO!r:>8s}  {texts[0]}  {texts[1]}     N/A"
