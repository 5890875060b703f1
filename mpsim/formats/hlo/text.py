"""XLA's HLO text taken apart: instructions, computations, how often each runs, groups that
communicate in their three spellings (lists, iota tiles, mesh axes).

The text of a compiled module is the program of one device after partitioning; shapes are local.
Loops say how often they run on CPUs and GPUs (``known_trip_count``), by a constant on TPUs.

References
----------
openxla/xla, ``hlo_parser.cc``, ``hlo_sharding.cc``; text of jax 0.10.2 (CPU, H100, TPU v5e) and
tensorflow 2.21.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping
from typing import Final, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Ints
from mpsim.errors import FormatError
from mpsim.formats.words import DATA, table
from mpsim.memo import remembered

COLLECTIVES: Final = tuple(
    "all-reduce all-gather reduce-scatter all-to-all collective-permute"
    " collective-broadcast ragged-all-to-all".split()
)
"""Opcodes of collectives, without ``-start`` and ``-done``."""

DEEPEST: Final = 64  # computations that call computations
_LONGEST_CONSTANT: Final = 1 << 20
_MOST_ROWS: Final = 2000  # of one constant: they are read again with every row
_LONGEST_NUMBER: Final = 100  # digits
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_ARRAY = re.compile(r"\b(pred|token|opaque|bf16|c64|c128|[sufi]\d+\w*)\[([\d,<= ]*)\]")
_PLACED = re.compile(
    r"(\b(?:pred|token|opaque|bf16|c64|c128|[sufi]\d+\w*)\[[\d,<= ]*\])(\{[^}]*\})?"
)
_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_LINE = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_LISTED = re.compile(r"(branch_computations|called_computations)=\{([^}]*)\}")
_RUN_BY: Final[Mapping[str, list[str]]] = table(DATA, "recordings")["hlo_run_by"]
"""Attributes that name what an instruction runs; reducers of collectives are none of it."""
_TRIPS = re.compile(r'"?known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)')


@structs.dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation."""

    name: str
    kind: str  # its opcode
    type: str  # type of its result as written
    # name of each operand, and its type where the printer writes it
    operands: tuple[tuple[str, str], ...]
    rest: str  # attributes; of a parameter or a constant what stands in its parentheses as well

    @property
    def collective(self) -> str:
        """The collective that it is or starts; empty where it is none."""
        kind = self.kind.removesuffix("-start")
        return kind if kind in COLLECTIVES else ""

    @property
    def operation(self) -> str:
        """Name of the operation that it came from; empty where it is not stated."""
        match = re.search(r'op_name="([^"]*)', self.rest)
        return match[1] if match else ""

    @property
    def number(self) -> int | None:
        """Which parameter it is; None for what is none."""
        match = re.match(r"\((\d+)\)", self.rest) if self.kind == "parameter" else None
        return int(match[1]) if match else None


class Visit(NamedTuple):
    """An instruction that a step runs."""

    computation: str  # in which it stands
    line: Instruction
    times: int  # how often it runs


