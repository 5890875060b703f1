"""Servers of vLLM, SGLang and TensorRT-LLM by the line that launches them, read and written:
layout, formats, cache and budgets of a service; its traffic is nobody's option.

What an option says stands in the engine's table (`mpsim.scenario.servers`, which names the source
that was read). Worked out here: ranks that keep requests of their own (vLLM counts them beside
tensor parallelism, SGLang among it), weights by the name of a checkpoint, and the YAML file that
trtllm-serve is given, in the script or beside it.
"""

from __future__ import annotations

import functools
import itertools
import json
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any, Final

from mpsim import structs
from mpsim.document import parse_document, read_document
from mpsim.errors import FormatError
from mpsim.formats.configs import yaml_text
from mpsim.formats.imported import Imported
from mpsim.formats.launch import options_of
from mpsim.formats.ledger import Ledger, flat, nested
from mpsim.formats.outgoing import Exported, Held, Lost, header
from mpsim.formats.scenarios import on_cluster
from mpsim.formats.shell import Word, commands
from mpsim.formats.source import HEAD, Format, Head, Options
from mpsim.formats.words import DATA, keys, table
from mpsim.inputs import shown
from mpsim.scenario import Scenario
from mpsim.scenario import servers as tables
from mpsim.scenario.settled import released
from mpsim.units import Dimension, parse_quantity
from mpsim.workload import model as find_model

_LARGEST: Final = 4_000_000  # characters of a script
_FILE, _IN_FILE = "llm-api.yaml", "file"
_MODEL, _DRAFTING = "model.preset", "serving.speculation."
_ENGINE: Final = "serving.engine.preset"
_VERSION = re.compile(
    r"\b(?:vllm|sglang|tensorrt[-_]?llm)[\w/-]*(?:\[[\w,-]*\])?(?::v?|==)(\d+\.\d[\w.]*)"
)


def _read_server(name: str, head: Head, options: Options) -> Imported:
    """Read a server's launch line. FormatError: there is none, several differ, or a bad value."""
    stated, engine = _stated(name, head), tables.table_of(name)
    values = {key: word.text or True for key, word in stated.items() if not word.unknown}
    ledger = Ledger(str(head.path), values, {key: word.line for key, word in stated.items()})
    needed = {"config", *(row["key"] for row in engine["keys"])}
    for key, word in stated.items():
        if word.unknown and key in needed:
            ledger.refuse(f"{ledger.place(key)}: got {', '.join(word.unknown)}; write its value")
    ledger.assume(_ENGINE, *_engine(engine, head.read("a launch line", _LARGEST)))
    for row in engine["keys"]:
        _read_row(ledger, row)
    if (preset := ledger.scenario[_ENGINE]) in engine["same_defaults"]:
        ledger.assume("server.engine", preset, "what nobody says takes its default on the device")
    ranks = _read_ranks(name, ledger, routed=_read_model(name, ledger))
    why = "no option says how requests come; so does the rest of serving.workload"
    ledger.assume("serving.workload.rate", 1.0, why)
    idle = f"{table(DATA, 'servers')['idle']} {engine['idle']}"
    read = ledger.close(name, tool=engine["title"], idle=idle)
    sized = on_cluster(read, structs.replace(options, ranks=options.ranks or ranks))
    told = {to: "ranks of the server" for to, at in sized.lines.items() if at == "--ranks"}
    return structs.replace(sized, lines={**sized.lines, **({} if options.ranks else told)})


def _engine(table: Mapping[str, Any], text: str) -> tuple[str, str]:
    """The engine of a script's image, package or variables, and what says so."""
    for era in table.get("eras", ()):
        if re.search(era["pattern"], text):
            return era["engine"], era["why"]
    number = _VERSION.search(text)
    version = f"{table['title']} {number[1] if number else 'as installed today'}"
    return tables.preset_for(version) or table["engine"], version


def _containers(node: object, path: Path, replicas: object = None) -> Iterator[tuple[str, str]]:
    """Images of the containers of Kubernetes or Compose, and the command of each."""
    if isinstance(node, Mapping):
        own = deploy if isinstance(deploy := node.get("deploy"), Mapping) else node
        replicas = own.get("replicas", replicas)
        image, *said = (node.get(key) for key in ("image", "command", "args"))
        try:
            lists = [shlex.split(part) if isinstance(part, str) else part for part in said]
        except ValueError:
            raise FormatError(f"{path}: open quote in {shown(image)}'s command; close it") from None
        words = [str(word) for part in lists if isinstance(part, list) for word in part]
        if image is not None and words:
            starts = [str(image)] if words[0].startswith("-") else []  # else it runs the words
            more = f" --replicas {replicas}" if replicas else ""
            words[-1] += more if (inside := "-c" in words) else ""  # of a script in a word
            yield str(image), shlex.join([*starts, *words]) + ("" if inside else more)
        node = [*node.values()]
    if isinstance(node, list):
        for inner in node:
            yield from _containers(inner, path, replicas)


