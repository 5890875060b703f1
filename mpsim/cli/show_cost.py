"""``mpsim show kernel`` and ``mpsim show collective``: the time of one kernel or one collective, and the constants it rests on."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mpsim.cli.options import quantity

if TYPE_CHECKING:
    from mpsim.cost.questions import Answer

__all__ = ["QUESTIONS", "Asked", "answer"]

QUESTIONS = ("kernel", "collective")


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """Options of a question; those of `kernel` are fields of `mpsim.cost.questions.KernelQuestion`."""

    on: str | None
    precision: str
    clocks: str
    kernel: Mapping[str, Any]
    ranks: int | None
    library: str | None = None
    calibration: Path | None = None


def answer(question: str, text: str | None, asked: Asked, *, as_json: bool) -> None:
    """Print time, rates and constants of one kernel or collective."""
    from mpsim.cli.console import print_json, print_table, print_text
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
        raise typer.BadParameter(f"got {got}; needed one of: {forms}", param_hint="NAME")
    return name.strip().replace("-", "_"), value.strip()


def _kernel(text: str | None, asked: Asked) -> Answer:
    from mpsim.cost.questions import FORMS, KernelQuestion, answer_kernel, form_of
    from mpsim.errors import WorkloadError
    from mpsim.hardware import accelerator

    name, value = _split(text, ", ".join(map(form_of, FORMS)))
    chip = accelerator(asked.on or _missing("an accelerator, such as --on h100-sxm"))
    precision = asked.precision.replace("-", "_")
    try:
        question = KernelQuestion(name, value, **asked.kernel)
        return answer_kernel(question, chip, precision=precision, clocks=asked.clocks)
    except WorkloadError as error:
        raise typer.BadParameter(str(error), param_hint="NAME") from error


def _collective(text: str | None, asked: Asked) -> Answer:
    from mpsim.cost import COLLECTIVES, CollectiveModel, load_curves
    from mpsim.cost.questions import answer_collective
    from mpsim.errors import CalibrationError, nearest
    from mpsim.hardware import system
    from mpsim.parallel import GroupShape

    kind, value = _split(text, f"COLLECTIVE='256 MiB', COLLECTIVE one of {', '.join(COLLECTIVES)}")
    if kind not in COLLECTIVES:
        near = nearest(kind, COLLECTIVES)
        raise typer.BadParameter(f"got collective {kind[:60]!r}; {near}", param_hint="NAME")
    size = quantity("BYTES")(value)
    name = asked.on or _missing("a system, such as --on dgx-h100")
    per_node = system(name, nodes=1).node.accelerators
    ranks = asked.ranks or per_node
    cluster = system(name, nodes=-(-ranks // per_node))
    inside = min(ranks, cluster.domain_size)
    if ranks % inside:
        raise typer.BadParameter(
            f"got {ranks}; needed a multiple of {inside}, the accelerators of a domain of {name}",
            param_hint="--ranks",
        )
    group = GroupShape(ranks=ranks, per_domain=inside, domains=ranks // inside)
    loaded = asked.clocks == "sustained"
    try:
        curves = load_curves(asked.calibration) if asked.calibration else None
        model = CollectiveModel(cluster, loaded=loaded, library=asked.library, curves=curves)
    except CalibrationError as error:
        raise typer.BadParameter(str(error), param_hint="--calibration") from error
    return answer_collective(model, kind, size, group=group, loaded=loaded, system=name)


def _missing(what: str) -> str:
    raise typer.BadParameter(f"needed {what}", param_hint="--on")
