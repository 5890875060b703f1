"""``mpsim show``: the catalogs, with units, sources and what is only recalled."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from mpsim.cli.options import AsJson, Plot
from mpsim.cli.show_cost import QUESTIONS, Asked, answer
from mpsim.cli.show_fabric import show_fabric
from mpsim.cli.show_framework import framework_titles, show_framework
from mpsim.cli.show_machine import show_machine

__all__ = ["show"]


class Catalog(enum.StrEnum):
    """What there is to show."""

    ACCELERATOR = "accelerator"
    LINK = "link"
    SYSTEM = "system"
    MODEL = "model"
    FRAMEWORK = "framework"
    SCHEDULE = "schedule"


DIMENSIONS = {
    "peak_flops": "FLOP_RATE",
    "memory_bytes": "BYTES",
    "memory_bandwidth": "BANDWIDTH",
    "bandwidth": "BANDWIDTH",
    "latency": "TIME",
    "switch_latency": "TIME",
    "hop_latency": "TIME",
    "step_overhead": "TIME",
    "bucket_bytes": "BYTES",
    "tdp_w": "POWER",
    "idle_w": "POWER",
    "power_w": "POWER",
    "price_per_hour": "PRICE_RATE",
}
"""Fields that carry a unit, and which (names of `mpsim.units.Dimension`)."""
Figure: TypeAlias = tuple[str, object, str]
"""Dotted name, plain value, value with its unit."""
OPTIONS: Mapping[str, tuple[str, ...]] = {
    "kernel": ("--on", "--precision", "--attention", "--burst"),
    "collective": ("--on", "--ranks", "--burst", "--library", "--calibration"),
    "fabric": ("--nodes", "--plot"),
}
"""Options that a question heeds; catalogs heed none."""
MOST = 10_000_000  # nodes or ranks: more is a slip of the keyboard
HIDDEN = frozenset({"sources", "source", "as_of"})


def show(
    catalog: Annotated[
        str | None,
        typer.Argument(
            metavar="CATALOG",
            help=f"One of {', '.join(Catalog)}; left out: all names. Or kernel, collective, fabric: one question.",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            help="One entry of it, or the path of a machine file; left out: all names. Of a kernel gemm=4096x4096x4096, of a collective "
            "all_reduce='256 MiB'. Of a fabric: a system, or a scenario file.",
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", help="Accelerator of a kernel, system of a collective.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Of a kernel; left out: bf16.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option("--ranks", min=1, max=MOST, help="Of a collective; left out: one node."),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Attention kernel: flash1, flash2, flash3, cudnn, te or trtllm; left out: flash2.",
        ),
    ] = None,
    burst: Annotated[
        bool, typer.Option("--burst", help="A short benchmark on a quiet network, not training.")
    ] = False,
    library: Annotated[
        str | None,
        typer.Option("--library", help="Of a collective: nccl, gloo, ...; left out: the vendor's."),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="Of a collective: a file of measured curves."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, max=MOST, help="Of a fabric; left out: those it has."),
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show what mpsim knows: accelerators, links, systems, models, frameworks, schedules; or what one kernel or collective takes, or a fabric is built of."""
    from mpsim.cli.console import print_json

    _refuse_unused(
        catalog or "",
        {
            "--on": on,
            "--precision": precision,
            "--ranks": ranks,
            "--attention": attention,
            "--burst": burst or None,
            "--library": library,
            "--calibration": calibration,
            "--nodes": nodes,
            "--plot": plot,
        },
    )
    if catalog == "fabric":
        show_fabric(name, nodes=nodes, plot=plot, as_json=as_json)
        return
    if catalog in QUESTIONS:
        clocks = "burst" if burst else "sustained"
        kernel = precision or "bf16", clocks, attention or "flash2"
        asked = Asked(on, *kernel, ranks, library, calibration)
        answer(catalog, name, asked, as_json=as_json)
        return
    chosen = _chosen(catalog)
    if name is not None and _is_machine(chosen, name):
        show_machine(name, as_json=as_json)
        return
    if name is None:
        names = {one.value: list(_names(one)) for one in chosen}
        print_json(names) if as_json else _print_names(names)
        return
    if chosen == [Catalog.FRAMEWORK]:
        show_framework(name, as_json=as_json)
        return
    kind = next((one for one in chosen if name in _names(one)), chosen[0])
    entry = _entry(kind, name)
    sources, figures = _sources(entry), list(_figures(entry))
    if as_json:
        print_json(_plain(kind, name, figures, sources))
    else:
        _print_entry(f"{kind.value} {name}", figures, sources)


