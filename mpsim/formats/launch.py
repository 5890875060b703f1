"""Launchers: how many processes on how many nodes a command starts, and the training program with its arguments.

``srun``, ``mpirun``, ``torchrun``, ``python -m torch.distributed.launch``, ``deepspeed`` and ``accelerate launch`` are read, one inside the other; the
innermost that states a number wins, and lines of a Slurm header count where no command does.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Final

from mpsim.formats.shell import Word

__all__ = ["Launch", "Stated", "header", "launched", "options_of", "scheduler_variables"]

_LAUNCHERS: Final[Mapping[str, Mapping[str, str]]] = {
    "sbatch": {
        "N": "nodes", "nodes": "nodes", "n": "world", "ntasks": "world", "ntasks-per-node": "tasks",
        "gpus-per-node": "gpus", "gres": "gpus", "gpus": "all_gpus", "G": "all_gpus", "gpus-per-task": "task_gpus",
    },
    "mpirun": {"np": "world", "n": "world", "npernode": "per_node", "N": "per_node", "ppn": "per_node", "map-by": "map_by"},
    "torchrun": {"nnodes": "nodes", "nproc-per-node": "per_node"},
    "deepspeed": {"num-nodes": "nodes", "num-gpus": "per_node"},
    "accelerate": {"num-machines": "nodes", "num-processes": "world"},
}  # fmt: skip
_KINDS: Final = {
    "srun": "sbatch", "mpirun": "mpirun", "mpiexec": "mpirun", "mpirun.openmpi": "mpirun", "torchrun": "torchrun", "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun", "deepspeed": "deepspeed", "deepspeed.launcher.runner": "deepspeed", "accelerate": "accelerate",
}  # fmt: skip
_LONGEST = 200  # characters of a number of nodes or ranks, with what stands behind it
_PROGRAM = re.compile(r".*\.py|.*pretrain_\w{1,100}|finetune\w*|.*/train")
_SWITCHES = frozenset(
    {
        "standalone",
        "exclusive",
        "label",
        "l",
        "u",
        "unbuffered",
        "no-python",
        "module",
        "m",
        "use-env",
        "verbose",
        "overlap",
        "kill-on-bad-exit",
    }
)


@dataclasses.dataclass(frozen=True, slots=True)
class Stated:
    """A number of a launcher, and the option that states it."""

    value: int
    key: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A training program as it is started.

    Parameters
    ----------
    program : str
        Name of the program, without its folder.
    arguments : tuple of Word
    line : int
    nodes, per_node, world : Stated, optional
        Nodes, processes on each, and all of them.
    options : mapping of str to Word
        Every option of the launchers, such as ``torchrun --nnodes``, with its value.
    environment : mapping of str to str
        Variables set before the command.
    """

    program: str
    arguments: tuple[Word, ...]
    line: int
    nodes: Stated | None = None
    per_node: Stated | None = None
    world: Stated | None = None
    options: Mapping[str, Word] = dataclasses.field(default_factory=dict)

    @property
    def ranks(self) -> int | None:
        """All processes; None where no launcher says."""
        if self.nodes is not None and self.per_node is not None:
            return self.nodes.value * self.per_node.value
        return self.world.value if self.world is not None else None


def header(text: str) -> dict[str, Word]:
    """Options of the ``#SBATCH`` lines before the first command, the last of each; keys as ``#SBATCH --nodes``."""
    options: dict[str, Word] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#SBATCH"):
            words = [
                Word(word, number) for word in stripped[len("#SBATCH") :].partition(" #")[0].split()
            ]
            options |= {f"#SBATCH {key}": value for key, value in options_of(words)}
        elif stripped and not stripped.startswith("#"):
            break
    return options


