"""``mpsim show``: catalogs with units and sources, fabrics, machine files, times of a kernel."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from mpsim import structs
from mpsim.cli.complete import HEEDED, KERNEL, Catalog, catalogs, entries, shelf
from mpsim.cli.console import print_json, print_table, print_text, wrote
from mpsim.cli.options import AsJson, Plot, given, quantity, wrong
from mpsim.errors import CalibrationError, FormatError, ScheduleError, WorkloadError, nearest
from mpsim.nouns import Figure
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    from mpsim.cost.questions import Answer
    from mpsim.hardware import Cluster
    from mpsim.hardware.inventory import Inventory
    from mpsim.nouns import Description


FIGURES = ("figure", "measured", "95 %", "otherwise", "unit")
FITS = {
    "what": "fit",
    "form": "form",
    "points": "points",
    "median_error": "error",
    "held_out_median_error": "held-out error",
    "noise": "noise",
}
TIERS = "tier, units, nodes of a unit, switches, cables below, unit up, oversubscribed".split(", ")


def show(
    catalog: Annotated[
        str | None,
        Argument(
            help=f"One of {', '.join(Catalog)}; left out: all names. Or kernel, collective, fabric"
            " (the cost of one); formats (files that can be read and written); engine (serving"
            " engines).",
            metavar="CATALOG",
            autocompletion=catalogs,
        ),
    ] = None,
    name: Annotated[str | None, Argument(metavar="NAME", autocompletion=entries)] = None,
    *,
    asked: Asked,
    as_json: AsJson = False,
) -> None:
    """Show accelerators, links, models, frameworks, schedules; one kernel, collective or fabric.

    NAME: Entry of the catalog, or the path of a machine file; left out: all names. For a kernel
        such as gemm=4096x4096x4096, for a collective such as all_reduce='256 MiB', for a fabric a
        system or a scenario file.
    """
    asked.refuse_unheeded(catalog)
    if catalog in ("kernel", "collective"):
        answer(catalog, name, asked, as_json=as_json)
    elif catalog == "fabric":
        _show_fabric(name, asked, as_json=as_json)
    elif catalog in ("engine", "engines"):
        _show_engine(name, as_json=as_json)
    elif catalog == "formats":
        _show_formats(name, as_json=as_json)
    elif name is None:
        _show_names(_chosen(catalog), as_json=as_json)
    else:
        _show_entry(_chosen(catalog), name, as_json=as_json)


def _show_names(chosen: list[Catalog], *, as_json: bool) -> None:
    """Print the entries of some catalogs."""
    if chosen == [Catalog.MODEL]:
        _show_models(as_json=as_json)
        return
    names = {kind.value: list(shelf(kind).names()) for kind in chosen}
    if as_json:
        print_json(names, stamped=False)
        return
    if len(names) > 1:
        print_table((f"{kind}s", ", ".join(known)) for kind, known in names.items())
        return
    ((kind, known),) = names.items()
    titles = _framework_titles() if chosen == [Catalog.FRAMEWORK] else {}
    width = len(f"{kind}: ") + max(map(len, known))
    lines = (f"{f'{kind}: {name}':{width}}  {titles.get(name, '')}".rstrip() for name in known)
    print_text("\n".join(lines))


def _show_models(*, as_json: bool) -> None:
    """Print every model with its size, active size, layers and year."""
    from mpsim.workload import model, model_names, model_year

    names = model_names()
    sizes: list[dict[str, str | int]] = []
    rows = []
    for known in map(model, names):
        name, layers, year = known.name, known.layers, model_year(known.name)
        counts = {
            "parameters": known.parameters().total,
            "active_parameters": known.active_parameters(lookup=True),
        }
        sizes.append({"name": name, **counts, "layers": layers, "year": year})
        billions = [f"{count / 1e9:,.4g} B" for count in counts.values()]
        rows.append((f"model: {name}", *billions, str(layers), str(year)))
    if as_json:
        print_json({"model": list(names), "models": sizes}, stamped=False)
        return
    print_table(rows, header=("", "parameters", "active", "layers", "year"), right=range(1, 5))


def _show_entry(chosen: list[Catalog], name: str, *, as_json: bool) -> None:
    """Print the figures of one entry, or of a machine file in the place of one."""
    from mpsim.hardware import is_machine_path

    if is_machine_path(name) and {Catalog.SYSTEM, Catalog.ACCELERATOR} & set(chosen):
        _show_machine(name, as_json=as_json)
        return
    kind = next((kind for kind in chosen if name in shelf(kind).names()), chosen[0])
    described = _described(kind, name)
    if as_json:
        _print_plain(kind, name, described)
    elif kind is Catalog.FRAMEWORK:
        _print_framework(name, described)
    else:
        _print_figures(f"{kind.value} {name}", described)


def _described(kind: Catalog, name: str) -> Description:
    """The figures of an entry, of a model with its year; MpsimError names the nearest."""
    names, noun = shelf(kind)
    if kind is Catalog.SCHEDULE and name not in names():
        raise ScheduleError(f"got schedule {name!r}; {nearest(name, names())}")
    described = noun(name).describe()
    if kind is not Catalog.MODEL:
        return described
    from mpsim.workload import model_year

    year = Figure("year", model_year(name), str(model_year(name)))
    return structs.replace(described, figures=(*described.figures, year))


def _print_plain(kind: Catalog, name: str, described: Description) -> None:
    figures = {
        figure.name: {
            "value": figure.value,
            **({"area": figure.area, "unit": figure.unit} if figure.area else {}),
            "source": figure.source,
        }
        for figure in described.figures
    }
    head, more = {"catalog": kind.value, "name": name}, {}
    if kind is Catalog.FRAMEWORK:
        from mpsim.framework import framework, settled_keys

        software = framework(name)
        head["title"] = software.title
        more = {
            "suits": dict(software.suits),
            "settles": [dict(group) for group in settled_keys(name)],
            "notes": list(software.notes),
        }
    print_json({**head, "figures": figures, **more, "recalled": list(described.recalled)})


def _print_figures(title: str, described: Description) -> None:
    """A table whose sources are numbered, and the list of them."""
    cited = dict.fromkeys(figure.source for figure in described.figures if figure.source)
    used = list(cited)
    rows = [(figure.name, figure.text, _mark(figure.source, used)) for figure in described.figures]
    print_table(rows, header=("quantity", "value", "source"), title=title)
    if used:
        print_text("\n".join(f"[{number}] {source}" for number, source in enumerate(used, start=1)))


def _mark(source: str, used: list[str]) -> str:
    """Number of a source in the list below the table; what is only recalled says so at once."""
    if not source:
        return ""
    label = next((word for word in ("recalled", "calibrated") if source.startswith(word)), "")
    return f"[{used.index(source) + 1}] {label}".rstrip()


def _framework_titles() -> dict[str, str]:
    """The text beside the name of each preset and alias."""
    from mpsim.framework import framework, framework_aliases, framework_names

    aliases = framework_aliases()
    return {
        name: f"= {aliases[name]}" if name in aliases else framework(name).title
        for name in framework_names()
    }


def _print_framework(name: str, described: Description) -> None:
    """Print fields by area, the scenario that a preset suits, sources and open questions."""
    from mpsim.framework import AREAS, framework, settled_keys
    from mpsim.scenario.settled import in_words

    software, rows = framework(name), []
    for area, group in itertools.groupby(described.figures, key=lambda figure: figure.area):
        heads = itertools.chain([AREAS[area]], itertools.repeat(""))
        rows += [(head, item.name, item.text) for head, item in zip(heads, group, strict=False)]
    title = f"framework {name}: {software.title}"
    print_table(rows, header=("area", "field", "value"), title=title)
    print_text(f"\nread in {software.source} ({software.as_of})")
    suits = {key: str(value).lower() for key, value in software.suits.items()}
    if suits:
        words = ", ".join(in_words(suits))
        print_text(f"written for {words} (a description: the scenario decides)")
    settled = {key: value for group in settled_keys(name) for key, value in group.items()}
    if settled:
        print_text(f"where the scenario leaves them out, it sets {', '.join(in_words(settled))}")
    for note in software.notes:
        print_text(f"- {note}")


def _show_engine(name: str | None, *, as_json: bool) -> None:
    """Print the serving engines, or every field of one with its source."""
    from mpsim.serving.engines import engine, engine_names

    if name is None:
        names = {"engine": list(engine_names())}
        lines = [f"engine: {known:18} {engine(known).title}" for known in engine_names()]
        print_json(names) if as_json else print_text("\n".join(lines))
        return
    preset = engine(name)
    fields = structs.asdict(preset)
    if as_json:
        print_json({"catalog": "engine", **fields})
        return
    heading = ("name", "title", "source", "as_of", "status")
    rows = [(key, _plain_value(value)) for key, value in fields.items() if key not in heading]
    print_table(rows, header=("field", "value"), title=f"engine {preset.name}: {preset.title}")
    print_text(f"source: {preset.source} ({preset.as_of}, {preset.status})")


def _plain_value(value: object) -> str:
    """A field in SI units."""
    if isinstance(value, tuple):
        return f"{len(value)} sizes to {value[-1]}" if value else "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _chosen(word: str | None) -> list[Catalog]:
    """The catalogs that `word` names: one (``model`` or ``models``), ``hardware``, or all."""
    if word is None:
        return list(Catalog)
    if word == "hardware":
        return [Catalog.ACCELERATOR, Catalog.LINK, Catalog.SYSTEM]
    singular = word.removesuffix("s")
    if singular not in set(Catalog):
        raise wrong(
            f"got {word[:60]!r};"
            f" {nearest(word, [*Catalog, 'engine', 'hardware', *HEEDED, 'formats'])}",
            "CATALOG",
        )
    return [Catalog(singular)]


def _show_fabric(name: str | None, asked: Asked, *, as_json: bool) -> None:
    """Print counts, bisection, price and power of a fabric, and draw it if asked to."""
    from mpsim.hardware.inventory import inventory_of

    if name is None:
        raise typer.BadParameter("needed a system such as dgx-h100, or a scenario file")
    cluster = _cluster(name, asked.nodes)
    counted = inventory_of(cluster)
    if as_json:
        print_json(
            {
                "cluster": cluster.name,
                "nodes": cluster.nodes,
                "accelerators": cluster.accelerators,
                "kind": cluster.fabric.kind.value,
                **structs.asdict(counted),
            }
        )
    else:
        _print_fabric(cluster, counted)
    if asked.plot is not None:
        from mpsim.plot import fabric_chart

        wrote(fabric_chart(cluster).save(asked.plot))


def _cluster(name: str, nodes: int | None) -> Cluster:
    from mpsim.hardware import system, system_names, with_overrides
    from mpsim.scenario import load

    if name in system_names() or not Path(name).exists():
        return system(name, nodes=nodes)
    cluster = load(name, checked=False).hardware
    return cluster if nodes is None else with_overrides(cluster, nodes=nodes)


def _print_fabric(cluster: Cluster, counted: Inventory) -> None:
    _print_parts(cluster)
    if counted.tiers:
        rows = [
            (
                tier.name,
                str(tier.units),
                str(min(tier.nodes, cluster.nodes)),
                str(tier.switches),
                str(tier.cables),
                format_quantity(tier.up_bandwidth, Dimension.BANDWIDTH)
                if tier.up_bandwidth
                else "",
                f"{tier.oversubscription:.3g}:1",
            )
            for tier in counted.tiers
        ]
        print_table(rows, header=TIERS, right=range(1, len(TIERS)))
    print_text(counted.describe())


def _print_parts(cluster: Cluster) -> None:
    print_table(((f"  {name}", text) for name, text in cluster.parts.items()), title=cluster.size)


def _show_machine(path: str, *, as_json: bool) -> None:
    """Print a machine file as a table: constants with intervals beside the shipped ones, fit."""
    from mpsim.cost.questions import measured_figures
    from mpsim.hardware.machine import read_machine

    cluster = read_machine(path)
    rows = list(measured_figures(cluster))
    assert cluster.calibration is not None, "a machine file"
    document = cluster.calibration.document
    if as_json:
        figures = [dict(zip(FIGURES, row, strict=True)) for row in rows]
        print_json({"catalog": "machine", "name": cluster.name, "figures": figures, **document})
        return
    _print_parts(cluster)
    print_text(f"\n{cluster.calibration.source} ({cluster.calibration.as_of})")
    sheet = document.get("datasheet", "what mpsim assumes of a machine it does not know")
    print_table(
        rows, header=("constant", *FIGURES[1:]), title=f"measured, beside {sheet}", right=(1, 3)
    )
    fits = [[_cell(fit.get(key)) for key in FITS] for fit in document.get("fits", ())]
    if fits:
        print_text(" ")
        print_table(fits, header=tuple(FITS.values()), right=(2, 3, 4, 5))
    for warning in document.get("warnings", ()):
        print_text(f"warning: {warning}")


def _cell(value: object) -> str:
    if isinstance(value, float):
        return f"{value:.1%}"
    return "" if value is None else str(value)


_TRACE = ("perfetto", "trace of a simulated step for Perfetto (mpsim run --trace)")
"""What is written of a simulated step instead of a scenario."""


def _show_formats(name: str | None, *, as_json: bool) -> None:
    """Print every format, or that of a name, and both ways; FormatError if there is none."""
    from mpsim.formats import WRITERS
    from mpsim.formats.registry import ALIASES, FORMATS, named

    exports = [(item.name, item.title) for item in WRITERS] + [_TRACE]
    written = [item for item in exports if name is None or item[0] == ALIASES.get(name, name)]
    known = FORMATS if name is None else named(name) if _is_read(name) or not written else ()
    also = {
        known.name: [word for word, means in ALIASES.items() if means == known.name]
        for known in FORMATS
    }
    rows: list[tuple[str, str, str, str, list[str]]] = [
        ("import", item.name, item.gives, item.title, also[item.name]) for item in known
    ]
    rows += [("export", word, "", title, []) for word, title in written]
    if as_json:
        keys = ("direction", "format", "gives", "title", "also")
        print_json({"formats": [dict(zip(keys, row, strict=True)) for row in rows]})
        return
    cells = [
        (way, word, gives, title + (f" (also: {', '.join(names)})" if names else ""))
        for way, word, gives, title, names in rows
    ]
    print_table(cells, header=("direction", "format", "gives", "what it is"))


def _is_read(name: str) -> bool:
    """Whether a format of this name is read, not written alone."""
    from mpsim.formats.registry import named

    try:
        return bool(named(name))
    except FormatError:
        return False


MOST = 10_000_000  # nodes or ranks: more is a slip of the keyboard


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """Questions of a kernel (`mpsim.cost.questions.KernelQuestion`), a collective, a fabric.

    --on: Accelerator of a kernel, or system of a collective.
    --precision: Precision of a kernel; left out: bf16.
    --ranks: Ranks of a collective; left out: those of one node.
    --attention: Attention kernel: flash1, triton, flash2, flash3, cudnn, te, trtllm or unfused;
        left out: flash2.
    --pass: Pass of a kernel: forward, backward, dgrad or wgrad.
    --kv-heads: Key-value heads of attention.
    --value-dim: Value dimension of attention.
    --window: Sliding window of attention, in keys.
    --full: Price attention without a causal mask.
    --burst: Assume a short benchmark on a quiet network instead of training.
    --library: Library of a collective: nccl, gloo, ...; left out: the vendor's.
    --calibration: File of measured curves of a collective.
    --nodes: Nodes of a fabric; left out: those it has.
    """

    on: str | None = None
    precision: str | None = None
    ranks: Annotated[int | None, Option(min=1, max=MOST)] = None
    attention_kernel: Annotated[str | None, Option("--attention")] = None
    direction: Annotated[str | None, Option("--pass")] = None
    kv_heads: Annotated[int | None, Option(min=1)] = None
    value_dim: Annotated[int | None, Option(min=1)] = None
    window: Annotated[int | None, Option(min=1)] = None
    full: bool = False
    burst: bool = False
    library: str | None = None
    calibration: Path | None = None
    nodes: Annotated[int | None, Option(min=1, max=MOST)] = None
    plot: Plot = None

    def refuse_unheeded(self, subject: str | None) -> None:
        """Refuse options that are of another question."""
        for field, name in given(self).items():
            if field not in HEEDED.get(subject or "", ()):
                of = [question for question, options in HEEDED.items() if field in options]
                why = (
                    f"applies only to {' or '.join(of)}; leave it out, or ask 'mpsim show {of[0]}'"
                )
                raise wrong(why, name)

    @property
    def clocks(self) -> str:
        """Clocks of a short benchmark, or of training."""
        return "burst" if self.burst else "sustained"


def answer(question: str, text: str | None, asked: Asked, *, as_json: bool) -> None:
    """Print time, rates and constants of one kernel or collective."""
    from mpsim.cost.questions import figure_text

    figures, constants = (_kernel if question == "kernel" else _collective)(text, asked)
    if as_json:
        data = [structs.asdict(constant) for constant in constants]
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
