"""``mpsim show``: the catalogs, with units, sources and what is only recalled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

from mpsim.cli.catalogs import KERNEL_OPTIONS, OPTIONS, Catalog, names_of
from mpsim.cli.complete import catalogs, entries
from mpsim.cli.options import AsJson, Plot
from mpsim.cli.show_cost import QUESTIONS, Asked, answer

if TYPE_CHECKING:
    from mpsim.description import Description

__all__ = ["show"]


class Noun(Protocol):
    """Whatever says of itself what there is to show."""

    def describe(self) -> Description:
        """Its figures."""


MOST = 10_000_000  # nodes or ranks: more is a slip of the keyboard


def show(
    catalog: Annotated[
        str | None,
        typer.Argument(
            metavar="CATALOG",
            autocompletion=catalogs,
            help=f"One of {', '.join(Catalog)}; left out: all names. Or kernel, collective, fabric (the cost of one); formats (files that can be read and written); engine (serving engines).",
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="NAME",
            autocompletion=entries,
            help="Entry of the catalog, or the path of a machine file; left out: all names. For a kernel such as gemm=4096x4096x4096, "
            "for a collective such as all_reduce='256 MiB', for a fabric a system or a scenario file.",
        ),
    ] = None,
    on: Annotated[
        str | None, typer.Option("--on", help="Accelerator of a kernel, or system of a collective.")
    ] = None,
    precision: Annotated[
        str | None, typer.Option("--precision", help="Precision of a kernel; left out: bf16.")
    ] = None,
    ranks: Annotated[
        int | None,
        typer.Option(
            "--ranks", min=1, max=MOST, help="Ranks of a collective; left out: those of one node."
        ),
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(
            "--attention",
            help="Attention kernel: flash1, flash2, flash3, cudnn, te, trtllm or unfused; left out: flash2.",
        ),
    ] = None,
    direction: Annotated[
        str | None,
        typer.Option("--pass", help="Pass of a kernel: forward, backward, dgrad or wgrad."),
    ] = None,
    kv_heads: Annotated[
        int | None, typer.Option("--kv-heads", min=1, help="Key-value heads of attention.")
    ] = None,
    value_dim: Annotated[
        int | None, typer.Option("--value-dim", min=1, help="Value dimension of attention.")
    ] = None,
    window: Annotated[
        int | None, typer.Option("--window", min=1, help="Sliding window of attention [keys].")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Price attention without a causal mask.")
    ] = False,
    burst: Annotated[
        bool,
        typer.Option(
            "--burst", help="Assume a short benchmark on a quiet network instead of training."
        ),
    ] = False,
    library: Annotated[
        str | None,
        typer.Option(
            "--library", help="Library of a collective: nccl, gloo, ...; left out: the vendor's."
        ),
    ] = None,
    calibration: Annotated[
        Path | None,
        typer.Option("--calibration", help="File of measured curves of a collective."),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", min=1, max=MOST, help="Nodes of a fabric; left out: those it has."),
    ] = None,
    plot: Plot = None,
    as_json: AsJson = False,
) -> None:
    """Show what mpsim knows: accelerators, links, systems, models, frameworks, schedules; or what one kernel or collective takes, or a fabric is built of."""
    from mpsim.cli.console import print_json

    values = (direction, attention, kv_heads, value_dim, window, full or None)
    kernel = dict(zip(KERNEL_OPTIONS, values, strict=True))
    _refuse_unused(
        catalog or "",
        {
            "--on": on,
            "--precision": precision,
            "--ranks": ranks,
            **kernel,
            "--burst": burst or None,
            "--library": library,
            "--calibration": calibration,
            "--nodes": nodes,
            "--plot": plot,
        },
    )
    if catalog == "formats":
        from mpsim.cli.show_formats import show_formats

        show_formats(name, as_json=as_json)
        return
    if catalog in ("engine", "engines"):
        _show_engine(name, as_json=as_json)
        return
    if catalog == "fabric":
        from mpsim.cli.show_cluster import show_fabric

        show_fabric(name, nodes=nodes, plot=plot, as_json=as_json)
        return
    if catalog in QUESTIONS:
        given = {KERNEL_OPTIONS[key]: value for key, value in kernel.items() if value is not None}
        clocks = "burst" if burst else "sustained"
        asked = Asked(on, precision or "bf16", clocks, given, ranks, library, calibration)
        answer(catalog, name, asked, as_json=as_json)
        return
    chosen = _chosen(catalog)
    if name is not None and _is_machine(chosen, name):
        from mpsim.cli.show_cluster import show_machine

        show_machine(name, as_json=as_json)
        return
    if name is None and chosen == [Catalog.MODEL]:
        _show_models(as_json=as_json)
        return
    if name is None:
        names = {kind.value: list(names_of(kind)) for kind in chosen}
        print_json(names, stamped=False) if as_json else _print_names(names)
        return
    if chosen == [Catalog.FRAMEWORK]:
        _show_framework(name, as_json=as_json)
        return
    kind = next((kind for kind in chosen if name in names_of(kind)), chosen[0])
    described = _noun(kind, name).describe()
    if kind is Catalog.MODEL:
        described = _dated(name, described)
    if as_json:
        print_json(_plain(kind, name, described))
    else:
        _print_figures(f"{kind.value} {name}", described)


def _show_models(*, as_json: bool) -> None:
    """Print every model with its size, active size, layers and year."""
    from mpsim.cli.console import print_json, print_table
    from mpsim.workload import model, model_names, model_year

    names = model_names()
    totals = {name: model(name).parameters().total for name in names}
    active = {name: model(name).active_parameters(lookup=True) for name in names}
    layers = {name: model(name).layers for name in names}
    if as_json:
        sizes = [
            {
                "name": name,
                "parameters": totals[name],
                "active_parameters": active[name],
                "layers": layers[name],
                "year": model_year(name),
            }
            for name in names
        ]
        print_json({"model": list(names), "models": sizes}, stamped=False)
        return
    print_table(
        (
            (
                f"model: {name}",
                f"{totals[name] / 1e9:,.4g} B",
                f"{active[name] / 1e9:,.4g} B",
                f"{layers[name]}",
                f"{model_year(name)}",
            )
            for name in names
        ),
        header=("", "parameters", "active", "layers", "year"),
        right=range(1, 5),
    )


def _dated(name: str, described: Description) -> Description:
    """The figures of a model of the catalog, with the year it came out."""
    import dataclasses

    from mpsim.description import Figure
    from mpsim.workload import model_year

    year = Figure("year", model_year(name), str(model_year(name)))
    return dataclasses.replace(described, figures=(*described.figures, year))


def _show_engine(name: str | None, *, as_json: bool) -> None:
    """Print the serving engines, or every field of one with its source."""
    import dataclasses

    from mpsim.cli.console import print_json, print_table, print_text
    from mpsim.serving.engines import engine, engine_names

    if name is None:
        names = {"engine": list(engine_names())}
        lines = [f"engine: {known:18} {engine(known).title}" for known in engine_names()]
        print_json(names) if as_json else print_text("\n".join(lines))
        return
    preset = engine(name)
    fields = dataclasses.asdict(preset)
    if as_json:
        print_json({"catalog": "engine", **fields})
        return
    heading = ("name", "title", "source", "as_of", "status")
    rows = [(key, _plain_value(value)) for key, value in fields.items() if key not in heading]
    print_table(rows, header=("field", "value"), title=f"engine {name}: {preset.title}")
    print_text(f"source: {preset.source} ({preset.as_of}, {preset.status})")


def _plain_value(value: object) -> str:
    """A field in SI units."""
    if isinstance(value, tuple):
        return f"{len(value)} sizes to {value[-1]}" if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _refuse_unused(catalog: str, given: Mapping[str, object]) -> None:
    """Refuse options that are of another question."""
    for option, value in given.items():
        if value is not None and option not in OPTIONS.get(catalog, ()):
            of = [question for question, options in OPTIONS.items() if option in options]
            raise typer.BadParameter(
                f"applies only to {' or '.join(of)}; leave it out, or ask 'mpsim show {of[0]}'",
                param_hint=option,
            )


def _is_machine(chosen: list[Catalog], name: str) -> bool:
    """Whether `name` is the path of a machine file, which stands for a system or an accelerator."""
    from mpsim.hardware import is_machine_path

    machines = {Catalog.SYSTEM, Catalog.ACCELERATOR}
    return is_machine_path(name) and bool(machines & set(chosen))


def _print_names(names: Mapping[str, list[str]]) -> None:
    from mpsim.cli.console import print_table, print_text

    if len(names) > 1:
        print_table((f"{kind}s", ", ".join(known)) for kind, known in names.items())
        return
    titles = _framework_titles() if set(names) == {Catalog.FRAMEWORK.value} else {}
    lines = [
        (f"{kind}: {name}", titles.get(name, "")) for kind, known in names.items() for name in known
    ]
    width = max(len(line) for line, _ in lines)
    print_text("\n".join(f"{line:{width}}  {title}".rstrip() for line, title in lines))


def _plain(kind: Catalog, name: str, described: Description) -> dict[str, object]:
    figures = {
        figure.name: {"value": figure.value, "source": figure.source}
        for figure in described.figures
    }
    recalled = list(described.recalled)
    return {"catalog": kind.value, "name": name, "figures": figures, "recalled": recalled}


def _print_figures(title: str, described: Description) -> None:
    """A table whose sources are numbered, and the list of them."""
    from mpsim.cli.console import print_table, print_text

    cited = dict.fromkeys(figure.source for figure in described.figures if figure.source)
    used = list(cited)
    rows = [(figure.name, figure.text, _mark(figure.source, used)) for figure in described.figures]
    print_table(rows, header=("quantity", "value", "source"), title=title)
    if used:
        print_text("\n".join(f"[{number}] {source}" for number, source in enumerate(used, start=1)))


def _framework_titles() -> dict[str, str]:
    """The text beside the name of each preset and alias."""
    from mpsim.framework import framework, framework_aliases, framework_names

    aliases = framework_aliases()
    return {
        name: f"= {aliases[name]}" if name in aliases else framework(name).title
        for name in framework_names()
    }


def _show_framework(name: str, *, as_json: bool) -> None:
    """Print one preset: fields by area, the scenario it suits, sources and open questions.

    Raises
    ------
    ScenarioError
        If the preset is unknown; it names the nearest.
    """
    from mpsim.cli.console import print_json, print_table, print_text
    from mpsim.framework import AREAS, framework, settled_keys
    from mpsim.scenario.settled import in_words

    software = framework(name)
    figures = software.describe().figures
    if as_json:
        plain = {
            figure.name: {
                "value": figure.value,
                "area": figure.area,
                "unit": figure.unit,
                "source": figure.source,
            }
            for figure in figures
        }
        print_json(
            {
                "catalog": "framework",
                "name": software.name,
                "title": software.title,
                "figures": plain,
                "suits": dict(software.suits),
                "settles": [dict(group) for group in settled_keys(name)],
                "notes": list(software.notes),
                "recalled": [],
            }
        )
        return
    rows = []
    for area, group in itertools.groupby(figures, key=lambda figure: figure.area):
        heads = itertools.chain([AREAS[area]], itertools.repeat(""))
        rows += [
            (head, figure.name, figure.text) for head, figure in zip(heads, group, strict=False)
        ]
    title = f"framework {name}: {software.title}"
    print_table(rows, header=("area", "field", "value"), title=title)
    print_text(f"\nread in {software.source} ({software.as_of})")
    suits = [
        f"{key}: {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in software.suits.items()
    ]
    if suits:
        print_text(f"written for {', '.join(suits)} (a description: the scenario decides)")
    settled = {key: value for group in settled_keys(name) for key, value in group.items()}
    if settled:
        print_text(f"where the scenario leaves them out, it sets {', '.join(in_words(settled))}")
    for note in software.notes:
        print_text(f"- {note}")


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
            f"got {word[:60]!r}; {nearest(word, [*Catalog, 'engine', 'hardware', *QUESTIONS, 'fabric', 'formats'])}",
            param_hint="CATALOG",
        )
    return [Catalog(singular)]


def _mark(source: str, used: list[str]) -> str:
    """Number of a source in the list below the table; what is only recalled says so at once."""
    if not source:
        return ""
    label = next((word for word in ("recalled", "calibrated") if source.startswith(word)), "")
    return f"[{used.index(source) + 1}] {label}".rstrip()


def _noun(catalog: Catalog, name: str) -> Noun:
    from mpsim import framework, hardware, workload
    from mpsim.errors import ScheduleError, nearest
    from mpsim.schedule import schedule

    lookup: dict[Catalog, Callable[[str], Noun]] = {
        Catalog.ACCELERATOR: hardware.accelerator,
        Catalog.LINK: hardware.link,
        Catalog.SYSTEM: hardware.system,
        Catalog.MODEL: workload.model,
        Catalog.FRAMEWORK: framework.framework,
        Catalog.SCHEDULE: schedule,
    }
    known = names_of(catalog)
    if catalog is Catalog.SCHEDULE and name not in known:
        raise ScheduleError(f"got schedule {name!r}; {nearest(name, known)}")
    return lookup[catalog](name)
