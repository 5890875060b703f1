"""torchtitan, both ways: its TOML files of 2024 to 2026, and the JSON of a configuration.

Batches count what one data-parallel rank gets, so their total needs the number of accelerators:
from the degrees where all are given, else from the user.

References
----------
pytorch/torchtitan 11509441 (2024-08), db52d57c (2025), cbdb3113 (2025-12), b5bcd76c (2026-08):
``config_manager.py``, ``job_config.py``, ``trainer.py``.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, ClassVar, Final

from mpsim import structs
from mpsim.formats.configs import json_config, toml_config, toml_text
from mpsim.formats.imported import Imported
from mpsim.formats.launch import put_ranks
from mpsim.formats.ledger import MOST_LAYERS, Ledger, Settings, flat
from mpsim.formats.outgoing import Exported, check_trains, header, read_back
from mpsim.formats.source import Format, Head, Options
from mpsim.formats.words import DATA, keys_to, table
from mpsim.framework import framework, framework_aliases, uncompiled
from mpsim.inputs import shown
from mpsim.scenario import Scenario
from mpsim.workload import model

_NAME: Final = "torchtitan"
_USUAL: Final = "torchtitan-2025-12"
_LOSS: Final = "framework.loss"
_RESHARDS: Final = "framework.reshard_after_forward"
_SECTIONS: Final = tuple(
    "parallelism training experimental compile float8 quantize.linear.float8".split()
)
_WRITTEN: Final = tuple(
    "model training parallelism experimental activation_checkpoint compile float8".split()
)
_SECTIONS_2024: Final = {
    "tensor": "training",
    **dict.fromkeys(("pipeline", "context", "enable"), "experimental"),
}
"""Sections of what is parallelism now, by the first word of a key."""
_V_SHAPED: Final = ("zb-v", "dualpipe-v")


def _rules() -> Mapping[str, Any]:
    return table(DATA, _NAME)


def _key(to: str) -> str:
    """The key that says a value of the scenario, as it is written today."""
    return keys_to(_NAME, to)[0].name


def _is_torchtitan(head: Head) -> bool:
    if head.is_object:
        return re.search(r'"data_parallel_(shard|replicate)_degree"', head.text) is not None
    sections = set(re.findall(r"^[ \t]*\[(\w+)[.\]]", head.text, re.MULTILINE))
    others = {"parallelism", "activation_checkpoint", "experimental", "model", "job"}
    return "training" in sections and bool(sections & others)


def _read_torchtitan(head: Head, options: Options) -> Imported:
    """Read a configuration of any era. FormatError names degrees, names, numbers that are wrong."""
    data, lines = json_config(head) if head.is_object else toml_config(head)
    ledger = Ledger(str(head.path), flat(data), lines)
    signs = {era: re.compile(sign) for era, sign in _rules()["signs"].items()}
    eras = [era for era, sign in signs.items() if any(map(sign.fullmatch, ledger.values))]
    names = {key: key for key in ledger.values}
    for section in reversed(_SECTIONS):  # the first that has a word counts
        start = f"{section}."
        names |= {key.removeprefix(start): key for key in ledger.values if key.startswith(start)}
    values = {name: ledger.get(key) for name, key in names.items()}
    reader = _Reader(ledger, names, values, era=eras[0] if eras else "2025")
    reader.model()
    reader.parallelism(options)
    reader.schedule()
    reader.batches()
    reader.precision()
    reader.recompute()
    reader.framework()
    return ledger.close(_NAME, tool=_NAME, version=f"of {reader.era}", idle=_rules()["idle"])


@structs.dataclass(slots=True)
class _Reader(Settings):
    """One configuration on its way into a ledger; words of `_SECTIONS`, else whole keys."""

    table: ClassVar[str] = _NAME
    usual: ClassVar[str] = "torchtitan's default"
    era: str
    layers: int | None = None
    ranks: int | None = None
    mesh: dict[str, int] = structs.field(default_factory=dict)

    def on(self, *names: str) -> bool:
        """Whether a switch is on."""
        name = self.first(*names)
        return name in self.keys and bool(self.ledger.switch(self.keys[name]))

    @property
    def each(self) -> int:
        """Accelerators of one data-parallel replica."""
        return self.mesh["tp"] * self.mesh["pp"] * self.mesh["cp"]

    def model(self) -> None:
        """The model by the name of its flavor; its layers where the preset is known."""
        rows = [row.name for row in keys_to(_NAME, "model.preset")]
        name, flavor = (str(self.ledger.get(row, "")) for row in rows)
        preset = _rules()["flavors"].get(name, {}).get(flavor)
        if preset is not None:
            self.put(rows, "model.preset", preset)
            self.layers = model(preset).layers
            return
        self.ledger.ask("model")
        why = f"flavor {shown(flavor)} of {shown(name)} is in no table here"
        self.ledger.warn(f"{self.place(rows[0])}: {why}")

    def parallelism(self, options: Options) -> None:
        """Degrees, what is sharded, and the number of accelerators."""
        for axis in ("tp", "pp", "cp", "ep", "etp"):
            word = _key(f"parallelism.{axis}").partition(".")[2]
            degree = self.mesh[axis] = self.integer(word) or 1
            if axis == "etp" and self.mesh["ep"] > 1:
                # torchtitan's default: each expert is whole on a rank
                self.put(word, "parallelism.etp", degree)
            elif word in self.keys and (axis in ("tp", "pp") or (degree > 1 and axis != "etp")):
                self.put(word, f"parallelism.{axis}", degree)
        replicate = self._ranks(options)
        switch, why = "enable_sequence_parallel", "on with tensor parallelism"
        divided = (switch not in self.keys or self.on(switch)) and self.mesh["tp"] > 1
        self.put(switch, "parallelism.sequence_parallel", divided, why)
        self._sharding(replicate)

    def _ranks(self, options: Options) -> int:
        """Count accelerators; returns copies of the parameters."""
        replicate = self.integer("data_parallel_replicate_degree") or 1
        shard = self.integer("data_parallel_shard_degree", "data_parallel_degree", least=-1)
        self.mesh["shard"] = -1 if shard is None else shard
        each = self.each * replicate
        stated = None if self.mesh["shard"] < 1 else each * self.mesh["shard"]
        if None not in (options.ranks, stated) and stated != options.ranks:
            why = f"the degrees multiply to {stated}; leave one out"
            self.ledger.refuse(f"--ranks {options.ranks}: {why}")
        ranks = stated or options.ranks
        if ranks is None:
            self.ledger.ask("cluster.nodes")
        elif ranks % each:
            tp, pp, cp = self.mesh["tp"], self.mesh["pp"], self.mesh["cp"]
            words = f"tp {tp} x pp {pp} x cp {cp} x replicas {replicate} = {each}"
            self.ledger.refuse(f"{ranks} accelerators do not divide by {words}")
        else:
            self.ranks = ranks
            self.mesh["shard"] = ranks // each
            source = "--ranks" if stated is None else "the degrees together"
            put_ranks(self.ledger, ranks, options, source)
        return replicate

    def _sharding(self, replicate: int) -> None:
        row = keys_to(_NAME, _RESHARDS)[0]
        stays = str(self.ledger.get(row.name, "default"))
        if stays not in row.values:
            self.refuse(row.name, f"got {shown(stays)}; needed default, always or never")
            return
        kind = str(self.ledger.get("training.data_parallel_type", "fsdp"))
        is_sharded = kind == "fsdp" and (self.mesh["shard"] != 1 or self.mesh["cp"] > 1)
        names = ["data_parallel_shard_degree", "data_parallel_degree", "data_parallel_type"]
        why = "data_parallel_shard_degree -1: all that is left"
        self.put(names, "parallelism.zero", 3 if is_sharded else 0, why)
        if is_sharded and not row.values[stays]:
            self.put(row.name, _RESHARDS, False)  # a rank still owns its share alone
        if replicate > 1 and is_sharded and self.ranks is not None:
            both = ["data_parallel_replicate_degree", self.first(*names)]
            self.put(both, "parallelism.shard", self.mesh["shard"] * self.mesh["cp"])
        elif replicate > 1 and is_sharded:
            self.ledger.ask("parallelism.shard")

    def schedule(self) -> None:
        """The schedule and its virtual stages."""
        if self.mesh["pp"] == 1:
            return
        key = "pipeline_parallel_schedule"
        word = str(self.values.get(key, "1F1B"))
        known = _rules()["schedules"]
        names = {name.lower(): schedule for name, schedule in known.items()}
        if word.lower() not in names:
            needed = ", ".join(known)
            self.refuse(key, f"schedule {shown(word)} is not simulated; needed one of {needed}")
            return
        name, chunks = names[word.lower()]
        self.put(key, "schedule.name", name)
        stages = self.mesh["pp"] * chunks
        if chunks == 2 and name not in _V_SHAPED:
            stages = self.mesh["pp"] * self._chunks()
        self._ends(stages)

    def _chunks(self) -> int:
        """Virtual stages of a rank, of the layers that each is to have."""
        to, key = "schedule.virtual_stages", "pipeline_parallel_layers_per_stage"
        each = self.integer(key)
        if each is None or self.layers is None:
            why = "torchtitan's default of schedules with several stages a rank"
            self.ledger.assume(to, 2, why)
            return 2
        # pipeline_parallel.py: ceil of the sum of layers, and less of its ends, over layers a stage
        stages = -(-(self.layers + sum(self._less().values())) // each)
        chunks = max(1, stages // self.mesh["pp"])
        self.put(key, to, chunks)
        return chunks

    def _less(self) -> dict[str, int]:
        """Layers less on the stages of embedding and loss than on others; one each since 2025."""
        usual = 0 if self.era == "2024" else 1
        counts = {end: self.integer(word, least=0) for end, word in _ENDS.items()}
        return {end: usual if count is None else count for end, count in counts.items()}

    def _ends(self, stages: int) -> None:
        """Fewer layers beside embedding and loss, the rest evenly: earlier stages have one more."""
        less = self._less()
        for end, count in less.items():
            if count > 1:
                why = f"{count} layers fewer on an end; 0 or 1 is simulated"
                self.refuse(_ENDS[end], why)
                return
            if count or _ENDS[end] in self.keys:
                self.put(_ENDS[end], f"parallelism.{end}_counts_as_layer", bool(count))
        if self.layers is None or stages > MOST_LAYERS:
            return
        base, extra = divmod(self.layers + sum(less.values()), stages)
        if not extra:
            return
        counts = [base + (stage < extra) for stage in range(stages)]
        counts[0] -= less["embedding"]
        counts[-1] -= less["loss"]
        for end in less:
            self.ledger.drop(f"parallelism.{end}_counts_as_layer")
        why = "as torchtitan divides them: one fewer on the ends, one more on the first"
        self.ledger.assume("parallelism.layers_per_stage", counts, why)

    def batches(self) -> None:
        """Sequence length, microbatch and batch of a step."""
        key = self.first("seq_len", "max_context_length")
        length = self.integer(key) if key in self.keys else 2048
        if length is None:
            return
        self.put(key, "training.sequence_length", length)
        if self.era == "2026-08":
            self._tokens(length)
            return
        key = self.first("local_batch_size", "batch_size")
        micro = local = self.integer(key) or 8
        name = key
        if self.mesh["pp"] > 1 and self.era == "2024":
            count = self.integer("pipeline_parallel_microbatches") or self.mesh["pp"]
            if local % count:
                self.refuse(key, f"{local} sequences do not divide into {count} microbatches")
                return
            micro = local // count
            name = self.first("pipeline_parallel_microbatches", key)
        elif self.mesh["pp"] > 1:
            micro = self.integer("pipeline_parallel_microbatch_size") or 1
            name = self.first("pipeline_parallel_microbatch_size", key)
        self.put(name, "training.micro_batch", micro)
        self._total(local, "global_batch_size", key)

    def _total(self, local: int, word: str, key: str, size: int = 1) -> None:
        """The batch of a step: as stated, else so many sequences a data-parallel rank."""
        total = self.integer(word, least=-1)
        if total is not None and total > 0:
            self.put(word, "training.global_batch", total // size)
            flushes = total // (size * local * (self.ranks // self.each)) if self.ranks else 1
            if self.mesh["pp"] > 1 and flushes > 1:
                why = f"schedules of {local} sequences, one after another"
                self.put([word, key], "schedule.flushes", flushes, why)
        elif self.ranks is not None:
            why = f"{local} for each data-parallel rank"
            batch = local * (self.ranks // self.each)
            self.put([key, word], "training.global_batch", batch, why)
        else:
            self.ledger.ask("training.global_batch")

    def _tokens(self, length: int) -> None:
        """Batches of 2026 count tokens."""
        word, count = "num_tokens_per_microbatch_per_dp_rank", "num_pp_microbatches"
        tokens = self.integer(word) or 16384
        if tokens % length:
            self.refuse(word, f"{tokens} tokens are no whole sequences of {length}")
            return
        micro = tokens // length
        self.put(word, "training.micro_batch", micro)
        local = micro * (self.integer(count) or 1)
        self._total(local, "num_tokens_per_train_step", count, length)

    def precision(self) -> None:
        """Number format of products."""
        lists = ("model.converters", "quantize.linear", "model.quantization")
        names = [name for name in lists if name in self.ledger]
        words = str(self.ledger.get(names[0])) if names else ""
        if re.search(r"\bmx", words):
            self.put(names, "training.precision", "mxfp8")
        elif "float8" in words or self.on("enable_float8_linear"):
            names += ["enable_float8_linear", "recipe_name"]
            is_rowwise = "rowwise" in str(self.values.get("recipe_name"))
            self.put(names, "training.precision", "fp8_rowwise" if is_rowwise else "fp8")
        else:
            row = keys_to(_NAME, "training.precision")[0]
            word = str(self.ledger.get(row.name, "bfloat16"))
            if word not in row.values:
                self.refuse(row.name, f"got {shown(word)}; needed one of {', '.join(row.values)}")
                return
            self.put(row.name, row.to, row.values[word])

    def recompute(self) -> None:
        """Activation checkpointing."""
        rows = [row.name for row in keys_to(_NAME, "training.recompute")]
        mode = str(self.ledger.get(rows[0], "selective")).lower()
        option = str(self.ledger.get(rows[1], "2" if self.era in ("2024", "2025") else "op"))
        to = "training.recompute"
        if mode in ("none", "full"):
            self.put(rows[0], to, mode)
        elif mode == "selective" and option == "op":
            self.put(rows if rows[0] in self.keys else (), to, "per-op")
        elif mode == "selective" and option.isdigit() and int(option) > 0:
            self.put(rows, to, "full")
            self._every(rows, int(option))
        elif mode == "memory_budget":
            self.put(rows[0], to, "per-op")
            why = "what runs again under a memory budget is not known; "
            why += "every second product does here"
            self.ledger.warn(f"{self.place(rows[0])}: {why}")
        else:
            got = f"got {shown(mode)} with option {shown(option)}"
            self.refuse(rows[0], f"{got}; needed none, selective or full")

    def _every(self, rows: list[str], every: int) -> None:
        """Every n-th layer runs again there, as many at the start of a stage here."""
        if every == 1 or self.layers is None:
            return
        count = max(1, self.layers // self.mesh["pp"] // every)
        self.put(rows, "training.recompute_method", "block")
        self.put(rows, "training.recompute_layers", count)
        why = f"every {every}th layer runs again there; here the first {count} of a stage"
        self.ledger.note("training.recompute", why, "full")

    def framework(self) -> None:
        """The preset of the era and what differs from it."""
        preset = next(preset for preset, era in _rules()["eras"] if era == self.era)
        self.ledger.assume("framework.preset", preset, "the preset of the spelling")
        habits = framework(preset, {}).fields()
        if not self.on("compile", "enable"):
            self.put(self.first("compile", "enable"), "framework.compile", False)
        elif "loss" not in self.ledger.get(parts := _key(_LOSS), ["loss"]):
            self.put(parts, _LOSS, "eager")
        changes: dict[str, tuple[str, Any]] = {}
        precision = str(self.scenario("training.precision"))
        if self.mesh["tp"] > 1 and self.on(_ASYNC):
            changes["tensor_overlap"] = (_ASYNC, "micro-pipeline")
        if precision.startswith("fp8") and self.on(_NARROW):
            changes["gathered_bytes"] = (_NARROW, 1)
        if precision == "fp8_rowwise":
            changes |= dict.fromkeys(_ROWWISE, ("", False))
        for name, (key, value) in changes.items():
            if habits[name] != value:
                self.put(key, f"framework.{name}", value, "row-wise scales")


_ENDS: Final = {
    "embedding": "pipeline_parallel_first_stage_less_layers",
    "loss": "pipeline_parallel_last_stage_less_layers",
}
_ASYNC, _NARROW = "enable_async_tensor_parallel", "enable_fsdp_float8_all_gather"
_ROWWISE: Final = ("narrow_gathers", "scale_reductions")


def export_torchtitan(scenario: Scenario) -> Exported:
    """Write a configuration in the spelling of its framework's era. FormatError if it serves."""
    writer = _Writer(scenario)
    tool = f"torchtitan, spelling of {writer.era}"
    head = "".join(f"# {line}\n" for line in header(scenario, tool))
    text = f"{head}\n{toml_text(writer.data)}"
    return read_back(scenario, TORCHTITAN, text, tool=tool, habits="the spelling of the file")


