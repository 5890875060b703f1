"""The file `mpsim measure` writes: one header line, one line a measurement, one end line, all JSON.

::

    {"kind": "header", "schema": 1, "backend": "gloo", "world_size": 2, "ranks": [{"rank": 0,
    "host": ...}, ...], ...} {"kind": "measurement", "family": "kernels", "op": "gemm", "shape":
    {"m": 512, "n": 512, "k": 512}, "dtype": "float32",
     "group": [0, 1], "seconds": [[0.0021, 0.0020], [0.0022, 0.0021]], ...}
    {"kind": "skipped", "id": "gemm/...", "reason": "out of memory"} {"kind": "end", "measurements":
    1, "complete": true, "yardstick": [0.00201, 0.00203], "clocks_hz": [0.0, 0.0]}

`seconds` has one list of samples for each rank of `group`, in its order. A file without its end
line is truncated. docs/how-to/calibrate.md explains every field; the classes below are the schema,
checked whenever one is made, and `mpsim.measured.files` reads and writes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Final, Literal, Self, TypeAlias

import numpy as np
from pydantic import BeforeValidator, ConfigDict, Field, model_validator
from pydantic.dataclasses import dataclass

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.errors import nearest
from mpsim.inputs import shown
from mpsim.shipped import read_shipped, say

Words: TypeAlias = "Mapping[str, str | int | float | bool]"

SCHEMA: Final = 1
FAMILIES: Final = ("kernels", "collectives", "blocks", "steps")
PHASES: Final = ("burst", "sustained")
DTYPES: Final = (
    *("float64", "float32", "tf32", "bfloat16", "float16", "float8_e4m3fn"),
    *("float8_e5m2", "uint8"),
)
_TOKEN = re.compile(r"\d+[FBIW]\d+|gradients|optimizer")
_KERNELS = read_shipped("mpsim.measured.data", "kernels.yaml")
SIZES: Final[Mapping[str, Sequence[str]]] = _KERNELS["sizes"]
"""Sizes that a case cannot do without, by its op."""
PRECISIONS: Final[Mapping[str, str]] = _KERNELS["precisions"]
"""torch's names of number formats, and ours."""
ELEMENT_BYTES: Final[Mapping[str, float]] = _KERNELS["element_bytes"]
_QUARTILE = 25
NOISY_ABOVE: Final = 0.15  # spread of samples above which errors cannot be told from noise
BUSY_ABOVE: Final = 0.1
"""Share of a host that other processes used, above which times are not the machine's alone."""
DRIFT: Final = 0.1  # change of the yardstick or of a clock over a file that is worth a warning


_STRICT = ConfigDict(strict=True, extra="forbid", allow_inf_nan=False)
Count: TypeAlias = Annotated[int, Field(ge=0)]
Positive: TypeAlias = Annotated[int, Field(ge=1)]
Amount: TypeAlias = Annotated[float, Field(ge=0)]
Duration: TypeAlias = Annotated[float, Field(gt=0)]


def _known_schema(schema: object) -> object:
    if type(schema) is not int or schema != SCHEMA:
        raise ValueError(say("measured.old_schema", schema=shown(schema), known=SCHEMA))
    return schema


def _among(known: Sequence[str]) -> Callable[[object], object]:
    """A check that a word is one of the known ones, which names the nearest."""

    def check(word: object) -> object:
        if isinstance(word, str) and word not in known:
            raise ValueError(f"{shown(word)} is not known; {nearest(word, known)}")
        return word

    return check


@dataclass(frozen=True, slots=True, config=_STRICT)
class RankRecord:
    """The device that one rank ran on."""

    rank: Count
    host: str
    device: str  # ``cpu`` or ``cuda:0``
    device_name: str  # as the driver or the kernel of the system names it
    threads: Positive  # threads a kernel may use on a CPU
    memory_bytes: Amount  # of the device [B]
    clock_hz: Amount = 0.0  # when the run began [Hz]; 0 where nothing tells


