"""Kernels that ``mpsim show kernel`` answers for: ``NAME=SIZES``, with words after commas."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from mpsim.hardware import Accelerator
    from mpsim.workload import Operator, OperatorKind, Phase

__all__ = ["FORMS", "Question", "read_question"]

FORMS = (
    "gemm=MxNxK or gemm=BATCHxMxNxK (then ,dgrad or ,wgrad); grouped=EXPERTSxMxNxK with M the mean of an expert's tokens; "
    "attention=SEQUENCESxTOKENSxHEADSxHEAD_DIM (then ,backward ,full ,unfused ,window=N ,kv=HEADS ,v=HEAD_DIM); norm, softmax, dropout, rotary, "
    "activation, bias_dropout_add, ... =ROWSxCOLUMNS (then ,backward); embedding=TOKENSxHIDDEN; cross_entropy=TOKENSxVOCABULARY; "
    "quantise=ROWSxCOLUMNS; adam=PARAMETERS; or bytes='1 GiB' for any memory-bound kernel"
)
_PHASES = {"forward": "forward", "dgrad": "input_gradient", "wgrad": "weight_gradient"}
_PASSES = {"forward": "forward", "backward": "input_gradient"}
_NUMBERS = ("window", "kv", "v")


@dataclasses.dataclass(frozen=True, slots=True)
class Question:
    """What was asked for.

    Parameters
    ----------
    operators : tuple of Operator
        Kernels that answer it, one after the other.
    optimizer_parameters : float
        Parameters of an optimizer step instead, 0 for none.
    """

    operators: tuple[Operator, ...]
    optimizer_parameters: float = 0.0


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

    def phase(self, known: Mapping[str, str]) -> Phase:
        from mpsim.workload import Phase

        said = [known[word] for word in sorted(self.words) if word in known]
        if len(said) > 1:
            raise _bad(f"got more than one of {', '.join(known)}")
        return Phase(said[0] if said else "forward")


def read_question(name: str, value: str, precision: str, chip: Accelerator) -> Question:
    """Read ``NAME=SIZES,word,word=number``.

    Raises
    ------
    typer.BadParameter
        If the kernel, a size or a word is not known.
    """
    from mpsim.workload.builders import PASSES

    sizes, *words = (part.strip() for part in value.split(","))
    readers = {**_READERS, **dict.fromkeys(PASSES, _streaming)}
    if name not in readers:
        from mpsim.errors import nearest

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
    from mpsim.cost.quantise import FORMATS, format_bytes

    narrow = "nvfp4" if precision == "fp4" else precision
    if narrow in FORMATS:
        return format_bytes(narrow)
    return 4.0 if precision in ("fp32", "tf32") else 2.0


def _gemm(name: str, text: _Text) -> Question:
    from mpsim.workload import OperatorKind

    grouped = name == "grouped"
    *batch, m, n, k = text.sizes(4 if grouped else 3, 4)
    kind = OperatorKind.GROUPED_GEMM if grouped else OperatorKind.GEMM
    return Question((_product(kind, (batch or [1])[0], (m, n, k), text),))


def _product(kind: OperatorKind, batch: int, shape: tuple[int, int, int], text: _Text) -> Operator:
    """A product; a weight gradient adds into a float32 buffer."""
    from mpsim.workload import Phase, Role, make_gemm

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
    from mpsim.workload import make_attention

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
    from mpsim.cost import attention_pairs
    from mpsim.workload import Phase, attention_flops
    from mpsim.workload.builders import BACKWARD_ATTENTION

    o = attention
    pairs = float(attention_pairs(o.queries, o.keys, causal=o.causal, window=o.window))
    flops = attention_flops(o.sequences * o.heads * pairs, o.head_dim, o.head_dim_v)
    times = 1.0 if o.phase is Phase.FORWARD else BACKWARD_ATTENTION
    return dataclasses.replace(attention, flops=flops * times)


def _unfused(batch: int, tokens: int, width: int, phase: Phase) -> tuple[Operator, ...]:
    """Scores, softmax and context as kernels of their own, or the kernels of their gradients; every pair is worked on."""
    from mpsim.workload import Lowering, Phase, Role, Split, make_gemm
    from mpsim.workload.builders import streaming

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
    from mpsim.workload import Lowering, Phase, Split
    from mpsim.workload.builders import streaming

    rows, columns = text.sizes(2, 2)
    step = streaming(name, Split.NONE, elements=rows * columns, lowering=Lowering())
    return Question((step.forward if text.phase(_PASSES) is Phase.FORWARD else step.backward[0],))


def _table(name: str, text: _Text) -> Question:
    """A lookup reads and writes a row a token; a loss passes over the logits."""
    from mpsim.workload import Lowering, OperatorKind

    rows, columns = text.sizes(2, 2)
    lowering = Lowering()
    each, kind = {
        "embedding": (2.0 * lowering.activation_bytes, OperatorKind.EMBEDDING),
        "cross_entropy": (lowering.loss_bytes_per_logit / 2, OperatorKind.LOSS),
    }[name]
    return _moving(kind, each * rows * columns)


def _quantise(name: str, text: _Text) -> Question:
    from mpsim.cost.quantise import casting
    from mpsim.workload import OperatorKind

    rows, columns = text.sizes(2, 2)
    cast = casting(text.precision, text.chip)
    if cast is None:
        raise _bad(f"got {name} in {text.precision}, which casts nothing; add --precision fp8")
    return _moving(OperatorKind.QUANTISE, cast.moved_bytes(float(rows * columns), 2.0))


def _bytes(_name: str, text: _Text) -> Question:
    from mpsim.units import Dimension, parse_quantity
    from mpsim.workload import OperatorKind

    return _moving(OperatorKind.ELEMENTWISE, parse_quantity(text.value, Dimension.BYTES))


def _moving(kind: OperatorKind, moved: float) -> Question:
    from mpsim.workload import Phase, Role, make_elementwise

    return Question((make_elementwise(Role.KERNEL, Phase.FORWARD, moved=moved, kind=kind),))


def _adam(_name: str, text: _Text) -> Question:
    return Question((), float(text.sizes(1, 1)[0]))


def _spelled(least: int, most: int) -> str:
    """How many sizes there must be."""
    if most == 1:
        return "one whole number of 1 or more"
    counts = str(most) if least == most else f"{least} to {most}"
    return f"{counts} whole numbers of 1 or more"


def _bad(problem: str) -> typer.BadParameter:
    return typer.BadParameter(f"{problem}; needed one of: {FORMS}", param_hint="NAME")


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
