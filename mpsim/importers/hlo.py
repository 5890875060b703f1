"""XLA's HLO text: FLOPs of the products of one device with the trips of its loops, and its collectives with their groups.

The text of a compiled module is the program of one device after partitioning; shapes are local. Loops say how often they run on CPUs and GPUs
(``known_trip_count``); on TPUs the constant of their condition does. Groups come in three spellings: lists, iota tiles, and axes of a mesh.

References
----------
openxla/xla, ``hlo_parser.cc``, ``hlo_sharding.cc``; text of jax 0.10.2 for CPU, H100 and TPU v5e, and of tensorflow 2.21.0.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from mpsim.errors import FormatError
from mpsim.importers.imported import Recorded
from mpsim.importers.source import Format, Head, Options, read_text
from mpsim.memo import remembered

__all__ = ["HLO", "Instruction", "Module", "groups_of", "parse_module"]

LARGEST: Final = 200_000_000
MOST_DEVICES: Final = 1_000_000
DEEPEST: Final = 64  # computations that call computations
_BITS = {"pred": 8, "token": 0, "opaque": 0, "bf16": 16, "c64": 64, "c128": 128}
_COLLECTIVES = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "all-to-all",
    "collective-permute",
    "collective-broadcast",
    "ragged-all-to-all",
)
_ARRAY = re.compile(r"\b(pred|token|opaque|bf16|c64|c128|[sufi]\d+\w*)\[([\d,<= ]*)\]")
_HEADER = re.compile(r"^(ENTRY\s+)?%?([\w.\-]+)\s*(?:\(.*)?\{\s*$")
_LINE = re.compile(r"^\s+(ROOT\s+)?%?([\w.\-]+) = ")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_CALLED = re.compile(
    r"(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_LISTED = re.compile(r"(branch_computations|called_computations)=\{([^}]*)\}")
_TRIPS = re.compile(r'"?known_trip_count"?\s*[:=]\s*\{\s*"?n"?\s*[:=]\s*"?(\d+)')


@dataclasses.dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation.

    Parameters
    ----------
    name, kind : str
        Its name, and its opcode.
    type : str
        Type of its result as written.
    operands : tuple of (str, str)
        Name of each operand, and its type where the printer writes it.
    rest : str
        Attributes.
    """

    name: str
    kind: str
    type: str
    operands: tuple[tuple[str, str], ...]
    rest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Module:
    """A compiled module.

    Parameters
    ----------
    name : str
    devices : int
        Partitions times replicas.
    computations : mapping of str to mapping of str to Instruction
        Instructions of every computation by name, in their order.
    entry : str
    is_scheduled : bool
    """

    name: str
    devices: int
    computations: Mapping[str, Mapping[str, Instruction]]
    entry: str
    is_scheduled: bool

    def operand_type(self, computation: str, operand: tuple[str, str]) -> str:
        """Type of an operand: as it is written, or that of the line it names."""
        name, written = operand
        if written:
            return written
        known = self.computations[computation].get(name)
        return known.type if known is not None else ""

    def walk(self) -> Iterator[tuple[str, Instruction, int]]:
        """Every instruction that a step runs, with its computation and how often it runs."""
        yield from self._walk(self.entry, 1, 0)

    def _walk(
        self, computation: str, times: int, depth: int
    ) -> Iterator[tuple[str, Instruction, int]]:
        if depth > DEEPEST or computation not in self.computations:
            return
        for line in self.computations[computation].values():
            yield computation, line, times
            called = dict(_CALLED.findall(line.rest))
            if line.kind == "while":
                yield from self._walk(called.get("body", ""), times * self.trips(line), depth + 1)
            elif line.kind in ("fusion", "call", "async-start"):
                for word in ("calls", "to_apply"):
                    if word in called:
                        yield from self._walk(called[word], times, depth + 1)
            elif line.kind in ("conditional", "custom-call"):
                names = [
                    called[word]
                    for word in ("true_computation", "false_computation")
                    if word in called
                ]
                names += [
                    name.strip().lstrip("%")
                    for _, names_ in _LISTED.findall(line.rest)
                    for name in names_.split(",")
                ]
                for name in names:
                    yield from self._walk(name, times, depth + 1)

    def trips(self, loop: Instruction) -> int:
        """How often a loop runs: as stated, or the constant that its condition compares with."""
        stated = _TRIPS.search(loop.rest)
        if stated is not None:
            return int(stated[1])
        condition = dict(_CALLED.findall(loop.rest)).get("condition", "")
        lines = self.computations.get(condition, {})
        constants = [
            int(match[1])
            for line in lines.values()
            if line.kind == "constant"
            and re.match(r"[su]\d+\[\]", line.type)
            and (match := re.match(r"\s*\(?(-?\d+)", line.rest))
        ]
        return max([*constants, 1])


