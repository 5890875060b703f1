"""Launchers: how many processes on how many nodes a command starts, the training program with its
arguments, and the accelerators that it has.

``srun``, ``mpirun``, ``torchrun``, ``python -m torch.distributed.launch``, ``deepspeed`` and
``accelerate launch`` are read, one inside the other; the innermost that states a number wins, and
lines of a Slurm header count where no command does.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any

from mpsim import structs
from mpsim.formats.ledger import Ledger
from mpsim.formats.shell import Word
from mpsim.formats.source import Options
from mpsim.formats.words import DATA, table
from mpsim.hardware import system, system_names

_LONGEST = 200  # characters of a number of nodes or ranks, with what stands behind it
_PROGRAM = re.compile(r".*\.py|.*pretrain_\w{1,100}|finetune\w*|.*/train")


def _known(section: str) -> Mapping[str, Any]:
    """A section of data/launchers.yaml."""
    words: Mapping[str, Any] = table(DATA, "launchers")[section]
    return words


@structs.dataclass(frozen=True, slots=True)
class Stated:
    """A number of a launcher, and the option that states it."""

    value: int
    key: str


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A training program as it is started."""

    program: str  # name of the program, without its folder
    arguments: tuple[Word, ...]
    line: int
    nodes: Stated | None = None  # nodes, per_node, world: nodes, processes on each, and all of them
    per_node: Stated | None = None
    world: Stated | None = None
    # every option of the launchers, such as ``torchrun --nnodes``, with its value
    options: Mapping[str, Word] = structs.field(default_factory=dict)

    @property
    def ranks(self) -> int | None:
        """All processes; None where no launcher says."""
        if self.nodes is not None and self.per_node is not None:
            return self.nodes.value * self.per_node.value
        return self.world.value if self.world is not None else None


def header(text: str) -> dict[str, Word]:
    """Options of ``#SBATCH`` lines before the first command, the last of each, by key."""
    options: dict[str, Word] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped.startswith("#SBATCH"):
            stated = stripped.removeprefix("#SBATCH").partition(" #")[0]
            words = [Word(word, number) for word in stated.split()]
            options |= {f"#SBATCH {key}": value for key, value in options_of(words)}
        elif stripped and not stripped.startswith("#"):
            break
    return options


def options_of(words: Sequence[Word]) -> Iterator[tuple[str, Word]]:
    """Options of a launcher; ``-N2``, ``-N 2``, ``--nodes=2`` and ``--nodes 2`` are one."""
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
            if word.text.lstrip("-") in _known("switches") or not follows:
                yield word.text, Word("", word.line)
            else:
                yield word.text, words[place]
                place += 1


def launched(words: Sequence[Word], head: Mapping[str, Word]) -> Launch | None:
    """The training program that a command starts, if any. `head`: options of the Slurm header."""
    place = _program(words)
    if place is None:
        return None
    options = dict(head)
    numbers = _header_numbers(head)
    names = [PurePosixPath(word.text).name for word in words[:place]]
    programs = _known("programs")
    starts = [index for index, name in enumerate(names) if name in programs]
    for start, end in zip(starts, [*starts[1:], place], strict=False):
        own = dict(options_of(words[start + 1 : end]))
        options |= {f"{names[start]} {key}": word for key, word in own.items()}
        _take(programs[names[start]], names[start], own, numbers)
    return Launch(
        program=PurePosixPath(words[place].text).name,
        arguments=tuple(words[place + 1 :]),
        line=words[place].line,
        nodes=numbers.get("nodes"),
        per_node=_per_node(numbers),
        world=numbers.get("world") or numbers.get("all_gpus"),
        options=options,
    )


def _program(words: Sequence[Word]) -> int | None:
    """Place of the training program: the first script, or module that is no launcher."""
    for place, word in enumerate(words):
        before = words[place - 1].text if place else ""
        if before in ("-m", "--module") and word.text not in _known("programs"):
            return place
        if _PROGRAM.fullmatch(word.text) is None or word.text.startswith("-"):
            continue
        is_value = before.startswith("--") and not before.endswith(("standalone", "python"))
        if word.text.endswith(".py") or not is_value:
            return place
    return None


def _header_numbers(head: Mapping[str, Word]) -> dict[str, Stated]:
    numbers: dict[str, Stated] = {}
    options = {key.removeprefix("#SBATCH "): word for key, word in head.items()}
    _take("sbatch", "#SBATCH", options, numbers)
    return numbers


