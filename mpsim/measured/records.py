"""The file `mpsim measure` writes: one header line, one line a measurement, one end line, all JSON.

::

    {"kind": "header", "schema": 1, "backend": "gloo", "world_size": 2, "ranks": [{"rank": 0, "host": ...}, ...], ...}
    {"kind": "measurement", "family": "kernels", "op": "gemm", "shape": {"m": 512, "n": 512, "k": 512}, "dtype": "float32",
     "group": [0, 1], "seconds": [[0.0021, 0.0020], [0.0022, 0.0021]], ...}
    {"kind": "skipped", "id": "gemm/...", "reason": "out of memory"}
    {"kind": "end", "measurements": 1, "complete": true, "yardstick": [0.00201, 0.00203], "clocks_hz": [0.0, 0.0]}

`seconds` has one list of samples for each rank of `group`, in its order. A file without its end line is truncated. docs/how-to/calibrate.md
explains every field; the classes below are the schema, and `mpsim.measured.reading` reads it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Self, TextIO, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mpsim.errors import CalibrationError

__all__ = [
    "DTYPES",
    "FAMILIES",
    "KINDS",
    "PHASES",
    "SCHEMA",
    "SIZES",
    "Actions",
    "End",
    "Header",
    "Line",
    "Measured",
    "Measurement",
    "RankRecord",
    "RecordWriter",
    "Skipped",
    "partial_path",
    "to_line",
]

Floats = NDArray[np.float64]
Words: TypeAlias = "Mapping[str, str | int | float | bool]"

SCHEMA: Final = 1
FAMILIES: Final = ("kernels", "collectives", "blocks", "steps")
PHASES: Final = ("burst", "sustained")
DTYPES: Final = (
    *("float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn"),
    *("float8_e5m2", "uint8"),
)
_ROW: Final = ("tokens", "features")
_LAYER: Final = ("hidden", "heads", "ffn_hidden", "sequence", "micro_batch")
SIZES: Final[Mapping[str, tuple[str, ...]]] = {
    "gemm": ("m", "n", "k"),
    "attention": ("batch", "heads", "sequence", "head_dim"),
    **dict.fromkeys(("layer_norm", "rms_norm", "gelu", "silu_mul", "add", "dropout"), _ROW),
    "softmax": _ROW,
    "embedding": ("tokens", "vocabulary", "features"),
    "cross_entropy": ("tokens", "vocabulary"),
    "adam": ("parameters",),
    "copy": ("bytes",),
    **dict.fromkeys(("transformer_layer", "tensor_parallel_layer"), _LAYER),
    "train_step": ("layers", *_LAYER, "vocab"),
}
"""Sizes that a case cannot do without, by its op."""
LONGEST_LINE: Final = (
    64_000_000  # characters: a line of ours is far below, a trace of one object is not read
)
PRECISIONS: Final[Mapping[str, str]] = {
    "float64": "fp64",
    "float32": "fp32",
    "tf32": "tf32",
    "bfloat16": "bf16",
    "float16": "fp16",
    "float8_e4m3fn": "fp8",
}
"""torch's names of number formats, and ours."""
ELEMENT_BYTES: Final[Mapping[str, float]] = {
    "fp64": 8.0,
    "fp32": 4.0,
    "tf32": 4.0,
    "bf16": 2.0,
    "fp16": 2.0,
    "fp8": 1.0,
}
_QUARTILE = 25
NOISY_ABOVE: Final = 0.15
"""Spread of samples above which errors cannot be told from noise."""
BUSY_ABOVE: Final = 0.1
"""Share of a host that other processes used, above which times are not the machine's alone."""
DRIFT: Final = 0.1
"""Change of the yardstick or of a clock over a file that is worth a warning."""


