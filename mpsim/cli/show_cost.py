"""``mpsim show kernel`` and ``show collective``: a time, and the constants it rests on."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from mpsim.cli.catalogs import HEEDED, KERNEL
from mpsim.cli.console import print_json, print_table, print_text
from mpsim.cli.options import Plot, option, quantity, wrong
from mpsim.errors import CalibrationError, WorkloadError, nearest

if TYPE_CHECKING:
    from mpsim.cost.questions import Answer

MOST = 10_000_000  # nodes or ranks: more is a slip of the keyboard


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Questions of a kernel (`mpsim.cost.questions.KernelQuestion`), a collective, a fabric."""

    on: Annotated[
        str | None, option("--on", "Accelerator of a kernel, or system of a collective.")
    ] = None
    precision: Annotated[
        str | None, option("--precision", "Precision of a kernel; left out: bf16.")
    ] = None
    ranks: Annotated[
        int | None,
        option("--ranks", "Ranks of a collective; left out: those of one node.", min=1, max=MOST),
    ] = None
    attention_kernel: Annotated[
        str | None,
        option(
            "--attention",
            "Attention kernel: flash1, flash2, flash3, cudnn, te, trtllm or unfused; left out:"
            " flash2.",
        ),
    ] = None
    direction: Annotated[
        str | None,
        option("--pass", "Pass of a kernel: forward, backward, dgrad or wgrad."),
    ] = None
    kv_heads: Annotated[
        int | None, option("--kv-heads", "Key-value heads of attention.", min=1)
    ] = None
    value_dim: Annotated[
        int | None, option("--value-dim", "Value dimension of attention.", min=1)
    ] = None
    window: Annotated[
        int | None, option("--window", "Sliding window of attention, in keys.", min=1)
    ] = None
    full: Annotated[bool, option("--full", "Price attention without a causal mask.")] = False
    burst: Annotated[
        bool,
        option("--burst", "Assume a short benchmark on a quiet network instead of training."),
    ] = False
    library: Annotated[
        str | None,
        option("--library", "Library of a collective: nccl, gloo, ...; left out: the vendor's."),
    ] = None
    calibration: Annotated[
        Path | None, option("--calibration", "File of measured curves of a collective.")
    ] = None
    nodes: Annotated[
        int | None,
        option("--nodes", "Nodes of a fabric; left out: those it has.", min=1, max=MOST),
    ] = None
    plot: Plot = None

    def refuse_unheeded(self, subject: str | None) -> None:
        """Refuse options that are of another question."""
        hints = typing.get_type_hints(Asked, include_extras=True)
        for field, value in dataclasses.asdict(self).items():
            if value not in (None, False) and field not in HEEDED.get(subject or "", ()):
                of = [question for question, options in HEEDED.items() if field in options]
                raise wrong(
                    f"applies only to {' or '.join(of)}; leave it out, or ask 'mpsim show {of[0]}'",
                    str(hints[field].__metadata__[0].default),
                )

    @property
    def clocks(self) -> str:
        """Clocks of a short benchmark, or of training."""
        return "burst" if self.burst else "sustained"


def answer(question: str, text: str | None, asked: Asked, *, as_json: bool) -> None:
    """Print time, rates and constants of one kernel or collective."""
    from mpsim.cost.questions import figure_text

    figures, constants = (_kernel if question == "kernel" else _collective)(text, asked)
    if as_json:
        data = [dataclasses.asdict(constant) for constant in constants]
        print_json({"question": question, **figures, "constants": data})
        return
    print_table([(key, figure_text(key, value)) for key, value in figures.items()])
    print_text("\nrests on")
    rows = [
        (constant.name, f"{constant.value:.6g} {constant.unit}", constant.status.value)
        for constant in constants
    ]
    print_table(rows, header=("constant", "value", "status"))


def _split(text: str | None, forms: str) -> tuple[str, str]:
    """Name and value of ``name=value``."""
    name, sign, value = (text or "").partition("=")
    if not sign or not value:
        got = "nothing" if text is None else repr(text[:60])
        raise wrong(f"got {got}; needed one of: {forms}", "NAME")
    return name.strip().replace("-", "_"), value.strip()


def _kernel(text: str | None, asked: Asked) -> Answer:
    from mpsim.cost.questions import FORMS, KernelQuestion, answer_kernel, form_of
    from mpsim.hardware import accelerator

    name, value = _split(text, ", ".join(map(form_of, FORMS)))
    chip = accelerator(asked.on or _missing("an accelerator, such as --on h100-sxm"))
    precision = (asked.precision or "bf16").replace("-", "_")
    given = {key: each for key in KERNEL if (each := getattr(asked, key)) not in (None, False)}
    try:
        question = KernelQuestion(name, value, **given)
        return answer_kernel(question, chip, precision=precision, clocks=asked.clocks)
    except WorkloadError as error:
        raise wrong(str(error), "NAME") from error


def _collective(text: str | None, asked: Asked) -> Answer:
    from mpsim.cost import COLLECTIVES, CollectiveModel, load_curves
    from mpsim.cost.questions import answer_collective
    from mpsim.hardware import system
    from mpsim.parallel import GroupShape

    kind, value = _split(text, f"COLLECTIVE='256 MiB', COLLECTIVE one of {', '.join(COLLECTIVES)}")
    if kind not in COLLECTIVES:
        near = nearest(kind, COLLECTIVES)
        raise wrong(f"got collective {kind[:60]!r}; {near}", "NAME")
    size = quantity("BYTES")(value)
    name = asked.on or _missing("a system, such as --on dgx-h100")
    per_node = system(name, nodes=1).node.accelerators
    ranks = asked.ranks or per_node
    cluster = system(name, nodes=-(-ranks // per_node))
    inside = min(ranks, cluster.domain_size)
    if ranks % inside:
        raise wrong(
            f"got {ranks}; needed a multiple of {inside}, the accelerators of a domain of {name}",
            "--ranks",
        )
    group = GroupShape(ranks=ranks, per_domain=inside, domains=ranks // inside)
    try:
        curves = load_curves(asked.calibration) if asked.calibration else None
        model = CollectiveModel(
            cluster, loaded=not asked.burst, library=asked.library, curves=curves
        )
    except CalibrationError as error:
        raise wrong(str(error), "--calibration") from error
    return answer_collective(model, kind, size, group=group, loaded=not asked.burst, system=name)


def _missing(what: str) -> str:
    raise wrong(f"needed {what}", "--on")
