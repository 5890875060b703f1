"""Files laid on each other: includes, overrides and ``--set``, with places of keys; dotted keys,
and shorthands spelled out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeAlias

from mpsim import structs
from mpsim.document import Document, parse_scalar, read_document
from mpsim.errors import Problem, ScenarioError, nearest
from mpsim.inputs import shown
from mpsim.shipped import say

Data: TypeAlias = dict[Any, Any]
"""A mapping of a file; its keys may be anything that YAML has, until the schema has seen them."""


def _as(key: str) -> Callable[[str], dict[str, str]]:
    return lambda word: {key: word}


def _link(word: str) -> dict[str, str]:
    return {"bandwidth" if word[:1].isdigit() else "preset": word}


def _schedule(word: str) -> dict[str, str]:
    return {"file" if word.endswith(".csv") else "name": word}


SHORTHANDS: Mapping[str, Callable[[str], dict[str, str]]] = {
    **dict.fromkeys(("model", "cluster", "framework"), _as("preset")),
    **dict.fromkeys(("cluster.accelerator", "serving.engine"), _as("preset")),
    **dict.fromkeys(("cluster.scale_up", "cluster.nic"), _link),
    "cluster.fabric": _as("kind"),
    "schedule": _schedule,
}


def expand_shorthand(key: str, value: object) -> object:
    """Spell `value` out as a mapping if `key` allows one word there and it is one.

    Examples
    --------
    >>> expand_shorthand("cluster.nic", "200 Gb/s"), expand_shorthand("model", "gpt3-175b")
    ({'bandwidth': '200 Gb/s'}, {'preset': 'gpt3-175b'})
    """
    if isinstance(value, str) and key in SHORTHANDS:
        return SHORTHANDS[key](value)
    return value


def join(*parts: object) -> str:
    """Parts of a dotted key as one; empty ones are left out."""
    return ".".join(str(part) for part in parts if part != "")


def copied(value: Any) -> Any:
    """A copy of plain data, for which `copy.deepcopy` takes four times as long."""
    if isinstance(value, dict):
        return {key: copied(inner) for key, inner in value.items()}
    return [copied(inner) for inner in value] if isinstance(value, list) else value


def assign(data: Data, parts: tuple[object, ...], value: object) -> object:
    """Set the value at `parts` inside `data`, making mappings on the way; return the old one.

    Digits index a list. KeyError if something on the way is neither a mapping, a shorthand of one,
    nor a list long enough; its argument says what.
    """
    node: Any = data
    for depth, name in enumerate(parts):
        part: Any = name
        key = join(*parts[: depth + 1])
        if isinstance(node, list):
            if not (str(part).isdigit() and int(part) < len(node)):
                holder = join(*parts[:depth])
                raise KeyError(f"{holder} is a list of {len(node)}; it has no {part!r}")
            part = int(part)
        old = node[part] if isinstance(node, list) else node.get(part)
        if depth == len(parts) - 1:
            node[part] = value
            return old
        inner = {} if old is None else expand_shorthand(key, old)
        if not isinstance(inner, dict | list):
            raise KeyError(f"{key} is {inner!r}, not a mapping")
        node[part] = node = inner
    return None


MAX_FILES: Final = 64
_SHOWN: Final = 100  # characters of a path
FLAT: Final = ("sweep", "design", "overrides")  # sections whose own keys are dotted
STUDIES: Final = ("sweep", "design")  # sections that say what to run beside the scenario itself
RIVALS: Final = {"schedule.name": ("file",), "schedule.file": ("name", "virtual_stages")}
"""Keys beside a key whose place it takes where a layer below wrote them."""


class Layers:
    """Plain data under construction; what comes later wins, mappings merge key by key."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.data: Data = {}
        self.places: dict[str, tuple[int, int]] = {}
        self.files: dict[str, str] = {}
        self.problems: list[Problem] = []

    def copy(self) -> Layers:
        """Another one with the same data."""
        other = Layers(self.file)
        other.data = copied(self.data)
        other.places, other.files = dict(self.places), dict(self.files)
        other.problems = list(self.problems)
        return other

    def lay(self, document: Document) -> None:
        """Lay all of `document` on top."""
        if document.file == self.file and "" in document.places:
            self.places[""] = document.places[""]
        for name, value in document.data.items():
            self.put((name,), value, document, str(name))

    def lay_override(self, name: str, origin: Document) -> None:
        """Lay the named override `name` of the data so far on top of it."""
        known = self.data.get("overrides")
        if not isinstance(known, Mapping) or name not in known:
            names = [str(known_name) for known_name in known] if isinstance(known, Mapping) else []
            near = nearest(name, names) if names else "the scenario has no overrides: section"
            self.problems.append(Problem(f"unknown override {name!r}; {near}", key="overrides"))
            return
        body = known[name]
        if isinstance(body, Mapping):  # what is not is a mistake of the file, found by the schema
            for key, value in body.items():
                self.put(_split(key), value, origin, join("overrides", name, key), dotted=True)

    def lay_setting(self, setting: str) -> None:
        """Lay one ``key=value`` on top, the value read as YAML."""
        key, equals, text = (part.strip() for part in setting.partition("="))
        origin = Document(data=None, places={}, file="--set")
        if not equals or not key:
            message = f"got {setting[:60]!r}; needed key=value, such as parallelism.tp=8"
            self.problems.append(Problem(message, file="--set"))
            return
        try:
            value = parse_scalar(text)
        except ScenarioError as error:
            self.problems.append(Problem(error.problems[0].message, key=key, file="--set"))
            return
        self.put(_split(key), value, origin, key, dotted=True)

    def put(
        self,
        parts: tuple[object, ...],
        value: object,
        origin: Document,
        written: str,
        *,
        dotted: bool = False,
    ) -> None:
        """Merge `value`, `written` in `origin`, at `parts`; `dotted`: keys inside may be too, and
        None leaves one out.
        """
        key, around = join(*parts), self._mapping(parts[:-1])
        if dotted and value is None and around is not None:
            around.pop(parts[-1], None)
            return
        self._mark_missing(parts, origin, written)
        for name in RIVALS.get(key, ()) if around is not None else ():
            if self.files.get(join(parts[0], name), self.file) != origin.file:
                self.data[parts[0]].pop(name, None)
        body = parts[0] == "overrides" and len(parts) > 1  # of one name, which later files replace
        if not isinstance(value, Mapping):
            self._replace(parts, copied(value), origin, written)
        elif body or self._mapping(parts) is None:
            self._replace(parts, {}, origin, written)
        self._mark(key, origin, written)
        for name, inner in value.items() if isinstance(value, Mapping) else ():
            inside = _split(name) if dotted and parts[0] not in FLAT else (name,)
            self.put((*parts, *inside), inner, origin, join(written, name), dotted=dotted)

    def _replace(
        self, parts: tuple[object, ...], value: object, origin: Document, written: str
    ) -> None:
        key = join(*parts)
        try:
            old = assign(self.data, parts, value)
        except KeyError as error:
            problem = Problem(f"cannot be set: {error.args[0]}", key=key)
            self.problems.append(_placed(problem, origin, written))
            return
        for below in _below(old):
            self.places.pop(join(key, below), None)
            self.files.pop(join(key, below), None)
        for below in _below(value):
            self._mark(join(key, below), origin, join(written, below))

    def document(self) -> Document:
        """The data as one document; its problems are those of every layer."""
        return Document(self.data, self.places, self.file, self.files, tuple(self.problems))

    def _mapping(self, parts: tuple[object, ...]) -> Data | None:
        """The mapping, or shorthand that is spelled out now, at `parts`; None for all else."""
        node: object = self.data
        for depth, part in enumerate(parts):
            if not isinstance(node, dict) or part not in node:
                return None
            key = join(*parts[: depth + 1])
            if key in SHORTHANDS and isinstance(node[part], str):
                node[part] = expand_shorthand(key, node[part])
                for name in node[part] if key in self.files else ():  # RIVALS asks whose they are
                    self.files[join(key, name)] = self.files[key]
            node = node[part]
        return node if isinstance(node, dict) else None

    def _mark_missing(self, parts: tuple[object, ...], origin: Document, written: str) -> None:
        """Sections on the way to a dotted key that nobody wrote stand where the key does."""
        for depth in range(1, len(parts)):
            key = join(*parts[:depth])
            if key not in self.places:
                self._mark(key, origin, written)

    def _mark(self, key: str, origin: Document, written: str) -> None:
        self.places[key] = origin.place(written)
        file = origin.files.get(origin.written(written), origin.file)
        self.files.pop(key, None)
        if file != self.file:
            self.files[key] = file