@structs.dataclass(frozen=True, slots=True)
class Module:
    """A compiled module."""

    name: str
    devices: int  # partitions times replicas
    # instructions of every computation by name, in their order
    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str
    is_scheduled: bool
    partitions: int = 1  # devices that divide one replica among them
    # name of the instruction that each computation returns
    roots: Mapping[str, str] = structs.field(default_factory=dict)

    def lines(self, computation: str) -> Collection[Instruction]:
        """Instructions of a computation in their order; none of one that there is not."""
        return self.computations.get(computation, {}).values()

    def root(self, computation: str) -> Instruction | None:
        """The instruction that a computation returns."""
        return self.computations.get(computation, {}).get(self.roots.get(computation, ""))

    def operand_type(self, computation: str, operand: tuple[str, str]) -> str:
        """Type of an operand: as it is written, or that of the line it names."""
        name, written = operand
        if written:
            return written
        known = self.computations[computation].get(name)
        return known.type if known is not None else ""

    def operand_bytes(self, computation: str, line: Instruction) -> int:
        """Bytes of all operands together."""
        return sum(type_bytes(self.operand_type(computation, item)) for item in line.operands)

    def device_operands(self, computation: str, line: Instruction) -> list[int]:
        """Bytes of each operand that lie in the device's main memory."""
        return [device_bytes(self.operand_type(computation, item)) for item in line.operands]

    def walk(self) -> Iterator[Visit]:
        """Every instruction that a step runs."""
        yield from self._walk(self.entry, 1, 0)

    def _walk(self, computation: str, times: int, depth: int) -> Iterator[Visit]:
        for line in self.lines(computation) if depth <= DEEPEST else ():
            yield Visit(computation, line, times)
            times_inside = times * self.trips(line) if line.kind == "while" else times
            for name in self.called(line):
                yield from self._walk(name, times_inside, depth + 1)

    def carries_on(self, computation: str) -> bool:
        """Whether a fusion only carries on or ends a collective, as TPUs write them."""
        calls = [line.rest for line in self.lines(computation) if line.kind == "custom-call"]
        if any("AsyncCollectiveStart" in rest for rest in calls):
            return False  # whatever else it carries on, this one begins here
        ends = any("AsyncCollectiveDone" in rest for rest in calls)
        return ends or computation.startswith("async_collective_fusion")

    def states_trips(self, loop: Instruction) -> bool:
        """Whether a loop says itself how often it runs."""
        return _TRIPS.search(loop.rest) is not None

    def called(self, line: Instruction) -> list[str]:
        """Computations that an instruction runs, the body of a loop without its condition."""
        words = _RUN_BY.get(line.kind)
        if words is None:  # most lines
            return []
        named = dict(_CALLED.findall(line.rest))
        names = [named[word] for word in words if word in named]
        if line.kind in ("conditional", "custom-call"):
            names += [
                name.strip().lstrip("%")
                for _, listed in _LISTED.findall(line.rest)
                for name in listed.split(",")
                if name.strip()
            ]
        return names

    def trips(self, loop: Instruction) -> int:
        """How often a loop runs: as stated, or the constant that its condition compares with."""
        stated = _TRIPS.search(loop.rest)
        if stated is not None:
            return int(stated[1])
        condition = dict(_CALLED.findall(loop.rest)).get("condition", "")
        constants = [
            int(match[1])
            for line in self.lines(condition)
            if line.kind == "constant"
            and re.match(r"[su]\d+\[\]", line.type)
            and (match := re.match(r"\s*\(?(-?\d+)", line.rest))
        ]
        return max([*constants, 1])


def device_bytes(text: str) -> int:
    """Bytes of the arrays of a type that lie in the device's main memory: those in a space of their
    own, such as ``S(1)``, move elsewhere.

    Examples
    --------
    >>> device_bytes("(f32[8]{0:T(128)}, f32[8]{0:T(128)S(1)})")
    32
    """
    if "S(" not in text:
        return type_bytes(text)
    return sum(type_bytes(m[1]) for m in _PLACED.finditer(text) if "S(" not in (m[2] or ""))


