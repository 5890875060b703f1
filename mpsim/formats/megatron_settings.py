"""Settings of Megatron on their way in and out, whether a command line or the fields of its
dataclasses in a YAML file hold them.

Every setting has the name of its flag without dashes; of each flag the tags that have it are known,
and of versions their eras. What is absent takes Megatron's default, one on the command line,
another in the dataclasses that YAML fills. Plain rows of the table are read and written here, and
switches by which the software differs from a version's preset.

References
----------
NVIDIA/Megatron-LM, ``arguments.py`` at 22 tags, v1.0 to core_v0.19.0, and d98e8a64 (2026-08-22).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Mapping, Sequence
from importlib import resources
from typing import Any, ClassVar, Final, NamedTuple

from mpsim import structs
from mpsim.errors import FormatError
from mpsim.formats.ledger import Ledger, Settings
from mpsim.formats.outgoing import check_trains, scenario_values
from mpsim.formats.words import DATA, Key, keys, keys_to, table
from mpsim.framework import framework
from mpsim.memo import remembered
from mpsim.scenario import Scenario
from mpsim.shipped import say


class Flag(NamedTuple):
    """One flag of Megatron-LM."""

    name: str  # without its dashes
    first: str  # first, last: first and last tag that has it
    last: str
    is_switch: bool  # whether it takes no value


@remembered(1)
def flags() -> Mapping[str, Flag]:
    """Every flag of the table, by name."""
    text = (resources.files(DATA) / "megatron-flags.csv").read_text("utf-8")
    aborts = table(DATA, "megatron")["aborts"]
    return {
        name: Flag(name, first, aborts.get(name, last), kind == "switch")
        for name, first, last, kind in list(csv.reader(text.splitlines()))[1:]
    }


@remembered(1)
def tags() -> tuple[str, ...]:
    """Tags of Megatron-LM, oldest first."""
    return tuple(table(DATA, "megatron")["tags"])


@remembered(1)
def refused() -> Mapping[str, str]:
    """Why a flag's model or step cannot be simulated."""
    reasons = table(DATA, "megatron")["refused"]
    return {name: why for why, names in reasons.items() for name in names.split()}


@remembered(1)
def moves() -> frozenset[str]:
    """Flags that move the time or the memory of a step and are not simulated."""
    return frozenset(table(DATA, "megatron")["moves"].split())


def era_of(names: Sequence[str]) -> tuple[str, str]:
    """First and last tag with all of these flags. FormatError names two that exclude each other."""
    known = [flags()[name] for name in names if name in flags()]
    if not known:
        return tags()[0], tags()[-1]
    youngest = max(known, key=lambda flag: tags().index(flag.first))
    oldest = min(known, key=lambda flag: tags().index(flag.last))
    if tags().index(youngest.first) > tags().index(oldest.last):
        raise FormatError(say("formats.no_version", youngest=youngest, oldest=oldest))
    return youngest.first, oldest.last


def preset_of(tag: str) -> str:
    """The framework preset of the era that a tag belongs to."""
    eras: list[tuple[str, str]] = table(DATA, "megatron")["eras"]
    return [name for first, name in eras if tags().index(first) <= tags().index(tag)][-1]


def newest_tag(preset: str) -> str | None:
    """The newest tag of the era that a framework preset stands for, or None."""
    released = (tag for tag in reversed(tags()) if tag != "HEAD")
    return next((tag for tag in released if preset_of(tag) == preset), None)


_KEYS: Final = "megatron"