def _refuse_unused(catalog: str, given: Mapping[str, object]) -> None:
    """Refuse options that are of another question."""
    for option, value in given.items():
        if value is not None and option not in OPTIONS.get(catalog, ()):
            of = [question for question, options in OPTIONS.items() if option in options]
            raise typer.BadParameter(
                f"it is of {' or '.join(of)}; leave it out, or ask 'mpsim show {of[0]}'",
                param_hint=option,
            )


def _is_machine(chosen: list[Catalog], name: str) -> bool:
    """Whether `name` is the path of a machine file, which stands for a system or an accelerator."""
    from mpsim.hardware import is_machine_path

    machines = {Catalog.SYSTEM, Catalog.ACCELERATOR}
    return is_machine_path(name) and bool(machines & set(chosen))


def _print_names(names: Mapping[str, list[str]]) -> None:
    from mpsim.cli.console import print_text

    titles = framework_titles() if set(names) == {Catalog.FRAMEWORK.value} else {}
    lines = [
        (f"{kind}: {one}", titles.get(one, "")) for kind, known in names.items() for one in known
    ]
    width = max(len(line) for line, _ in lines)
    print_text("\n".join(f"{line:{width}}  {title}".rstrip() for line, title in lines))


def _plain(
    kind: Catalog, name: str, figures: list[Figure], sources: Mapping[str, str]
) -> dict[str, object]:
    values = {key: {"value": value, "source": _source(sources, key)} for key, value, _ in figures}
    return {
        "catalog": kind.value,
        "name": name,
        "figures": values,
        "recalled": _recalled(sources),
    }


def _print_entry(title: str, figures: list[Figure], sources: Mapping[str, str]) -> None:
    """A table whose sources are numbered, and the list of them."""
    from mpsim.cli.console import print_table, print_text

    cited = [_source(sources, key) for key, _, _ in figures]
    used = list(dict.fromkeys(source for source in cited if source))
    rows = [
        (key, text, _mark(source, used))
        for (key, _, text), source in zip(figures, cited, strict=True)
    ]
    print_table(rows, header=("figure", "value", "source"), title=title)
    if used:
        print_text("\n".join(f"[{number}] {source}" for number, source in enumerate(used, start=1)))


def _chosen(word: str | None) -> list[Catalog]:
    """The catalogs that `word` names: one (``model`` or ``models``), ``hardware``, or all."""
    if word is None:
        return list(Catalog)
    if word == "hardware":
        return [Catalog.ACCELERATOR, Catalog.LINK, Catalog.SYSTEM]
    singular = word.removesuffix("s")
    if singular not in set(Catalog):
        from mpsim.errors import nearest

        raise typer.BadParameter(
            f"got {word[:60]!r}; {nearest(word, [*Catalog, 'hardware', *QUESTIONS, 'fabric'])}",
            param_hint="CATALOG",
        )
    return [Catalog(singular)]


def _mark(source: str, used: list[str]) -> str:
    """Number of a source in the list below the table; what is only recalled says so at once."""
    if not source:
        return ""
    label = next((word for word in ("recalled", "calibrated") if source.startswith(word)), "")
    return f"[{used.index(source) + 1}] {label}".rstrip()


def _names(catalog: Catalog) -> tuple[str, ...]:
    from mpsim import framework, hardware, schedule, workload

    listing: dict[Catalog, Callable[[], tuple[str, ...]]] = {
        Catalog.ACCELERATOR: hardware.accelerator_names,
        Catalog.LINK: hardware.link_names,
        Catalog.SYSTEM: hardware.system_names,
        Catalog.MODEL: workload.model_names,
        Catalog.FRAMEWORK: framework.framework_names,
        Catalog.SCHEDULE: schedule.schedule_names,
    }
    return listing[catalog]()


