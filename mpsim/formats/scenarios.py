"""Imported scenarios as files: laid over others, checked, written with sources of their values."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mpsim import structs
from mpsim.errors import FormatError, ScenarioError, nearest
from mpsim.formats.configs import yaml_text
from mpsim.formats.imported import Assumed, Imported
from mpsim.formats.ledger import flat, laid, nested
from mpsim.formats.source import Options
from mpsim.hardware import system, system_names
from mpsim.scenario import Scenario, load
from mpsim.scenario.layers import expand_shorthand

_SECTIONS = ("model", "cluster", "parallelism", "schedule", "training", "framework", "simulation")
_CONTRADICTIONS = tuple(
    "model parallelism schedule training.global_batch training.micro_batch".split()
)
_OPEN = ("cluster.", "parallelism.", "training.", "simulation.", "serving.workload.")
"""Sections whose keys say nothing of each other, so that an assumed one stays as it was."""
_NEEDED = {
    "model": "a preset such as llama3-8b ('mpsim show models'), or its sizes",
    "cluster": "which accelerators, links and NICs: --cluster NAME ('mpsim show systems')",
    "cluster.preset": "which accelerators, links and NICs: --cluster NAME ('mpsim show systems')",
    "cluster.nodes": "how many accelerators: --ranks N",
}


def on_cluster(imported: Imported, options: Options) -> Imported:
    """The import with the cluster and accelerators that the user named, if its file has none."""
    cluster = dict(imported.scenario.get("cluster", {}))
    lines = dict(imported.lines)
    if options.cluster is not None:
        if options.cluster not in system_names():
            near = nearest(options.cluster, system_names())
            raise FormatError(f"--cluster {options.cluster[:60]!r}: {near}")
        cluster["preset"] = options.cluster
        lines["cluster.preset"] = "--cluster"
    if options.ranks is not None and "nodes" not in cluster:
        sized = _sized(cluster, options.ranks)
        cluster |= sized
        lines |= dict.fromkeys((f"cluster.{key}" for key in sized), "--ranks")
    scenario = {**imported.scenario, **({"cluster": cluster} if cluster else {})}
    there = {f"cluster.{key}" for key in cluster} | ({"cluster"} if "preset" in cluster else set())
    missing = [key for key in imported.missing if key not in there]
    wanted: list[str] = []
    if "preset" in cluster:
        wanted = ["cluster.nodes"] if "nodes" not in cluster else []
    elif cluster and "cluster" not in missing:
        wanted = ["cluster.preset"]
    missing = list(dict.fromkeys([*missing, *wanted]))
    return structs.replace(imported, scenario=scenario, missing=tuple(missing), lines=lines)


def _sized(cluster: Mapping[str, Any], ranks: int) -> dict[str, int]:
    """Nodes of so many accelerators, if one's number is known; fewer are a part of one."""
    each = cluster.get("accelerators_per_node")
    if each is None and "preset" in cluster:
        each = system(cluster["preset"]).node.accelerators
    if each is None:
        return {}
    if ranks < each:
        return {"nodes": 1, "accelerators_per_node": ranks}
    if ranks % each:
        needed = f"needed a multiple of the {each} accelerators of a node"
        raise FormatError(f"--ranks {ranks}: {needed}")
    return {"nodes": ranks // each}


def over(imported: Imported, base: Path) -> Imported:
    """An import laid over a scenario file: what the import says wins, the rest stays, also where
    the import would assume something.

    A model or a framework that the import spells out replaces that of the file; a model of which it
    knows some sizes changes it. ScenarioError if the file cannot be read.
    """
    document = load(base, checked=False).source
    below = {
        key: expand_shorthand(key, value)
        for key, value in document.data.items()
        if key not in ("include", "name")
    }
    stated = flat(below)
    kept = {
        item.to
        for item in imported.assumed
        if item.to.startswith(_OPEN) and item.to in stated and not isinstance(item.value, list)
    }
    above: dict[str, Any] = nested(
        {key: value for key, value in flat(imported.scenario).items() if key not in kept}
    )
    model = above.get("model")
    whole = isinstance(model, Mapping) and (
        "preset" in model or {"layers", "hidden", "heads", "vocab"} <= model.keys()
    )
    for key, replaces in (("model", whole), ("framework", True)):
        if key in above and replaces:
            below.pop(key, None)
    said = {key: line for key, line in imported.lines.items() if key not in kept}
    lines = dict.fromkeys(flat(below), base.name) | said
    assumed = tuple(item for item in imported.assumed if item.to not in kept)
    mesh = below.get("parallelism")
    if isinstance(mesh, Mapping) and "dp" in mesh and "dp" not in above.get("parallelism", "dp"):
        below["parallelism"] = {key: value for key, value in mesh.items() if key != "dp"}
        why = "left out: what the cluster has room for, with the imported degrees"
        assumed += (Assumed("parallelism.dp", "", why),)
    told = imported.warnings
    if "serving" in below:  # the checkpoint's own, as another one's were before
        for key, (value, warning) in imported.served.items():
            above = laid(above, nested({key: value}))
            lines[key] = f"{Path(imported.files[0]).name}, as packed"
            told = tuple(text for text in told if text != warning)
    merged = laid(below, above)
    idle = "training." if "serving" in merged else "serving."
    missing = tuple(k for k in imported.missing if _at(merged, k) is ... and not k.startswith(idle))
    found = structs.replace(imported, scenario=merged, missing=missing, assumed=assumed)
    return structs.replace(found, lines=lines, warnings=told)


def _at(scenario: Mapping[str, object], key: str) -> object:
    """Value at a dotted key; Ellipsis where nothing does."""
    node: object = scenario
    for part in key.split("."):
        node = node.get(part, ...) if isinstance(node, Mapping) else ...
    return node


def checked(imported: Imported) -> Imported:
    """The import with what `mpsim check` says of it as warnings, where nothing is missing.

    FormatError if sizes of the file contradict each other, such as degrees that do not divide the
    accelerators.
    """
    if imported.missing or "model" not in imported.scenario:
        return imported
    try:
        Scenario.from_mapping({"schema": 1, **imported.scenario})
    except ScenarioError as error:
        files = ", ".join(imported.files)
        wrong = [problem for problem in error.problems if problem.key.startswith(_CONTRADICTIONS)]
        if wrong:
            told = "\n".join(
                f"{files}: {_placed(imported, problem.key)}{problem.message}" for problem in wrong
            )
            raise FormatError(told) from error
        problems = tuple(
            f"not accepted as it stands: {problem.key}: {problem.message}"
            for problem in error.problems
        )
        return structs.replace(imported, warnings=(*imported.warnings, *problems))
    return imported


def _placed(imported: Imported, key: str) -> str:
    line = imported.lines.get(key, "")
    return f"{key} ({line}): " if line and line != "assumed" else f"{key}: "


def written(imported: Imported) -> str:
    """The scenario as commented YAML: sources of values, what was assumed, ignored, missing."""
    name = " and ".join(Path(file).name for file in imported.files)
    era = f" ({imported.version})" if imported.version else ""
    lines = [f"# Imported from {name}: {imported.tool or imported.format}{era}."]
    lines += [f"# Warning: {_plain(warning)}" for warning in imported.warnings]
    lines += [
        f"# Missing: {key}: {_NEEDED.get(key, 'the file does not say')}" for key in imported.missing
    ]
    lines += ["schema: 1", *_body(imported).split("\n")[:-1]]
    notes = [
        item
        for item in imported.assumed
        if (there := _at(imported.scenario, item.to)) is ... or isinstance(there, Mapping)
    ]
    if notes:
        lines += ["# Assumed:", *(f"#   {_plain(str(item))}" for item in notes)]
    if imported.ignored:
        lines += ["# Ignored:", f"#   {', '.join(map(_plain, imported.ignored))}: not mapped"]
    return "\n".join(lines) + "\n"


def _plain(text: str) -> str:
    """Text of somebody's file on one line of a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in text)


def _body(imported: Imported) -> str:
    """Values with where each comes from, sections in their usual order."""
    scenario, assumed = imported.scenario, {item.to: item for item in imported.assumed}
    order = [section for section in _SECTIONS if section in scenario]
    order += [key for key in scenario if key not in _SECTIONS and key != "schema"]

    def comment(key: str) -> str:
        why = f"assumed: {assumed[key].why}" if key in assumed else imported.lines.get(key, "")
        return _plain(why)

    return yaml_text({section: scenario[section] for section in order}, comment)