@dataclass(frozen=True, slots=True, config=_STRICT)
class Header:
    """The first line: where, when and with what."""

    schema: Annotated[int, BeforeValidator(_known_schema)]
    mpsim: str  # mpsim, torch, python, os: versions
    torch: str
    python: str
    os: str
    cuda: str  # cuda, nccl, driver: versions; empty without a GPU
    nccl: str
    driver: str
    created: str  # when, as ISO 8601 in UTC
    backend: str  # of torch.distributed: ``nccl``, ``gloo``, or ``none`` for one process
    world_size: Positive
    ranks: tuple[RankRecord, ...]  # every rank once, in order
    cores: Positive  # of the CPUs of the first rank's host that it may use
    seed: Count
    kind: Literal["header"] = "header"

    @model_validator(mode="after")
    def _check_ranks(self) -> Self:
        here = [record.rank for record in self.ranks]
        missing = sorted(set(range(self.world_size)) - set(here))
        if missing:
            raise ValueError(say("measured.missing_rank", rank=missing[0], size=self.world_size))
        if here != list(range(self.world_size)):
            raise ValueError(f"ranks are not 0 to {self.world_size - 1}, each once and in order")
        return self

    @property
    def device_name(self) -> str:
        """Name of the first rank's device."""
        return self.ranks[0].device_name

    def domains(self, group: Sequence[int]) -> int:
        """Number of hosts that the ranks of `group` sit on."""
        return len({self.ranks[rank].host for rank in group})


@dataclass(frozen=True, slots=True, config=_STRICT)
class Actions:
    """Starts and ends of the actions of a pipeline, columnar: N actions over ranks and steps."""

    step: tuple[Count, ...]  # which sample of the measurement, from 0
    rank: tuple[Count, ...]
    # ``3F0`` as `mpsim.schedule.Orders` writes it, or a word such as ``optimizer``
    token: tuple[str, ...]
    # start, end: from the start of the step on that rank's group, on one clock [s]
    start: tuple[Amount, ...]
    end: tuple[Amount, ...]

    @model_validator(mode="after")
    def _check_columns(self) -> Self:
        columns = (self.step, self.rank, self.token, self.start, self.end)
        if len(set(map(len, columns))) != 1:
            raise ValueError("columns of 'actions' differ in length")
        for token in self.token:
            if not _TOKEN.fullmatch(token):
                raise ValueError(say("measured.no_token", token=shown(token)))
        if any(end < start for start, end in zip(self.start, self.end, strict=True)):
            raise ValueError("an action ends before it begins")
        return self

    def __len__(self) -> int:
        return len(self.token)

    def orders(self, step: int) -> dict[int, list[str]]:
        """The tokens of each rank in the order they began, of one step."""
        rows = [row for row, number in enumerate(self.step) if number == step]
        orders: dict[int, list[str]] = {}
        for row in sorted(rows, key=lambda row: self.start[row]):
            orders.setdefault(self.rank[row], []).append(self.token[row])
        return orders


