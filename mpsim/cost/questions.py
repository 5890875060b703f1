"""Questions about one kernel or one collective, and their answers with the constants these rest on.

A kernel is written ``NAME=SIZES``, with words after commas: ``gemm=4096x4096x4096,wgrad``.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping

from mpsim.cost.collectives import CollectiveModel
from mpsim.cost.constants import Constant, constant_groups
from mpsim.cost.formulas import UPDATES, attention_pairs, update_seconds
from mpsim.cost.kernels import KernelModel
from mpsim.cost.quantise import FORMATS, casting, format_bytes, launch_seconds
from mpsim.cost.traffic import ring_passes
from mpsim.errors import WorkloadError, nearest
from mpsim.framework import framework
from mpsim.hardware import Accelerator
from mpsim.parallel import GroupShape
from mpsim.units import Dimension, format_quantity, parse_quantity
from mpsim.workload import (
    Lowering,
    Operator,
    OperatorKind,
    Phase,
    Role,
    Split,
    attention_flops,
    make_attention,
    make_elementwise,
    make_gemm,
)
from mpsim.workload.builders import BACKWARD_ATTENTION, PASSES, streaming

__all__ = ["FORMS", "answer_collective", "answer_kernel", "figure_text"]

FORMS = (
    "gemm=MxNxK or gemm=BATCHxMxNxK (then ,dgrad or ,wgrad); grouped=EXPERTSxMxNxK with M the mean of an expert's tokens; "
    "attention=SEQUENCESxTOKENSxHEADSxHEAD_DIM (then ,backward ,full ,unfused ,window=N ,kv=HEADS ,v=HEAD_DIM); norm, softmax, dropout, rotary, "
    "activation, bias_dropout_add, ... =ROWSxCOLUMNS (then ,backward); embedding=TOKENSxHIDDEN; cross_entropy=TOKENSxVOCABULARY; "
    "quantise=ROWSxCOLUMNS; adam=PARAMETERS; or bytes='1 GiB' for any memory-bound kernel"
)
_PHASES = {
    "forward": Phase.FORWARD,
    "dgrad": Phase.INPUT_GRADIENT,
    "wgrad": Phase.WEIGHT_GRADIENT,
}
_PASSES = {"forward": Phase.FORWARD, "backward": Phase.INPUT_GRADIENT}
_NUMBERS = ("window", "kv", "v")


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """The kernels of one question.

    Parameters
    ----------
    operators : tuple of Operator
        One after the other.
    updated_parameters : float
        Parameters that are updated in place instead, as Adam does; 0 for none.
    """

    operators: tuple[Operator, ...]
    updated_parameters: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Text:
    """A question taken apart: its sizes, its words, and the bytes of an element."""

    value: str
    words: frozenset[str]
    numbers: Mapping[str, int]
    element: float
    precision: str
    chip: Accelerator

    def sizes(self, least: int, most: int) -> list[int]:
        parts = self.value.split("x")
        sizes = [int(part) for part in parts if re.fullmatch(r"[1-9]\d{0,12}", part)]
        if len(sizes) != len(parts) or not least <= len(sizes) <= most:
            raise _bad(f"got sizes {self.value[:60]!r}, not {_spelled(least, most)} joined by 'x'")
        return sizes

    def phase(self, known: Mapping[str, Phase]) -> Phase:
        phases = [known[word] for word in sorted(self.words) if word in known]
        if len(phases) > 1:
            raise _bad(f"got more than one of {', '.join(known)}")
        return phases[0] if phases else Phase.FORWARD


def read_question(name: str, value: str, precision: str, chip: Accelerator) -> Question:
    """Read ``NAME=SIZES,word,word=number``.

    Raises
    ------
    WorkloadError
        If the kernel, a size or a word is not known.
    """
    sizes, *words = (part.strip() for part in value.split(","))
    readers = {**_READERS, **dict.fromkeys(PASSES, _streaming)}
    if name not in readers:
        near = nearest(name, readers)
        raise _bad(f"got kernel {name[:60]!r}{f'; {near}' if near.startswith('did') else ''}")
    read, known = readers[name], (*_WORDS.get(name, ()), *(("backward",) if name in PASSES else ()))
    numbers = {}
    for word in words:
        key, sign, number = word.partition("=")
        if key not in known or bool(sign) != (key in _NUMBERS):
            raise _bad(f"got {word!r}; {name} takes {', '.join(known) or 'no words'}")
        if sign and not re.fullmatch(r"[1-9]\d{0,8}", number):
            raise _bad(f"got {word!r}; needed a whole number")
        if sign:
            numbers[key] = int(number)
    element = _element_bytes(precision)
    text = _Text(sizes, frozenset(words), numbers, element, precision, chip)
    return read(name, text)


def _element_bytes(precision: str) -> float:
    narrow = "nvfp4" if precision == "fp4" else precision
    if narrow in FORMATS:
        return format_bytes(narrow)
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def _gemm(name: str, text: _Text) -> Question:
    grouped = name == "grouped"
    *batch, m, n, k = text.sizes(4 if grouped else 3, 4)
    kind = OperatorKind.GROUPED_GEMM if grouped else OperatorKind.GEMM
    return Question((_product(kind, (batch or [1])[0], (m, n, k), text),))


def _product(kind: OperatorKind, batch: int, shape: tuple[int, int, int], text: _Text) -> Operator:
    """A product; in `Phase.WEIGHT_GRADIENT` it adds into a float32 buffer."""
    m, n, k = shape
    phase = text.phase(_PHASES)
    return make_gemm(
        Role.KERNEL,
        phase,
        m=m,
        n=n,
        k=k,
        batch=batch,
        element_bytes=text.element,
        result_bytes=max(2.0, text.element),
        accumulate_bytes=4 if phase is Phase.WEIGHT_GRADIENT else 0,
        kind=kind,
    )


def _attention(name: str, text: _Text) -> Question:
    sequences, tokens, heads, width = text.sizes(4, 4)
    phase = text.phase(_PASSES)
    kv = text.numbers.get("kv", heads)
    if heads % kv:
        raise _bad(f"got kv={kv} for {heads} heads; needed a divisor")
    if "unfused" in text.words:
        return Question(_unfused(sequences * heads, tokens, width, phase))
    operator = make_attention(
        phase,
        sequences=sequences,
        queries=tokens,
        keys=tokens,
        heads=heads,
        kv_heads=kv,
        head_dim=width,
        head_dim_v=text.numbers.get("v", width),
        causal="full" not in text.words,
        window=text.numbers.get("window", 0),
        statistics=False,
        name=name,
    )
    return Question((_counted(operator),))


def _counted(attention: Operator) -> Operator:
    """Attention with the FLOPs of the pairs worked on, not of all pairs."""
    o = attention
    pairs = float(attention_pairs(o.queries, o.keys, causal=o.causal, window=o.window))
    flops = attention_flops(o.sequences * o.heads * pairs, o.head_dim, o.head_dim_v)
    times = 1.0 if o.phase is Phase.FORWARD else BACKWARD_ATTENTION
    return dataclasses.replace(attention, flops=flops * times)


def _unfused(batch: int, tokens: int, width: int, phase: Phase) -> tuple[Operator, ...]:
    """Scores, softmax and context as kernels of their own, or those of their backward; every pair is worked on."""
    scores, context = (tokens, tokens, width), (tokens, width, tokens)
    shapes = [scores, context] if phase is Phase.FORWARD else [scores, context] * 2
    products = (
        make_gemm(Role.SCORES, phase, m=m, n=n, k=k, batch=batch, split=Split.TENSOR)
        for m, n, k in shapes
    )
    elements = batch * tokens * tokens
    softmax = streaming("softmax", Split.TENSOR, elements=elements, lowering=Lowering())
    pointwise = softmax.forward if phase is Phase.FORWARD else softmax.backward[0]
    return (*products, pointwise)


def _streaming(name: str, text: _Text) -> Question:
    rows, columns = text.sizes(2, 2)
    step = streaming(name, Split.NONE, elements=rows * columns, lowering=Lowering())
    return Question((step.forward if text.phase(_PASSES) is Phase.FORWARD else step.backward[0],))


def _table(name: str, text: _Text) -> Question:
    """A lookup reads and writes a row a token; a loss passes over the logits."""
    rows, columns = text.sizes(2, 2)
    lowering = Lowering()
    each, kind = {
        "embedding": (2.0 * lowering.activation_bytes, OperatorKind.EMBEDDING),
        "cross_entropy": (lowering.loss_bytes_per_logit / 2, OperatorKind.LOSS),
    }[name]
    return _moving(kind, each * rows * columns)


def _quantise(name: str, text: _Text) -> Question:
    rows, columns = text.sizes(2, 2)
    cast = casting(text.precision, text.chip)
    if cast is None:
        raise _bad(f"got {name} in {text.precision}, which casts nothing; add --precision fp8")
    return _moving(OperatorKind.QUANTISE, cast.moved_bytes(float(rows * columns), 2.0))


def _bytes(_name: str, text: _Text) -> Question:
    return _moving(OperatorKind.ELEMENTWISE, parse_quantity(text.value, Dimension.BYTES))


def _moving(kind: OperatorKind, moved: float) -> Question:
    return Question((make_elementwise(Role.KERNEL, Phase.FORWARD, moved=moved, kind=kind),))


def _adam(_name: str, text: _Text) -> Question:
    return Question((), float(text.sizes(1, 1)[0]))


def _spelled(least: int, most: int) -> str:
    """How many sizes there must be."""
    if most == 1:
        return "one whole number of 1 or more"
    counts = str(most) if least == most else f"{least} to {most}"
    return f"{counts} whole numbers of 1 or more"


def _bad(problem: str) -> WorkloadError:
    return WorkloadError(f"{problem}; needed one of: {FORMS}")


_READERS: Mapping[str, Callable[[str, _Text], Question]] = {
    "gemm": _gemm,
    "grouped": _gemm,
    "attention": _attention,
    "embedding": _table,
    "cross_entropy": _table,
    "quantise": _quantise,
    "adam": _adam,
    "bytes": _bytes,
}
_WORDS: Mapping[str, tuple[str, ...]] = {
    "gemm": tuple(_PHASES),
    "grouped": tuple(_PHASES),
    "attention": (*_PASSES, "full", "unfused", *_NUMBERS),
}


_LAUNCHES = ("eager", "compiled", "graph")
_DIMENSIONS: Mapping[str, Dimension] = {
    "time_s": Dimension.TIME,
    "floor_s": Dimension.TIME,
    **{f"launch_{kind}_s": Dimension.TIME for kind in _LAUNCHES},
    "flops_per_s": Dimension.FLOP_RATE,
    "bytes_per_s": Dimension.BANDWIDTH,
    "algbw_bytes_per_s": Dimension.BANDWIDTH,
    "busbw_bytes_per_s": Dimension.BANDWIDTH,
    "bytes": Dimension.BYTES,
}
Answer = tuple[dict[str, object], tuple[Constant, ...]]
"""Figures by name, and every constant that they rest on."""


def figure_text(name: str, value: object) -> str:
    """A figure of an answer with its unit."""
    if name in _DIMENSIONS and isinstance(value, float):
        return format_quantity(value, _DIMENSIONS[name])
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def answer_kernel(
    name: str, value: str, chip: Accelerator, *, precision: str, clocks: str, attention_kernel: str
) -> Answer:
    """Time of a kernel beside its floor, and what a launch adds.

    Parameters
    ----------
    name, value : str
        As `FORMS` says.
    chip : Accelerator
    precision, clocks, attention_kernel : str
        As for `mpsim.cost.KernelModel`.

    Raises
    ------
    WorkloadError
        If the kernel, a size or a word is not known.
    """
    model = KernelModel(chip, precision, attention_kernel=attention_kernel, clocks=clocks)
    question = read_question(name, value, precision, chip)
    moved = sum(operator.bytes for operator in question.operators)
    time = float(model.seconds(question.operators).sum())
    if question.updated_parameters:
        traffic = framework("megatron-core").update_traffic
        moved = traffic * question.updated_parameters
        time = update_seconds(moved, chip.memory_bandwidth, chip.calibration)
    figures: dict[str, object] = {
        "accelerator": chip.name,
        "kernel": f"{name}={value}",
        "precision": precision,
        "clocks": clocks,
        "time_s": time,
        **_rates(question, moved, time, chip.peak(precision), chip.memory_bandwidth),
        **{f"launch_{kind}_s": launch_seconds(kind, chip) for kind in _LAUNCHES},
    }
    updates = constant_groups("kernels")[UPDATES].values()
    return figures, (*model.provenance(), *(updates if question.updated_parameters else ()))


def _rates(
    question: Question, moved: float, time: float, peak: float, bandwidth: float
) -> dict[str, float]:
    """The floor of the roofline, and what was reached of compute or of memory."""
    flops = sum(operator.flops for operator in question.operators)
    floor = {"floor_s": max(flops / peak, moved / bandwidth)}
    if flops:
        return floor | {"flops_per_s": flops / time, "fraction_of_peak": flops / time / peak}
    return floor | {"bytes_per_s": moved / time, "fraction_of_bandwidth": moved / time / bandwidth}


def answer_collective(
    model: CollectiveModel, kind: str, size: float, *, group: GroupShape, loaded: bool, system: str
) -> Answer:
    """Time of a collective of `size` bytes on the system of a name beside its floor, and the algorithm whose time it is."""
    answer = model.answer(kind, size, group)
    rate = size / answer.seconds if answer.seconds else 0.0
    return {
        "system": f"{model.cluster.nodes} x {system}",
        "collective": kind,
        "bytes": size,
        "ranks": group.ranks,
        "network": "loaded" if loaded else "quiet",
        "time_s": answer.seconds,
        "floor_s": answer.floor,
        "algbw_bytes_per_s": rate,
        "busbw_bytes_per_s": rate * ring_passes(kind, group.ranks),
        "library": answer.library,
        "algorithm": answer.algorithm,
        "protocol": answer.protocol,
        "tuner": answer.tuner,
        "basis": answer.basis,
    }, model.provenance()
