"""YAML files read strictly: no repeated keys, numbers that are numbers, places of keys.

PyYAML reads ``1e9`` as a string, ``on`` as true, ``12:30`` as 750 and ``010`` as 8, and lets a
repeated key win in silence; this reader does none of that. Only the scanner and parser of PyYAML
are used (libyaml where it is built in): plain scalars are resolved here, by the rules of the core
schema of YAML 1.2. `Document.place` tells where a dotted key was written, so that every complaint
can name its line.
"""

from __future__ import annotations

import io
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import yaml

from mpsim import structs
from mpsim.errors import Problem, ScenarioError
from mpsim.inputs import read_bytes, shown
from mpsim.shipped import resolve

MAX_BYTES: Final = 1_000_000
MAX_DEPTH: Final = 48
MAX_VALUES: Final = 100_000  # after aliases are expanded

_LARGEST: Final = sys.float_info.max  # whole numbers can be larger, and are no floats then
_Loader: type = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = object()  # a plain "<<"; a quoted one is a key like any other


@structs.dataclass(frozen=True, slots=True)
class Document:
    """A YAML file as plain data plus the place of every dotted key."""

    data: Any  # mappings as dict, lists as list, and str, int, float, bool and None
    # line and column, from 1, of each dotted key (items of a list as ``a.0.b``); ``""`` is the top
    places: Mapping[str, tuple[int, int]]
    file: str  # where it was read
    # the file of each key that was not written in `file` (an include, or ``--set``)
    files: Mapping[str, str] = structs.field(default_factory=dict)
    # mistakes that leave the rest of the file readable: repeated keys, numbers that are not finite
    problems: tuple[Problem, ...] = ()

    def written(self, key: str) -> str:
        """The longest leading part of dotted `key` that was written; empty when none was."""
        while key and key not in self.places:
            key = key.rpartition(".")[0]
        return key

    def place(self, key: str) -> tuple[int, int]:
        """Line and column of `key`, or of its nearest written ancestor, or (0, 0)."""
        return self.places.get(self.written(key), (0, 0))

    def locate(self, problem: Problem) -> Problem:
        """`problem` with the file, line and column of its key, unless it has a file already."""
        if problem.file:
            return problem
        written = self.written(problem.key)
        line, column = self.places.get(written, (0, 0))
        file = self.files.get(written, self.file)
        return structs.replace(problem, file=file, line=line, column=column)


def read_document(path: str | Path) -> Document:
    """Read one YAML file, keeping in `Document.problems` the mistakes that leave the rest readable.

    ScenarioError if it cannot be read, is empty, binary, too large, not YAML, or not a mapping at
    the top.
    """
    file = str(path)
    raw = read_bytes(path, needed="YAML", error=ScenarioError, largest=MAX_BYTES)
    return parse_document(_decode(raw, file), file)


def parse_document(text: str, file: str) -> Document:
    """Read YAML text, keeping in `Document.problems` the mistakes that leave the rest readable.

    `file`: what complaints call it. ScenarioError if it is empty, not YAML, or not a mapping at the
    top.
    """
    document = _Reader(text, file).document()
    if document.data is None:
        raise _fatal("is empty; needed keys such as 'schema: 1'", file, 1, 1)
    if not isinstance(document.data, dict):
        # what the file holds is not shown: a scenario can name files that its reader must not see
        got = "a list" if isinstance(document.data, list) else "plain text"
        line, column = document.places[""]
        raise _fatal(f"got {got} at the top; needed keys such as 'schema: 1'", file, line, column)
    return document


def parse_scalar(text: str) -> object:
    """Read `text` as the value of a key would be read (for ``--set key=value``). ScenarioError if
    it is not one YAML value.

    Examples
    --------
    >>> parse_scalar("1e9"), parse_scalar("on"), parse_scalar("[1, 2]")
    (1000000000.0, 'on', [1, 2])
    """
    document = _Reader(text, "").document()
    if document.problems:
        raise ScenarioError(document.problems)
    return document.data