@structs.dataclass(slots=True)
class Reading(Settings):
    """Settings of one run of Megatron on their way in."""

    table: ClassVar[str] = _KEYS
    usual: ClassVar[str] = "Megatron's default"
    preset: str  # framework preset of the era
    tag: str  # first version of the era
    # whether absent settings take the defaults of the dataclasses, not of the command line
    is_dataclass: bool

    def on(self, *names: str) -> bool:
        """Whether one of these switches is set."""
        values = (self.values.get(name) for name in names)
        return any(
            value is True or str(value).strip().lower() in ("true", "1", "yes") for value in values
        )

    def read(self, *targets: str) -> None:
        """Read plain rows of the table: a value each, from the first of its keys in the file."""
        for to in targets:
            rows = keys_to(_KEYS, to)
            row = next((row for row in rows if self.stated(row.name)), rows[0])
            value = self._plain(row)
            if value is None:
                fills = self.is_dataclass and row.dataclass is not None
                usual = row.dataclass if fills else row.default
                value = None if row.name in self.keys and row.kind == "word" else usual
            if value is not None:
                self.put(row.name, to, value)
            elif row.ask:
                self.ledger.ask(to)

    def _plain(self, row: Key) -> object:
        if row.kind == "int":
            return self.integer(row.name)
        if row.kind == "number":
            return self.number(row.name)
        if row.kind == "word":
            return self.meant(row.name)
        if row.kind == "says":
            return row.says if self.on(row.name) else None
        return self.on(row.name) == (row.kind == "switch")

    def since(self, tag: str) -> bool:
        """Whether the era begins with this tag or a later one."""
        return tags().index(self.tag) >= tags().index(tag)


class Writing:
    """Settings of one run of one version of Megatron.

    `tag`: version of Megatron-LM whose flags there are. `preset`: framework preset that a reader
    takes for it. `is_dataclass`: whether settings become fields of dataclasses (YAML) instead of
    flags.
    """

    def __init__(self, scenario: Scenario, tag: str, preset: str, *, is_dataclass: bool) -> None:
        check_trains(scenario)
        self.run = scenario
        self.values = scenario_values(scenario)
        self.tag = tag
        self.preset = preset
        self.is_dataclass = is_dataclass
        self.given: dict[str, object] = {}
        self.why: dict[str, str] = {}  # reasons why values are lost, by key of the scenario
        self.notes: list[str] = []

    def reading(self, given: Mapping[str, object]) -> Reading:
        """These settings as a reader has them, whose layout and model are those of the run."""
        ledger = Ledger("", {})
        ledger.scenario = self.values
        names = {name: name for name in given}
        return Reading(ledger, names, given, self.preset, self.tag, self.is_dataclass)

    def has(self, name: str) -> bool:
        """Whether the version has a flag."""
        order, flag = tags(), flags().get(name)
        return flag is not None and (
            self.is_dataclass
            or order.index(flag.first) <= order.index(self.tag) <= order.index(flag.last)
        )

    def has_any(self, to: str) -> bool:
        """Whether the version has a flag for a value of the scenario."""
        return any(self.has(row.name) for row in keys_to(_KEYS, to))

    def scenario(self, key: str, usual: object = None) -> object:
        """Value of the scenario by dotted key."""
        return self.values.get(key, usual)

    def put(self, name: str, value: object) -> bool:
        """Write a setting; where the version lacks it, what it says is lost."""
        if self.has(name):
            self.given[name] = value
            return True
        first = flags()[name].first if name in flags() else ""
        why = f"--{name} came with {first}" if first else f"there is no --{name}"
        self.why |= {row.to: why for row in keys(_KEYS) if row.name == name}
        return False

    def write(self, *targets: str, usual: object = None) -> None:
        """Write rows of the table: each value's first key that the version has, in its word."""
        for to in targets:
            rows = keys_to(_KEYS, to)
            row = next((row for row in rows if self.has(row.name)), rows[0])
            value = usual if self.scenario(to) is None else self.scenario(to)
            if row.kind in ("switch", "off", "says"):
                on = (
                    value == row.says
                    if row.kind == "says"
                    else bool(value) == (row.kind == "switch")
                )
                if on:
                    self.put(row.name, True)
            elif not row.values:
                self.put(row.name, value)
            elif (word := row.word(value)) is not None:
                self.put(row.name, word)
            else:
                self.why[to] = f"--{row.name} has no word for it"


_FRAMEWORK = "framework."
_WIDE = {"gradient_bytes": 4, "weight_grad_bytes": 4, "accumulation_traffic": 0.0}
_NARROW = {"gradient_bytes": 2, "weight_grad_bytes": 2}


class _Change(NamedTuple):
    """A field of the framework that settings decide."""

    names: list[str]
    field: str
    value: object
    why: str = "Megatron's default"