@dataclass(frozen=True, slots=True, config=_STRICT)
class Measurement:
    """One line: every sample of one operation of one shape."""

    id: str  # unique in the file; the same case has the same id in every file
    family: Annotated[str, BeforeValidator(_among(FAMILIES))]  # one of `FAMILIES`
    op: str  # ``gemm``, ``all_reduce``, ``transformer_layer``, ``train_step``, ...
    # sizes: ``m n k``; ``bytes`` of a collective, counted as in a calibration file of collectives;
    # ``layers hidden ... dp tp pp``
    shape: Mapping[str, Count]
    variant: Words  # words and switches: ``pass``, ``causal``, ``backend``, ``schedule``
    dtype: str  # as torch names it, without ``torch.``
    group: tuple[Count, ...]  # ranks that took part
    domains: Positive  # how many hosts they sit on
    # whether all ranks began together, so that the slowest is the time of the group
    synchronous: bool
    # one of `PHASES`: from cool, or after running long enough to throttle
    phase: Annotated[str, BeforeValidator(_among(PHASES))]
    method: str  # ``perf_counter``, ``cuda-events`` or ``cuda-graph``
    seconds: tuple[tuple[Duration, ...], ...]  # samples of each rank of `group`, in its order [s]
    # flops, bytes: of one execution on one rank [FLOP], least traffic or payload [B]; or 0
    flops: Amount = 0.0
    bytes: Amount = 0.0
    calls: Positive = 1  # executions behind each sample, whose mean it is
    check: str = ""  # how the result was checked; empty where it was not
    # most that was allocated on the fullest rank [B]; 0 where it is not known
    peak_memory_bytes: Amount = 0.0
    # share of the first rank's host that others used meanwhile, 0 to 1; 0 if nothing tells
    others: Amount = 0.0
    actions: Actions | None = None
    kind: Literal["measurement"] = "measurement"

    @model_validator(mode="after")
    def _check_case(self) -> Self:
        """Refuse what no fit could use: an unknown number format, a case without its sizes."""
        if self.family != "collectives" and self.dtype not in DTYPES:
            raise ValueError(f"'dtype' is {shown(self.dtype)}; known: {', '.join(DTYPES)}")
        lacking = [name for name in SIZES.get(self.op, ()) if self.shape.get(name, 0) < 1]
        if lacking:
            raise ValueError(
                f"'shape' of {shown(self.id)} lacks {', '.join(lacking)}; {self.op} needs"
                f" {', '.join(SIZES[self.op])}, each above 0"
            )
        return self

    @model_validator(mode="after")
    def _check_group(self) -> Self:
        if not self.group or len(set(self.group)) != len(self.group):
            raise ValueError(f"'group' is {list(self.group)}; needed ranks, each once")
        where = f"'seconds' of {shown(self.id)}"
        if len(self.seconds) != len(self.group):
            raise ValueError(
                f"{where} holds {len(self.seconds)} ranks, its group {len(self.group)}; a rank is"
                " missing, measure again"
            )
        if not all(self.seconds):
            raise ValueError(f"{where} has no sample; needed at least one for each rank")
        if len(set(map(len, self.seconds))) > 1:
            raise ValueError(f"{where} has more samples of one rank than of another")
        strangers = sorted(set(self.actions.rank if self.actions else ()) - set(self.group))
        if strangers:
            raise ValueError(f"'actions' holds rank {strangers[0]}, which is not in the group")
        return self

    @property
    def samples(self) -> Floats:
        """Times [s]: of the slowest rank where all began together, else all samples in a row."""
        table = np.array(self.seconds, dtype=np.float64)
        return np.asarray(table.max(axis=0) if self.synchronous else table.ravel())

    @property
    def time(self) -> float:
        """Lower quartile of the samples [s]: other load only ever makes it slower."""
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


@dataclass(frozen=True, slots=True, config=_STRICT)
class Skipped:
    """A measurement that was not taken, and why."""

    id: str
    reason: str
    kind: Literal["skipped"] = "skipped"


@dataclass(frozen=True, slots=True, config=_STRICT)
class End:
    """The last line."""

    measurements: Count  # how many lines of measurements the file holds
    # whether everything asked for was measured, rather than as much as the budget allowed
    complete: bool
    elapsed: Amount  # [s]
    # time of one fixed kernel before and after everything [s]: did clocks change
    yardstick: tuple[Duration, Duration]
    # of the device of each rank at the end [Hz]; 0 where nothing tells
    clocks_hz: tuple[Amount, ...]
    kind: Literal["end"] = "end"


Line: TypeAlias = Header | Measurement | Skipped | End


@structs.dataclass(frozen=True, slots=True)
class Measured:
    """A whole file."""

    header: Header
    measurements: tuple[Measurement, ...]
    skipped: tuple[Skipped, ...]
    end: End | None  # none for a file that was read with ``partial=True`` and has none
    file: str

    def of(self, family: str, op: str | None = None) -> tuple[Measurement, ...]:
        """Measurements of one family, and of one operation where `op` is given."""
        return tuple(m for m in self.measurements if m.family == family and op in (None, m.op))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings that a reader should know before using the numbers."""
        return tuple(self._warnings())

    def _warnings(self) -> Iterator[str]:
        if self.end is None:
            yield f"{self.file}: has no end line; the run was interrupted"
            return
        before, after = self.end.yardstick
        if abs(after / before - 1) > DRIFT:
            yield say("measured.drifted", file=self.file, before=before, after=after)
        for rank, clock in zip(self.header.ranks, self.end.clocks_hz, strict=True):
            if rank.clock_hz and clock and abs(clock / rank.clock_hz - 1) > DRIFT:
                yield (
                    f"{self.file}: rank {rank.rank} began at {rank.clock_hz / 1e6:.0f} MHz and"
                    f" ended at {clock / 1e6:.0f} MHz; lock the clocks, or trust the sustained"
                    " measurements alone"
                )
