"""Megatron-LM's launch script, of any version from v1.0 to 2026, read and written: flags, their
era, and the scenario they describe.

The script is read as `mpsim.formats.shell` reads it; nothing is run. The era is where all flags
existed together: its oldest tag decides the defaults, since nothing in the file speaks for a newer
one. A written script has the flags of one version, which it names: the newest of the era that the
framework's preset stands for, or a later one where the layout needs it.

References
----------
NVIDIA/Megatron-LM, ``arguments.py`` at 22 tags, v1.0 to core_v0.19.0, and d98e8a64 (2026-08-22).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from pathlib import Path
from typing import Final

from mpsim.errors import FormatError, ScenarioError
from mpsim.formats import megatron_layout
from mpsim.formats.imported import Imported
from mpsim.formats.launch import Launch, header, launched, put_cluster, scheduler_variables
from mpsim.formats.ledger import Ledger
from mpsim.formats.megatron_model import read_model, write_model
from mpsim.formats.megatron_settings import (
    Reading,
    Writing,
    era_of,
    flags,
    moves,
    newest_tag,
    preset_of,
    read_habits,
    refused,
    tags,
    write_habits,
)
from mpsim.formats.outgoing import Exported, read_back
from mpsim.formats.outgoing import header as headed
from mpsim.formats.shell import Word, commands
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import DATA, keys, table
from mpsim.framework import framework_aliases
from mpsim.inputs import shown
from mpsim.scenario import Scenario
from mpsim.shipped import say

LARGEST: Final = 1_000_000  # characters of a launch script
NEWEST: Final = "core_v0.19.0"
_TAG = re.compile(
    r"(?:megatron[-_]?lm|megatron_tag|checkout|--branch|-b)[\s@:/=\"']*"
    r"(core_[rv]\d+\.\d+(?:\.\d+)?|v\d\.\d|2\d\.\d\d)\b",
    re.IGNORECASE,
)
_MENTIONED = re.compile(
    r"--(tensor-model-parallel|model-parallel-size|pipeline-model-parallel|"
    r"micro-batch-size|num-attention-heads)"
)
_TELLING = re.compile(
    r"--?(num-layers|hidden-size|((tensor-|pipeline-)?model-parallel-size))(=.*)?"
)
"""Flags of which a training command of Megatron has at least one."""
_DECIDED = ("model", "parallelism", "schedule", "training")
_FLAG = re.compile(r"--?[A-Za-z]")


def put_scenario(given: Reading, launch: Launch, options: Options) -> None:
    """Put everything that the settings and the launch say into their ledger."""
    for pair in table(DATA, "megatron")["exclusive"]:
        if given.stated(*pair) == pair:
            both = " and ".join(given.keys[name] for name in pair)
            given.ledger.refuse(f"{both} contradict each other; keep one")
    ranks = put_cluster(given.ledger, launch, options)
    layers = read_model(given)
    megatron_layout.read_layout(given, layers)
    megatron_layout.read_training(given, ranks)
    read_habits(given)
    megatron_layout.check_mesh(given, ranks)


def _read_script(head: Head, options: Options) -> Imported:
    """Read the training command of a launch script. FormatError if there is none or more than one,
    something it needs is unknown, flags contradict each other or belong to no one version.
    """
    text = head.read("a launch script", LARGEST)
    file = str(head.path)
    named = _named_tag(text)
    launch = _training(text, file)
    raw = list(_given(launch.arguments, file))
    try:
        first, last = spanned = era_of([name for name, _ in raw])
    except FormatError as error:
        raise FormatError(f"{file}: {error}") from error
    if named is not None and _order(first) <= _order(named) <= _order(last):
        first = last = named
    given = _settings(launch, dict(_resolved(raw, first, last, file)), file, first)
    ledger = given.ledger
    for name in {name for name, _ in raw if [item for item, _ in raw].count(name) > 1}:
        ledger.note(f"--{name}", "is given more than once; the last counts")
    if any(_is_further(word) and word.unknown[0][0] == "$" for word in launch.arguments):
        ledger.warn("$@: arguments that the script is started with are not known here")
    put_scenario(given, launch, options)
    _warn_unknown(ledger)
    if named is not None and named not in (first, last):
        together = f"but the flags together are of {first} to {last}, which count"
        ledger.warn(f"names Megatron-LM {named}, {together}")
    why = f"the newest flags came with {first}, the oldest went after {last}"
    if last == tags()[-1]:
        why = f"the newest flags came with {first}; later versions have all of them"
    if (first, last) != spanned:
        why = f"the file names {named}"
    ledger.note("framework", f"{why}; if the run was newer, change the preset")
    strange = {f"--{name}" for name, _ in raw if name not in flags()}  # of a fork, or of next year
    return ledger.close(
        "megatron",
        tool="Megatron-LM",
        version=" to ".join(dict.fromkeys((first, last))),
        moves=lambda key: key in strange or key.removeprefix("--") in moves(),
    )


def _read_batch_script(head: Head, options: Options) -> Imported:
    """Read a Slurm batch script and Megatron's command in it. FormatError as for launch scripts."""
    text = head.read("a batch script", LARGEST)
    if _MENTIONED.search(text):
        return _read_script(head, options)
    lines = header(text)
    known = commands(text, scheduler_variables(lines))
    launches = [launch for command in known if (launch := launched(command.words, lines))]
    launch = launches[-1] if launches else launched([Word("srun", 0), Word("x.py", 0)], lines)
    assert launch is not None
    ledger = _settings(launch, {}, str(head.path), NEWEST).ledger
    put_cluster(ledger, launch, options)
    if launch.arguments:
        ledger.warn(say("formats.other_program", launch=launch))
    return ledger.close("slurm", tool="Slurm batch script", version="")


