"""A compiled module of XLA as a Program on a cluster: kernels, loops, collectives in halves.

All devices run the same program at the same time, so one rank class stands for them. Kernels follow
each other in the order of the text, which is the order that XLA's scheduler chose; a collective
starts when the kernel before its start has ended and the collective before it on its queue, and
what follows its ``-done`` waits for it. A collective without a pair, or one whose backend says that
it ``is_sync``, holds up everything.

A loop is its body as often as it runs. Where that were too many rows, the body stands once with its
times multiplied, with the same end: times that start together scale together.

References
----------
openxla/xla, ``gpu/runtime/nccl_collective_thunk.cc`` (queues of asynchronous collectives),
``latency_hiding_scheduler.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost import COLLECTIVES, Constant, KernelModel
from mpsim.errors import FormatError
from mpsim.formats import execution
from mpsim.formats.hlo import facts_of
from mpsim.formats.hlo.memory import device_memory
from mpsim.formats.hlo.pieces import Assembly, Piece
from mpsim.formats.hlo.text import Instruction, Module, groups_of, named_meshes, type_bytes
from mpsim.formats.hlo.work import FREE, Work, work_of
from mpsim.formats.imported import Recorded
from mpsim.formats.mesh_axes import device_axes
from mpsim.formats.words import DATA, table
from mpsim.hardware import Accelerator, Cluster
from mpsim.memo import asked_once
from mpsim.parallel.axes import Stream
from mpsim.program import COLLECTIVE, Program
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.shipped import say
from mpsim.workload import Operator, OperatorKind, Phase, Role

MOST_ROWS: Final = 1_000_000
"""Rows that loops are unrolled into; beyond, a body stands once with its times multiplied."""
_MOST_LABELS: Final = 30_000
_DEEPEST: Final = 64
_KINDS = table(DATA, "recordings")["hlo_collectives"]
_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=.*?(?=, (?!device_ids)\w+=|$)")
_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[^_]*?\}\})')
_MESSAGES = "source_target_pairs"
_NUMBERED = re.compile(r"(\.\d+|\.clone|\.remat\d*)+$")
_UNTIMED = frozenset({"recv", "infeed", "outfeed"})
_PERMUTE = "collective-permute"
_COPIES = -2  # in place of an axis
_NOTHING = Work((), 0.0)
_FUSED = "async_collective_fusion"
_PRECISIONS = table(DATA, "recordings")["hlo_precisions"]
"""Precisions of products by the type of their operands, the first that an accelerator has: XLA
multiplies f32 in tf32 where it can."""


def hlo_program(module: Module, cluster: Cluster, path: Path) -> Recorded:
    """Facts of a compiled module with its program, priced on a cluster, device i on accelerator i,
    as one rank class that stands for all devices.

    FormatError if it runs nothing, or groups name devices that it does not have.
    """
    recorded = facts_of(module, path)
    builder = _Builder(module, cluster, str(path))
    piece = builder.piece(module.entry, 0)
    if not len(piece):
        raise FormatError(f"{path}: runs nothing on the device; needed kernels or collectives")
    program = builder.program(piece)
    mesh = dict(zip(builder.axes.names, builder.axes.sizes, strict=True))
    warnings = (*recorded.warnings, *builder.warnings())
    imported = execution.ImportedProgram(
        name=module.name or path.name,
        program=program,
        axes=builder.axis_names,
        cluster=cluster,
        flops=builder.flops(piece),
        memory={**device_memory(module), "capacity": cluster.accelerator.memory_bytes},
        constants=builder.constants(),
        warnings=warnings,
    )
    facts = {**recorded.facts, "mesh": mesh}
    return structs.replace(
        recorded, version=builder.device, facts=facts, warnings=warnings, program=imported
    )


class _Place(NamedTuple):
    """Where an instruction stands, and how many computations call each other to get there."""

    computation: str
    depth: int


class _Wrapped(NamedTuple):
    """A collective inside a called computation, whether products stand beside it, which half."""

    collective: Instruction | None = None
    computes: bool = False
    begins: bool = False
    carries_on: bool = False


@structs.dataclass(frozen=True, slots=True)
class _Cost:
    """Cost of a row: a kernel by its work, or communication by its price."""

    work: Work = _NOTHING
    price: execution.Price | None = None
    collective: str = ""  # as the cost models call it; empty for a kernel
    size: float = 0.0  # whole tensor of a collective [B]


class _Builder:
    """A module being turned into rows and prices."""

    def __init__(self, module: Module, cluster: Cluster, file: str) -> None:
        self.module, self.cluster, self.file = module, cluster, file
        self.device = _device_of(module)
        self._numbers: dict[tuple[object, ...], int] = {}
        self._costs: list[_Cost] = []
        self._labels: dict[str, int] = {}
        self._unknown: set[str] = set()
        self._scaled = False
        self._prices = execution.CommunicationPrices(cluster)
        self._kernels: dict[str, KernelModel] = {}
        self._phases: dict[str, int] = {}
        self._takes = {
            "while": self._loop,
            "call": self._call,
            "conditional": self._branch,
            "send": self._send,
            "copy-start": self._copy,
            "slice-start": self._copy,
        }
        texts = dict.fromkeys(
            _groups_text(line)
            for computation in module.computations
            for line in module.lines(computation)
            if line.collective or line.kind == "send"
        )
        self._groups = {text: self._expanded(text) for text in texts}
        messages = {text for text in texts if text.startswith(_MESSAGES)}
        self.axes = device_axes(
            [groups for text, groups in self._groups.items() if text not in messages],
            module.devices,
            pairs=[groups for text, groups in self._groups.items() if text in messages],
            named=[mesh for text in texts for mesh in named_meshes(text)],
        )
        self._along = {text: self.axes.along(groups) for text, groups in self._groups.items()}
        # single axes before combinations, the slowest first
        place = {name: number for number, name in enumerate(self.axes.names)}
        words = {
            name: [place.get(word, len(place)) for word in name.split("+")]
            for name in self._along.values()
        }
        self.axis_names = tuple(sorted(words, key=lambda name: (-len(words[name]), words[name])))

    def _expanded(self, text: str) -> tuple[tuple[int, ...], ...]:
        devices, partitions = self.module.devices, self.module.partitions
        groups = [group for group in groups_of(text, devices, self.file) if group]
        most = max((max(group) for group in groups), default=0)
        if most >= devices:
            raise FormatError(
                f"{self.file}: a group names device {most} of {devices}; the file is damaged"
            )
        if partitions < devices and most < partitions and text:  # groups of one replica's devices
            replicas = range(0, devices, partitions)
            groups = [[rank + first for rank in group] for first in replicas for group in groups]
        return tuple(map(tuple, groups))

    # --- rows

    @asked_once(lambda computation, _: computation)
    def piece(self, computation: str, depth: int) -> Piece:
        """Rows of a computation."""
        if depth > _DEEPEST:
            raise FormatError(f"{self.file}: computations call each other over {_DEEPEST} deep")
        assembly = Assembly()
        for line in self.module.lines(computation):
            self._take(assembly, _Place(computation, depth), line)
        return assembly.finish()

    def _take(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        if line.kind.endswith("-done"):
            started = assembly.open.pop(line.operands[0][0], None) if line.operands else None
            if started is not None:
                assembly.wait(started)
        elif line.collective:
            waits = not line.kind.endswith("-start")
            self._collective(assembly, place.computation, line, line, waits=waits)
        elif line.kind not in FREE and line.kind not in _UNTIMED:
            self._takes.get(line.kind, self._kernel)(assembly, place, line)

    def _call(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        for name in self.module.called(line)[:1]:
            assembly.embed(self.piece(name, place.depth + 1), 1, 1.0)

    def _branch(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        branches = [self.piece(name, place.depth + 1) for name in self.module.called(line)]
        if branches:
            assembly.embed(max(branches, key=self._weight), 1, 1.0)

    def _loop(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        for name in self.module.called(line)[:1]:
            piece, trips = self.piece(name, place.depth + 1), self.module.trips(line)
            if trips >= 1 and len(piece) * trips <= MOST_ROWS:
                assembly.embed(piece, trips, 1.0)
            elif trips >= 1:
                self._scaled = True
                assembly.embed(piece, 1, float(trips))

    def _kernel(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        """A kernel, or a collective that is wrapped in what looks like one."""
        names = self.module.called(line)
        wrapped = self._wrapped(names[0]) if names else _Wrapped()
        if wrapped.collective is not None and not wrapped.carries_on:
            waits = line.kind != "async-start" and not wrapped.begins
            self._collective(assembly, names[0], wrapped.collective, line, waits=waits)
            if not wrapped.computes:
                return
        elif wrapped.collective is not None and not names[0].startswith(_FUSED):
            begun = assembly.open.pop(_channel(wrapped.collective), None)
            if begun is not None:
                assembly.wait(begun)
            return
        work = work_of(self.module, place.computation, line)
        if not work.known:
            target = re.search(r'custom_call_target="([^"]{0,60})', line.rest)
            self._unknown.add(target[1] if target else line.name)
        if work.moved or work.products:
            phase = self._phase(line)
            cost = self._work(work)
            assembly.front = [assembly.add(cost, 2 + phase, -1, phase, self._label(line))]

    @asked_once(str)
    def _wrapped(self, name: str) -> _Wrapped:
        """Role of a called computation in a collective."""
        lines = self.module.lines(name)
        return _Wrapped(
            next((line for line in lines if line.collective), None),
            computes=any(line.kind in ("dot", "convolution") for line in lines),
            begins=any("AsyncCollectiveStart" in line.rest for line in lines),
            carries_on=self.module.carries_on(name),
        )

    def _collective(
        self,
        assembly: Assembly,
        computation: str,
        line: Instruction,
        outer: Instruction,
        *,
        waits: bool,
    ) -> None:
        kind, size = line.collective, self.module.operand_bytes(computation, line)
        if kind == "all-reduce" and outer is not line and outer.kind == "fusion":
            kind = "reduce-scatter"  # TPUs fuse the slice that makes it one
        row = self._communication(assembly, kind, size, line, outer, self._label(line, kind))
        if waits or '"is_sync":true' in outer.rest:
            assembly.front = [row]
        else:
            assembly.open[outer.name] = assembly.open[_channel(line)] = row

    def _communication(
        self,
        assembly: Assembly,
        kind: str,
        size: int,
        line: Instruction,
        outer: Instruction,
        label: int,
    ) -> int:
        """Append a row of communication, which follows the one before on its queue."""
        text = _groups_text(line)
        axis = self.axis_names.index(self._along[text])
        cost = self._cost((kind, size, text), lambda: self._priced(kind, size, self._groups[text]))
        row = assembly.add(cost, COLLECTIVE, axis, self._phase(outer), label)
        assembly.queued(row, "message" if kind == _PERMUTE else "collective")
        return row

    def _send(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        """A message of a pipeline; transfers to the host use no link between devices."""
        if "is_host_transfer=true" in line.rest or not line.operands or not _groups_text(line):
            return
        size = type_bytes(self.module.operand_type(place.computation, line.operands[0]))
        label = self._label(line, "send")
        row = self._communication(assembly, _PERMUTE, size, line, line, label)
        assembly.open[line.name] = row

    def _copy(self, assembly: Assembly, place: _Place, line: Instruction) -> None:
        """A copy beside the kernels, between memories of the device."""
        work = work_of(self.module, place.computation, line)
        if work.moved:
            cost, label = self._work(Work((), work.moved)), self._label(line, "copy")
            row = assembly.add(cost, COLLECTIVE, _COPIES, self._phase(line), label)
            assembly.queued(row, "copy")
            assembly.open[line.name] = row

    def _weight(self, piece: Piece) -> float:
        """Rough time of a piece, to tell which branch is longer."""
        chip = self.cluster.accelerator
        total = 0.0
        for number, times in zip(piece.columns[0].tolist(), piece.times.tolist(), strict=True):
            cost = self._costs[number]
            if cost.price is not None:
                total += times * cost.price.seconds
                continue
            peak = max(chip.peak_flops.values())
            total += times * (cost.work.flops / peak + cost.work.moved / chip.memory_bandwidth)
        return total

    def _phase(self, line: Instruction) -> int:
        """Phase of the step of an instruction, by the name of the operation it came from."""
        if line.operation:
            return _phase_of(line.operation)
        for called in self.module.called(line)[:1]:
            if called not in self._phases:
                names = [inner.operation for inner in self.module.lines(called)]
                phases = [_phase_of(name) for name in names if name]
                self._phases[called] = max(
                    phases, key=phases.count, default=execution.PHASES.index("compute")
                )
            return self._phases[called]
        return execution.PHASES.index("compute")

    def _label(self, line: Instruction, kind: str = "") -> int:
        text = kind or _NUMBERED.sub("", line.name)[:60]
        if len(self._labels) >= _MOST_LABELS:
            text = line.kind
        return self._labels.setdefault(text, len(self._labels))

    # --- prices

    def _cost(self, key: tuple[object, ...], make: Callable[[], _Cost]) -> int:
        """Number of a cost, which is made when it is new."""
        if key not in self._numbers:
            self._numbers[key] = len(self._costs)
            self._costs.append(make())
        return self._numbers[key]

    def _work(self, work: Work) -> int:
        return self._cost((work.products, work.moved), lambda: _Cost(work))

    def _priced(self, kind: str, size: int, groups: Sequence[Sequence[int]]) -> _Cost:
        """Communication of a device; the slowest of unequal groups decides."""
        name, gathers = _KINDS.get(kind, "send_recv"), kind == "all-gather"
        whole = float(size * (len(groups[0]) if gathers and groups else 1))
        prices = [execution.Price(0.0, 0.0, 0.0)]
        if kind == _PERMUTE and size:
            prices = [self._prices.messages(size, groups, ranks=self.module.devices)]
        elif kind != _PERMUTE:
            for length in {len(group) for group in groups if len(group) > 1}:
                members = [group for group in groups if len(group) == length]
                amount = float(size * (length if gathers else 1))
                prices.append(self._prices.collective(name, amount, members))
        return _Cost(price=max(prices), collective=name, size=whole)

    def _seconds(self) -> Floats:
        """Seconds of every cost."""
        seconds = np.array([cost.price.seconds if cost.price else 0.0 for cost in self._costs])
        by_precision: dict[str, tuple[list[int], list[Operator]]] = {}
        for number, cost in enumerate(self._costs):
            if cost.price is not None:
                continue
            for precision, operator in _operators(cost.work, self.cluster.accelerator):
                numbers, operators = by_precision.setdefault(precision, ([], []))
                numbers.append(number)
                operators.append(operator)
        for precision, (numbers, operators) in by_precision.items():
            model = self._kernels.setdefault(
                precision, KernelModel(self.cluster.accelerator, precision)
            )
            np.add.at(seconds, numbers, model.seconds(operators))
        return seconds

    def flops(self, piece: Piece) -> float:
        """FLOPs of the products of one device, those of the longest branches [FLOP]."""
        each = np.array([cost.work.flops for cost in self._costs], dtype=np.float64)
        return float((each[piece.columns[0]] * piece.times).sum())

    def program(self, piece: Piece) -> Program:
        """The rows as a Program of one rank class."""
        cost, kind, axis, phase, label = piece.columns
        vocabulary = execution.program_vocabulary(self.axis_names)
        streams = execution.axis_streams(self.axis_names)
        # a column for each axis, then copies and kernels, whose axes are -2 and -1
        queues = [*(streams[name] for name in self.axis_names), Stream.COPY, Stream.COMPUTE]
        exposed = [vocabulary.part(f"exposed_{name}") for name in self.axis_names]
        part = np.array([*exposed, vocabulary.part("other"), -1])[axis]
        phase = np.array([vocabulary.part(name) for name in execution.PHASES])[phase]
        prices = [priced.price or execution.Price(0.0, 0.0, 0.0) for priced in self._costs]
        sent = np.array(prices)[cost, 1:]
        names = [priced.collective for priced in self._costs]
        called = np.array([COLLECTIVES.index(name) if name else -1 for name in names])
        rows = Rows(vocabulary)
        rows.add(
            len(piece),
            label=np.array(list(self._labels) or [""])[label],
            stream=np.array(queues)[axis],
            kind=kind,
            part=np.where(part < 0, phase, part),
            duration=ticks(self._seconds()[cost] * piece.times),
            up_bytes=sent[:, 0] * piece.times,
            out_bytes=sent[:, 1] * piece.times,
            collective=called[cost],
            size=np.array([priced.size for priced in self._costs])[cost],
        )
        rows.depend(piece.row, piece.on)
        devices = self.module.devices
        name = f"devices 0-{devices - 1}" if devices > 1 else "device 0"
        return rows.finish(rank_name=[name], class_size=[devices])

    def constants(self) -> tuple[Constant, ...]:
        """Every constant that the prices rest on."""
        used = [constant for model in self._kernels.values() for constant in model.provenance()]
        return tuple(dict.fromkeys([*used, *self._prices.model.provenance()]))

    def warnings(self) -> list[str]:
        """Sentences on what the answer leaves out."""
        told = []
        chip = self.cluster.accelerator
        if not self.module.is_scheduled:
            told.append(
                "the module is not scheduled: its instructions run in the order of the text"
            )
        if self._unknown:
            names = ", ".join(sorted(self._unknown)[:6])
            told.append(f"calls of unknown code count by the bytes they move alone: {names}")
        if self._scaled:
            told.append(say("formats.long_loops", most=MOST_ROWS))
        if self.device and (self.device == "TPU") != chip.family.startswith("tpu"):
            told.append(say("formats.other_device", device=self.device, title=chip.title))
        return told


def _groups_text(line: Instruction) -> str:
    """Attribute that says who takes part."""
    pairs = _PAIRS.search(line.rest)
    if pairs is not None:
        return f"{_MESSAGES}={pairs[1]}"
    found = _GROUPS.search(line.rest)
    return found[0] if found else ""


def _channel(line: Instruction) -> str:
    """Channel of a collective, which those that carry it on share."""
    found = re.search(r"channel_id=(\d+)", line.rest)
    return f"channel {found[1]}" if found else ""


def _phase_of(name: str) -> int:
    """Phase by the path of an operation: as JAX and TensorFlow name what they differentiate."""
    if "rematted_computation" in name or "/remat" in name:
        return execution.PHASES.index("recompute")
    if "transpose(" in name or "gradient_tape" in name or "gradients/" in name:
        return execution.PHASES.index("backward")
    return execution.PHASES.index("forward" if "jvp(" in name else "compute")


def _device_of(module: Module) -> str:
    """Device of a module: tiled layouts are TPUs', queues GPUs'; empty where nothing shows it."""
    for line in module.computations[module.entry].values():
        if ":T(" in line.type:
            return "TPU"
        if "operation_queue_id" in line.rest or "__cublas" in line.rest or "__triton" in line.rest:
            return "GPU"
    return ""


def _operators(work: Work, chip: Accelerator) -> list[tuple[str, Operator]]:
    """A kernel as operators: its products, which share its bytes, or its bytes alone."""
    plain = Operator(
        name="kernel",
        kind=OperatorKind.ELEMENTWISE,
        role=Role.KERNEL,
        phase=Phase.FORWARD,
        bytes=work.moved / max(1, len(work.products)),
    )
    if not work.products:
        return [(_precision("", chip), plain)]
    return [
        (
            _precision(product.dtype, chip),
            structs.replace(
                plain,
                name="product",
                kind=OperatorKind.GEMM,
                m=product.m,
                n=product.n,
                k=product.k,
                batch=product.batch,
                flops=float(product.flops),
            ),
        )
        for product in work.products
    ]


def _precision(dtype: str, chip: Accelerator) -> str:
    """Precision of the cost models for operands of a type: the first that the accelerator has."""
    wanted = _PRECISIONS.get(dtype) or (
        ("fp8", "bf16") if dtype.startswith("f8") else ("bf16", "fp16", "fp32")
    )
    return next((name for name in wanted if name in chip.peak_flops), min(chip.peak_flops))