def options_of(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Options of a launcher and their values; ``-N2``, ``-N 2``, ``--nodes=2`` and ``--nodes 2`` are one thing."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        match = re.fullmatch(r"(--?[A-Za-z][\w.-]*)=(.*)", word.text, re.DOTALL)
        if match is not None:
            yield match[1], Word(match[2], word.line, word.unknown)
        elif glued := re.fullmatch(r"(-[NnGc])(\d+)", word.text):
            yield glued[1], Word(glued[2], word.line)
        elif word.text.startswith("-"):
            follows = place < len(words) and not words[place].text.startswith("-")
            if word.text.lstrip("-") in _SWITCHES or not follows:
                yield word.text, Word("", word.line)
            else:
                yield word.text, words[place]
                place += 1


def launched(words: Sequence[Word], head: Mapping[str, Word]) -> Launch | None:
    """The training program that a command starts; None where it starts none.

    Parameters
    ----------
    words : sequence of Word
    head : mapping of str to Word
        Options of the Slurm header.
    """
    place = _program(words)
    if place is None:
        return None
    options: dict[str, Word] = {}
    numbers: dict[str, Stated] = {}
    _take(
        "sbatch",
        "#SBATCH",
        {key.removeprefix("#SBATCH "): word for key, word in head.items()},
        numbers,
    )
    name, kind, start = "", "", 0
    sections: list[tuple[str, str, int, int]] = []
    for index in range(place + 1):
        base = PurePosixPath(words[index].text).name if index < place else ""
        if base in _KINDS or index == place:
            sections.append((name, kind, start, index))
            name, kind, start = base, _KINDS.get(base, ""), index + 1
    for name, kind, start, end in sections:
        own = dict(options_of(words[start:end]))
        if kind:
            options |= {f"{name} {key}": word for key, word in own.items()}
            _take(kind, name, own, numbers)
    program = PurePosixPath(words[place].text).name
    return Launch(
        program=program,
        arguments=tuple(words[place + 1 :]),
        line=words[place].line,
        nodes=numbers.get("nodes"),
        per_node=_per_node(numbers),
        world=numbers.get("world") or numbers.get("all_gpus"),
        options={**head, **options},
    )


def _program(words: Sequence[Word]) -> int | None:
    """Place of the training program: the first script, or the module that python runs and that is no launcher."""
    for place, word in enumerate(words):
        if (
            word.text in ("-m", "--module")
            and place + 1 < len(words)
            and words[place + 1].text not in _KINDS
        ):
            return place + 1
        is_option = (
            place > 0
            and words[place - 1].text.startswith("--")
            and not words[place - 1].text.endswith(("standalone", "python"))
        )
        if _PROGRAM.fullmatch(word.text) and not word.text.startswith("-") and not is_option:
            return place
        if (
            _PROGRAM.fullmatch(word.text)
            and word.text.endswith(".py")
            and not word.text.startswith("-")
        ):
            return place
    return None


def _take(kind: str, name: str, options: Mapping[str, Word], numbers: dict[str, Stated]) -> None:
    """Add what one launcher states; it stands inside those before it, so it wins."""
    taken: dict[str, Stated] = {}
    for key, word in options.items():
        role = _LAUNCHERS[kind].get(key.lstrip("-").replace("_", "-"))
        count = (
            re.search(r"\b(\d{1,9})(?:\(.*\))?$", word.text[-_LONGEST:])
            if role is not None
            else None
        )
        if role is None or count is None or word.unknown:
            continue
        if role == "map_by":
            count = re.search(r"ppr:(\d{1,9}):node", word.text)
            role = "per_node"
            if count is None:
                continue
        if role == "nodes" and not re.fullmatch(r"\d{1,9}", word.text):
            continue  # an elastic range has no one size
        taken[role] = Stated(int(count[1]), f"{name} {key}")
    if kind == "torchrun" and {"nodes", "per_node"} & taken.keys():
        numbers.pop("world", None)  # Slurm counted the tasks that start it
    if kind in ("accelerate", "mpirun") and "world" in taken:
        numbers.pop("nodes", None) if "nodes" not in taken and kind == "accelerate" else None
    numbers |= taken


def _per_node(numbers: Mapping[str, Stated]) -> Stated | None:
    if "per_node" in numbers:
        return numbers["per_node"]
    tasks, gpus = numbers.get("tasks"), numbers.get("gpus")
    if tasks is not None and tasks.value > 1:
        return tasks
    if gpus is not None:
        return gpus
    nodes, world = numbers.get("nodes"), numbers.get("world")
    if (
        nodes is not None
        and world is not None
        and world.value % nodes.value == 0
        and world.value > nodes.value
    ):
        return Stated(world.value // nodes.value, world.key)
    return tasks


def scheduler_variables(head: Mapping[str, Word]) -> dict[str, str]:
    """Variables that Slurm sets for a job with this header."""
    numbers: dict[str, Stated] = {}
    _take(
        "sbatch",
        "#SBATCH",
        {key.removeprefix("#SBATCH "): word for key, word in head.items()},
        numbers,
    )
    variables: dict[str, str] = {}
    if "nodes" in numbers:
        variables |= dict.fromkeys(
            ("SLURM_NNODES", "SLURM_JOB_NUM_NODES"), str(numbers["nodes"].value)
        )
    if "tasks" in numbers:
        variables["SLURM_NTASKS_PER_NODE"] = str(numbers["tasks"].value)
    if "gpus" in numbers:
        variables |= dict.fromkeys(
            ("SLURM_GPUS_PER_NODE", "SLURM_GPUS_ON_NODE"), str(numbers["gpus"].value)
        )
    if "world" in numbers:
        variables |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), str(numbers["world"].value))
    elif "nodes" in numbers and "tasks" in numbers:
        total = str(numbers["nodes"].value * numbers["tasks"].value)
        variables |= dict.fromkeys(("SLURM_NTASKS", "SLURM_NPROCS"), total)
    return variables