def _take(kind: str, name: str, options: Mapping[str, Word], numbers: dict[str, Stated]) -> None:
    """Add what one launcher states; it stands inside those before it, so it wins."""
    taken: dict[str, Stated] = {}
    reads = _known("numbers")
    for key, word in options.items():
        role = _known("options")[kind].get(key.lstrip("-").replace("_", "-"), "")
        pattern = reads.get(role, reads["usual"])
        count = re.search(pattern, word.text[-_LONGEST:])
        if role and count is not None and not word.unknown:
            taken["per_node" if role == "map_by" else role] = Stated(int(count[1]), f"{name} {key}")
    if kind == "torchrun" and {"nodes", "per_node"} & taken.keys():
        numbers.pop("world", None)  # Slurm counted the tasks that start it
    if kind == "accelerate" and "world" in taken and "nodes" not in taken:
        numbers.pop("nodes", None)
    numbers |= taken


def _per_node(numbers: Mapping[str, Stated]) -> Stated | None:
    tasks, nodes, world = (numbers.get(role) for role in ("tasks", "nodes", "world"))
    if "per_node" in numbers:
        return numbers["per_node"]
    if tasks is not None and tasks.value > 1:
        return tasks
    if "gpus" in numbers:
        return numbers["gpus"]
    if nodes is None or world is None or world.value <= nodes.value or world.value % nodes.value:
        return tasks
    return Stated(world.value // nodes.value, world.key)


def scheduler_variables(head: Mapping[str, Word]) -> dict[str, str]:
    """Variables that Slurm sets for a job with this header."""
    numbers = {role: stated.value for role, stated in _header_numbers(head).items()}
    if "nodes" in numbers and "tasks" in numbers:
        numbers.setdefault("world", numbers["nodes"] * numbers["tasks"])
    return {
        name: str(numbers[role])
        for role, names in _known("variables").items()
        if role in numbers
        for name in names
    }


def accelerators_of(cluster: str | None) -> int | None:
    """Accelerators in a node of a system of the catalog."""
    return system(cluster).node.accelerators if cluster in system_names() else None


def put_cluster(ledger: Ledger, launch: Launch, options: Options) -> int | None:
    """Put nodes of a launch into the ledger; returns accelerators of the job, None if unsaid."""
    each = accelerators_of(options.cluster)
    ranks = launch.ranks
    nodes, per_node = launch.nodes, launch.per_node
    if nodes is not None and per_node is None and each is not None:
        per_node = Stated(each, "")
        ranks = nodes.value * each
        why = f"one process an accelerator of {options.cluster}"
        ledger.note("cluster.accelerators_per_node", why, each)
    for stated in (nodes, per_node, launch.world):
        if stated is not None and stated.value < 1:
            ledger.refuse(f"{ledger.place(stated.key)}: got {stated.value}; needed 1 or more")
            return None
    if options.ranks is not None:
        if ranks is not None and ranks != options.ranks:
            ledger.refuse(f"--ranks {options.ranks}: the launcher starts {ranks}; leave one out")
        return put_ranks(ledger, options.ranks, options, "--ranks")
    if ranks is None:
        return None
    numbers = (nodes, per_node, launch.world)
    keys = [stated.key for stated in numbers if stated is not None and stated.key]
    if nodes is not None and per_node is not None and (each is None or per_node.value <= each):
        ledger.put([nodes.key], "cluster.nodes", nodes.value)
        if per_node.key:
            ledger.put([per_node.key], "cluster.accelerators_per_node", per_node.value)
    else:
        put_ranks(ledger, ranks, options, *keys)
    return ranks


def put_ranks(ledger: Ledger, ranks: int, options: Options, *keys: str) -> int:
    """Put so many accelerators into the ledger, on whole nodes of the user's cluster."""
    each = accelerators_of(options.cluster)
    stated, named = [key for key in keys if key in ledger], ", ".join(keys)
    sized: dict[str, int] = {}
    if each is None:
        ledger.ask("cluster.preset")
        why = f"{ranks} accelerators ({named}); nodes follow from the cluster"
        ledger.note("cluster", why, ranks)
    elif ranks <= each:
        sized = {"cluster.nodes": 1, "cluster.accelerators_per_node": ranks}
    elif ranks % each:
        why = f"{ranks} accelerators are no whole nodes of {each}, as {options.cluster} has"
        ledger.refuse(f"{named}: {why}")
    else:
        sized = {"cluster.nodes": ranks // each}
    for to, value in sized.items():
        if stated:
            ledger.put(stated, to, value)
        else:
            ledger.assume(to, value, f"{named} over the {each} accelerators of a node")
    return ranks