class _Writer:
    """One configuration on its way out."""

    def __init__(self, scenario: Scenario) -> None:
        check_trains(scenario)
        self.scenario = scenario
        eras: Mapping[str, str] = dict(_rules()["eras"])
        name = framework_aliases().get(scenario.framework.preset, scenario.framework.preset)
        self.preset = name if name in eras else _USUAL
        self.era = eras[self.preset]
        self.is_first = self.era == "2024"  # degrees stood under training and experimental
        self.data: dict[str, dict[str, object]] = {section: {} for section in _WRITTEN}
        self._model()
        self._degrees()
        self._schedule()
        self._batches()
        self._precision()
        self._recompute()
        self._framework()

    def _write(self, key: str, value: object) -> None:
        section, _, word = key.partition(".")
        if self.is_first and section == "parallelism":
            section = _SECTIONS_2024.get(word.partition("_")[0], section)
        self.data[section][word] = value

    def _model(self) -> None:
        wanted = self.scenario.transformer
        rows = keys_to(_NAME, "model.preset")
        for name, flavors in _rules()["flavors"].items():
            for flavor, preset in flavors.items():
                other = model(preset)
                named = {field: getattr(wanted, field) for field in ("name", "source", "as_of")}
                if wanted == structs.replace(other, **named):
                    self._write(rows[0].name, name)
                    self._write(rows[1].name, flavor)
                    return

    def _degrees(self) -> None:
        p = self.scenario.parallelism
        for axis in ("tp", "pp", "cp", "ep", "etp"):
            degree = getattr(p, axis)
            counts = {"tp": True, "pp": True, "etp": p.ep > 1 and degree is not None}
            if counts.get(axis, bool(degree and degree > 1)):
                self._write(_key(f"parallelism.{axis}"), degree)
        self._data_parallel()
        if p.tp > 1 and self.era == "2026-08":
            self._write(_key("parallelism.sequence_parallel"), p.sequence_parallel)

    def _data_parallel(self) -> None:
        """Ranks that share one copy of the parameters, and how many copies there are."""
        p, dp = self.scenario.parallelism, self.scenario.dp
        # context parallelism always shares parameters here, so plain replicas of it are lost
        group = (p.shard or dp * p.cp) if p.zero or p.cp > 1 else 1
        shard = group // p.cp
        if self.is_first:
            self._write("training.data_parallel_degree", dp)
            if p.zero == 0:
                self._write("training.data_parallel_type", "ddp")
            return
        self._write("parallelism.data_parallel_replicate_degree", dp * p.cp // group)
        self._write("parallelism.data_parallel_shard_degree", shard)
        chosen = self.scenario.framework
        stays = not framework(chosen.preset, chosen.overrides).fields()["reshard_after_forward"]
        if (p.zero == 2 or (p.zero == 3 and stays)) and (shard > 1 or p.cp > 1):
            self._write(_key(_RESHARDS), "never")

    def _schedule(self) -> None:
        schedule, p = self.scenario.schedule, self.scenario.parallelism
        known = _rules()["schedules"]
        words = {name: (word, chunks) for word, (name, chunks) in reversed(known.items())}
        if p.pp == 1:
            return
        chunks = self.scenario.virtual_stages
        if schedule.name not in words:
            self._write(_key("schedule.name"), "1F1B")
            chunks = 1
        else:
            word, usual = words[schedule.name]
            self._write(_key("schedule.name"), word)
            if usual == 2 and schedule.name not in _V_SHAPED:
                self._chunks(chunks)
        for end, ends in _ENDS.items() if not self.is_first else ():
            self._write(f"parallelism.{ends}", int(getattr(p, f"{end}_counts_as_layer")))

    @property
    def _layers(self) -> int:
        """Layers, and the ends that count as one each."""
        p, layers = self.scenario.parallelism, self.scenario.transformer.layers
        return layers + p.embedding_counts_as_layer + p.loss_counts_as_layer

    def _chunks(self, chunks: int) -> None:
        layers = self.scenario.transformer.layers if self.is_first else self._layers
        pp = self.scenario.parallelism.pp
        each = -(-layers // (pp * chunks))
        if -(-layers // each) // pp == chunks and self.data["model"]:
            self._write(_key("schedule.virtual_stages"), each)

    def _batches(self) -> None:
        training, dp = self.scenario.training_step, self.scenario.dp
        pp = self.scenario.parallelism.pp
        micro, total, length = training.micro_batch, training.global_batch, training.sequence_length
        if self.era == "2026-08":
            self._write("training.max_context_length", length)
            self._write("training.num_tokens_per_microbatch_per_dp_rank", micro * length)
            self._write("training.num_tokens_per_train_step", total * length)
            if pp > 1:
                self._write("parallelism.num_pp_microbatches", self.scenario.microbatches)
            return
        self._write("training.seq_len", length)
        local = total // dp if pp > 1 else micro
        if self.era == "2025-12":
            self._write("training.local_batch_size", local)
            self._write("training.global_batch_size", total)
        else:
            self._write("training.batch_size", local)
        if pp > 1 and self.is_first:
            microbatches = self.scenario.microbatches
            self._write("parallelism.pipeline_parallel_microbatches", microbatches)
        elif pp > 1:
            self._write("parallelism.pipeline_parallel_microbatch_size", micro)

    def _precision(self) -> None:
        precision = self.scenario.training_step.precision
        row = keys_to(_NAME, "training.precision")[0]
        word = row.word(precision)
        if word is not None:
            self._write(row.name, word)
        elif precision in ("fp8", "fp8_rowwise"):
            if self.is_first:
                self._write("float8.enable_float8_linear", True)
            else:
                self._write("model.converters", ["float8"])
            if precision == "fp8_rowwise":
                self._write("float8.recipe_name", "rowwise")
        elif precision == "mxfp8" and not self.is_first:
            self._write("model.converters", ["mx"])
        else:
            self._write(row.name, "bfloat16")

    def _recompute(self) -> None:
        how = self.scenario.training_step.recompute
        rows = keys_to(_NAME, "training.recompute")
        self._write(rows[0].name, rows[0].word(how) or "none")
        if how == "per-op":
            self._write(rows[1].name, "op")

    def _framework(self) -> None:
        chosen = self.scenario.framework
        wanted = framework(chosen.preset, chosen.overrides).fields()
        usual = framework(self.preset, {}).fields()
        eager = uncompiled(self.preset)
        compiled = sum(wanted[field] == usual[field] for field in eager)
        is_compiled = compiled >= sum(wanted[field] == value for field, value in eager.items())
        name = "training.compile" if self.era in ("2024", "2025") else "compile.enable"
        self._write(name, is_compiled)
        if wanted["tensor_overlap"] == "micro-pipeline" and self.scenario.parallelism.tp > 1:
            self._write(f"parallelism.{_ASYNC}", True)
        precision = self.scenario.training_step.precision
        scaled = "converters" in self.data["model"] or self.data["float8"]
        if precision.startswith("fp8") and scaled and wanted["gathered_bytes"] == 1:
            self._write(f"float8.{_NARROW}", True)


TORCHTITAN: Final = Format(_NAME, _is_torchtitan, _read_torchtitan)
