"""A compiled module of XLA as a Program on a cluster: kernels, loops, collectives and what lies between their starts and ends.

All devices run the same program at the same time, so one rank class stands for them. Kernels follow each other in the order of the text, which is the order that XLA's scheduler chose; a
collective starts when the kernel before its start has ended and the collective before it on its queue, and what follows its ``-done`` waits for it. A collective without a pair, or one whose
backend says that it ``is_sync``, holds up everything.

A loop is its body as often as it runs. Where that would be too many rows, the body stands once with all its times multiplied, which gives the same end: times of what starts together and
waits for itself scale together.

References
----------
openxla/xla, ``gpu/runtime/nccl_collective_thunk.cc`` (queues of asynchronous collectives), ``latency_hiding_scheduler.cc``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from mpsim.cost import COLLECTIVES as COLLECTIVES_PRICED
from mpsim.cost import CollectiveModel, Constant, KernelModel
from mpsim.errors import FormatError
from mpsim.formats.execution import (
    PHASES,
    ImportedProgram,
    axis_streams,
    program_vocabulary,
)
from mpsim.formats.hlo.facts import COLLECTIVES, facts_of
from mpsim.formats.hlo.groups import groups_of, named_meshes
from mpsim.formats.hlo.memory import device_memory
from mpsim.formats.hlo.pieces import Assembly, Piece
from mpsim.formats.hlo.text import Instruction, Module, type_bytes
from mpsim.formats.hlo.work import FREE, Product, work_of
from mpsim.formats.mesh_axes import DeviceAxes, device_axes
from mpsim.hardware import Accelerator, Cluster
from mpsim.parallel import GroupShape
from mpsim.parallel.axes import Stream
from mpsim.parallel.crossing import messages, placed, slowdown
from mpsim.program import COLLECTIVE, Program
from mpsim.program.rows import Rows
from mpsim.program.template import ticks
from mpsim.workload import Operator, OperatorKind, Phase, Role

__all__ = ["MOST_ROWS", "hlo_program"]

MOST_ROWS: Final = 1_000_000
"""Rows that loops are unrolled into; beyond, a body stands once with its times multiplied."""
_MOST_LABELS: Final = 30_000
_DEEPEST: Final = 64
_KINDS = {
    "all-reduce": "all_reduce",
    "all-gather": "all_gather",
    "reduce-scatter": "reduce_scatter",
    "all-to-all": "all_to_all",
    "ragged-all-to-all": "all_to_all",
    "collective-broadcast": "broadcast",
}
_GROUPS = re.compile(r"(?:replica_groups|source_target_pairs)=.*?(?=, (?!device_ids)\w+=|$)")
_PAIRS = re.compile(r'_xla_send_recv_source_target_pairs="?(\{[^_]*?\}\})')
_MESSAGES = "source_target_pairs"
_NUMBERED = re.compile(r"(\.\d+|\.clone|\.remat\d*)+$")
_QUEUES = ("collective", "message", "copy")
_PRECISIONS = {
    "bf16": ("bf16", "fp16", "fp32"),
    "f16": ("fp16", "bf16", "fp32"),
    "f32": ("tf32", "fp32", "bf16"),
    "f64": ("fp64", "fp32", "tf32", "bf16"),
    "s8": ("int8", "fp8", "bf16"),
    "u8": ("int8", "fp8", "bf16"),
    "s4": ("int8", "fp8", "bf16"),
}
"""Precisions of products by the type of their operands, the first that an accelerator has: XLA multiplies f32 in tf32 where it can."""

Ints = NDArray[np.int64]


def hlo_program(module: Module, cluster: Cluster, path: Path) -> ImportedProgram:
    """Price a compiled module on a cluster.

    Parameters
    ----------
    module : Module
    cluster : Cluster
        Device i of the module is its accelerator i.
    path : Path
        Of the file, for messages.

    Returns
    -------
    ImportedProgram
        One rank class that stands for all devices.

    Raises
    ------
    FormatError
        If it runs nothing, or groups name devices that it does not have.
    """
    facts = facts_of(module, path)
    builder = _Builder(module, cluster, str(path))
    piece = builder.piece(module.entry, 0)
    if not len(piece.cost):
        raise FormatError(f"{path}: runs nothing on the device; needed kernels or collectives")
    program = builder.program(piece)
    return ImportedProgram(
        name=module.name or path.name,
        format="hlo",
        tool=facts.tool,
        version=builder.device,
        files=facts.files,
        program=program,
        axes=builder.axis_names,
        cluster=cluster,
        flops=builder.flops(piece),
        memory={**device_memory(module), "capacity": cluster.accelerator.memory_bytes},
        constants=builder.constants(),
        facts={
            **facts.facts,
            "mesh": dict(zip(builder.axes.names, builder.axes.sizes, strict=True)),
        },
        warnings=(*facts.warnings, *builder.warnings()),
    )


class _Builder:
    """A module being turned into rows and prices."""

    def __init__(self, module: Module, cluster: Cluster, file: str) -> None:
        self.module, self.cluster, self.file = module, cluster, file
        self.device = _device_of(module)
        self._pieces: dict[str, Piece] = {}
        self._works: dict[tuple[object, ...], int] = {}
        self._fixed: dict[int, tuple[float, float, float]] = {}
        self._kinds: dict[int, tuple[int, float]] = {}
        self._labels: dict[str, int] = {}
        self._unknown: set[str] = set()
        self._scaled = False
        self._collectives = CollectiveModel(cluster)
        self._kernels: dict[str, KernelModel] = {}
        self._spelled: dict[str, tuple[tuple[int, ...], ...]] = {}
        self._inside: dict[str, Instruction | None] = {}
        self._phases: dict[str, int] = {}
        self._takes = {"send": self._send, "copy-start": self._copy, "slice-start": self._copy}
        meshes = self._spell()
        messages = [text for text in self._spelled if text.startswith(_MESSAGES)]
        self.axes: DeviceAxes = device_axes(
            [groups for text, groups in self._spelled.items() if text not in messages],
            module.devices,
            pairs=[self._spelled[text] for text in messages],
            named=meshes,
        )
        self._along = {text: self.axes.along(groups) for text, groups in self._spelled.items()}
        self.axis_names = self._ordered(dict.fromkeys(self._along.values()))

    def _ordered(self, names: dict[str, None]) -> tuple[str, ...]:
        """Axes that communicate, single ones before combinations, the slowest first."""
        place = {name: number for number, name in enumerate(self.axes.names)}
        words = {name: [place.get(word, len(place)) for word in name.split("+")] for name in names}
        return tuple(sorted(names, key=lambda name: (-len(words[name]), words[name])))

    def _spell(self) -> list[list[tuple[str, int]]]:
        """Expand the groups of every collective; meshes that are spelled out."""
        meshes: list[list[tuple[str, int]]] = []
        for lines in self.module.computations.values():
            for line in lines.values():
                if line.kind.removesuffix("-start") in COLLECTIVES or line.kind == "send":
                    text = _groups_text(line)
                    if text not in self._spelled:
                        self._spelled[text] = self._groups(text)
                        meshes += named_meshes(text)
        return meshes

    def _groups(self, text: str) -> tuple[tuple[int, ...], ...]:
        devices, partitions = self.module.devices, self.module.partitions
        groups = [group for group in groups_of(text, devices, self.file) if group]
        most = max((max(group) for group in groups), default=0)
        if most >= devices:
            raise FormatError(
                f"{self.file}: a group names device {most} of {devices}; the file is damaged"
            )
        if partitions < devices and most < partitions and text:  # groups of one replica's devices
            replicas = range(0, devices, partitions)
            groups = [
                [member + first for member in group] for first in replicas for group in groups
            ]
        return tuple(map(tuple, groups))

    # --- rows

    def piece(self, computation: str, depth: int) -> Piece:
        """Rows of a computation."""
        if computation not in self._pieces:
            if depth > _DEEPEST:
                raise FormatError(f"{self.file}: computations call each other over {_DEEPEST} deep")
            assembly = Assembly()
            for line in self.module.computations.get(computation, {}).values():
                self._take(assembly, computation, line, depth)
            self._pieces[computation] = assembly.finish()
        return self._pieces[computation]

    def _take(self, assembly: Assembly, computation: str, line: Instruction, depth: int) -> None:
        kind = line.kind
        if kind.endswith("-done"):
            started = assembly.open.pop(line.operands[0][0], None) if line.operands else None
            if started is not None:
                assembly.wait(started)
        elif kind in FREE:
            return
        elif kind.removesuffix("-start") in COLLECTIVES:
            self._collective(assembly, computation, line, line, waits=not kind.endswith("-start"))
        elif kind == "while":
            self._loop(assembly, line, depth)
        elif kind == "call":
            for name in self.module.called(line)[:1]:
                assembly.embed(self.piece(name, depth + 1), 1, 1.0)
        elif kind == "conditional":
            branches = [self.piece(name, depth + 1) for name in self.module.called(line)]
            if branches:
                assembly.embed(max(branches, key=self._weight), 1, 1.0)
        elif kind not in ("recv", "infeed", "outfeed"):
            take = self._takes.get(kind, self._kernel)
            take(assembly, computation, line)

    def _kernel(self, assembly: Assembly, computation: str, line: Instruction) -> None:
        """A kernel, or a collective that is wrapped in what looks like one."""
        names = self.module.called(line)
        wrapped = self._wrapped(names[0]) if names else None
        if wrapped is not None and not self.module.carries_on(names[0]):
            asynchronous = line.kind == "async-start" or self._begins(names[0])
            self._collective(assembly, names[0], wrapped, line, waits=not asynchronous)
            if not self._computes(names[0]):
                return
        elif wrapped is not None and not names[0].startswith("async_collective_fusion"):
            begun = assembly.open.pop(_channel(wrapped), None)
            if begun is not None:
                assembly.wait(begun)
            return
        work = work_of(self.module, computation, line)
        if not work.known:
            target = re.search(r'custom_call_target="([^"]{0,60})', line.rest)
            self._unknown.add(target[1] if target else line.name)
        if not (work.moved or work.products):
            return
        cost = self._works.setdefault((work.products, work.moved), len(self._works))
        phase = self._phase(line)
        row = assembly.add(cost, 2 + phase, -1, phase, self._label(line))
        assembly.front = [row]

    def _wrapped(self, name: str) -> Instruction | None:
        """The collective inside a called computation."""
        if name not in self._inside:
            self._inside[name] = next(
                (
                    line
                    for line in self.module.computations.get(name, {}).values()
                    if line.kind.removesuffix("-start") in COLLECTIVES
                ),
                None,
            )
        return self._inside[name]

    def _computes(self, name: str) -> bool:
        """Whether a called computation multiplies beside the collective in it."""
        lines = self.module.computations.get(name, {}).values()
        return any(line.kind in ("dot", "convolution") for line in lines)

    def _begins(self, name: str) -> bool:
        """Whether a called computation begins a collective that runs beside kernels, as TPUs write it."""
        lines = self.module.computations.get(name, {}).values()
        return any("AsyncCollectiveStart" in line.rest for line in lines)

    def _collective(
        self,
        assembly: Assembly,
        computation: str,
        line: Instruction,
        outer: Instruction,
        *,
        waits: bool,
    ) -> None:
        kind = line.kind.removesuffix("-start")
        size = sum(
            type_bytes(self.module.operand_type(computation, operand)) for operand in line.operands
        )
        if kind == "all-reduce" and outer is not line and outer.kind == "fusion":
            kind = "reduce-scatter"  # TPUs fuse the slice that makes it one
        text = _groups_text(line)
        cost = self._price(kind, size, text)
        axis = self.axis_names.index(self._along[text])
        row = assembly.add(cost, COLLECTIVE, axis, self._phase(outer), self._label(line, kind))
        assembly.queued(
            row, _QUEUES.index("message" if kind == "collective-permute" else "collective")
        )
        if waits or '"is_sync":true' in outer.rest:
            assembly.front = [row]
        else:
            assembly.open[outer.name] = assembly.open[_channel(line)] = row

    def _send(self, assembly: Assembly, computation: str, line: Instruction) -> None:
        """A message of a pipeline; transfers to the host use no link between devices."""
        text = _groups_text(line)
        if "is_host_transfer=true" in line.rest or not line.operands or not text:
            return
        size = type_bytes(self.module.operand_type(computation, line.operands[0]))
        cost = self._price("collective-permute", size, text)
        axis = self.axis_names.index(self._along[text])
        row = assembly.add(cost, COLLECTIVE, axis, self._phase(line), self._label(line, "send"))
        assembly.queued(row, _QUEUES.index("message"))
        assembly.open[line.name] = row

    def _copy(self, assembly: Assembly, computation: str, line: Instruction) -> None:
        """A copy beside the kernels, between memories of the device."""
        work = work_of(self.module, computation, line)
        if work.moved:
            cost = self._works.setdefault(((), work.moved), len(self._works))
            row = assembly.add(cost, COLLECTIVE, -2, self._phase(line), self._label(line, "copy"))
            assembly.queued(row, _QUEUES.index("copy"))
            assembly.open[line.name] = row

    def _loop(self, assembly: Assembly, line: Instruction, depth: int) -> None:
        for name in self.module.called(line)[:1]:
            piece, trips = self.piece(name, depth + 1), self.module.trips(line)
            if trips < 1:
                return
            if len(piece.cost) * trips <= MOST_ROWS:
                assembly.embed(piece, trips, 1.0)
            else:
                self._scaled = True
                assembly.embed(piece, 1, float(trips))

    def _weight(self, piece: Piece) -> float:
        """Rough time of a piece, to tell which branch is longer."""
        chip = self.cluster.accelerator
        keys = list(self._works)
        total = 0.0
        for cost, times in zip(piece.cost.tolist(), piece.times.tolist(), strict=True):
            if cost in self._fixed:
                total += times * self._fixed[cost][0]
                continue
            products, moved = keys[cost]
            assert isinstance(products, tuple)
            assert isinstance(moved, float)
            flops = sum(product.flops for product in products)
            total += times * (flops / max(chip.peak_flops.values()) + moved / chip.memory_bandwidth)
        return total

    def _phase(self, line: Instruction) -> int:
        """Phase of the step that an instruction belongs to, by the name of the operation it came from."""
        name = re.search(r'op_name="([^"]*)', line.rest)
        if name is not None:
            return _phase_of(name[1])
        for called in self.module.called(line)[:1]:
            if called not in self._phases:
                names = (
                    re.search(r'op_name="([^"]*)', inner.rest)
                    for inner in self.module.computations.get(called, {}).values()
                )
                found = [_phase_of(match[1]) for match in names if match is not None]
                self._phases[called] = max(found, key=found.count, default=PHASES.index("compute"))
            return self._phases[called]
        return PHASES.index("compute")

    def _label(self, line: Instruction, kind: str = "") -> int:
        text = kind or _NUMBERED.sub("", line.name)[:60]
        if len(self._labels) >= _MOST_LABELS:
            text = line.kind
        return self._labels.setdefault(text, len(self._labels))

    # --- prices

    def _price(self, kind: str, size: int, text: str) -> int:
        key = (kind, size, text)
        if key not in self._works:
            number = self._works[key] = len(self._works)
            groups = self._spelled[text]
            self._fixed[number] = self._priced(kind, size, groups)
            name = _KINDS.get(kind, "send_recv")
            gathers = len(groups[0]) if kind == "all-gather" and groups else 1
            self._kinds[number] = COLLECTIVES_PRICED.index(name), float(size * gathers)
        return self._works[key]

    def _priced(
        self, kind: str, size: int, groups: Sequence[Sequence[int]]
    ) -> tuple[float, float, float]:
        """Seconds of a collective, and bytes that a device sends over scale-up and scale-out links; the slowest of unequal groups decides."""
        if kind == "collective-permute":
            return self._permuted(size, groups)
        found = [(0.0, 0.0, 0.0)]
        for length in {len(group) for group in groups if len(group) > 1}:
            members = np.array([group for group in groups if len(group) == length])
            shape: GroupShape = placed(self.cluster, members)
            whole = float(size * (length if kind == "all-gather" else 1))
            name = _KINDS[kind]
            up, out = self._collectives.wire_bytes(name, whole, shape)
            found.append((float(self._collectives.seconds(name, whole, shape)), up, out))
        return max(found)

    def _permuted(self, size: int, pairs: Sequence[Sequence[int]]) -> tuple[float, float, float]:
        """Messages of pairs; a device that sends to itself sends nothing."""
        ends = np.array([pair for pair in pairs if len(pair) == 2 and pair[0] != pair[1]])
        if not len(ends) or not size:
            return 0.0, 0.0, 0.0
        source, target = ends[:, 0], ends[:, 1]
        leaves = self.cluster.domain_of(source) != self.cluster.domain_of(target)
        crosses, share = bool(leaves.any()), float(leaves.mean())
        slower = slowdown(self.cluster, messages(self.cluster, source, target)) if crosses else None
        seconds = self._collectives.send(float(size), crosses=crosses, slowdown=slower)
        sent = size * len(ends) / self.module.devices
        return float(seconds), sent * (1.0 - share), sent * share

    def _seconds(self) -> NDArray[np.float64]:
        """Seconds of every price."""
        seconds = np.zeros(len(self._works))
        by_precision: dict[str, tuple[list[int], list[Operator]]] = {}
        for number, key in enumerate(self._works):
            if number in self._fixed:
                seconds[number] = self._fixed[number][0]
                continue
            products, moved = key
            assert isinstance(products, tuple)
            assert isinstance(moved, float)
            for precision, operator in _operators(products, moved, self.cluster.accelerator):
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
        each = np.array(
            [
                0 if number in self._fixed else sum(product.flops for product in key[0])  # type: ignore[attr-defined] # prices of kernels hold products
                for number, key in enumerate(self._works)
            ],
            dtype=np.float64,
        )
        return float((each[piece.cost] * piece.times).sum())

    def program(self, piece: Piece) -> Program:
        """The rows as a Program of one rank class."""
        vocabulary = program_vocabulary(self.axis_names)
        streams = axis_streams(self.axis_names)
        copies = len(self.axis_names)
        place = np.where(piece.axis == -2, copies, piece.axis)
        of_axis = np.array(
            [*(streams[name] for name in self.axis_names), Stream.COPY, Stream.COMPUTE]
        )
        part_of_axis = np.array(
            [
                *(vocabulary.part(f"exposed_{name}") for name in self.axis_names),
                vocabulary.part("other"),
                -1,
            ]
        )
        phase = np.array([vocabulary.part(name) for name in PHASES])[piece.phase]
        fixed = np.zeros((2, len(self._works)))
        for number, (_, up, out) in self._fixed.items():
            fixed[:, number] = up, out
        up_bytes, out_bytes = fixed[:, piece.cost] * piece.times
        collective, size = np.full(len(self._works), -1), np.zeros(len(self._works))
        for number, (kind, amount) in self._kinds.items():
            collective[number], size[number] = kind, amount
        names = np.array(list(self._labels) or [""])
        rows = Rows(vocabulary)
        rows.add(
            len(piece.cost),
            label=names[piece.label],
            stream=of_axis[place],
            kind=piece.kind,
            part=np.where(piece.axis == -1, phase, part_of_axis[place]),
            duration=ticks(self._seconds()[piece.cost] * piece.times),
            up_bytes=up_bytes,
            out_bytes=out_bytes,
            collective=collective[piece.cost],
            size=size[piece.cost],
        )
        rows.depend(piece.row, piece.on)
        devices = self.module.devices
        name = f"devices 0-{devices - 1}" if devices > 1 else "device 0"
        return rows.finish(rank_name=[name], class_size=[devices])

    def constants(self) -> tuple[Constant, ...]:
        """Every constant that the prices rest on."""
        used = [constant for model in self._kernels.values() for constant in model.provenance()]
        return tuple(dict.fromkeys([*used, *self._collectives.provenance()]))

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
            told.append(
                f"loops of over {MOST_ROWS:,} operations stand as one pass with all times multiplied"
            )
        if self.device and (self.device == "TPU") != chip.family.startswith("tpu"):
            told.append(
                f"compiled for a {self.device}, and {chip.title} is another device: kernels are fused as the compiler chose for its own"
            )
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
        return PHASES.index("recompute")
    if "transpose(" in name or "gradient_tape" in name or "gradients/" in name:
        return PHASES.index("backward")
    return PHASES.index("forward" if "jvp(" in name else "compute")


def _device_of(module: Module) -> str:
    """Device that a module was compiled for: tiled layouts are TPUs', queues GPUs'; empty where nothing shows it."""
    for line in module.computations[module.entry].values():
        if ":T(" in line.type:
            return "TPU"
        if "operation_queue_id" in line.rest or "__cublas" in line.rest or "__triton" in line.rest:
            return "GPU"
    return ""


def _operators(
    products: tuple[Product, ...], moved: float, chip: Accelerator
) -> list[tuple[str, Operator]]:
    """A kernel as operators of the cost models: its products, which share its bytes, or its bytes alone."""
    if not products:
        precision = next((name for name in ("bf16", "fp16", "fp32") if name in chip.peak_flops), "")
        return [
            (
                precision or min(chip.peak_flops),
                Operator(
                    name="kernel",
                    kind=OperatorKind.ELEMENTWISE,
                    role=Role.KERNEL,
                    phase=Phase.FORWARD,
                    bytes=moved,
                ),
            )
        ]
    return [
        (
            _precision(product.dtype, chip),
            Operator(
                name="product",
                kind=OperatorKind.GEMM,
                role=Role.KERNEL,
                phase=Phase.FORWARD,
                m=product.m,
                n=product.n,
                k=product.k,
                batch=product.batch,
                flops=float(product.flops),
                bytes=moved / len(products),
            ),
        )
        for product in products
    ]


def _precision(dtype: str, chip: Accelerator) -> str:
    """Precision of the cost models for operands of a type: the first that the accelerator has."""
    wanted = _PRECISIONS.get(dtype) or (
        ("fp8", "bf16") if dtype.startswith("f8") else ("bf16", "fp16", "fp32")
    )
    return next((name for name in wanted if name in chip.peak_flops), min(chip.peak_flops))
