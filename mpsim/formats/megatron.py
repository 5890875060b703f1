"""Megatron-LM's command line, of any version from v1.0 to 2026: flags, their era, and the scenario they describe.

The script is read as `mpsim.formats.shell` reads it; nothing is run. The era is where all flags existed together: its oldest tag decides
the defaults, since nothing in the file speaks for a newer one. Flags that move neither time nor memory, and those that do and are not simulated, stand
in ``data/megatron.yaml``, all flags with the tags that have them in ``data/megatron-flags.csv``.

References
----------
NVIDIA/Megatron-LM, ``arguments.py`` at 22 tags from v1.0 to core_v0.19.0 and at d98e8a64 (2026-08-22).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mpsim.errors import FormatError, nearest
from mpsim.formats.imported import Imported
from mpsim.formats.launch import Launch, header, launched, scheduler_variables
from mpsim.formats.ledger import Ledger, shortened
from mpsim.formats.megatron_flags import era_of, flags, preset_of, reviewed, tags
from mpsim.formats.megatron_scenario import put_scenario
from mpsim.formats.megatron_settings import Settings
from mpsim.formats.shell import Command, Word, commands
from mpsim.formats.source import Format, Head, Options, read_text
from mpsim.formats.world import put_cluster

__all__ = ["MEGATRON", "SLURM"]

LARGEST: Final = 1_000_000  # characters of a launch script
_TAG = re.compile(
    r"(?:megatron[-_]?lm|megatron_tag|checkout|--branch|-b)[\s@:/=\"']*(core_[rv]\d+\.\d+(?:\.\d+)?|v\d\.\d|2\d\.\d\d)\b",
    re.IGNORECASE,
)
_TELLING = frozenset(
    {
        "num-layers",
        "hidden-size",
        "tensor-model-parallel-size",
        "model-parallel-size",
        "pipeline-model-parallel-size",
    }
)
"""Flags of which a training command of Megatron has at least one."""


def _is_script(head: Head) -> bool:
    return not head.is_object and _mentions_megatron(head.text)


def _mentions_megatron(text: str) -> bool:
    return (
        re.search(
            r"--(tensor-model-parallel|model-parallel-size|pipeline-model-parallel|micro-batch-size|num-attention-heads)",
            text,
        )
        is not None
    )


def _is_batch_script(head: Head) -> bool:
    return re.search(r"^[ \t]*#SBATCH\b", head.text, re.MULTILINE) is not None


def _read_script(head: Head, options: Options) -> Imported:
    """Read the training command of a launch script.

    Raises
    ------
    FormatError
        If there is none or more than one, something it needs is unknown, flags contradict each other or belong to no one version.
    """
    text = read_text(head.path, needed="a launch script", largest=LARGEST)
    launch = _training(text, str(head.path))
    return _imported(launch, str(head.path), options, _named_tag(text))


def _read_batch_script(head: Head, options: Options) -> Imported:
    """Read a Slurm batch script: nodes and tasks, and the training command where it is Megatron's.

    Raises
    ------
    FormatError
        As for any launch script.
    """
    text = read_text(head.path, needed="a batch script", largest=LARGEST)
    if _mentions_megatron(text):
        return _read_script(head, options)
    lines = header(text)
    known = commands(text, scheduler_variables(lines))
    launches = [
        launch for command in known if (launch := launched(command.words, lines)) is not None
    ]
    launch = (
        launches[-1] if launches else Launch(program="", arguments=(), line=0, **_numbers(lines))
    )
    ledger = _ledger(str(head.path), launch, {})
    _ignore_options(ledger, launch)
    put_cluster(ledger, launch, options)
    if launch.arguments:
        ledger.warn(
            f"line {launch.line}: {launch.program} is no program of Megatron-LM; its arguments are not read. Import its configuration with --onto this"
        )
    return ledger.close("slurm", tool="Slurm batch script", version="")


def _numbers(lines: Mapping[str, Word]) -> dict[str, Any]:
    """Nodes and processes of a header without a command."""
    bare = launched([Word("srun", 0), Word("x.py", 0)], lines)
    assert bare is not None
    return {
        "nodes": bare.nodes,
        "per_node": bare.per_node,
        "world": bare.world,
        "options": bare.options,
    }


def _named_tag(text: str) -> str | None:
    """The tag of Megatron-LM that a script names: in a checkout, a branch or a comment; of a patch release the one it mends."""
    for match in _TAG.finditer(text):
        name = match[1].replace("core_r", "core_v")
        if name in tags():
            return name
        minor = ".".join(name.split(".")[:2])
        known = next((tag for tag in tags() if tag.startswith(f"{minor}.")), None)
        if known is not None:
            return known
    return None


def _training(text: str, file: str) -> Launch:
    """The one command that trains."""
    lines = header(text)
    found: list[tuple[Launch, Command]] = []
    for command in commands(text, scheduler_variables(lines)):
        launch = launched(command.words, lines)
        if launch is not None and _TELLING & {_name(word.text) for word in launch.arguments}:
            found.append((launch, command))
    distinct = {
        tuple(word.text for word in launch.arguments): (launch, command)
        for launch, command in found
    }
    if not distinct:
        raise FormatError(
            f"{file}: no command passes flags of Megatron-LM to a training program; needed such as 'torchrun pretrain_gpt.py --num-layers 32 ...' in one file"
        )
    if len(distinct) > 1:
        places = ", ".join(str(launch.line) for launch, _ in distinct.values())
        raise FormatError(
            f"{file}: training commands on lines {places}; needed one, so keep the one to simulate"
        )
    ((launch, _),) = distinct.values()
    return launch


def _name(word: str) -> str:
    return word.partition("=")[0].lstrip("-")


def _ledger(file: str, launch: Launch, given: Mapping[str, tuple[Word, ...]]) -> Ledger:
    values: dict[str, Any] = {key: word.text for key, word in launch.options.items()}
    lines = {key: word.line for key, word in launch.options.items()}
    for name, words in given.items():
        values[f"--{name}"] = (
            words[1].text
            if len(words) == 2
            else " ".join(word.text for word in words[1:])
            if len(words) > 1
            else True
        )
        lines[f"--{name}"] = words[0].line
    return Ledger(file, values, lines)


def _ignore_options(ledger: Ledger, launch: Launch) -> None:
    for key in launch.options:
        ledger.ignore(key, "how processes are placed and find each other")


def _imported(launch: Launch, file: str, options: Options, named: str | None) -> Imported:
    raw = list(_given(launch.arguments, file))
    era = _era(raw, file)
    spanned = era
    if named is not None and tags().index(era[0]) <= tags().index(named) <= tags().index(era[1]):
        era = named, named
    given: dict[str, tuple[Word, ...]] = {}
    twice: list[str] = []
    for name, words in _resolved(raw, era, file):
        if name in given:
            twice.append(name)
        given[name] = words
    ledger = _ledger(file, launch, given)
    for name in dict.fromkeys(twice):
        ledger.note(f"--{name}", "is given more than once; the last counts")
    if any(_is_further(word) and word.unknown[0].startswith("$") for word in launch.arguments):
        ledger.warn("$@: arguments that the script is started with are not known here")
    _check_known(ledger, given, file)
    _ignore_options(ledger, launch)
    first, last = era
    settings = Settings(
        ledger,
        {name: f"--{name}" for name in given},
        {name: _plain_value(name, words) for name, words in given.items()},
        preset=preset_of(first),
        since=tags().index(first),
        is_dataclass=False,
    )
    put_scenario(settings, launch, options)
    _review(ledger, given)
    if named is not None and era == spanned and named not in era:
        ledger.warn(
            f"names Megatron-LM {named}, but the flags together are of {first} to {last}, which count"
        )
    span = first if first == last else f"{first} to {last}"
    why = (
        f"the file names {named}"
        if era != spanned
        else f"the newest flags came with {first}, the oldest went after {last}"
        if last != tags()[-1]
        else f"the newest flags came with {first}; later versions have all of them"
    )
    ledger.note("framework", f"{why}; if the run was newer, change the preset")
    return ledger.close("megatron", tool="Megatron-LM", version=span)


def _is_further(word: Word) -> bool:
    """Whether a word stands for arguments that the script is started with (``$@``), or for flags of a branch that move neither time nor memory."""
    if word.text.strip() or len(word.unknown) != 1:
        return False
    if word.unknown[0].startswith(("$@ ", "$* ")):
        return True
    added, branch, _ = word.unknown[0].partition(" (added to $")
    names = added.replace("--", "").split()
    return bool(branch and names) and all(
        reviewed().get(name, ("",))[0] == "still" for name in names
    )


def _plain_value(name: str, words: tuple[Word, ...]) -> Any:
    known = flags().get(name)
    if known is not None and known.is_switch:
        return True
    texts = [word.text for word in words[1:]]
    return texts[0] if len(texts) == 1 else texts or True


def _given(arguments: Sequence[Word], file: str) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Flags as they are written, each with its values."""
    current: list[Word] = []
    for word in arguments:
        if re.match(r"--?[A-Za-z]", word.text):
            if current:
                yield _name(current[0].text), tuple(current)
            name, equals, value = word.text.partition("=")
            current = [Word(name, word.line)]
            if equals:
                current.append(Word(value, word.line, word.unknown))
            elif word.unknown:
                raise FormatError(
                    f"{file}:{word.line}: {word.unknown[0]} stands in the name of a flag; set it in the file"
                )
        elif current and not _is_further(word):
            current.append(word)
        elif word.unknown and not _is_further(word):
            raise FormatError(
                f"{file}:{word.line}: {word.unknown[0]} may hold flags; set it in the file"
            )
    if current:
        yield _name(current[0].text), tuple(current)