def _script(head: Head) -> str:
    """The script of a file: its text, or what the containers in it run."""
    text = head.read("a launch line", _LARGEST)
    if head.path.suffix not in (".yaml", ".yml"):
        return text
    rows = [""] * (text.count("\n") + 1)  # each command on the line of its image
    for part in filter(str.strip, re.split(r"(?m)^---.*$", text)):
        for image, line in _containers(parse_document(part, str(head.path)).data, head.path):
            place = text[: text.find(image)].count("\n")
            rows[place] += f"; {line}" if rows[place] else line
    return "\n".join(rows)


def _stated(name: str, head: Head) -> dict[str, Word]:
    """Options of the one server that a script launches, by their long names."""
    server = tables.table_of(name)
    starts = [start.split() for start in server["starts"]]
    found: dict[frozenset[tuple[str, str]], dict[str, Word]] = {}
    script = _script(head)
    for command in commands(script):
        # an image that starts the server has its name without a tag
        texts = [PurePosixPath(word.text).name.partition(":")[0] for word in command.words]
        for place, start in itertools.product(range(len(texts)), starts):
            end = place + len(start)
            if texts[place:end] == start:
                stated = _long(name, command.words[end:])
                apart = server.get("apart", ())  # of the nodes of one server
                alike = [(key, word.text) for key, word in stated.items() if key not in apart]
                found.setdefault(frozenset(alike), stated)
                break
    if len(found) == 1:
        stated = next(iter(found.values()))
        file = stated.get("config")
        inner = _in_file(name, head, script, file) if file is not None else {}
        line = {key: word for key, word in stated.items() if not inner or key != "config"}
        return line | inner if name == "trtllm" else inner | line
    title, usual = server["title"], server["written"]
    count = f"{len(found)} different servers are" if found else "no server is"
    raise FormatError(
        f"{head.path}: {count} launched; needed one of {title}, such as '{usual} ...'"
    )


def _in_file(name: str, head: Head, text: str, word: Word) -> dict[str, Word]:
    """Options of the YAML file that a line names: written by the script itself, or beside it."""
    file = re.escape(word.text)
    heredoc = re.search(
        rf"(?ms)^[^\n]*(?:>\s*['\"]?{file}\b[^\n]*<<|"
        rf"<<[^\n]*>\s*['\"]?{file}\b)[^\n]*\n(.*?)\n[A-Z_]+\s*$",
        text,
    )
    if heredoc is not None:
        document = parse_document(heredoc[1], word.text)
    elif (beside := head.path.parent / word.text).is_file():
        document = read_document(beside)
    else:
        return {}
    found = {}
    for key, value in flat(document.data).items():
        said = re.findall(r"\$\w+|\$\{\w+\}", str(value))
        found[_plain(name, key)] = Word(str(value), word.line, tuple(said))
    return found


def _plain(name: str, key: str) -> str:
    """The long name of an option, as the tables write it."""
    short: Mapping[str, str] = tables.table_of(name)["short"]
    plain = tables.plain(key)
    return short.get(plain, plain)


def _long(name: str, words: Sequence[Word]) -> dict[str, Word]:
    stated: dict[str, Word] = {}
    joined: list[Word] = []
    for word in words:
        if joined and re.fullmatch(r"-\d+", word.text):  # a number below zero is no option
            word = Word(f"{joined.pop().text}={word.text}", word.line, word.unknown)
        joined.append(word)
    if joined and not joined[0].text.startswith("-"):
        stated[_row(name, _MODEL)] = joined[0]
    return stated | {_plain(name, key): word for key, word in options_of(joined)}


def _read_row(ledger: Ledger, row: Mapping[str, Any]) -> None:
    """Take what a row says by itself."""
    key = row["key"]
    if key not in ledger or not (row.get("kind") or "says" in row):
        return
    value = ledger.get(key)
    meant = tables.meaning(row, value)
    if meant.needed:
        ledger.refuse(f"{ledger.place(key)}: got {shown(str(value))}; needed {meant.needed}")
    elif meant.value is not None:
        ledger.put(key, meant.to, meant.value)
    if row["to"] == f"{_DRAFTING}tokens":  # no option says how many are right
        ledger.ask(f"{_DRAFTING}acceptance")
        if f"{_DRAFTING}draft" not in ledger.scenario:  # a model of its own
            ledger.ask(f"{_DRAFTING}draft")