def _counts(row: Key, scenario: Mapping[str, Any]) -> bool:
    """Whether a row's condition holds for a scenario by dotted keys."""
    if row.when in ("tp", "pp", "cp"):
        return int(scenario.get(f"parallelism.{row.when}") or 1) > 1
    if row.when in ("gated", "plain"):
        return bool(scenario.get("model.gated_mlp")) == (row.when == "gated")
    if row.when == "experts":
        return scenario.get("model.moe.experts") is not None
    return row.when != "zero" or bool(scenario.get("parallelism.zero"))


def _rows(scenario: Mapping[str, object]) -> Iterator[tuple[Key, str]]:
    """Rows of the table that decide a field of the framework alone, and the field."""
    for row in keys("megatron"):
        decides = row.says is not None or (row.values and row.when)
        if decides and row.to.startswith(_FRAMEWORK) and _counts(row, scenario):
            yield row, row.to.removeprefix(_FRAMEWORK)


def _preset(given: Reading) -> str:
    """The preset of the era, or that of Megatron-FSDP, which shards all states."""
    fsdp = given.on("use-megatron-fsdp") and given.since("core_v0.14.0")
    return "megatron-fsdp" if fsdp and given.scenario("parallelism.zero") == 3 else given.preset


def read_habits(given: Reading) -> None:
    """Put the preset of the era, and the switches that differ from its habits, into the ledger."""
    preset = _preset(given)
    stated = [] if preset == given.preset else ["use-megatron-fsdp"]
    given.put(stated, "framework.preset", preset, "the preset of the version")
    usual = framework(preset, {}).fields()
    for change in _changes(given, usual):
        if usual[change.field] != change.value:
            given.put(change.names, f"{_FRAMEWORK}{change.field}", change.value, change.why)


def _buffers(given: Reading, usual: Mapping[str, object]) -> Iterator[_Change]:
    """User buffers of tensor parallelism, which a preset may have and a run may lack."""
    tp, name, to = given.scenario("parallelism.tp", 1), "tp-comm-overlap", "tensor_overlap"
    divided = given.scenario("parallelism.sequence_parallel")
    if given.on(name) and tp > 1:
        if divided:
            yield _Change([name], to, "decomposed")
        else:
            given.refuse(name, "needs --sequence-parallel")
    elif usual[to] == "decomposed" and tp > 1 and (name in given.values or not divided):
        yield _Change([name], to, "weight-gradient", "user buffers need sequence parallelism")


def _changes(given: Reading, usual: Mapping[str, object]) -> Iterator[_Change]:
    """Fields of the framework that the settings decide."""
    yield from _data_changes(given)
    yield from _buffers(given, usual)
    yield from _gradient_changes(given)
    yield from _attention_changes(given)
    if given.scenario("model.moe.experts") is not None and not given.on("moe-grouped-gemm"):
        # SequentialMLP: a loop in Python over modules of one expert each
        yield _Change(["moe-grouped-gemm"], "grouped_gemm", False)
        yield _Change(["moe-grouped-gemm"], "product_launch_cost", 0.0)
    decided = {"tensor_overlap"} if given.on("tp-comm-overlap") else set()
    for row, field in _rows(given.ledger.scenario):
        if row.values:
            sends = field == "expert_dispatch" and not given.is_dataclass
            word = "allgather" if sends else None  # what the command line's default says
            value = given.meant(row.name, word)
        else:
            value = row.says if given.on(row.name) else None
        if value is not None and field not in decided:
            decided.add(field)
            yield _Change([row.name], field, value)


def _data_changes(given: Reading) -> Iterator[_Change]:
    stays = keys_to("megatron", f"{_FRAMEWORK}reshard_after_forward")[0].name
    if given.on("use-torch-fsdp2") and given.on(stays):
        yield _Change([stays], "reshard_after_forward", False)
    if given.since("core_v0.4.0") and not given.on("use-torch-fsdp2"):
        word = "always" if given.on("overlap-grad-reduce") else "never"
        yield _Change(["overlap-grad-reduce"], "gradient_overlap", word)
        if given.scenario("parallelism.zero"):
            gathers = given.on("overlap-param-gather")
            yield _Change(["overlap-param-gather"], "parameter_gather_overlap", gathers)
    if given.text("DDP-impl") in ("local", "torch"):
        local = "without-pipeline" if given.since("v2.0") else "never"
        word = "always" if given.text("DDP-impl") == "torch" else local
        yield _Change(["DDP-impl"], "gradient_overlap", word)