def _era(raw: Sequence[tuple[str, tuple[Word, ...]]], file: str) -> tuple[str, str]:
    names = [name for name, _ in raw]
    try:
        return era_of(names)
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error


def _resolved(
    raw: Sequence[tuple[str, tuple[Word, ...]]], era: tuple[str, str], file: str
) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Flags by their full names: argparse takes any beginning that only one flag of the version has."""
    order = {tag: place for place, tag in enumerate(tags())}
    there = [
        flag.name
        for flag in flags().values()
        if order[flag.first] <= order[era[1]] and order[era[0]] <= order[flag.last]
    ]
    for name, words in raw:
        if name in flags():
            yield name, words
            continue
        fits = [known for known in there if known.startswith(name)]
        if len(fits) > 1:
            raise FormatError(
                f"{file}:{words[0].line}: --{name[:60]} may be {', '.join('--' + known for known in fits[:4])}; write it out"
            )
        yield (fits[0] if fits else name), words


def _check_known(ledger: Ledger, given: Mapping[str, tuple[Word, ...]], file: str) -> None:
    """Values that are unknown where they matter, switches with values, and values that are missing."""
    for name, words in given.items():
        flag = flags().get(name)
        verdict = reviewed().get(name, ("", ""))[0]
        unknown = [reason for word in words[1:] for reason in word.unknown]
        bare = [
            word
            for word in words[1:]
            if word.unknown
            and not word.text
            and ((flag is not None and flag.is_switch) or len(words) > 2)
        ]
        if bare:
            ledger.refuse(
                f"{Path(file).name}:{bare[0].line}: {bare[0].unknown[0]} may hold flags; set it in the file"
            )
        elif unknown and flag is not None and verdict not in ("still", "told"):
            ledger.refuse(
                f"{Path(file).name}:{words[0].line}: --{name} needs {unknown[0]}; set it in the file"
            )
        elif (
            flag is not None
            and flag.is_switch
            and len(words) == 2
            and not verdict
            and words[1].text
        ):
            ledger.refuse(
                f"{Path(file).name}:{words[0].line}: --{name} takes no value; got {shortened(words[1].text)}"
            )
        elif flag is not None and not flag.is_switch and len(words) == 1 and not verdict:
            ledger.refuse(f"{Path(file).name}:{words[0].line}: --{name} needs a value")


def _review(ledger: Ledger, given: Mapping[str, tuple[Word, ...]]) -> None:
    """Say what becomes of the flags that change no value of the scenario."""
    for name, words in given.items():
        verdict, why = reviewed().get(name, ("", ""))
        is_off = len(words) == 2 and words[1].text.lower() in ("none", "0", "false", "off")
        if verdict == "refused":
            ledger.refuse(f"{ledger.place('--' + name)}: {why}")
        elif verdict == "told":
            ledger.ignore(f"--{name}", f"not simulated: {why}", matters=not is_off)
        elif verdict == "still":
            ledger.ignore(f"--{name}", why)
        elif name not in flags():
            near = nearest(name, flags())
            ledger.ignore(
                f"--{name}", f"no version of Megatron-LM known here has it ({near})", matters=True
            )


MEGATRON: Final = Format(
    "megatron", "launch script of Megatron-LM", "scenario", _is_script, _read_script
)
SLURM: Final = Format(
    "slurm", "Slurm batch script", "scenario", _is_batch_script, _read_batch_script
)