def _read_model(name: str, ledger: Ledger) -> bool:
    """The model of a repository, and the format that its name says; whether it has experts."""
    key = _row(name, _MODEL)
    repository = PurePosixPath(str(ledger.get(key, ""))).name.lower()
    shared = table(DATA, "servers")
    entry = next((e for e in shared["models"] if re.fullmatch(e["pattern"], repository)), None)
    if entry is None:
        ledger.ask("model")
    else:
        ledger.put(key, _MODEL, entry["preset"])
    named = (e["format"] for e in shared["weights"] if re.fullmatch(e["pattern"], repository))
    form = next(named, released(entry["preset"]) if entry else None)
    stated = ledger.scenario.get("serving.weights")
    if form == "" and stated is None:  # of a file, or of a library, in one of many formats
        ledger.ask("serving.weights")
    elif form and stated in (None, form.removesuffix("_block")) and stated != form:
        ledger.assume("serving.weights", form, f"as the checkpoint {repository[:60]} is named")
    moe = find_model(entry["preset"]).moe if entry is not None else None
    slots = _row(name, "serving.engine.redundant_experts") if name == "trtllm" else ""
    if moe is not None and (count := ledger.integer(slots, least=moe.experts)) is not None:
        ledger.put(slots, "serving.engine.eplb", True)
        ledger.put(slots, "serving.engine.redundant_experts", count - moe.experts)
    # experts of a model that nobody knows are spread only if there are any
    return moe is not None or (entry is None and _SPREAD.get(name, "") in ledger)