def elements(text: str) -> int:
    """Elements of the arrays of a type together."""
    return sum(math.prod(shape) for _, shape in _arrays(text))


def type_bytes(text: str) -> int:
    """Bytes of the arrays of a type together."""
    return sum(math.prod(shape) * _bits(dtype) // 8 for dtype, shape in _arrays(text))


@remembered(4096)
def _arrays(text: str) -> tuple[tuple[str, tuple[int, ...]], ...]:
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
    """A module of its text.

    Parameters
    ----------
    text : str
    file : str
        What complaints call it.

    Raises
    ------
    FormatError
        If it has no entry, or breaks off inside a computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    current: dict[str, Instruction] | None = None
    entry = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if current is None:
            header = (
                _HEADER.match(line)
                if line.rstrip().endswith("{") and not line.startswith("HloModule")
                else None
            )
            if header is not None:
                current = computations.setdefault(header[2], {})
                entry = header[2] if header[1] else entry
        elif line.startswith("}"):
            current = None
        else:
            found = _instruction(line)
            if found is not None:
                current[found.name] = found
            elif _LINE.match(line):
                raise FormatError(f"{file}:{number}: an instruction breaks off; the file is cut")
    if current is not None:
        raise FormatError(f"{file}: breaks off inside a computation; the file is cut")
    if not entry:
        raise FormatError(f"{file}: has no ENTRY computation; needed the text of a compiled module")
    head = text[: text.find("\n")]
    sizes = [
        int(match[1])
        for word in ("num_partitions", "replica_count")
        if (match := re.search(rf"\b{word}=(\d+)", head))
    ]
    name = re.match(r"HloModule\s+([\w.\-]+)", head)
    return Module(
        name[1] if name else "", math.prod(sizes), computations, entry, "is_scheduled=true" in head
    )


def _instruction(line: str) -> Instruction | None:
    match = _LINE.match(line)
    if match is None:
        return None
    end = _type_end(line, match.end())
    opcode = _OPCODE.match(line, end)
    if opcode is None:
        return None
    close = _closing(line, opcode.end() - 1)
    if close < 0:
        return None
    inside = line[opcode.end() : close]
    kind = opcode[1]
    if kind in ("constant", "parameter"):
        return Instruction(
            match[2], kind, line[match.end() : end], (), f"({inside}){line[close + 1 :]}"
        )
    return Instruction(
        match[2], kind, line[match.end() : end], tuple(_operands(inside)), line[close + 1 :]
    )


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
    text = re.sub(r"/\*.*?\*/", "", text)
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


def groups_of(rest: str, devices: int, file: str = "") -> list[list[int]]:
    """Groups of a collective, expanded, of any of the three spellings.

    Parameters
    ----------
    rest : str
        Its attributes.
    devices : int
        Of the module; ``{}`` means all of them.
    file : str
        What complaints call it.

    Raises
    ------
    FormatError
        If there are groups and they are in none of the spellings.

    Examples
    --------
    >>> groups_of("replica_groups=[4,2]<=[2,4]T(1,0)", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    >>> groups_of("replica_groups=mesh['a'=2,'b'=1,'c'=4] {'a'}", 8)
    [[0, 4], [1, 5], [2, 6], [3, 7]]
    """
    if pairs := re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", rest):
        return [[int(item) for item in pair] for pair in re.findall(r"\{(\d+),(\d+)\}", pairs[1])]
    if listed := re.search(r"replica_groups=\{((?:\{[\d,]*\},?)*)\}", rest):
        found = [
            [int(item) for item in group.split(",") if item]
            for group in re.findall(r"\{([\d,]*)\}", listed[1])
        ]
        return found or [list(range(devices))]
    if tiles := re.search(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?", rest):
        return _iota(*tiles.groups(), file=file)
    if mesh := re.search(
        r"replica_groups=(?:@?\w*)?mesh\[([^\]]*)\]\s*(?:,?\s*device_ids=\(?\[([\d,]+)\](?:T\(([\d,]+)\))?\)?)?\s*,?\s*\{([^}]*)\}",
        rest,
    ):
        return _mesh(mesh[1], mesh[2], mesh[3], mesh[4], file)
    if "replica_groups=" in rest:
        raise FormatError(
            f"{file}: replica_groups in a spelling that is not known: {rest[rest.find('replica_groups=') :][:60]!r}"
        )
    return [list(range(devices))]


def _iota(shape: str, tile: str, order: str | None, *, file: str) -> list[list[int]]:
    rows, columns = ([int(size) for size in shape.split(",")] + [1])[:2]
    sizes = [int(size) for size in tile.split(",")]
    axes = [int(axis) for axis in order.split(",")] if order else list(range(len(sizes)))
    if (
        math.prod(sizes) != rows * columns
        or sorted(axes) != list(range(len(sizes)))
        or rows * columns > MOST_DEVICES
    ):
        raise FormatError(f"{file}: replica_groups=[{shape}]<=[{tile}] do not multiply")
    flat = _transposed(list(range(rows * columns)), sizes, axes)
    return [flat[row * columns : (row + 1) * columns] for row in range(rows)]


def _transposed(values: Sequence[int], sizes: Sequence[int], axes: Sequence[int]) -> list[int]:
    """Values of an array of these sizes, its axes in another order, in row-major order."""
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    result = [0]
    for axis in axes:
        result = [base + index * strides[axis] for base in result for index in range(sizes[axis])]
    return [values[place] for place in result]


def _mesh(
    axes_text: str, tile: str | None, order: str | None, along: str, file: str
) -> list[list[int]]:
    axes = [
        (name.strip("'\" "), int(size))
        for name, size in re.findall(r"('[^']*'|\"[^\"]*\"|\w+)\s*=\s*(\d+)", axes_text)
    ]
    names, sizes = [name for name, _ in axes], [size for _, size in axes]
    total = math.prod(sizes)
    wanted = [name.strip("'\" ") for name in along.split(",") if name.strip()]
    if total > MOST_DEVICES or any(name not in names for name in wanted):
        raise FormatError(
            f"{file}: replica_groups of mesh [{axes_text[:60]}] along {along[:60]}: needed axes of the mesh"
        )
    ids = list(range(total))
    if tile is not None:
        shape = [int(size) for size in tile.split(",")]
        turn = [int(axis) for axis in order.split(",")] if order else list(range(len(shape)))
        if math.prod(shape) != total or sorted(turn) != list(range(len(shape))):
            raise FormatError(
                f"{file}: device_ids [{tile}] do not multiply to the {total} devices of the mesh"
            )
        ids = _transposed(ids, shape, turn)
    inner = [names.index(name) for name in wanted]
    outer = [place for place in range(len(names)) if place not in inner]
    flat = _transposed(ids, sizes, [*outer, *inner])
    each = math.prod(sizes[place] for place in inner)
    return [flat[start : start + each] for start in range(0, total, each)]


def product_flops(module: Module, computation: str, line: Instruction) -> int:
    """FLOPs of a dot or a convolution [FLOP]; 0 for anything else."""
    if line.kind == "dot":
        left = _arrays(module.operand_type(computation, line.operands[0])) if line.operands else ()
        dims = re.search(r"lhs_contracting_dims=\{([\d,]*)\}", line.rest)
        if not left:
            return 0
        shape = left[0][1]
        contracted = [
            shape[int(dim)]
            for dim in (dims[1].split(",") if dims else [])
            if dim and int(dim) < len(shape)
        ]
        return 2 * elements(line.type) * math.prod(contracted)
    if line.kind == "convolution" and len(line.operands) > 1:
        labels = re.search(r"dim_labels=\w+_(\w+)->", line.rest)
        right = _arrays(module.operand_type(computation, line.operands[1]))
        if labels is None or not right:
            return 0
        kernel = [size for label, size in zip(labels[1], right[0][1], strict=False) if label != "o"]
        return 2 * elements(line.type) * math.prod(kernel)
    return 0


def _is_module(head: Head) -> bool:
    return re.search(r"^HloModule\s", head.text, re.MULTILINE) is not None


def _is_other(text: str) -> str:
    return (
        "StableHLO or MLIR"
        if re.search(r"^\s*(module @|func\.func|stablehlo\.)", text, re.MULTILINE)
        else ""
    )


def _read_module(head: Head, options: Options) -> Recorded:
    """Read a compiled module.

    Raises
    ------
    FormatError
        If it is cut, has no entry, or groups in no known spelling.
    """
    del options
    text = read_text(head.path, needed="HLO text", largest=LARGEST)
    if other := _is_other(text[:10_000]):
        raise FormatError(
            f"{head.path}: is {other}, from before partitioning; needed compiled.as_text(), or *.after_optimizations.txt of --xla_dump_to"
        )
    start = re.search(r"^HloModule\s", text, re.MULTILINE)
    module = parse_module(text[start.start() :] if start else text, str(head.path))
    flops, collectives, warnings = 0, [], []
    for computation, line, times in module.walk():
        flops += product_flops(module, computation, line) * times
        kind = line.kind.removesuffix("-start")
        if kind in _COLLECTIVES:
            collectives.append(_collective(module, computation, line, kind, times, str(head.path)))
        elif line.kind == "while" and _TRIPS.search(line.rest) is None and module.trips(line) == 1:
            warnings.append(f"loop {line.name}: how often it runs is not known; counted once")
        elif line.kind == "custom-call" and re.search(r'"(__cublas|__cudnn|__onednn)', line.rest):
            flops += _library_flops(module, computation, line) * times
    facts = {
        "module": module.name,
        "ranks": module.devices,
        "dot_flops": flops,
        "collectives": collectives,
        "is_scheduled": module.is_scheduled,
    }
    return Recorded(
        format="hlo",
        tool="XLA HLO text",
        files=(str(head.path),),
        facts=facts,
        warnings=tuple(dict.fromkeys(warnings)),
    )


def _collective(
    module: Module, computation: str, line: Instruction, kind: str, times: int, file: str
) -> dict[str, Any]:
    operation = re.search(r'op_name="([^"]{0,200})', line.rest)
    return {
        "kind": kind,
        "times": times,
        "operand_bytes": sum(
            type_bytes(module.operand_type(computation, operand)) for operand in line.operands
        ),
        "groups": groups_of(line.rest, module.devices, file),
        "op_name": operation[1] if operation else "",
    }


def _library_flops(module: Module, computation: str, line: Instruction) -> int:
    """FLOPs of a product that a library does: twice the result times the length that both factors share."""
    if len(line.operands) < 2:
        return 0
    dims = re.search(r'"lhs_contracting_dimensions":\s*\[([^\]]*)\]', line.rest)
    left = _arrays(module.operand_type(computation, line.operands[0]))
    result = _arrays(line.type)
    if dims is None or not left or not result:
        return 0
    places = [int(dim) for dim in re.findall(r"\d+", dims[1])]
    return (
        2
        * math.prod(result[0][1])
        * math.prod(left[0][1][place] for place in places if place < len(left[0][1]))
    )


HLO: Final = Format("hlo", "HLO text of XLA", "timeline", _is_module, _read_module)