def _fatal(message: str, file: str, line: int = 0, column: int = 0, key: str = "") -> ScenarioError:
    return ScenarioError([Problem(message, key=key, file=file, line=line, column=column)])


def _decode(raw: bytes, file: str) -> str:
    if b"\0" in raw:
        line = raw[: raw.index(b"\0")].count(b"\n") + 1
        raise _fatal("is a binary file; needed YAML text in UTF-8", file, line, 1)
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw[: error.start].count(b"\n") + 1
        raise _fatal("is not text in UTF-8; save it as UTF-8", file, line, 1) from error
    return text


@structs.dataclass(frozen=True, slots=True)
class _Node:
    """A value as written: a scalar, a list of nodes, or pairs of a key's node and a value's."""

    line: int
    column: int
    value: object = None
    items: list[_Node] | None = None
    pairs: list[tuple[_Node, _Node]] | None = None


class _Reader:
    """One pass over the events of one text."""

    def __init__(self, text: str, file: str) -> None:
        self.text = text
        self.file = file
        self.anchors: dict[str, _Node] = {}
        self.problems: list[Problem] = []
        self.places: dict[str, tuple[int, int]] = {}
        self.values = 0

    def document(self) -> Document:
        """Read the whole text as one value."""
        try:
            self.events = yaml.parse(io.StringIO(self.text), Loader=_Loader)
            node = self._top()
        except yaml.reader.ReaderError as error:
            raise self._unreadable(error) from error
        except yaml.MarkedYAMLError as error:
            raise self._syntax(error) from error
        if node is None:
            return Document(data=None, places={"": (1, 1)}, file=self.file)
        self.places[""] = (node.line, node.column)
        data = self._plain(node, "")
        return Document(data, self.places, self.file, problems=tuple(self.problems))

    def _top(self) -> _Node | None:
        node: _Node | None = None
        for event in self.events:
            if isinstance(event, yaml.DocumentStartEvent):
                if node is not None:
                    raise self._at(event, "a second document ('---'); needed one a file")
                node = self._node(next(self.events), 0)
        return node

    def _node(self, event: yaml.Event, depth: int) -> _Node:
        if depth > MAX_DEPTH:
            raise self._at(event, f"nested deeper than {MAX_DEPTH} levels; flatten it")
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self.anchors:
                raise self._at(
                    event, f"alias '*{event.anchor}' has no complete '&{event.anchor}' before it"
                )
            return self.anchors[event.anchor]
        assert isinstance(event, yaml.ScalarEvent | yaml.CollectionStartEvent)
        if event.tag is not None:
            raise self._at(event, f"tag {event.tag!r} is not allowed; write the plain value")
        node = self._content(event, depth)
        if event.anchor is not None:
            self.anchors[event.anchor] = node
        return node

    def _content(self, event: yaml.Event, depth: int) -> _Node:
        line, column = _position(event)
        if isinstance(event, yaml.ScalarEvent):
            return _Node(line, column, _scalar(event))
        if isinstance(event, yaml.SequenceStartEvent):
            items: list[_Node] = []
            while not isinstance(event := next(self.events), yaml.SequenceEndEvent):
                items.append(self._node(event, depth + 1))
            return _Node(line, column, items=items)
        pairs: list[tuple[_Node, _Node]] = []
        while not isinstance(event := next(self.events), yaml.MappingEndEvent):
            key = self._node(event, depth + 1)
            if key.items is not None or key.pairs is not None:
                raise self._at(event, "a key must be one word, not a list or a mapping")
            pairs.append((key, self._node(next(self.events), depth + 1)))
        return _Node(line, column, pairs=pairs)

    def _plain(self, node: _Node, key: str) -> object:
        self.values += 1
        if self.values > MAX_VALUES:
            message = f"more than {MAX_VALUES} values once its aliases are expanded; needed fewer"
            raise _fatal(message, self.file, node.line, node.column)
        head = f"{key}." if key else ""
        if node.items is not None:
            return [self._item(item, f"{head}{index}") for index, item in enumerate(node.items)]
        if node.pairs is not None:
            return self._mapping(node.pairs, head)
        value = "<<" if node.value is _MERGE else node.value
        if isinstance(value, int | float) and not abs(value) <= _LARGEST:
            message = f"got {shown(value)}; needed a finite number"
            self.problems.append(Problem(message, key, self.file, node.line, node.column))
        return value

    def _item(self, node: _Node, key: str) -> object:
        self.places[key] = (node.line, node.column)
        return self._plain(node, key)

    def _mapping(self, pairs: list[tuple[_Node, _Node]], head: str) -> dict[object, object]:
        merged: dict[object, object] = {}
        data: dict[object, object] = {}
        lines: dict[object, int] = {}
        for name, child in pairs:
            key = f"{head}{name.value}"
            if name.value is _MERGE:
                merged = self._merged(child, head)
            elif name.value in data:
                first = lines[name.value]
                message = f"repeated: first on line {first}, again on line {name.line}; keep one"
                self.problems.append(Problem(message, key, self.file, name.line, name.column))
            else:
                self.places[key] = (name.line, name.column)
                lines[name.value] = name.line
                data[name.value] = self._plain(child, key)
        return {**merged, **data} if merged else data

    def _merged(self, node: _Node, head: str) -> dict[object, object]:
        """Mappings that a merge key brings: one that it aliases, or several; the first wins."""
        merged: dict[object, object] = {}
        for source in reversed([node] if node.items is None else node.items):
            if source.pairs is None:
                message = "'<<' merges a mapping; needed an alias of one, such as '<<: *name'"
                raise _fatal(message, self.file, node.line, node.column)
            places = self.places
            self.places = {}
            brought = self._mapping(source.pairs, head)
            self.places = self.places | places
            merged.update(brought)
        return merged

    def _at(self, event: yaml.Event, message: str) -> ScenarioError:
        line, column = _position(event)
        return _fatal(message, self.file, line, column)

    def _unreadable(self, error: yaml.reader.ReaderError) -> ScenarioError:
        unprintable = yaml.reader.Reader.NON_PRINTABLE.search(self.text)
        if unprintable is None:  # libyaml is stricter about something
            return _fatal(f"is not plain text: {error.reason}", self.file)
        before = self.text[: unprintable.start()]
        line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
        code = ord(unprintable[0])
        message = f"is a binary file or holds the control character {code:#04x}; needed plain text"
        return _fatal(message, self.file, line, column)

    def _syntax(self, error: yaml.MarkedYAMLError) -> ScenarioError:
        mark = error.problem_mark or error.context_mark
        if mark is None:
            return _fatal(f"is not YAML: {error.problem}", self.file)
        lines = self.text.splitlines()
        line = lines[mark.line] if mark.line < len(lines) else ""
        message = f"is not YAML: {error.problem}{_began(error, mark.line)}{_mend(line, error)}"
        return _fatal(message, self.file, mark.line + 1, mark.column + 1)


def _position(event: yaml.Event) -> tuple[int, int]:
    mark = event.start_mark
    return (mark.line + 1, mark.column + 1) if mark else (0, 0)


def _began(error: yaml.MarkedYAMLError, line: int) -> str:
    context, mark = error.context, error.context_mark
    if not context or "next token" in context:
        return ""
    if mark is None or mark.line == line:
        return f" {context}"
    return f" {context} that began on line {mark.line + 1}"


def _mend(line: str, error: yaml.MarkedYAMLError) -> str:
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "; the line is indented with a tab: use spaces"
    if "mapping values are not allowed" in str(error.problem):
        return "; quote a value that holds ': ', or check the indentation"
    if "flow" in str(error.context):
        return "; check its brackets and commas"
    if "quoted" in str(error.context):
        return "; close the quote"
    return "; check the indentation, quotes and brackets near it"


def _scalar(event: yaml.ScalarEvent) -> object:
    """The value of a scalar: resolved if it was written plain, text if it was quoted."""
    if not event.implicit[0]:
        return event.value
    return _MERGE if event.value == "<<" else resolve(event.value)