def _named_tag(text: str) -> str | None:
    """The tag of Megatron-LM that a script names: a checkout, branch or comment."""
    for match in _TAG.finditer(text):
        name = match[1].replace("core_r", "core_v")
        minor = ".".join(name.split(".")[:2]) + "."
        known = next((tag for tag in tags() if tag == name or tag.startswith(minor)), None)
        if known is not None:
            return known
    return None


def _order(tag: str) -> int:
    return tags().index(tag)


def _training(text: str, file: str) -> Launch:
    """The one command that trains."""
    lines = header(text)
    distinct: dict[tuple[str, ...], Launch] = {}
    for command in commands(text, scheduler_variables(lines)):
        launch = launched(command.words, lines)
        if launch is not None and any(_TELLING.fullmatch(word.text) for word in launch.arguments):
            distinct[tuple(word.text for word in launch.arguments)] = launch
    if not distinct:
        raise FormatError(say("formats.no_command", file=file))
    if len(distinct) > 1:
        places = ", ".join(str(launch.line) for launch in distinct.values())
        raise FormatError(say("formats.several_commands", file=file, places=places))
    return next(iter(distinct.values()))


def _settings(launch: Launch, given: Mapping[str, Sequence[Word]], file: str, tag: str) -> Reading:
    """Options of the launchers and flags of the program, and the ledger that they go into."""
    told: dict[str, object] = {key: word.text for key, word in launch.options.items()}
    lines = {key: word.line for key, word in launch.options.items()}
    values = {name: _value(name, words) for name, words in given.items()}
    for name, words in given.items():
        told[f"--{name}"] = " ".join(word.text for word in words[1:]) or True
        lines[f"--{name}"] = words[0].line
    ledger = Ledger(file, told, lines)
    _check_known(ledger, given, Path(file).name)
    names = {name: f"--{name}" for name in given}
    return Reading(ledger, names, values, preset=preset_of(tag), tag=tag, is_dataclass=False)


def _value(name: str, words: Sequence[Word]) -> object:
    texts = [word.text for word in words[1:]]
    is_switch = name in flags() and flags()[name].is_switch
    return True if is_switch or not texts else texts[0] if len(texts) == 1 else texts


def _is_further(word: Word) -> bool:
    """Whether a word stands for the script's own arguments (``$@``), or a branch's flags."""
    if word.text.strip() or len(word.unknown) != 1:
        return False
    if word.unknown[0].startswith(("$@ ", "$* ")):
        return True
    added, branch, _ = word.unknown[0].partition(" (added to $")
    names = added.replace("--", "").split()
    return bool(branch and names) and not any(key in _mapped() or key in refused() for key in names)


def _mapped() -> frozenset[str]:
    """Flags that say a value of the scenario, alone or with others."""
    return frozenset(row.name for row in keys("megatron")) | frozenset(
        table(DATA, "megatron")["beside"].split()
    )