@dataclasses.dataclass(frozen=True, slots=True)
class RankRecord:
    """What one rank ran on.

    Parameters
    ----------
    rank : int
    host : str
    device : str
        ``cpu`` or ``cuda:0``.
    device_name : str
        As the driver or the kernel of the system names it.
    threads : int
        Threads a kernel may use on a CPU.
    memory_bytes : float
        Of the device [B].
    clock_hz : float
        When the run began [Hz]; 0 where nothing tells.
    """

    rank: int
    host: str
    device: str
    device_name: str
    threads: int
    memory_bytes: float
    clock_hz: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Header:
    """The first line: where, when and with what.

    Parameters
    ----------
    schema : int
    mpsim, torch, python, os : str
        Versions.
    cuda, nccl, driver : str
        Versions; empty without a GPU.
    created : str
        When, as ISO 8601 in UTC.
    backend : str
        Of torch.distributed: ``nccl``, ``gloo``, or ``none`` for one process.
    world_size : int
    ranks : tuple of RankRecord
        Every rank once, in order.
    cores : int
        Of the CPUs of the first rank's host that it may use.
    seed : int
    """

    schema: int
    mpsim: str
    torch: str
    python: str
    os: str
    cuda: str
    nccl: str
    driver: str
    created: str
    backend: str
    world_size: int
    ranks: tuple[RankRecord, ...]
    cores: int
    seed: int

    @property
    def device_name(self) -> str:
        """Of the first rank."""
        return self.ranks[0].device_name

    def domains(self, group: Sequence[int]) -> int:
        """How many hosts the ranks of `group` sit on."""
        return len({self.ranks[rank].host for rank in group})


@dataclasses.dataclass(frozen=True, slots=True)
class Actions:
    """When each action of a pipeline ran, columnar: N actions over ranks and steps.

    Parameters
    ----------
    step : tuple of int
        Which sample of the measurement, from 0.
    rank : tuple of int
    token : tuple of str
        ``3F0`` as `mpsim.schedule.Orders` writes it, or a word such as ``optimizer``.
    start, end : tuple of float
        From the start of the step on that rank's group, on one clock [s].
    """

    step: tuple[int, ...]
    rank: tuple[int, ...]
    token: tuple[str, ...]
    start: tuple[float, ...]
    end: tuple[float, ...]

    def __len__(self) -> int:
        return len(self.token)

    def orders(self, step: int) -> dict[int, list[str]]:
        """The tokens of each rank in the order they began, of one step."""
        rows = [i for i, one in enumerate(self.step) if one == step]
        found: dict[int, list[str]] = {}
        for i in sorted(rows, key=lambda i: self.start[i]):
            found.setdefault(self.rank[i], []).append(self.token[i])
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Measurement:
    """One line: every sample of one operation of one shape.

    Parameters
    ----------
    id : str
        Unique in the file; the same case has the same id in every file.
    family : str
        One of `FAMILIES`.
    op : str
        ``gemm``, ``all_reduce``, ``transformer_layer``, ``train_step``, ...
    shape : mapping of str to int
        Sizes: ``m n k``; ``bytes`` of a collective, counted as in a calibration file of collectives; ``layers hidden ... dp tp pp``.
    variant : mapping
        Words and switches: ``pass``, ``causal``, ``backend``, ``schedule``.
    dtype : str
        As torch names it, without ``torch.``.
    group : tuple of int
        Ranks that took part.
    domains : int
        How many hosts they sit on.
    synchronous : bool
        Whether all ranks began together, so that the slowest is the time of the group; else each rank ran the operation alone.
    phase : str
        One of `PHASES`: from cool, or after running long enough to throttle.
    method : str
        ``perf_counter``, ``cuda-events`` or ``cuda-graph``.
    seconds : tuple of tuple of float
        Samples of each rank of `group`, in its order [s].
    flops, bytes : float
        Work of one execution on one rank [FLOP], least memory traffic or payload [B]; 0 where it has none.
    calls : int
        Executions behind each sample, whose mean it is.
    check : str
        How the result was checked; empty where it was not.
    peak_memory_bytes : float
        Most that was allocated on the fullest rank [B]; 0 where it is not known.
    others : float
        Share of the first rank's host that other processes used meanwhile, 0 to 1; 0 where nothing tells.
    actions : Actions or None
        Of training steps.
    """

    id: str
    family: str
    op: str
    shape: Mapping[str, int]
    variant: Words
    dtype: str
    group: tuple[int, ...]
    domains: int
    synchronous: bool
    phase: str
    method: str
    seconds: tuple[tuple[float, ...], ...]
    flops: float = 0.0
    bytes: float = 0.0
    calls: int = 1
    check: str = ""
    peak_memory_bytes: float = 0.0
    others: float = 0.0
    actions: Actions | None = None

    @property
    def samples(self) -> Floats:
        """What counts as the time [s]: of the slowest rank where they began together, else every rank's samples in a row."""
        table = np.array(self.seconds, dtype=np.float64)
        return np.asarray(table.max(axis=0) if self.synchronous else table.ravel())

    @property
    def time(self) -> float:
        """Lower quartile of the samples [s]: what else runs on a machine only ever makes it slower."""
        return float(np.percentile(self.samples, _QUARTILE))

    @property
    def noise(self) -> float:
        """Half the distance between the quartiles of the samples, over their median."""
        low, middle, high = np.percentile(self.samples, [25, 50, 75])
        return float((high - low) / 2 / middle)

    @property
    def median(self) -> float:
        """Median of the samples [s]."""
        return float(np.median(self.samples))

    @property
    def precision(self) -> str:
        """Our name of the number format."""
        return PRECISIONS.get(self.dtype, self.dtype)


