"""Studies in words: the tables and sentences that commands print and notebooks show.

Figures come as plain data, in the shape of ``--json``, so that whoever has stored them can show them too.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from mpsim.sheet import Section, Sheet
from mpsim.table import plural
from mpsim.units import Dimension, format_quantity, percent

if TYPE_CHECKING:
    from mpsim.study.row import Row

__all__ = [
    "assigned",
    "comparison_sheet",
    "figure_text",
    "goodput_sheet",
    "part_text",
    "scale_sheet",
    "sensitivity_sheet",
    "share_text",
    "sweep_sheet",
]

_SHARE, _COUNT, _PRICE = "share", "count", "USD"
_USUAL: Final = 4  # digits of a figure; counts have another
_FIGURES: Final[Mapping[str, tuple[str, str | Dimension]]] = MappingProxyType(
    {
        "accelerators": ("accelerators", _COUNT),
        "step_time_s": ("step time", Dimension.TIME),
        "tokens_per_s": ("tokens/s", _COUNT),
        "tokens_per_s_per_accelerator": ("tokens/s per accelerator", _COUNT),
        "mfu": ("MFU", _SHARE),
        "hfu": ("HFU", _SHARE),
        "tensor_utilisation": ("matrix units", _SHARE),
        "bubble_fraction": ("pipeline bubble", _SHARE),
        "peak_memory_bytes": ("peak memory", Dimension.BYTES),
        "energy_j_per_step": ("energy a step", Dimension.ENERGY),
        "energy_j_per_token": ("energy a token", Dimension.ENERGY),
        "accelerator_power_w": ("mean power", Dimension.POWER),
        "meter_energy_j_per_step": ("at the meter", Dimension.ENERGY),
        "cost_per_step": ("price a step", _PRICE),
        "accelerator_s_per_output_token": ("accelerator time an output token", Dimension.TIME),
        "output_tokens_per_s": ("output tokens/s", _COUNT),
        "output_tokens_per_s_per_accelerator": ("output tokens/s per accelerator", _COUNT),
        "output_tokens_per_s_per_user": ("output tokens/s per user", _COUNT),
        "ttft_mean_s": ("TTFT, mean", Dimension.TIME),
        "ttft_p99_s": ("TTFT, p99", Dimension.TIME),
        "tpot_mean_s": ("TPOT, mean", Dimension.TIME),
        "tpot_p99_s": ("TPOT, p99", Dimension.TIME),
        "e2e_mean_s": ("E2E, mean", Dimension.TIME),
        "goodput_per_s": ("goodput, requests/s", _COUNT),
        "requests_within_slo": ("requests within limits", _SHARE),
        "utilisation": ("utilisation", _SHARE),
        "energy_j_per_output_token": ("energy an output token", Dimension.ENERGY),
        "cost_per_million_output_tokens": ("price a million output tokens", _PRICE),
    }
)
"""Words and kind of each figure of a comparison; parts of a step, which are times, have none."""


def comparison_sheet(told: Mapping[str, Any]) -> Sheet:
    """Both results figure by figure, then part by part, then why they differ: the data of ``mpsim compare --json``."""
    rows: tuple[tuple[str, ...], ...] = tuple(
        (
            _FIGURES[name][0] if name in _FIGURES else name.replace("_", " "),
            figure_text(name, figure["a"]),
            figure_text(name, figure["b"]),
            figure_text(name, figure["difference"], signed=True),
            share_text(figure["relative"]),
            *(_range(name, figure, side) for side in "ab"),
        )
        for name, figure in (*told["figures"].items(), *told["breakdown_s"].items())
        if figure["a"] or figure["b"]
    )
    header: tuple[str, ...] = ("", "A", "B", "B - A", "of A", "80 % of A", "80 % of B")
    if not any(row[-1] for row in rows):
        rows, header = tuple(row[:-2] for row in rows), header[:-2]
    names = Section((("A", told["a"]), ("B", told["b"])))
    figures = Section(rows, header, tuple(range(1, len(header))), lines=(told["explanation"],))
    return Sheet("", (names, figures))


def figure_text(name: str, value: float | None, *, signed: bool = False, digits: int = 4) -> str:
    """A figure as people write it; parts of a step are times. Differences are `signed`, those of shares in points."""
    if value is None:
        return "-"
    kind = _FIGURES[name][1] if name in _FIGURES else Dimension.TIME
    sign = "+" if signed and value > 0 else ""
    if kind == _SHARE:
        return f"{100 * value:+.1f} points" if signed else percent(value)
    if isinstance(kind, Dimension):
        return sign + format_quantity(value, kind, digits=digits)
    if kind == _PRICE:
        return f"{sign}{value:.4g} USD"
    if value == int(value) or abs(value) >= 10 ** (digits if digits < _USUAL else 4):
        return f"{sign}{value:,.0f}"
    return f"{sign}{value:,.{digits + 1}g}"


def part_text(seconds: float | None) -> str:
    """Seconds as people write them."""
    return "?" if seconds is None else format_quantity(seconds, Dimension.TIME)


def share_text(value: float | None) -> str:
    """A relative difference."""
    return "-" if value is None else percent(value, signed=True)


def _range(name: str, figure: Mapping[str, Any], side: str) -> str:
    ends = figure.get("interval", {}).get(side, ())
    return " - ".join(figure_text(name, end, digits=3) for end in ends)


def assigned(values: Mapping[str, object]) -> str:
    """Values by dotted key in one line."""
    return ", ".join(f"{key} {value}" for key, value in values.items())


_STEP_COLUMNS = ("step (s)", "tokens/s/acc.", "MFU", "bubble", "memory (GB)")
_ENERGIES: Final[Mapping[str, str]] = MappingProxyType(
    {"J/token": "energy_j_per_token", "at meter": "meter_energy_j_per_token"}
)
_SERVICE_ENERGIES: Final[Mapping[str, str]] = MappingProxyType(
    {"J/token": "energy_j_per_output_token"}
)
_SERVICE_COLUMNS: Final[Mapping[str, tuple[str, float]]] = MappingProxyType(
    {
        "TTFT p99 (ms)": ("ttft_s.p99", 1e3),
        "TPOT p99 (ms)": ("tpot_s.p99", 1e3),
        "tokens/s": ("output_tokens_per_s", 1.0),
        "tokens/s/acc.": ("output_tokens_per_s_per_accelerator", 1.0),
        "goodput (1/s)": ("goodput_per_s", 1.0),
    }
)


def sweep_sheet(
    keys: Sequence[str],
    rows: Sequence[Row],
    *,
    best: Row | None,
    thriftiest: Row | None,
    ties: int,
    warnings: Mapping[str, int],
) -> Sheet:
    """One line a combination, the best, then why some cannot run and what others warn of.

    Parameters
    ----------
    keys : sequence of str
        Of the values, in their order.
    best, thriftiest : Row or None
        Of most tokens, and of least energy.
    ties : int
        Rows that cannot be told from the best.
    warnings : mapping of str to int
        And how many rows have each.
    """
    serves = any(row.serves for row in rows)
    # layouts of one cluster differ little in energy, and their keys need the room
    hardware = any(key.startswith("cluster.") for key in keys)
    energies = (_SERVICE_ENERGIES if serves else _ENERGIES) if hardware else {}
    notes: dict[str, int] = {}
    lines = []
    for row in rows:
        figures = _service_figures(row) if serves else _step_figures(row)
        figures += tuple(_joules(row.number(name)) for name in energies.values())
        reason = row.reason or ""
        mark = f"[{notes.setdefault(reason, len(notes) + 1)}]" if reason else ""
        lines.append((*map(str, row.values.values()), *figures, mark))
    names = (*(_SERVICE_COLUMNS if serves else _STEP_COLUMNS), *energies)
    first = len(keys)
    right = tuple(range(first, first + len(names)))
    header = (*keys, *names, *(("note",) if notes else ()))
    below = [f"[{number}] {reason}" for reason, number in notes.items()]
    if best is not None:
        what = (
            "output tokens/s per accelerator within the limits"
            if serves
            else "tokens/s per accelerator that fit"
        )
        tie = f"; tie with {plural(ties, 'other')} within the error of such differences"
        below.append(f"most {what}: {assigned(best.values)}{tie if ties else ''}")
    other = best is None or thriftiest is None or thriftiest.values != best.values
    if hardware and not serves and thriftiest is not None and other:
        below.append(f"least energy a token at the meter: {assigned(thriftiest.values)}")
    for warning, count in warnings.items():
        below.append(f"warning of {count:,} of {plural(len(rows), 'row')}: {warning}")
    return Sheet("", (Section(tuple(lines), header, right, lines=tuple(below)),))


def _step_figures(row: Row) -> tuple[str, ...]:
    if row.summary is None:
        return ("-",) * len(_STEP_COLUMNS)
    return (
        f"{row.number('step_time_s'):.5g}",
        f"{row.number('tokens_per_s_per_accelerator'):.5g}",
        percent(row.number("mfu")),
        percent(row.number("bubble_fraction")),
        f"{row.number('peak_memory_bytes') / 1e9:.1f}",
    )


def _joules(value: float) -> str:
    """Energy a token; rows that were stored before it was kept lack it."""
    return "-" if math.isnan(value) else f"{value:.3g}"


def _service_figures(row: Row) -> tuple[str, ...]:
    return tuple(
        "-" if math.isnan(row.number(name)) else f"{row.number(name) * factor:.5g}"
        for name, factor in _SERVICE_COLUMNS.values()
    )


def goodput_sheet(
    told: Mapping[str, Any], *, name: str = "", tokens_per_s: float | None = None
) -> Sheet:
    """Shares of the time, then what interrupts it and how often it is saved.

    Parameters
    ----------
    told : mapping
        The data of ``mpsim goodput --json``.
    name : str
        Of the scenario.
    tokens_per_s : float, optional
        Without failures.
    """
    rows = tuple((part, percent(share, digits=2)) for part, share in told["shares"].items())
    rate = ""
    if tokens_per_s is not None:
        rate = f": {tokens_per_s * told['effective']:,.0f} of {tokens_per_s:,.0f} tokens/s"
    between, spread = (
        " to ".join(percent(told[f"effective_{end}"], digits=2) for end in ends)
        for ends in (("low", "high"), ("p5", "p95"))
    )
    progress = (
        f"{percent(told['effective'], digits=2)} of the time is progress (95 % confidence {between}; one run in ten is outside "
        f"{spread}){rate}."
    )
    size = format_quantity(told["checkpoint_bytes"], Dimension.BYTES, digits=3)
    saved = (
        f"One interruption every {_span(told['mean_time_between_interruptions_s'])}; a checkpoint of {size} every "
        f"{_span(told['interval_s'])} stops training for {_span(told['checkpoint_blocking_s'])} (best interval by Young "
        f"{_span(told['young_interval_s'])}, by Daly {_span(told['daly_interval_s'])})."
    )
    lead = f"{name}: " if name else ""
    title = f"{lead}{told['days']:g} days, {plural(told['trials'], 'trial')}"
    section = Section(rows, ("where the time goes", "share"), (1,), lines=(progress, saved))
    return Sheet(title, (section,))


_LADDER = (("d", 86400.0), ("h", 3600.0), ("min", 60.0))


def _span(seconds: float | None) -> str:
    """A time of any length: 3.09 h, 2.31 s; without end where there is none."""
    if seconds is None or not math.isfinite(seconds):
        return "ever"
    for unit, scale in _LADDER:
        if seconds >= 2 * scale or (unit != "d" and seconds >= scale):
            return f"{seconds / scale:.3g} {unit}"
    return format_quantity(seconds, Dimension.TIME, digits=3)


def sensitivity_sheet(told: Mapping[str, Any]) -> Sheet:
    """Elasticities, the strongest first."""
    rows = tuple(
        (row["name"], row["kind"], row["value"], f"{row['elasticity']:+.4f}")
        for row in told["rows"]
    )
    header = ("parameter", "of the", "value", "% of step time for 1 % more")
    title = f"sensitivity of {told['scenario']}"
    return Sheet("", (Section(rows, header, (2, 3), title=title),))


_GROWN = 3  # parts that are told
_LEAST = 0.0005  # share of the step


def scale_sheet(told: Mapping[str, Any]) -> Sheet:
    """One line a size that can run, a table a mode: the data of ``mpsim scale --json``."""
    header = (
        *("accelerators", "step (s)", "tokens/s", "tokens/s/acc.", "MFU", "efficiency"),
        "grown since the smallest",
    )
    sizes: dict[str, list[tuple[str, ...]]] = {}
    for row in told["rows"]:
        if "reason" not in row:
            sizes.setdefault(row["mode"], []).append(_size(row))
    sections = (
        Section(tuple(rows), header, tuple(range(6)), f"{told['scenario']}, {mode} scaling")
        for mode, rows in sizes.items()
    )
    return Sheet("", tuple(sections))


def _size(row: Mapping[str, Any]) -> tuple[str, ...]:
    grown = (
        f"{name.replace('_', ' ')} +{100 * more:.1f} points"
        for name, more in list(row["eaten_by"].items())[:_GROWN]
        if more > _LEAST
    )
    return (
        f"{row['accelerators']:,}",
        f"{row['step_time_s']:.4g}",
        f"{row['tokens_per_s']:,.0f}",
        f"{row['tokens_per_s_per_accelerator']:,.1f}",
        percent(row["mfu"]),
        percent(row["efficiency"]),
        ", ".join(grown),
    )
