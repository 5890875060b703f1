"""A file of measurements, whatever wrote it."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mpsim.measured.records import Header, Measurement

__all__ = ["Source", "collective", "collective_name", "kernel"]

_COLLECTIVES = {
    "allreduce": "all_reduce",
    "allgather": "all_gather",
    "allgatherbase": "all_gather",
    "allgatherintotensor": "all_gather",
    "reducescatter": "reduce_scatter",
    "reducescatterbase": "reduce_scatter",
    "reducescattertensor": "reduce_scatter",
    "alltoall": "all_to_all",
    "alltoallbase": "all_to_all",
    "alltoallv": "all_to_all",
    "broadcast": "broadcast",
    "reduce": "reduce",
    "sendrecv": "send_recv",
    "send": "send_recv",
    "recv": "send_recv",
    "barrier": "barrier",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Measurements of one file.

    Parameters
    ----------
    file : str
    tool : str
        What wrote it, in words.
    measurements : tuple of Measurement
    device_name : str
        As the file names the accelerator; empty where it does not.
    library : str
        Communication library; empty where there is none.
    header : Header or None
        Of a file of `mpsim measure`.
    warnings : tuple of str
    """

    file: str
    tool: str
    measurements: tuple[Measurement, ...]
    device_name: str = ""
    library: str = ""
    header: Header | None = None
    warnings: tuple[str, ...] = ()


def collective_name(word: str) -> str | None:
    """Our name of a collective that another tool calls `word`; None where it is none of ours."""
    return _COLLECTIVES.get("".join(letter for letter in word.lower() if letter.isalnum()))


def collective(
    name: str, size: int, seconds: Sequence[float], *, ranks: int, domains: int, place: str
) -> Measurement:
    """A collective of `ranks` ranks on `domains` nodes; `place` makes its id unique."""
    return Measurement(
        id=f"{name}/{size}/{ranks}x{domains}/{place}",
        family="collectives",
        op=name,
        shape={"bytes": size},
        variant={},
        dtype="",
        group=tuple(range(ranks)),
        domains=domains,
        synchronous=True,
        phase="burst",
        method="",
        seconds=(tuple(seconds),) * ranks,
        bytes=float(size),
    )


def kernel(
    op: str,
    shape: dict[str, int],
    seconds: Sequence[float],
    *,
    dtype: str,
    variant: dict[str, str | int | float | bool],
    place: str,
    phase: str = "burst",
    flops: float = 0.0,
    moved: float = 0.0,
) -> Measurement:
    """A kernel on one accelerator; `place` makes its id unique."""
    words = ",".join(f"{key}={value}" for key, value in (shape | variant).items())
    return Measurement(
        id=f"{op}/{dtype}/{words}/{place}",
        family="kernels",
        op=op,
        shape=shape,
        variant=variant,
        dtype=dtype,
        group=(0,),
        domains=1,
        synchronous=False,
        phase=phase,
        method="",
        seconds=(tuple(seconds),),
        flops=flops,
        bytes=moved,
    )