@dataclasses.dataclass(frozen=True, slots=True)
class Skipped:
    """A measurement that was not taken, and why."""

    id: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class End:
    """The last line.

    Parameters
    ----------
    measurements : int
        How many lines of measurements the file holds.
    complete : bool
        Whether everything asked for was measured, rather than as much as the budget allowed.
    elapsed : float
        [s].
    yardstick : tuple of float
        Time of one fixed kernel before and after everything [s]: what a changed clock or a busy neighbour does to it.
    clocks_hz : tuple of float
        Of the device of each rank at the end [Hz]; 0 where nothing tells.
    """

    measurements: int
    complete: bool
    elapsed: float
    yardstick: tuple[float, float]
    clocks_hz: tuple[float, ...]


Line: TypeAlias = Header | Measurement | Skipped | End
KINDS: Final[Mapping[type, str]] = {
    Header: "header",
    Measurement: "measurement",
    Skipped: "skipped",
    End: "end",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """A whole file.

    Parameters
    ----------
    header : Header
    measurements : tuple of Measurement
    skipped : tuple of Skipped
    end : End or None
        None for a file that was read with ``partial=True`` and has none.
    file : str
    """

    header: Header
    measurements: tuple[Measurement, ...]
    skipped: tuple[Skipped, ...]
    end: End | None
    file: str

    def of(self, family: str, op: str | None = None) -> tuple[Measurement, ...]:
        """Measurements of one family, and of one operation where `op` is given."""
        return tuple(
            m for m in self.measurements if m.family == family and (op is None or m.op == op)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a reader should know before using the numbers."""
        return tuple(self._warnings())

    def _warnings(self) -> Iterator[str]:
        if self.end is None:
            yield f"{self.file}: has no end line; the run was interrupted"
            return
        before, after = self.end.yardstick
        if abs(after / before - 1) > DRIFT:
            yield (
                f"{self.file}: the same kernel took {before:.3g} s at the start and {after:.3g} s at the end; "
                "clocks changed or the machine was busy: measure again on a quiet one"
            )
        for rank, clock in zip(self.header.ranks, self.end.clocks_hz, strict=True):
            if rank.clock_hz and clock and abs(clock / rank.clock_hz - 1) > DRIFT:
                yield (
                    f"{self.file}: rank {rank.rank} began at {rank.clock_hz / 1e6:.0f} MHz and ended at {clock / 1e6:.0f} MHz; "
                    "lock the clocks, or trust the sustained measurements alone"
                )


def to_line(line: Line) -> str:
    """One line of the file, without its end; NaN and infinities are refused.

    Raises
    ------
    CalibrationError
        If a number is not finite.
    """
    data = {"kind": KINDS[type(line)], **dataclasses.asdict(line)}
    if data.get("actions", 0) is None:
        del data["actions"]
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError as error:
        raise CalibrationError(
            f"{data['kind']} {data.get('id', '')}: a number is not finite"
        ) from error


class RecordWriter:
    """Lines of a file that is being measured; ``with RecordWriter(path) as writer``.

    Parameters
    ----------
    path : Path
        The file that will be written. Until `finish` the lines go to ``<path>.partial``, so that a file under its own name is whole.
    append : bool
        Go on with the partial file that is there.
    """

    def __init__(self, path: Path, *, append: bool = False) -> None:
        self.path = path
        self.partial = partial_path(path)
        self.append = append
        self._stream: TextIO | None = None

    def __enter__(self) -> Self:
        self.partial.parent.mkdir(parents=True, exist_ok=True)
        self._stream = self.partial.open("a" if self.append else "w", encoding="utf-8")
        return self

    def __exit__(self, *_: object) -> None:
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def write(self, line: Line) -> None:
        """Add one line, on disk before this returns."""
        assert self._stream is not None
        self._stream.write(to_line(line) + "\n")
        self._stream.flush()

    def finish(self, end: End) -> None:
        """Write the end line and give the file its name."""
        self.write(end)
        self.__exit__()
        self.partial.replace(self.path)


def partial_path(path: Path) -> Path:
    """Where the lines of `path` are while it is being measured."""
    return path.with_name(path.name + ".partial")