def type_bytes(text: str) -> int:
    """Bytes of the arrays of a type together."""
    return sum(math.prod(shape) * _bits(dtype) // 8 for dtype, shape in arrays(text))


@remembered(4096)
def arrays(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Element type and shape of each array of a type."""
    return tuple(
        (match[1], tuple(int(size.strip("<= ")) for size in match[2].split(",") if size.strip()))
        for match in _ARRAY.finditer(text)
    )


@remembered(64)
def _bits(dtype: str) -> int:
    if dtype in _BITS:
        return _BITS[dtype]
    match = re.match(r"[suf](\d+)", dtype)
    return int(match[1]) if match is not None else 32


def parse_module(text: str, file: str) -> Module:
    """A module of its text; complaints call it `file`. FormatError without an entry, or cut."""
    if re.search(rf"\d{{{_LONGEST_NUMBER}}}", text):
        raise FormatError(f"{file}: a number of over {_LONGEST_NUMBER} digits; the file is damaged")
    parser = _Parser(file)
    for number, line in enumerate(text.splitlines(), start=1):
        parser.take(number, line)
    if parser.current is not None:
        raise FormatError(f"{file}: breaks off inside a computation; the file is cut")
    if not parser.entry:
        raise FormatError(f"{file}: has no ENTRY computation; needed the text of a compiled module")
    head = text[: text.find("\n")]
    name = re.match(r"HloModule\s+([\w.\-]+)", head)
    partitions, replicas = (
        int(match[1]) if (match := re.search(rf"\b{word}=(\d+)", head)) else 1
        for word in ("num_partitions", "replica_count")
    )
    devices = partitions * replicas
    if not 0 < devices <= MOST_DEVICES:
        raise FormatError(f"{file}: {devices} devices; needed 1 to {MOST_DEVICES:,}")
    return Module(
        name=name[1] if name else "",
        devices=devices,
        computations=parser.computations,
        entry=parser.entry,
        is_scheduled="is_scheduled=true" in head,
        partitions=partitions,
        roots=parser.roots,
    )


class _Parser:
    """Computations of a module, line by line."""

    def __init__(self, file: str) -> None:
        self.file = file
        self.computations: dict[str, dict[str, Instruction]] = {}
        self.roots: dict[str, str] = {}
        self.current: dict[str, Instruction] | None = None
        self.entry = self._inside = self._unfinished = ""
        self._rows = 0

    def take(self, number: int, line: str) -> None:
        """Take a line: the head of a computation, its end, or an instruction."""
        if self.current is None:
            if line.rstrip().endswith("{") and not line.startswith("HloModule"):
                self._begin(line)
        elif line.startswith("}") and not self._unfinished:
            self.current = None
        else:
            self._add(number, self._unfinished + line)

    def _begin(self, line: str) -> None:
        header = _HEADER.match(line)
        if header is not None:
            self._inside = header[2]
            self.current = self.computations.setdefault(self._inside, {})
            self.entry = self._inside if header[1] else self.entry

    def _add(self, number: int, line: str) -> None:
        found = _instruction(line)
        if found is not None:
            assert self.current is not None
            self.current[found.name] = found
            self._unfinished, self._rows = "", 0
            if line.lstrip().startswith("ROOT "):
                self.roots[self._inside] = found.name
        elif " constant({" in line and len(line) < _LONGEST_CONSTANT and self._rows < _MOST_ROWS:
            # older printers give every row of a constant a line
            self._unfinished, self._rows = line, self._rows + 1
        elif _LINE.match(line):
            raise FormatError(f"{self.file}:{number}: an instruction breaks off; the file is cut")


def _instruction(line: str) -> Instruction | None:
    match = _LINE.match(line)
    if match is None:
        return None
    end = _type_end(line, match.end())
    opcode = _OPCODE.match(line, end)
    close = _closing(line, opcode.end() - 1) if opcode else -1
    if opcode is None or close < 0:
        return None
    name, kind, result = match[2], opcode[1], line[match.end() : end]
    inside, rest = line[opcode.end() : close], line[close + 1 :]
    if kind in ("constant", "parameter"):
        return Instruction(name, kind, result, (), f"({inside}){rest}")
    return Instruction(name, kind, result, tuple(_operands(inside)), rest)


def _type_end(line: str, start: int) -> int:
    """Where the type ends: a tuple in parentheses, or one array with its layout."""
    if line[start : start + 1] == "(":
        close = _closing(line, start)
        return close + 1 if close >= 0 else len(line)
    end = line.find(" ", start)
    return len(line) if end < 0 else end


def _closing(line: str, start: int) -> int:
    """Place of the parenthesis that closes the one at `start`; -1 where there is none."""
    depth = 0
    for match in _PARENTHESIS.finditer(line, start):
        depth += 1 if match[0] == "(" else -1
        if depth == 0:
            return match.start()
    return -1


_PARENTHESIS = re.compile(r"[()]")


def _operands(text: str) -> Iterator[tuple[str, str]]:
    """Names and types of operands; commas inside brackets part nothing."""
    depth, start = 0, 0
    last = text.rfind("*/") + 1  # behind it a search for the end of a comment would never end
    text = re.sub(r"/\*.*?\*/", "", text[: last + 1]) + text[last + 1 :]
    for match in re.finditer(r"[,()\[\]{}]", text + ","):
        letter = match[0]
        if letter in "([{":
            depth += 1
        elif letter in ")]}":
            depth -= 1
        elif depth == 0:
            piece = text[start : match.start()].strip()
            start = match.end()
            if piece:
                written, _, name = piece.rpartition(" ")
                yield name.lstrip("%"), written


MOST_DEVICES: Final = 1_000_000
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}")
_LISTS = re.compile(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=(?:@?\w*)?mesh\[([^\]]*)\]"
    r"\s*(?:,?\s*device_ids=\(?\[([\d,]+)\](?:T\(([\d,]+)\))?\)?)?\s*,?\s*\{([^}]*)\}"
)


def groups_of(rest: str, devices: int, file: str = "") -> list[list[int]]:
    """Groups of a collective, expanded, of any of the three spellings.

    `rest`: its attributes. `devices`: of the module; ``{}`` means all of them. `file`: what
    complaints call it. FormatError if there are groups and they are in none of the spellings.

    Examples
    --------
    >>> groups_of("replica_groups=[4,2]<=[2,4]T(1,0)", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    >>> groups_of("replica_groups=mesh['a'=2,'b'=1,'c'=4] {'a'}", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    if pairs := _PAIRS.search(rest):
        return [_wholes(pair, file) for pair in re.findall(r"\{(\d+,\d+)\}", pairs[1])]
    if "source_target_pairs={{" in rest:
        raise FormatError(f"{file}: source_target_pairs that are no pairs; the file is damaged")
    if lists := _LISTS.search(rest):
        groups = re.findall(r"\{([\d,]*)\}", lists[1])
        return [_wholes(group.strip(","), file) for group in groups] or [list(range(devices))]
    if tiles := _IOTA.search(rest):
        rows, columns = [*_wholes(tiles[1], file), 1][:2]
        ids = _tiled(rows * columns, tiles[2], tiles[3], file, f"replica_groups=[{tiles[1]}]<=")
        return _listed(ids.reshape(-1, columns))
    if mesh := _MESH.search(rest):
        return _along_mesh(mesh, file)
    if "replica_groups=" in rest:
        raise FormatError(
            f"{file}: replica_groups in a spelling that is not known:"
            f" {rest[rest.find('replica_groups=') :][:60]!r}"
        )
    return [list(range(devices))]


def _wholes(text: str, file: str) -> list[int]:
    """Whole numbers between commas."""
    items = text.split(",") if text else []
    if not all(re.fullmatch(r"\d{1,9}", item) for item in items):
        raise FormatError(f"{file}: groups of {text[:60]!r}; needed numbers of devices")
    return [int(item) for item in items]


def _listed(groups: Ints) -> list[list[int]]:
    listed: list[list[int]] = groups.tolist()
    return listed


def _tiled(total: int, tile: str, order: str | None, file: str, what: str) -> Ints:
    """Numbers from 0 on as an array of a tile's sizes, its axes in another order, row-major."""
    sizes = _wholes(tile, file)
    axes = _wholes(order, file) if order else list(range(len(sizes)))
    if (
        math.prod(sizes) != total
        or sorted(axes) != list(range(len(sizes)))
        or not 0 < total <= MOST_DEVICES
    ):
        raise FormatError(f"{file}: {what}[{tile}] do not multiply to {total} devices")
    return np.arange(total).reshape(sizes).transpose(axes).ravel()


def named_meshes(rest: str) -> list[list[tuple[str, int]]]:
    """Meshes that attributes spell out, devices in order: axes' names and sizes, slowest first.

    Examples
    --------
    >>> named_meshes("replica_groups=mesh['data'=2,'tensor'=4] {'data'}")
    [[('data', 2), ('tensor', 4)]]
    """
    return [
        _axes(match[1]) for match in re.finditer(r"mesh\[([^\[\]]*)\](?!\s*,?\s*device_ids)", rest)
    ]


def _axes(text: str) -> list[tuple[str, int]]:
    return [
        (name.strip("'\" "), int(size))
        for name, size in re.findall(r"('[^']*'|\"[^\"]*\"|(?<!\w)\w+)\s*=\s*(\d{1,9})", text)
    ]


def _along_mesh(mesh: re.Match[str], file: str) -> list[list[int]]:
    """Groups along some axes of a mesh, whose devices may lie in another order."""
    axes = _axes(mesh[1])
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    total = math.prod(sizes)
    wanted = [name.strip("'\" ") for name in mesh[4].split(",") if name.strip()]
    if not 0 < total <= MOST_DEVICES or any(name not in names for name in wanted):
        raise FormatError(
            f"{file}: replica_groups of mesh [{mesh[1][:60]}] along {mesh[4][:60]}: needed axes of"
            " the mesh"
        )
    ids = _tiled(total, mesh[2], mesh[3], file, "device_ids ") if mesh[2] else np.arange(total)
    inner = [names.index(name) for name in wanted]
    outer = [place for place in range(len(names)) if place not in inner]
    columns = math.prod(sizes[place] for place in inner)
    return _listed(ids.reshape(sizes).transpose([*outer, *inner]).reshape(-1, columns))