def _below(value: object) -> Iterator[str]:
    """Dotted keys of everything inside `value`."""
    items: Iterable[tuple[object, object]] = ()
    if isinstance(value, Mapping):
        items = value.items()
    elif isinstance(value, list):
        items = enumerate(value)
    for name, inner in items:
        yield str(name)
        for below in _below(inner):
            yield join(name, below)


def read_layers(
    path: Path,
    *,
    set: Iterable[str],  # noqa: A002
    overrides: Iterable[str],
    allow_include: bool = False,
) -> Document:
    """Read a scenario file with all it includes, and lay overrides and settings on top.

    Includes may leave the folder of `path` only if allowed. `Document.problems` holds the mistakes
    found so far. ScenarioError if `path` itself cannot be read.
    """
    layers = Layers(str(path))
    document = read_document(path)
    inside = None if allow_include else path.parent.resolve()
    _lay_file(layers, path, document, (path.resolve(),), [0], inside)
    layers.data.pop("include", None)
    before = layers.document()
    for name in overrides:
        layers.lay_override(name, before)
    _root_schedule_file(layers.data, path.parent)
    given: list[str] = []
    for setting in set:
        key = setting.partition("=")[0].strip()
        if key in given:
            layers.problems.append(Problem(f"got {key[:60]} twice; give it once", file="--set"))
        given.append(key)
        layers.lay_setting(setting)
    _root_schedule_file(layers.data, Path())
    return layers.document()


