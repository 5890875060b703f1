"""The section ``server:``: an engine's options in its own words, and their values here.

``server: {engine: vllm-v1, max-num-seqs: 512, kv-cache-dtype: fp8}`` says what the launch line
says; the tables of options (``data/vllm.yaml`` and so on) are those of `mpsim import`. What nobody
says takes the default of the engine on a device of that memory. What `serving` itself says stands.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from mpsim.errors import MpsimError, Problem, nearest
from mpsim.hardware import Accelerator, accelerator
from mpsim.inputs import shown
from mpsim.scenario.cluster import ClusterChoice
from mpsim.scenario.layers import Data, expand_shorthand
from mpsim.shipped import read_shipped
from mpsim.units import Dimension, parse_quantity

DATA: Final = "mpsim.scenario.data"
SERVERS: Final = ("vllm", "sglang", "trtllm")  # engines with a table of options
_RELEASED: Final = re.compile(r"(?i)(vllm|sglang|t(ensor)?rt-?llm)([ =:@-]*v?\d+\.\d[\w.+-]*)?")


class Meaning(NamedTuple):
    """Value that an option says, or what it should have been."""

    to: str
    value: object = None
    needed: str = ""


class _Form(NamedTuple):
    """Text of a number, how it is read, and what it has to be."""

    pattern: str
    read: Callable[[str], object]
    needed: str


_GRAPHS: Final = (1, 2, 4, *range(8, 129, 8), *(1 << power for power in range(8, 14)))
_FORMS: Final = {
    "int": _Form(r"[1-9]\d{0,14}", int, "a whole number of at least 1"),
    # sizes of graphs up to a largest one: CudaGraphConfig of TensorRT-LLM's llm_args.py, that pads
    "graphs": _Form(r"[1-9]\d{0,3}", lambda n: [*filter(int(n).__gt__, _GRAPHS), int(n)], "a size"),
    "gib": _Form(r"\d{1,7}(\.\d{1,3})?", "{} GiB".format, "a number of GiB"),
    "number": _Form(r"0?\.\d{1,9}|1(\.0*)?", float, "a share above 0, at most 1"),
}


def table_of(name: str) -> Mapping[str, Any]:
    """Options of a server, by its name."""
    table: Mapping[str, Any] = read_shipped(DATA, f"{name}.yaml")
    return table


def preset_of(name: str) -> str:
    """The engine that a server's own name means, as ``vllm==0.6.3``; others are engines'."""
    return (_RELEASED.fullmatch(name) and preset_for(name)) or name


def preset_for(words: str) -> str | None:
    """The engine that name and version mean, such as ``vLLM 0.11.2``; None if there is none."""
    known: Mapping[str, Any] = read_shipped("mpsim.serving.catalog", "engines.yaml")["engines"]
    return next((n for n, e in known.items() if re.fullmatch(e["versions"], words.strip())), None)


def _server_of(preset: str) -> str:
    """The table of an engine of the catalog; empty where nobody has one."""
    return next((name for name in SERVERS if preset in table_of(name)["presets"]), "")


def meaning(row: Mapping[str, Any], value: object) -> Meaning:
    """The scenario's value of a row's own, which may be text as on a command line.

    Examples
    --------
    >>> row = {"key": "kv-cache-dtype", "to": "serving.kv", "kind": "word"}
    >>> row["values"] = {"fp8": "fp8"}
    >>> meaning(row, "FP8").value, meaning(row, "int3").needed
    ('fp8', 'fp8')
    """
    text, to, kind = str(value).strip(), row["to"], row.get("kind", "")
    if "says" in row:
        on = text.lower() not in ("false", "0", "off")
        other = row["says"] is True or row["says"] is False
        return Meaning(to, row["says"] if on else (not row["says"] if other else None))
    if kind in ("field", "less"):  # of a JSON object; of a count with one more
        pattern = rf"^(?:.*{row['note'] if kind == 'field' else '$'}\W*:\s*)?(\d{{1,4}})\b"
        number = re.search(pattern, text)
        count = int(number[1]) - (kind == "less") if number else 0
        return Meaning(to, count or None, "" if count > 0 else "a number of 1 or more")
    if text == "-1" and to == "serving.engine.max_tokens":
        return Meaning("serving.engine.chunked", False)
    if kind in _FORMS:
        form = _FORMS[kind]
        fits = re.fullmatch(form.pattern, text) is not None
        return Meaning(to, form.read(text) if fits else None, "" if fits else form.needed)
    words = {"true": True, "false": False} if kind == "switch" else row.get("values", {})
    if kind == "among":  # a word somewhere in the value
        return Meaning(to, next((words[word] for word in words if word in text.lower()), None))
    known = words.get(text.lower())
    needed = " or ".join(words) if kind == "switch" else ", ".join(words)
    return Meaning(to, known, "" if known is not None else needed)


def said(data: Data) -> dict[str, object]:
    """Values by dotted key that ``server:`` and the defaults of engines add, pool by pool."""
    section, serving = _part(data, "server"), _part(data, "serving")
    engine = _part({"engine": expand_shorthand("serving.engine", serving.get("engine"))}, "engine")
    preset = preset_of(str(section.get("engine", engine.get("preset", "vllm"))))
    found: dict[str, object] = {"serving.engine.preset": preset} if section else {}
    found |= _values(preset, section, serving, data)
    written = {f"serving.{key}" for key in serving} | {f"serving.engine.{key}" for key in engine}
    for key, pool in _part(serving, "disaggregated").items():
        if isinstance(pool, Mapping):
            place, own = f"serving.disaggregated.{key}.engine", _values(preset, section, pool, data)
            written |= {f"{place}.{field}" for field in (*_part(pool, "engine"), *engine)}
            fields = {to.rpartition(".")[2]: to for to in own if own[to] != found.get(to)}
            found |= {f"{place}.{field}": own[to] for field, to in fields.items()}
    empty = tuple(f"serving.{key}." for key, value in serving.items() if value is None)
    return {to: it for to, it in found.items() if to not in written and not to.startswith(empty)}


def _part(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """A section that may be missing, or wrong, which the schema says."""
    return part if isinstance(part := data.get(key), Mapping) else {}


def _values(
    preset: str, section: Mapping[str, object], pool: Mapping[str, Any], data: Data
) -> dict[str, object]:
    """Values of a pool by dotted key: of options, else the engine's defaults on its device."""
    found: dict[str, object] = {}
    if not (name := _server_of(preset)):
        return found
    table = table_of(name)
    if preset in table["same_defaults"] and (chip := chip_of(data, pool.get("accelerator"))):
        memory = chip.memory_bytes * (re.fullmatch(table.get("as_less", "(?!)"), chip.kind) is None)
        for row in table["keys"]:
            value = row.get("default")
            if isinstance(value, list):
                value = next(v for at, v in value if memory < parse_quantity(at, Dimension.BYTES))
            if value is not None:
                found[row["to"]] = value if "says" in row else meaning(row, value).value
    meant = (meaning(row, value) for key, value in section.items() for row in _rows(name, key))
    found |= {it.to: it.value for it in meant if not it.needed and it.value is not None}
    ranks = pool.get("attention_dp", 1)
    for to in table["shared"]:  # of all ranks with requests of their own
        if type(ranks) is type(whole := found.get(to)) is int and ranks > 1:
            found[to] = max(1, whole // ranks)
    return found


def server_problems(
    section: Mapping[str, object], preset: str, *, places: Mapping[str, tuple[int, int]]
) -> Iterator[Problem]:
    """Options of ``server:`` that are unknown, idle or wrong; `places` of the file's keys."""
    if not (name := _server_of(preset)):
        engines = [preset for name in SERVERS for preset in table_of(name)["presets"]]
        yield Problem(f"got {preset}; {nearest(preset, engines)}", "server.engine")
        return
    for key, value in section.items():
        place = f"server.{key}"
        if key == "engine":
            continue
        if not (rows := _rows(name, key)):
            yield Problem(_why_not(name, plain(key)), place)
        for meant in (meaning(row, value) for row in rows):
            if meant.needed:
                yield Problem(f"got {shown(value)}; needed {meant.needed}", place)
            elif places.get(meant.to, (0, 0)) != (0, 0):
                yield Problem(f"{meant.to} says it too; leave one of them out", place)


def _why_not(name: str, key: str) -> str:
    """Reason why no value of `serving` says an option: of the layout, not simulated, unknown."""
    table = table_of(name)
    layout = {row["key"]: row["to"] for row in table["keys"]}
    if key in layout:
        return f"is of the layout; give {layout[key]} in its place"
    known = {row["key"]: None for row in table["keys"] if _rows(name, row["key"])}
    return f"is not simulated, or no option of {table['title']}; {nearest(key, known)}"


def plain(key: object) -> str:
    """An option as the tables write it: no dashes before, dashes between words unless nested."""
    text = str(key).lstrip("-")
    return text if "." in text else text.replace("_", "-")


def _rows(name: str, key: object) -> list[Mapping[str, Any]]:
    """Rows of an option of the engine itself; none for those of layout and model."""
    rows = (row for row in table_of(name)["keys"] if row["key"] in (plain(key), str(key)))
    said = (row for row in rows if row.get("kind") or "says" in row)
    return [row for row in said if row["to"].startswith("serving.")]


def chips_of(data: Data) -> list[Accelerator]:
    """Accelerators of a service, of each pool where it has some."""
    apart = _part(_part(data, "serving"), "disaggregated")
    own = [_part(apart, name).get("accelerator") for name in ("prefill", "decode") if apart]
    return [chip for name in own or [None] if (chip := chip_of(data, name))]


def chip_of(data: Data, own: object = None) -> Accelerator | None:
    """A pool's own accelerator or that of the cluster; None where the schema has to say why."""
    with contextlib.suppress(MpsimError, ValueError):
        choice = ClusterChoice.model_validate(expand_shorthand("cluster", data.get("cluster")))
        return accelerator(str(own)) if own else choice.resolve(lambda _: Path()).accelerator
    return None