def _given(arguments: Sequence[Word], file: str) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Flags as they are written, each with its values."""
    current: list[Word] = []
    for word in arguments:
        if _FLAG.match(word.text):
            if current:
                yield current[0].text.lstrip("-"), tuple(current)
            name, equals, value = word.text.partition("=")
            current = [Word(name, word.line)]
            if equals:
                current.append(Word(value, word.line, word.unknown))
            elif word.unknown:
                why = f"{word.unknown[0]} stands in the name of a flag; set it in the file"
                raise FormatError(f"{file}:{word.line}: {why}")
        elif _is_further(word):
            continue
        elif current:
            current.append(word)
        elif word.unknown:
            why = f"{word.unknown[0]} may hold flags; set it in the file"
            raise FormatError(f"{file}:{word.line}: {why}")
    if current:
        yield current[0].text.lstrip("-"), tuple(current)


def _resolved(
    raw: Sequence[tuple[str, tuple[Word, ...]]], first: str, last: str, file: str
) -> Iterator[tuple[str, tuple[Word, ...]]]:
    """Flags by their full names: argparse takes any unique beginning."""
    there = [
        flag.name
        for flag in flags().values()
        if _order(flag.first) <= _order(last) and _order(first) <= _order(flag.last)
    ]
    for name, words in raw:
        fits = [known for known in there if known.startswith(name)] if name not in flags() else []
        if len(fits) > 1:
            names = ", ".join("--" + known for known in fits[:4])
            where = f"{file}:{words[0].line}"
            raise FormatError(f"{where}: --{name[:60]} may be {names}; write it out")
        yield (fits[0] if fits else name), words


def _check_known(ledger: Ledger, given: Mapping[str, Sequence[Word]], file: str) -> None:
    """Refuse models that are not simulated, and mapped flags with wrong or missing values."""
    for name, (flag, *values) in given.items():
        place = f"{file}:{flag.line}: --{name}"
        is_off = [value.text.lower() for value in values] in (["none"], ["0"], ["false"], ["off"])
        if name in refused() and not is_off:
            ledger.refuse(f"{ledger.place('--' + name)}: {refused()[name]}")
        if name not in _mapped() or name not in flags():
            continue
        unknown = [word for word in values if word.unknown]
        is_switch = flags()[name].is_switch
        bare = [word for word in unknown if not word.text and (is_switch or len(values) > 1)]
        if bare:
            why = f"{bare[0].unknown[0]} may hold flags; set it in the file"
            ledger.refuse(f"{file}:{bare[0].line}: {why}")
        elif unknown:
            ledger.refuse(f"{place} needs {unknown[0].unknown[0]}; set it in the file")
        elif is_switch and len(values) == 1 and values[0].text:
            ledger.refuse(f"{place} takes no value; got {shown(values[0].text)}")
        elif not is_switch and not values:
            ledger.refuse(f"{place} needs a value")


def _warn_unknown(ledger: Ledger) -> None:
    """Warn of a flag that nothing knows and that looks like one that is mapped."""
    for key in ledger.values:
        name = key.removeprefix("--")
        near = get_close_matches(name, _mapped(), 1, 0.85) if name not in flags() else []
        if near and key.startswith("--"):
            ledger.warn(f"{ledger.place(key)}: is no flag; did you mean '--{near[0]}'")


def export_megatron(scenario: Scenario) -> Exported:
    """Write the training command of a scenario. FormatError if it has an encoder, or serves."""
    chosen = framework_aliases().get(scenario.framework.preset, scenario.framework.preset)
    own = NEWEST if chosen == "megatron-fsdp" else newest_tag(chosen)
    eras = [newest_tag(preset) for _, preset in table(DATA, "megatron")["eras"]]
    later = eras[eras.index(own) :] if own in eras else [NEWEST]
    tried: dict[int, Exported] = {}  # the first with so many losses of the layout or the model
    refused_by: ScenarioError | None = None
    for tag in dict.fromkeys((*later, NEWEST)):
        try:
            put = Writing(scenario, tag or NEWEST, preset_of(tag or NEWEST), is_dataclass=False)
            exported = _exported(_filled(put))
        except ScenarioError as error:  # what a version cannot say may contradict what it can
            refused_by = error
            continue
        lost = sum(loss.key.startswith(_DECIDED) for loss in exported.lost)
        tried.setdefault(lost, exported)
        if not lost:
            break
    if refused_by is not None and not tried:
        raise refused_by
    return tried[min(tried)]


def _exported(put: Writing) -> Exported:
    tool = f"Megatron-LM {put.tag}"
    put.notes.append(
        "data and the schedule of the learning rate are yours: MORE_ARGS in the script"
    )
    if put.run.hardware.nodes > 1:
        put.notes.append(
            "start it on every node, with MASTER_ADDR and (without Slurm) NODE_RANK set"
        )
    text = "\n".join(_lines(put, tool)) + "\n"
    return read_back(put.run, MEGATRON, text, tool=tool, notes=put.notes, why=put.why)


def settings_for(scenario: Scenario, preset: str, tag: str = NEWEST) -> Writing:
    """Fields of Megatron-Core's dataclasses of a version, for a tool with this preset."""
    return _filled(Writing(scenario, tag, preset, is_dataclass=True))


