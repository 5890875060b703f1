"""``mpsim show kernel`` and ``mpsim show collective``: what one kernel or one collective takes, and on what that rests."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from mpsim.cli.options import quantity

if TYPE_CHECKING:
    from mpsim.cli.show_kernel import Question
    from mpsim.cost import CollectiveModel, Constant
    from mpsim.hardware import Cluster

__all__ = ["QUESTIONS", "Asked", "answer"]

QUESTIONS = ("kernel", "collective")
LAUNCHES = ("eager", "compiled", "graph")


@dataclasses.dataclass(frozen=True, slots=True)
class Asked:
    """What a question leaves to options.

    Parameters
    ----------
    on : str or None
        Accelerator of a kernel, system of a collective.
    precision, clocks, attention_kernel : str
        Of a kernel.
    ranks : int or None
        Of a collective; the accelerators of one node when absent.
    library : str or None
        Communication library; the vendor's when absent.
    calibration : Path or None
        File of measured curves of collectives.
    """

    on: str | None
    precision: str
    clocks: str
    attention_kernel: str
    ranks: int | None
    library: str | None = None
    calibration: Path | None = None


def answer(question: str, text: str | None, asked: Asked, *, as_json: bool) -> None:
    """Print time, rates and constants of one kernel or collective."""
    from mpsim.cli.console import print_json, print_table, print_text

    figures, constants = (_kernel if question == "kernel" else _collective)(text, asked)
    if as_json:
        data = [dataclasses.asdict(one) for one in constants]
        print_json({"question": question, **figures, "constants": data})
        return
    print_table([(key, _printed(key, value)) for key, value in figures.items()])
    print_text("\nrests on")
    rows = [(one.name, f"{one.value:.6g} {one.unit}", one.status.value) for one in constants]
    print_table(rows, header=("constant", "value", "status"))


def _printed(key: str, value: object) -> str:
    from mpsim.units import Dimension, format_quantity

    units = {
        "time_s": Dimension.TIME,
        "floor_s": Dimension.TIME,
        **{f"launch_{kind}_s": Dimension.TIME for kind in LAUNCHES},
        "flops_per_s": Dimension.FLOP_RATE,
        "bytes_per_s": Dimension.BANDWIDTH,
        "algbw_bytes_per_s": Dimension.BANDWIDTH,
        "busbw_bytes_per_s": Dimension.BANDWIDTH,
        "bytes": Dimension.BYTES,
    }
    if key in units and isinstance(value, float):
        return format_quantity(value, units[key])
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _split(text: str | None, forms: str) -> tuple[str, str]:
    """Name and value of ``name=value``."""
    name, sign, value = (text or "").partition("=")
    if not sign or not value:
        got = "nothing" if text is None else repr(text[:60])
        raise typer.BadParameter(f"got {got}; needed one of: {forms}", param_hint="NAME")
    return name.strip().replace("-", "_"), value.strip()


def _kernel(text: str | None, asked: Asked) -> tuple[dict[str, object], Iterable[Constant]]:
    from mpsim.cli.show_kernel import FORMS, read_question
    from mpsim.cost import KernelModel, launch_seconds, optimizer_seconds
    from mpsim.cost.constants import constant_groups
    from mpsim.framework import framework
    from mpsim.hardware import accelerator

    name, value = _split(text, FORMS)
    chip = accelerator(asked.on or _missing("an accelerator, such as --on h100-sxm"))
    precision = asked.precision.replace("-", "_")
    model = KernelModel(
        chip, precision, attention_kernel=asked.attention_kernel, clocks=asked.clocks
    )
    asks = read_question(name, value, precision, chip)
    moved = sum(one.bytes for one in asks.operators)
    time = float(model.seconds(asks.operators).sum())
    if asks.optimizer_parameters:
        traffic = framework("megatron-core").optimizer.optimizer_traffic
        moved = traffic * asks.optimizer_parameters
        time = optimizer_seconds(
            asks.optimizer_parameters, traffic, chip.memory_bandwidth, chip.calibration
        )
    figures: dict[str, object] = {
        "accelerator": chip.name,
        "kernel": f"{name}={value}",
        "precision": precision,
        "clocks": asked.clocks,
        "time_s": time,
        **_rates(asks, moved, time, chip.peak(precision), chip.memory_bandwidth),
    }
    launches = {f"launch_{kind}_s": launch_seconds(kind, chip) for kind in LAUNCHES}
    fixed = constant_groups("kernels")["optimizer"].values() if asks.optimizer_parameters else ()
    return figures | launches, (*model.provenance(), *fixed)


def _rates(
    asks: Question, moved: float, time: float, peak: float, bandwidth: float
) -> dict[str, float]:
    """The floor of the roofline, and what was reached of compute or of memory."""
    flops = sum(one.flops for one in asks.operators)
    floor = {"floor_s": max(flops / peak, moved / bandwidth)}
    if flops:
        return floor | {"flops_per_s": flops / time, "fraction_of_peak": flops / time / peak}
    return floor | {"bytes_per_s": moved / time, "fraction_of_bandwidth": moved / time / bandwidth}


def _collective(text: str | None, asked: Asked) -> tuple[dict[str, object], Iterable[Constant]]:
    from mpsim.cost import COLLECTIVES
    from mpsim.cost.traffic import ring_passes
    from mpsim.errors import nearest
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
    model = _collective_model(cluster, asked)
    found = model.answer(kind, size, group)
    rate = size / found.seconds if found.seconds else 0.0
    return {
        "system": f"{cluster.nodes} x {name}",
        "collective": kind,
        "bytes": size,
        "ranks": ranks,
        "network": "loaded" if asked.clocks == "sustained" else "quiet",
        "time_s": found.seconds,
        "floor_s": found.floor,
        "algbw_bytes_per_s": rate,
        "busbw_bytes_per_s": rate * ring_passes(kind, ranks),
        "library": found.library,
        "algorithm": found.algorithm,
        "protocol": found.protocol,
        "tuner": found.tuner,
        "basis": found.basis,
    }, model.provenance()


def _collective_model(cluster: Cluster, asked: Asked) -> CollectiveModel:
    from mpsim.cost import CollectiveModel, load_curves
    from mpsim.errors import CalibrationError

    loaded = asked.clocks == "sustained"
    try:
        curves = load_curves(asked.calibration) if asked.calibration else None
        return CollectiveModel(cluster, loaded=loaded, library=asked.library, curves=curves)
    except CalibrationError as error:
        raise typer.BadParameter(str(error), param_hint="--calibration") from error


def _missing(what: str) -> str:
    raise typer.BadParameter(f"needed {what}", param_hint="--on")
