"""Values that importers give: a scenario or measured points, with what became of the words of the file."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, TypeAlias

from mpsim.errors import CalibrationError
from mpsim.scenario import Scenario

if TYPE_CHECKING:
    from mpsim.formats.execution import ImportedProgram
    from mpsim.formats.spans import Spans

_SHORTEST, _LONGEST = 1e-12, 1e9  # s, of a kernel or collective that somebody timed
_NOTHING: Mapping[str, str] = MappingProxyType({})
Words: TypeAlias = "Mapping[str, str | int | float | bool]"

_COLLECTIVES = {
    word: name
    for name, words in {
        "all_reduce": "allreduce",
        "all_gather": "allgather allgatherbase allgatherintotensor",
        "reduce_scatter": "reducescatter reducescatterbase reducescattertensor",
        "all_to_all": "alltoall alltoallbase alltoallv",
        "send_recv": "sendrecv send recv",
        **{name: name for name in ("broadcast", "reduce", "barrier")},
    }.items()
    for word in words.split()
}
"""Our names of collectives, by what tools call them without case and marks."""


@dataclasses.dataclass(frozen=True, slots=True)
class Assumed:
    """A value that the file does not state.

    Parameters
    ----------
    to : str
        The key that got it, in the words of the file or of the scenario.
    value : str, number, bool or list
        Empty where the sentence in `why` says all.
    text : str
        The whole sentence, where ``to = value (why)`` does not say it.
    """

    to: str
    value: object
    why: str
    text: str = ""

    def __str__(self) -> str:
        """The assumption as one sentence."""
        if self.text:
            return self.text
        return (
            f"{self.to}: {self.why}"
            if self.value == ""
            else f"{self.to} = {self.value} ({self.why})"
        )


@dataclasses.dataclass(frozen=True, slots=True)
class Mapped:
    """A key of the file that became a value of the scenario.

    Parameters
    ----------
    source : str
        In the words of the file.
    to : str
        Dotted key of the scenario.
    value : object
        As the scenario has it.
    """

    source: str
    to: str
    value: object


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A scenario read from somebody else's words, and what became of every key of the file.

    Every key is in exactly one of `mapped` and `ignored`.

    Parameters
    ----------
    scenario : mapping
        As a scenario file would hold it; sections that the source says nothing about are absent.
    assumed : tuple of Assumed
        What the source leaves open, or asks for and is not simulated.
    ignored : tuple of str
        Keys of the source that change nothing here.
    lines : mapping of str to str
        Where each value comes from: dotted key of the scenario to a place such as ``config.json:12 hidden_size``.
    format : str
        Name of the format, as commands take it.
    tool, version : str
        What wrote the file, and which era of it, in words.
    missing : tuple of str
        Dotted keys of the scenario that the file cannot hold or leaves to its user.
    warnings : tuple of str
        What moves time or memory and is not simulated.
    model_parameters : int, optional
        Exact count of the model that the file describes: embeddings once where tied, no padding, no multi-token prediction.
    """

    scenario: Mapping[str, Any]
    assumed: tuple[Assumed, ...] = ()
    ignored: tuple[str, ...] = ()
    lines: Mapping[str, str] = dataclasses.field(default_factory=dict)
    format: str = ""
    tool: str = ""
    version: str = ""
    files: tuple[str, ...] = ()
    mapped: tuple[Mapped, ...] = ()
    missing: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    model_parameters: int | None = None

    def build(self) -> Scenario:
        """The scenario, checked.

        Raises
        ------
        ScenarioError
            If a section is missing, or values contradict each other.
        """
        return Scenario.from_mapping(dict(self.scenario))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredPoint:
    """Samples of one kernel or one collective of one size.

    Parameters
    ----------
    id : str
        Unique in its file.
    family : str
        ``kernels`` or ``collectives``.
    op : str
        ``gemm``, ``all_reduce``, ...
    seconds : tuple of float
        Samples of the slowest rank [s].
    shape : mapping of str to int
        Sizes, such as ``m n k``, or ``bytes`` of a collective.
    variant : mapping
        Words and switches.
    dtype : str
        As torch names it; empty for a collective.
    ranks, domains : int
        How many took part, and on how many nodes.
    phase : str
        ``burst`` or ``sustained``.
    flops, bytes : float
        Work of one execution [FLOP], memory traffic or payload [B]; 0 where it is not known.
    """

    id: str
    family: str
    op: str
    seconds: tuple[float, ...]
    shape: Mapping[str, int]
    variant: Words = dataclasses.field(default_factory=dict)
    dtype: str = ""
    ranks: int = 1
    domains: int = 1
    phase: str = "burst"
    flops: float = 0.0
    bytes: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Points:
    """Measured points of one file.

    Parameters
    ----------
    tool : str
        Name of the tool that wrote the file, in words.
    device_name : str
        As the file names the accelerator; empty where it does not.
    library : str
        Communication library; empty where there is none.
    format, version : str
        Name of the format, as commands take it, and the era of the tool.
    rows : tuple of mapping
        Every row of the file in SI units, as ``mpsim import`` prints it; those that are no collective or kernel of ours too.
    """

    file: str
    tool: str
    points: tuple[MeasuredPoint, ...]
    device_name: str = ""
    library: str = ""
    warnings: tuple[str, ...] = ()
    format: str = ""
    version: str = ""
    rows: tuple[Mapping[str, object], ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Recorded:
    """Facts of one step that a recording or a compiled program states, in SI units.

    Parameters
    ----------
    format, tool, version : str
        Name of the format, as commands take it, and what wrote the file.
    facts : mapping of str to object
        Such as ``rank``, ``actions``, ``compute_s``, ``collectives``.
    program : ImportedProgram, optional
        What it runs, priced on the cluster that was named; None where none was.
    spans : tuple of Spans
        What each rank did and when, where this was asked for.
    """

    format: str
    tool: str
    files: tuple[str, ...]
    facts: Mapping[str, object]
    version: str = ""
    warnings: tuple[str, ...] = ()
    program: ImportedProgram | None = None
    spans: tuple[Spans, ...] = ()


def collective_name(word: str) -> str | None:
    """Our name of a collective that another tool calls `word`; None where it is none of ours."""
    return _COLLECTIVES.get("".join(letter for letter in word.lower() if letter.isalnum()))


def _check_times(seconds: Sequence[float], place: str) -> None:
    """Refuse times that no machine takes, such as what is left of 1e-320 us."""
    for time in seconds:
        if not _SHORTEST <= time <= _LONGEST:
            raise CalibrationError(f"{place}: a time of {time:g} s; needed more than 0")


def collective_point(
    name: str, size: int, seconds: Sequence[float], *, ranks: int, domains: int, place: str
) -> MeasuredPoint:
    """A collective of `ranks` ranks on `domains` nodes; `place` makes its id unique."""
    _check_times(seconds, place)
    return MeasuredPoint(
        id=f"{name}/{size}/{ranks}x{domains}/{place}",
        family="collectives",
        op=name,
        seconds=tuple(seconds),
        shape={"bytes": size},
        ranks=ranks,
        domains=domains,
        bytes=float(size),
    )


def kernel_point(
    op: str,
    shape: Mapping[str, int],
    seconds: Sequence[float],
    *,
    dtype: str,
    place: str,
    variant: Words = _NOTHING,
    phase: str = "burst",
    flops: float = 0.0,
) -> MeasuredPoint:
    """A kernel on one accelerator; `place` makes its id unique."""
    _check_times(seconds, place)
    words = ",".join(f"{key}={value}" for key, value in {**shape, **variant}.items())
    return MeasuredPoint(
        id=f"{op}/{dtype}/{words}/{place}",
        family="kernels",
        op=op,
        seconds=tuple(seconds),
        shape=shape,
        variant=variant,
        dtype=dtype,
        phase=phase,
        flops=flops,
    )