def _read_ranks(name: str, ledger: Ledger, *, routed: bool) -> int:
    """Ranks of the service, those that keep requests of their own among them."""
    said = ledger.scenario
    tp, pp = (int(str(said.get(f"parallelism.{axis}", 1))) for axis in ("tp", "pp"))
    whole = _row(name, "serving.attention_dp")
    if name == "trtllm" and str(ledger.get(whole, "")).lower() == "true":
        ledger.put(whole, "serving.attention_dp", tp)
    row = _row(name, "serving.replicas")
    group = "attn-dp-size" if "attn-dp-size" in ledger else row
    inside = group != row or (name == "sglang" and "enable-dp-attention" in ledger)
    shared = inside or (name == "vllm" and routed)  # one instance has all of these ranks
    own = (ledger.integer(group, least=1) or 1) if shared else 1
    dp = 1 if shared and group == row else ledger.integer(row, least=1) or 1
    if row in ledger and (group != row or not shared):
        ledger.put(row, "serving.replicas", dp)
    if own > 1:
        tp = tp if inside else tp * own
        if tp % own:
            ledger.refuse(f"{ledger.place(group)}: got {own}; needed a divisor of tp {tp}")
        ledger.put([group, "enable-dp-attention"], "serving.attention_dp", own)
        if not inside:
            ledger.put([_row(name, "parallelism.tp"), row], "parallelism.tp", tp)
        for to in said.keys() & {*tables.table_of(name)["shared"]}:
            ledger.put([_row(name, to), group], to, max(1, int(str(said[to])) // own))
    if "replicas" in ledger and (pods := ledger.integer("replicas", least=1) or 1) > 1:
        dp *= pods
        ledger.put(["replicas", row], "serving.replicas", dp)
    spread = _SPREAD.get(name, "")
    if spread in ledger and str(ledger.get(spread)).lower() != "none":
        ledger.put(spread, "parallelism.ep", tp if routed else 1)
    return tp * pp * dp


# the option that spreads experts over all ranks, whatever another says
_SPREAD = {"vllm": "enable-expert-parallel", "sglang": "moe-a2a-backend"}


def _row(name: str, to: str) -> str:
    """The option that says a value of the scenario first; empty where none does."""
    return next((row.name for row in keys(name) if row.to == to), "")


def export_server(name: str, scenario: Scenario) -> Exported:
    """Write a service's launch line. FormatError if it trains, or the engine cannot run it."""
    engine, preset = tables.table_of(name), scenario.model.preset
    values = _values(scenario)
    models = (e for e in table(DATA, "servers")["models"] if e["preset"] == preset)
    repository = next((entry["repository"] for entry in models), "")
    chosen = values.get(_ENGINE)
    reasons = {
        "describes a training step; a launch line is a service's": scenario.serves,
        f"serving.engine is {chosen}; needed {engine['engine']} for {engine['title']}": chosen
        in engine["presets"],
        "pools of their own have a line each": "serving.disaggregated.first_token" not in values,
        f"no repository of model {preset or 'without a preset'} is known": repository,
    }
    if wrong := [why for why, holds in reasons.items() if not holds]:
        raise FormatError(f"{scenario.name or 'scenario'}: {wrong[0]}")
    text = "".join(f"# {line}\n" for line in header(scenario, engine["title"]))
    inner = _file(name, scenario, values)
    if inner:
        text += f"cat > {_FILE} <<'EOF'\n{yaml_text(nested(inner))}EOF\n"
    words = [*_words(name, values, repository), *([f"--config {_FILE}"] if inner else [])]
    text += " \\\n  ".join([engine["written"], *words]) + "\n"
    read = _read_server(name, Head(Path(name), text[:HEAD], text), Options())
    cluster = scenario.source.data["cluster"]
    found = _values(Scenario.from_mapping({"schema": 1, **read.scenario, "cluster": cluster}))
    lost = [Lost("cluster", scenario.hardware.name, "accelerators are those of the machine")]
    why = {True: "traffic is no option", False: "no option says it"}
    differ = (item for item in values.items() if found.get(item[0]) != item[1])
    lost += [Lost(key, value, why[".workload." in key]) for key, value in differ]
    gone = {loss.key for loss in lost}
    held = tuple(Held(item.to, item.source) for item in read.mapped if item.to not in gone)
    return Exported(format=name, tool=engine["title"], text=text, held=held, lost=tuple(lost))


def _values(scenario: Scenario) -> dict[str, Any]:
    """Layout and service by dotted key."""
    resolved = flat(scenario.resolved(), whole=("graph_sizes",))
    return {k: v for k, v in resolved.items() if k.startswith(("serving.", "parallelism."))}


def _file(name: str, scenario: Scenario, values: Mapping[str, Any]) -> dict[str, object]:
    """Values of the YAML file that a line names, but for options the server takes anyhow."""
    found: dict[str, object] = {}
    options = {row.to for row in keys(name) if row.when != _IN_FILE}
    for row in (row for row in keys(name) if row.to not in options):
        value = values.get(row.to) if row.kind != "word" else row.word(values.get(row.to))
        if value in (None, row.default) or row.to.startswith(_DRAFTING):
            continue
        if row.kind == "graphs":  # sizes that no largest one makes are the engine's own
            most = value[-1] if value else 0
            if value != tables.meaning({"to": row.to, "kind": row.kind}, most).value:
                continue
            value = most
        if row.to == "serving.attention_dp":
            found |= (
                {row.name.replace("-", "_"): True} if value == values["parallelism.tp"] > 1 else {}
            )
        elif row.to != "serving.engine.redundant_experts":
            found.setdefault(row.name, value)
        elif (moe := scenario.transformer.moe) is not None:
            found[row.name] = moe.experts + int(str(value))
    return found


def _words(name: str, wanted: Mapping[str, Any], repository: str) -> Iterator[str]:
    """Options that say the service."""
    values = {**wanted, _MODEL: repository}
    own, tp = int(values["serving.attention_dp"]), int(values["parallelism.tp"])
    values |= {to: values[to] * own for to in tables.table_of(name)["shared"] if to in values}
    if name == "vllm":
        values["parallelism.tp"] = tp // own
        values["parallelism.ep"] = values["parallelism.ep"] == tp > 1
    if own == 1:
        del values["serving.attention_dp"]
    done: set[str] = set()
    for row in keys(name):
        value, is_said = values.get(row.to), row.to in done or row.to.startswith(_DRAFTING)
        if row.when == _IN_FILE:
            continue
        if row.name == "enable-dp-attention" and own > 1:
            value = True
        elif is_said or (value in (None, False) and row.says is None):
            continue
        option = f"--{row.name}" if name != "trtllm" else f"--{row.name.replace('-', '_')}"
        word = row.word(value) if row.kind == "word" else value
        if row.kind == "gib":
            size = parse_quantity(str(value), Dimension.BYTES) / 2**30
            word = f"{size:.3f}".rstrip("0").rstrip(".") if size else None
        elif row.kind == "field" and value is not None:
            word = json.dumps({row.note: value})
        if row.says is not None or word is True:
            if row.says in (None, value):
                yield option
                done.add(row.to)
        elif word is not None:
            quoted = shlex.quote(str(word))
            yield quoted if row.name == "model" else f"{option} {quoted}"
            done.add(row.to)


def _recognises(name: str, head: Head) -> bool:
    starts = "|".join(map(re.escape, tables.table_of(name)["starts"])).replace(r"\ ", "[\\s,\"']+")
    found = re.search(rf"(?m)(?:^|[\s/\"'])(?:{starts})(?:[:\s\"',]|$)", head.text)
    return found is not None and not head.is_object


SERVERS: Final = tuple(
    Format(name, functools.partial(_recognises, name), functools.partial(_read_server, name))
    for name in tables.SERVERS
)
"""Formats of the servers."""