def ground(document: Document) -> Layers:
    """`document` without its sweep and design, for values to be laid on copies of it."""
    layers = Layers(document.file)
    unswept = {key: document.data[key] for key in document.data if key not in STUDIES}
    if isinstance(named := unswept.get("overrides"), Mapping):
        unswept["overrides"] = {
            name: {key: body[key] for key in body if str(key).partition(".")[0] not in STUDIES}
            if isinstance(body, Mapping)
            else body
            for name, body in named.items()
        }
    layers.lay(structs.replace(document, data=unswept))
    return layers


def lay_values(under: Layers, values: Mapping[str, object]) -> Document:
    """A copy of `under`, values replaced by dotted key; those have no place in a file."""
    layers = under.copy()
    origin = Document(data=None, places={}, file="")
    for key, value in values.items():
        layers.put(_split(key), value, origin, key, dotted=True)
    _root_schedule_file(layers.data, Path(layers.file).parent)
    return layers.document()


def _split(name: object) -> tuple[object, ...]:
    return tuple(name.split(".")) if isinstance(name, str) else (name,)


def _placed(problem: Problem, origin: Document, written: str) -> Problem:
    line, column = origin.place(written)
    return structs.replace(problem, file=origin.file, line=line, column=column)


def _lay_file(
    layers: Layers,
    path: Path,
    document: Document,
    chain: tuple[Path, ...],
    count: list[int],
    inside: Path | None,
) -> None:
    layers.problems += document.problems
    for index, include in enumerate(_includes(document, layers)):
        where = document.locate(Problem("", key=f"include.{index}"))
        target = path.parent / include
        resolved = _resolved(target)
        count[0] += 1
        inner = None
        if inside is not None and not resolved.is_relative_to(inside):
            message = say("scenario.outside", include=include[:_SHOWN])
        elif resolved in chain:
            loop = " -> ".join(step.name for step in (*chain, target))
            message = f"include loop {loop}; remove one of them"
        elif count[0] > MAX_FILES:
            message = f"more than {MAX_FILES} files included; needed fewer"
        else:
            try:
                inner = read_document(target)
            except ScenarioError as error:
                message = f"includes {include[:_SHOWN]!r}, which {error.problems[0].message}"
        if inner is None:
            layers.problems.append(structs.replace(where, message=message, key="include"))
            if count[0] > MAX_FILES:
                return
            continue
        _lay_file(layers, target, inner, (*chain, resolved), count, inside)
    _root_schedule_file(document.data, path.parent)
    layers.lay(document)


def _resolved(path: Path) -> Path:
    """Where `path` leads, links followed; `path` itself if nowhere, which reading says."""
    try:
        return path.resolve()
    # a name too long, a null character, links in a circle
    except (OSError, ValueError, RuntimeError):
        return path.absolute()


def _includes(document: Document, layers: Layers) -> list[str]:
    given = document.data.pop("include", None)
    listed = [given] if isinstance(given, str) else given
    if given is None:
        return []
    if isinstance(listed, list) and all(isinstance(path, str) for path in listed):
        return listed
    problem = Problem(f"got {shown(given)}; needed a path, or a list of paths", key="include")
    layers.problems.append(document.locate(problem))
    return []


def _root_schedule_file(data: Data, folder: Path) -> None:
    """Make a relative path of a schedule file absolute, from the folder it was written in."""
    schedule = expand_shorthand("schedule", data.get("schedule"))
    if isinstance(schedule, dict) and isinstance(schedule.get("file"), str):
        data["schedule"] = {**schedule, "file": str((folder / schedule["file"]).absolute())}