def _entry(catalog: Catalog, name: str) -> object:
    from mpsim import framework, hardware, workload
    from mpsim.errors import ScheduleError, nearest

    lookup: dict[Catalog, Callable[[str], object]] = {
        Catalog.ACCELERATOR: hardware.accelerator,
        Catalog.LINK: hardware.link,
        Catalog.SYSTEM: hardware.system,
        Catalog.MODEL: workload.model,
        Catalog.FRAMEWORK: framework.framework,
    }
    if catalog in lookup:
        return lookup[catalog](name)
    known = _names(Catalog.SCHEDULE)
    if name not in known:
        raise ScheduleError(f"got schedule {name!r}; {nearest(name, known)}")
    return _schedule_facts(name)


def _schedule_facts(name: str) -> Mapping[str, object]:
    """What a schedule looks like at a small size, for those who know it by its picture."""
    from mpsim.errors import ScheduleError
    from mpsim.schedule import make_orders

    for virtual in (1, 2):
        try:
            orders = make_orders(name, pp=4, microbatches=8, virtual_stages=virtual)
        except ScheduleError:
            continue
        rows = {f"rank {rank}": " ".join(order) for rank, order in enumerate(orders.tokens())}
        return {"example": f"pp 4, 8 microbatches, {virtual} virtual stages", **rows}
    return {"example": "none at pp 4, 8 microbatches and up to 2 virtual stages"}


def _figures(entry: object, prefix: str = "") -> Iterator[Figure]:
    """Every figure of an entry."""
    for key, value in _fields(entry):
        if key in HIDDEN:
            continue
        name = f"{prefix}{key}"
        if isinstance(value, Mapping) or (
            dataclasses.is_dataclass(value) and not isinstance(value, type)
        ):
            yield from _figures(value, f"{name}.")
        elif value is not None and value != "":
            yield name, value, _with_unit(name, value)


def _fields(entry: object) -> list[tuple[str, object]]:
    if isinstance(entry, Mapping):
        return [(str(key), value) for key, value in entry.items()]
    assert dataclasses.is_dataclass(entry)
    return [(one.name, getattr(entry, one.name)) for one in dataclasses.fields(entry)]


def _with_unit(name: str, value: object) -> str:
    from mpsim.units import Dimension, format_quantity

    unit = next(
        (DIMENSIONS[part] for part in reversed(name.split(".")) if part in DIMENSIONS), None
    )
    if unit is None or isinstance(value, bool) or not isinstance(value, int | float):
        return str(value)
    return format_quantity(value, Dimension[unit])


def _sources(entry: object) -> Mapping[str, str]:
    """Figure to source; ``*`` for the figures that have none of their own."""
    own = getattr(entry, "sources", None)
    if own is not None:
        nested = {
            f"{key}.{figure}": source
            for key, part in _parts(entry)
            for figure, source in _sources(part).items()
        }
        return {**nested, **own}
    text, as_of = getattr(entry, "source", ""), getattr(entry, "as_of", "")
    return {"*": f"{text} ({as_of})" if as_of else text} if text else {}


def _parts(entry: object, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Parts of an entry that have sources of their own, by dotted name."""
    for key, value in _fields(entry):
        if not dataclasses.is_dataclass(value):
            continue
        if getattr(value, "sources", None):
            yield f"{prefix}{key}", value
        else:
            yield from _parts(value, f"{prefix}{key}.")


def _source(sources: Mapping[str, str], figure: str) -> str:
    """Source of a figure: its own, or that of the nearest thing it belongs to."""
    place = figure
    while place:
        for key in (place, f"{place}.*"):
            if key in sources:
                return sources[key]
        place = place.rpartition(".")[0]
    return sources.get("*", "")


def _recalled(sources: Mapping[str, str]) -> list[str]:
    """Figures that are leads from memory, not read anywhere."""
    return sorted(key for key, source in sources.items() if source.startswith("recalled"))