def _gradient_changes(given: Reading) -> Iterator[_Change]:
    names = ["accumulate-allreduce-grads-in-fp32", "grad-reduce-in-bf16"]
    narrow, unfused = given.on(names[1]), given.on("no-gradient-accumulation-fusion")
    wide = given.on(names[0])
    if names[0] not in given.values:  # bf16 switches it on
        wide = given.on("bf16") and given.since("v2.5") and not narrow
    stated = [name for name in names if name in given.keys] or ["bf16"]
    if wide or narrow:
        for field, value in (_WIDE if wide else _NARROW).items():
            if field != "accumulation_traffic" or not unfused:
                yield _Change(stated, field, value)
    if unfused:
        name = "no-gradient-accumulation-fusion"
        yield _Change([name], "accumulation_traffic", 8.0 if wide else 4.0)
    size = keys_to("megatron", "framework.bucket_bytes")[0].name
    bucket = given.integer(size)
    if bucket is not None:
        yield _Change([size], "bucket_bytes", f"{bucket * (4 if wide else 2)} B")
        yield _Change([size], "bucket_bytes_per_replica", "0 B")
    clip = given.number("clip-grad")
    if clip is not None:
        yield _Change(["clip-grad"], "gradient_norm", clip > 0)


def _attention_changes(given: Reading) -> Iterator[_Change]:
    names = ["transformer-impl", "use-flash-attn", "attention-backend"]
    kernels, backend = given.text("transformer-impl"), given.text("attention-backend")
    core = given.since("core_v0.4.0")
    usual = "local" if core and not given.since("core_v0.6.0") else None
    fused = given.on("use-flash-attn") or backend in ("flash", "fused")
    if backend in ("unfused", "local") or ((kernels or usual) == "local" and not fused):
        yield _Change(names, "fused_attention", False)
    elif fused or kernels == "transformer_engine":
        yield _Change(names, "fused_attention", True)
        if given.on("use-flash-attn") and not core:
            kernel = "flash2" if given.since("23.06") else "flash1"
            yield _Change(names, "attention_kernel", kernel)


def write_habits(put: Writing) -> None:
    """Put switches: values that bring what a reader takes nearer to the run's habits are kept."""
    chosen = put.run.framework
    wanted = framework(chosen.preset, chosen.overrides).fields()
    missed = _missed(put, put.given, wanted)
    for row in keys("megatron"):
        field = row.to.removeprefix(_FRAMEWORK)
        is_flag = put.is_dataclass and row.always == "flag"
        if field == row.to or is_flag or not (put.has(row.name) and _counts(row, put.values)):
            continue
        says = row.always == "file" or (row.always == "dataclass" and put.is_dataclass)
        for value in _tries(row, wanted, is_dataclass=put.is_dataclass):
            tried = {**put.given, row.name: value}
            left = _missed(put, tried, wanted)
            if (field not in left and (len(left) < len(missed) or says)) or (
                says and value is False
            ):
                put.given, missed = tried, left
                break


def _tries(row: Key, wanted: Mapping[str, Any], *, is_dataclass: bool) -> Sequence[object]:
    """Values of a setting that may say a field of the framework."""
    if row.kind == "elements":  # a flag says one size for any number of replicas
        size = 0 if wanted["bucket_bytes_per_replica"] else wanted["bucket_bytes"]
        return [int(size // each) for each in (4, 2) if size and size % each == 0]
    tries = row.tries or list(row.values) or [True]
    return [value for value in tries if value is not False or is_dataclass]


def _missed(put: Writing, given: Mapping[str, object], wanted: Mapping[str, object]) -> set[str]:
    """Fields of the framework that a reader of these settings takes otherwise."""
    reading = put.reading(given)
    preset = _preset(reading)
    usual = framework(preset, {}).fields()
    changes = {change.field: change.value for change in _changes(reading, usual)}
    found = framework(preset, changes).fields()
    return {field for field, value in wanted.items() if value != found[field]}
