"""Formats that are read, which of them a file has by its content, and formats written."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from mpsim import structs
from mpsim.errors import CalibrationError, FormatError, MpsimError, nearest
from mpsim.formats import megatron_yaml, source
from mpsim.formats.chakra import CHAKRA
from mpsim.formats.chakra.trace import is_trace
from mpsim.formats.chakra.writer import export_chakra
from mpsim.formats.deepspeed import DEEPSPEED, export_deepspeed
from mpsim.formats.hlo import HLO
from mpsim.formats.huggingface import HUGGING_FACE
from mpsim.formats.imported import Imported, Points, Recorded
from mpsim.formats.kineto import KINETO
from mpsim.formats.megatron import MEGATRON, SLURM, export_megatron
from mpsim.formats.nccl_tests import NCCL_TESTS, NCCL_TESTS_JSON
from mpsim.formats.nsys import NSYS, is_sqlite
from mpsim.formats.osu import OSU
from mpsim.formats.outgoing import Exported
from mpsim.formats.scenarios import on_cluster
from mpsim.formats.servers import SERVERS, export_server
from mpsim.formats.source import Format, Head, Options, read_head
from mpsim.formats.tables import TABLE
from mpsim.formats.torchtitan import TORCHTITAN, export_torchtitan
from mpsim.scenario import Scenario
from mpsim.shipped import say

RECORDING: Final = Format(
    "mpsim-measure", lambda head: head.is_object and '"kind"' in head.first_line
)
FORMATS: Final = (
    RECORDING,
    CHAKRA,
    NSYS,
    KINETO,
    NCCL_TESTS,
    NCCL_TESTS_JSON,
    HUGGING_FACE,
    *SERVERS,
    SLURM,
    MEGATRON,
    megatron_yaml.NEMO,
    megatron_yaml.MEGATRON_YAML,
    megatron_yaml.MEGATRON_BRIDGE,
    TORCHTITAN,
    DEEPSPEED,
    OSU,
    HLO,
    TABLE,
)
"""Every format in the order of trial: those that their first characters tell come first."""
ALIASES: Final[Mapping[str, str]] = source.FORMATS["aliases"]
"""Further names of formats."""


def recognise(path: str | Path) -> Format:
    """The format of a file. CalibrationError if it cannot be read, or nothing known wrote it."""
    return _recognise(read_head(Path(path)))


def read(
    path: str | Path,
    *,
    format: str = "auto",  # noqa: A002
    only: Mapping[str, str] | None = None,
    ranks: int | None = None,
    cluster: str | None = None,
    kernels: bool = False,
    spans: bool = False,
) -> Imported | Points | Recorded:
    """Read a file of another tool.

    Parameters
    ----------
    format : str
        Name of the format (see 'mpsim show formats'), or ``auto``: what it holds decides.
    only : mapping of str to str, optional
        Value that a column of a table must have.
    ranks : int, optional
        Accelerators of the job, or ranks of the benchmark, where the file does not say.
    cluster : str, optional
        System of the catalog that the job runs on; a compiled program is priced on it.
    kernels : bool
        Whether a recording of a step is read for the kernels and collectives in it, as points.
    spans : bool
        Whether a recording keeps what each rank did and when, of which
        `mpsim.formats.recorded_step` makes a timeline.

    Returns
    -------
    Imported, Points or Recorded
        A scenario with what became of every key, measured points, or what a recording says.

    Raises
    ------
    FormatError
        If the format is unknown, the file has another, or what it describes cannot be simulated.
    CalibrationError
        If nothing known wrote it, or it is truncated, mixed or impossible; it says which.
    """
    family = () if format == "auto" else named(format)
    file = _in_folder(Path(path))
    head = read_head(file, binary=is_trace(file) or is_sqlite(file))
    known = _agreed(family, head) if family else _recognise(head)
    if known.read is None:
        raise CalibrationError(f"{path}: is a recording; read it with mpsim.measured")
    options = Options(only=only or {}, ranks=ranks, cluster=cluster, spans=spans)
    reader = known.read if kernels or known.record is None else known.record
    try:
        result = reader(head, options)
    except MpsimError:
        raise
    except (ValueError, OverflowError, RecursionError) as error:
        # numbers and nesting beyond what Python converts, in a place that the reader does not
        # guard: a mutation test looks for this word, and anything else that escapes a reader is a
        # bug and shows as one
        why = f"unforeseen {type(error).__name__}: {str(error)[:80]}"
        raise FormatError(f"{path}: cannot be read as {known.title}: {why}") from error
    if not isinstance(result, Imported):
        return result
    told = source.FORMATS["variables"] if known in (*SERVERS, SLURM, MEGATRON) else "(?!)"
    if names := ", ".join(dict.fromkeys(re.findall(told, head.text))):
        warnings = (*result.warnings, say("formats.variables", told=names))
        result = structs.replace(result, warnings=warnings)
    return on_cluster(result, options)


_SAID_ELSEWHERE: Final = re.compile(r"(?m)^(distributed_type|compute_environment|fsdp_config):")
"""Keys of an Accelerate configuration, which holds no more than how parameters are sharded."""


def _in_folder(path: Path) -> Path:
    """The file to read of a folder: the compiled module of ``--xla_dump_to``, or the first rank of
    an execution trace; else the path itself.

    FormatError if the folder holds none, or several modules.
    """
    if not path.is_dir():
        return path
    modules = sorted(path.glob("*after_optimizations.txt"))
    ranks = sorted(file for file in path.glob("*.0.et") if is_trace(file))
    found = modules or ranks
    if len(found) != 1:
        names = ", ".join(file.name for file in found[:4]) or "neither a compiled module nor *.0.et"
        raise FormatError(f"{path}: is a folder with {names}; name the file to read")
    return found[0]


def named(name: str) -> tuple[Format, ...]:
    """The formats that a name means, several if a tool writes more; FormatError if none."""
    word = ALIASES.get(name.lower(), name.lower())
    family = tuple(known for known in FORMATS if (known.name + "-").startswith(f"{word}-"))
    if not family:
        names = [*(known.name for known in FORMATS), *ALIASES, "auto"]
        raise FormatError(f"unknown format {name[:60]!r}; {nearest(name, names)}")
    return family


def _agreed(family: tuple[Format, ...], head: Head) -> Format:
    """The format of the family that the file has; the first where nothing gives the file away."""
    for known in family:
        if known.recognises(head):
            return known
    for known in FORMATS:
        if known is not TABLE and known.recognises(head):
            raise FormatError(
                say("formats.other_format", path=head.path, known=known, title=family[0].title)
            )
    return family[0]


def _recognise(head: Head) -> Format:
    for known in FORMATS:
        if known.recognises(head):
            return known
    if not head.is_object and _SAID_ELSEWHERE.search(head.text):
        raise FormatError(say("formats.accelerate", path=head.path))
    what = "nothing known wrote this"
    if head.is_object:
        what = "JSON that neither nccl-tests -J nor torch.profiler wrote, nor anything else known"
    raise CalibrationError(f"{head.path}: {what}; 'mpsim show formats' lists what can be read")


@structs.dataclass(frozen=True, slots=True)
class Writer:
    """A format that is written."""

    name: str  # as commands take it; an importer of the same name reads the file
    write: Callable[[Scenario], Exported]  # the scenario in that format
    title: str
    ending: str  # usual ending of its file; empty where it is a folder of files

    @property
    def serves(self) -> bool:
        """Whether it holds a service, not a training step."""
        return self.name in (server.name for server in SERVERS)


_WRITE: Final[Mapping[str, Callable[[Scenario], Exported]]] = {
    "megatron": export_megatron,
    "megatron-bridge": megatron_yaml.export_bridge,
    "nemo": megatron_yaml.export_nemo,
    "torchtitan": export_torchtitan,
    "deepspeed": export_deepspeed,
    "chakra": export_chakra,
    **{server.name: functools.partial(export_server, server.name) for server in SERVERS},
}
WRITERS: Final = tuple(
    Writer(name, _WRITE[name], **words) for name, words in source.FORMATS["written"].items()
)


def writer(name: str) -> Writer:
    """The format that a name means. FormatError if there is none."""
    word = ALIASES.get(name.lower(), name.lower())
    found = next((item for item in WRITERS if item.name == word), None)
    if found is None:
        names = [*(item.name for item in WRITERS), *ALIASES]
        raise FormatError(f"no format {name[:60]!r} is written; {nearest(name, names)}")
    return found


def export(scenario: Scenario, format: str) -> Exported:  # noqa: A002
    """Write a scenario in the words of another tool.

    Parameters
    ----------
    scenario : Scenario
        Of a training step, or of a service for a server's launch line.
    format : str
        Name of the format (see 'mpsim show formats').

    Returns
    -------
    Exported
        The text, and every value that the format cannot hold.

    Raises
    ------
    FormatError
        If the format is unknown, or cannot hold such a model or a service.

    Examples
    --------
    >>> import mpsim
    >>> scenario = mpsim.Scenario.from_mapping({
    ...     "schema": 1, "model": "llama3-8b", "cluster": {"preset": "dgx-h100", "nodes": 1},
    ...     "training": {"global_batch": 8, "sequence_length": 8192}})
    >>> [loss.key for loss in export(scenario, "deepspeed").lost if "." not in loss.key]
    ['model', 'cluster']
    """
    return writer(format).write(scenario)