def _filled(put: Writing) -> Writing:
    """The settings with everything that the scenario says."""
    write_model(put)
    megatron_layout.write_layout(put)
    megatron_layout.write_training(put)
    write_habits(put)
    return put


def _lines(put: Writing, tool: str) -> Iterator[str]:
    cluster, p = put.run.hardware, put.run.parallelism
    yield "#!/bin/bash"
    yield from (f"# {line}" for line in headed(put.run, tool))
    yield ""
    if p.tp > 1 or p.cp > 1:
        yield (
            "export CUDA_DEVICE_MAX_CONNECTIONS=1   # kernels start in the order in which they are"
            " issued"
        )
        yield ""
    launch = f"torchrun --nnodes {cluster.nodes} --nproc-per-node {cluster.node.accelerators}"
    if cluster.nodes > 1:
        yield (
            f"# start this script on each of the {cluster.nodes} nodes; Slurm says which is which"
            " (srun --ntasks-per-node 1)"
        )
        yield "NODE_RANK=${NODE_RANK:-${SLURM_NODEID:?set NODE_RANK: 0 on the first node}}"
        yield "MASTER_ADDR=${MASTER_ADDR:?set it to the host name of the first node}"
        yield "MASTER_PORT=${MASTER_PORT:-29500}"
        launch += (
            ' --node-rank "$NODE_RANK" --master-addr "$MASTER_ADDR" --master-port "$MASTER_PORT"'
        )
    yield f"LAUNCH=({launch})"
    arrays = _arrays(put)
    for name, written in arrays.items():
        yield from (f"{name}=(", *(f"    {flag}" for flag in written), ")")
    more = ["--train-iters 20", "--lr 1.0e-4", *(["--mock-data"] if put.has("mock-data") else [])]
    yield f"MORE_ARGS=({' '.join(more)})"
    yield ""
    words = " ".join(f'"${{{name}[@]}}"' for name in arrays)
    yield f'"${{LAUNCH[@]}}" pretrain_gpt.py {words} "${{MORE_ARGS[@]}}"'


def _arrays(put: Writing) -> dict[str, list[str]]:
    """Flags in groups, in the order in which they were decided."""
    software = {row.name for row in keys("megatron") if row.to.startswith("framework.")}
    begins = table(DATA, "megatron")["arrays"]
    groups: dict[str, list[str]] = {}
    current = "MODEL_ARGS"
    for name, value in put.given.items():
        current = begins.get(name, current)
        group = "SOFTWARE_ARGS" if name in software else current
        groups.setdefault(group, []).append(_flag(name, value))
    return groups


def _flag(name: str, value: object) -> str:
    if value is True:
        return f"--{name}"
    text = f"{value:g}" if isinstance(value, float) else str(value)
    return f"--{name} {text if name == 'recompute-modules' else shlex.quote(text)}"


MEGATRON: Final = Format(
    "megatron",
    lambda head: not head.is_object and _MENTIONED.search(head.text) is not None,
    _read_script,
)
SLURM: Final = Format(
    "slurm",
    lambda head: re.search(r"^[ \t]*#SBATCH\b", head.text, re.MULTILINE) is not None,
    _read_batch_script,
)
