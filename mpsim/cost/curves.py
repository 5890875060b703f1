"""Measured curves of collectives: seconds by bytes, for measured group shapes and between.

A calibration file holds them (docs/reference/calibration.md), which is read strictly: every mistake
is told with its line. It is YAML, or JSON, which is YAML::

    schema: 1
    name: my-cluster
    source: nccl-tests 2.13 on two of our nodes, NCCL 2.27.3
    as_of: 2026-11-21
    library: nccl               # optional: the curves are refused for another library
    accelerator: h100-sxm       # optional: likewise
    switch_jump: 0.35           # optional
    curves:
      - {collective: all_reduce, ranks: 8, domains: 1, bytes: [1024, 2048], seconds: [1e-5, 1.2e-5]}
"""

from __future__ import annotations

import datetime as dt
import math
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import Constant, Status
from mpsim.cost.network import COLLECTIVES
from mpsim.document import Document, read_document
from mpsim.errors import CalibrationError, Problem, ScenarioError, nearest
from mpsim.hardware.components import Calibration
from mpsim.inputs import shown
from mpsim.parallel.crossing import GroupShape
from mpsim.workload.operators import Operator, OperatorKind, Role

Place = tuple[str, int, int]  # collective, ranks, domains

SWITCH_JUMP = 0.35


@structs.dataclass(frozen=True, slots=True)
class Curve:
    """Time of one collective in one group, as measured.

    Notes
    -----
    Straight lines in log-log between neighbours. Within one algorithm time cannot grow faster than
    S (``a + S/B + c sqrt(S)``), so where it does by more than `switch_jump`, something switched:
    both lines go on to the middle, and the curve jumps there instead of being smoothed.
    Measurements that fall with S (noise, or a library that switches too late) are pooled into their
    geometric mean, so the curve never falls. Outside the measured sizes it is linear in S.
    """

    sizes: tuple[float, ...]  # S, rising [B]
    times: tuple[float, ...]  # S [s]
    # how much faster than S the time grows between neighbours that count as two algorithms
    switch_jump: float = SWITCH_JUMP

    def __post_init__(self) -> None:
        if len(self.sizes) != len(self.times) or not self.sizes:
            raise CalibrationError(
                f"got {len(self.sizes)} sizes and {len(self.times)} times; needed as many, at"
                " least one"
            )
        if not all(math.isfinite(v) and v > 0 for v in (*self.sizes, *self.times)):
            raise CalibrationError("sizes and times have to be finite numbers above 0")
        if any(b <= a for a, b in zip(self.sizes, self.sizes[1:], strict=False)):
            raise CalibrationError("sizes have to rise, each one once")

    @property
    def switches(self) -> tuple[float, ...]:
        """Sizes at which the curve jumps from one algorithm to the next [B]."""
        s = self.sizes
        return tuple(math.sqrt(s[i] * s[i + 1]) for i in _jumps(s, self._pooled, self.switch_jump))

    @property
    def _pooled(self) -> tuple[float, ...]:
        return _rising(self.times)

    def seconds(self, size: ArrayLike) -> Floats:
        """Time of S bytes [s]."""
        given = np.asarray(size, dtype=np.float64)
        # every piece is evaluated at every size: a few cost less than splitting the sizes
        piece = np.searchsorted(np.array(self.switches), given, side="right")
        lines = [_line(given, sizes, times) for sizes, times in self._pieces()]
        stacked = np.stack([np.broadcast_to(times, given.shape) for times in lines])
        result: Floats = np.take_along_axis(stacked, piece[None, ...], axis=0)[0]
        return result

    def _pieces(self) -> list[tuple[Floats, Floats]]:
        """Measured points of each algorithm: sizes and times."""
        times = np.array(self._pooled)
        sizes = np.array(self.sizes)
        cuts = [i + 1 for i in _jumps(self.sizes, self._pooled, self.switch_jump)]
        bounds = zip([0, *cuts], [*cuts, len(sizes)], strict=True)
        return [(sizes[low:high], times[low:high]) for low, high in bounds]


def _rising(times: tuple[float, ...]) -> tuple[float, ...]:
    """The nearest curve in log that never falls: neighbours that do are pooled."""
    # pool-adjacent-violators: a block below the one before takes with it their mean in log
    blocks: list[tuple[float, int]] = []
    for value in times:
        blocks.append((math.log(value), 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, m), (b, n) = blocks[-2], blocks[-1]
            blocks[-2:] = [((a * m + b * n) / (m + n), m + n)]
    return tuple(math.exp(level) for level, count in blocks for _ in range(count))


def _jumps(sizes: tuple[float, ...], times: tuple[float, ...], jump: float) -> list[int]:
    """Points after which the time grows faster than S by more than `jump`."""
    steps = range(len(sizes) - 1)
    return [i for i in steps if times[i + 1] / times[i] > (1 + jump) * sizes[i + 1] / sizes[i]]


def _line(size: Floats, sizes: Floats, times: Floats) -> Floats:
    """Log-log between points of one algorithm; linear beyond, never falling or faster than S."""
    first, last = (sizes[0], times[0]), (sizes[-1], times[-1])
    if len(sizes) == 1:
        alone: Floats = first[1] * np.maximum(1.0, size / first[0])
        return alone
    with np.errstate(divide="ignore"):  # log of 0 bytes; such sizes take `below`
        inner = np.exp(np.interp(np.log(size), np.log(sizes), np.log(times)))
    low = min((times[1] - times[0]) / (sizes[1] - sizes[0]), times[0] / sizes[0])
    high = (times[-1] - times[-2]) / (sizes[-1] - sizes[-2])
    below = first[1] - (first[0] - size) * low
    above = last[1] + (size - last[0]) * high
    result: Floats = np.where(size < first[0], below, np.where(size > last[0], above, inner))
    return result


@structs.dataclass(frozen=True, slots=True)
class Reading:
    """Measured curves that give the time of one collective in one group."""

    curves: tuple[Curve, ...]  # the measured one, or the two neighbours in group size
    weight: float  # share of the second one, in log
    about: str  # what was measured, in words
    constant: Constant  # for the provenance: how many points

    def seconds(self, size: ArrayLike) -> Floats:
        """Time of S bytes [s]; between two group sizes interpolated in log of the time."""
        if len(self.curves) == 1:
            return self.curves[0].seconds(size)
        low, high = (curve.seconds(size) for curve in self.curves)
        result: Floats = low ** (1 - self.weight) * high**self.weight
        return result

    def basis(self, size: float) -> str:
        """Basis of the time of S bytes, in words."""
        inside = all(c.sizes[0] <= size <= c.sizes[-1] for c in self.curves)
        return self.about if inside else f"{self.about}, beyond the measured sizes"


@structs.dataclass(frozen=True, slots=True)
class CollectiveCurves:
    """Every curve of a calibration file."""

    name: str  # name, source, as_of: of the calibration; where and when it was measured
    source: str
    as_of: str
    curves: Mapping[Place, Curve]
    # library, accelerator: what they were measured with and on; empty where the file does not say
    library: str = ""
    accelerator: str = ""

    def check_made_for(self, library: str, accelerator: str) -> None:
        """Refuse curves of another library or accelerator. CalibrationError."""
        for what, own, other in (
            ("library", self.library, library),
            ("accelerator", self.accelerator, accelerator),
        ):
            if own and own != other:
                raise CalibrationError(
                    f"calibration {self.name!r} was measured with {what} {own}, but {other} was"
                    " asked for"
                )

    def reading(self, kind: str, group: GroupShape) -> Reading | None:
        """Reading for `kind` in `group`; None where neither it nor neighbours were measured.

        Notes
        -----
        Neighbours have the same ranks a domain and other domains, or other ranks in one domain.
        """
        own = self.curves.get((kind, group.ranks, group.domains))
        if own is not None:
            where = "one domain" if group.domains == 1 else f"{group.domains} domains"
            about = f"measured on {group.ranks} ranks in {where}"
            return self._reading(kind, group, (own,), 0.0, about)
        known = sorted(
            n for n, d in self._alike(kind, group) if d == group.domains or group.crosses
        )
        below = [n for n in known if n < group.ranks]
        above = [n for n in known if n > group.ranks]
        if not below or not above:
            return None
        low, high = below[-1], above[0]
        domains = dict(self._alike(kind, group))
        pair = tuple(self.curves[kind, n, domains[n]] for n in (low, high))
        weight = math.log(group.ranks / low) / math.log(high / low)
        about = f"interpolated between {low} and {high} ranks"
        return self._reading(kind, group, pair, weight, about)

    def _alike(self, kind: str, group: GroupShape) -> list[tuple[int, int]]:
        """Ranks and domains of the measured groups that fill domains as this one does."""
        return [
            (n, d)
            for k, n, d in self.curves
            if k == kind
            and (d > 1) == group.crosses
            and (d == 1 or n * group.domains == group.ranks * d)
        ]

    def _reading(
        self, kind: str, group: GroupShape, pair: tuple[Curve, ...], weight: float, about: str
    ) -> Reading:
        status = Status.CALIBRATED if len(pair) == 1 else Status.FAMILY_DEFAULT
        points = float(sum(len(curve.sizes) for curve in pair))
        name = f"calibration.{kind}.{group.ranks}x{group.domains}.points"
        source = f"{about}: {self.source} ({self.name})"
        constant = Constant(name, points, "1", source, self.as_of, status)
        return Reading(pair, weight, about, constant)


_ELEMENTWISE = "residual_add"  # what no curve of its own was measured for
_CURVES = {
    Role.ACTIVATION: "activation",
    Role.GATE: "gate",
    Role.GATE_TIMES_UP: "gate",
    Role.RESIDUAL_DROPOUT: "dropout",
    Role.ATTENTION_DROPOUT: "dropout",
}


def kernel_class(operator: Operator) -> str:
    """Name of the measured curve of a memory-bound kernel: its kind, or what it computes."""
    if operator.kind not in (OperatorKind.ELEMENTWISE, OperatorKind.GATHER):
        return operator.kind.value
    return _CURVES.get(operator.role, _ELEMENTWISE)


def kernel_reading(calibration: Calibration | None, kernel: str, phase: str) -> Reading | None:
    """The curve of a class of memory-bound kernels (`kernel_class`) by bytes moved, or None."""
    if calibration is None or not calibration.kernels:
        return None
    curve = calibration.kernel_curve(kernel, phase)
    if curve is None and kernel in _CURVES.values():
        curve = calibration.kernel_curve(_ELEMENTWISE, phase)
    if curve is None:
        return None
    name = f"calibration.kernels.{curve.kind}.{curve.phase}.points"
    constant = Constant(
        name, float(len(curve.sizes)), "1", calibration.source, calibration.as_of, Status.CALIBRATED
    )
    about = f"measured {curve.kind} {curve.phase}"
    return Reading((Curve(curve.sizes, curve.times),), 0.0, about, constant)


def machine_curves(calibration: Calibration | None, library: str) -> CollectiveCurves | None:
    """The curves of collectives that a machine measured with `library`, or None."""
    if calibration is None or not calibration.collectives or calibration.library != library:
        return None
    curves = {
        (curve.kind, curve.ranks, curve.domains): Curve(curve.sizes, curve.times)
        for curve in calibration.collectives
    }
    return CollectiveCurves(
        calibration.name, calibration.source, calibration.as_of, curves, calibration.library
    )


_SCHEMA = 1
_REQUIRED = ("schema", "name", "source", "as_of", "curves")
_TEXTS = ("name", "source", "as_of", "library", "accelerator")
_KEYS = (*_REQUIRED, "library", "accelerator", "switch_jump")
_CURVE_REQUIRED = ("collective", "ranks", "bytes", "seconds")
_CURVE_KEYS = (*_CURVE_REQUIRED, "domains")


def load_curves(path: str | Path) -> CollectiveCurves:
    """Read a calibration file. CalibrationError with every mistake found and its line."""
    try:
        document = read_document(path)
    except ScenarioError as error:
        raise CalibrationError(str(error)) from error
    problems = [*document.problems, *_problems(document)]
    curves: dict[Place, Curve] = {}
    if not problems:
        curves, problems = _curves(document)
    if problems:
        raise CalibrationError(str(ScenarioError(map(document.locate, problems))))
    texts = {key: str(document.data[key]) for key in _TEXTS if key in document.data}
    return CollectiveCurves(curves=curves, **texts)


def _problems(document: Document) -> Iterator[Problem]:
    """Mistakes in the form of the file."""
    data = document.data
    if "curves" not in data:  # nothing is told of a file that is none
        yield Problem("is no calibration file; needed schema, name, source, as_of and curves")
        return
    yield from _wrong_keys(data, _KEYS, _REQUIRED, "")
    if data.get("schema", _SCHEMA) != _SCHEMA:
        yield Problem(f"got {shown(data['schema'])}; this version reads schema {_SCHEMA}", "schema")
    for key in _TEXTS:
        if key in data and (not isinstance(data[key], str) or not data[key]):
            yield Problem(f"got {shown(data[key])}; needed a text", key)
    if isinstance(data.get("as_of"), str) and not _is_date(data["as_of"]):
        yield Problem(f"got {shown(data['as_of'])}; needed a date such as 2026-11-21", "as_of")
    jump = data.get("switch_jump", SWITCH_JUMP)
    if not _is_number(jump) or jump <= 0:
        yield Problem(f"got {shown(jump)}; needed a number above 0", "switch_jump")
    entries = data.get("curves", [{}])
    if not isinstance(entries, list) or not entries:
        yield Problem("needed a list of one curve or more", "curves")
        return
    for index, entry in enumerate(entries if "curves" in data else []):
        yield from _curve_problems(entry, f"curves.{index}")


def _curve_problems(entry: object, key: str) -> Iterator[Problem]:
    if not isinstance(entry, dict):
        yield Problem(f"got {shown(entry)}; needed collective, ranks, bytes and seconds", key)
        return
    yield from _wrong_keys(entry, _CURVE_KEYS, _CURVE_REQUIRED, f"{key}.")
    if (kind := entry.get("collective", COLLECTIVES[0])) not in COLLECTIVES:
        yield Problem(f"got {shown(kind)}; {nearest(str(kind), COLLECTIVES)}", f"{key}.collective")
    for name, least in (("ranks", 2), ("domains", 1)):
        value = entry.get(name, least)
        if type(value) is not int or value < least:
            yield Problem(f"got {shown(value)}; needed {least} or more", f"{key}.{name}")
    for name in ("bytes", "seconds"):
        values = entry.get(name, [])
        if not isinstance(values, list) or not all(_is_number(value) for value in values):
            yield Problem("needed a list of plain numbers, in B and in s", f"{key}.{name}")


def _curves(document: Document) -> tuple[dict[Place, Curve], list[Problem]]:
    curves: dict[Place, Curve] = {}
    problems = []
    jump = float(document.data.get("switch_jump", SWITCH_JUMP))
    for index, entry in enumerate(document.data["curves"]):
        place = (entry["collective"], entry["ranks"], entry.get("domains", 1))
        key = f"curves.{index}"
        if entry["ranks"] % place[2]:
            problems.append(Problem(f"{place[1]} ranks do not fill {place[2]} domains", key))
        if place in curves:
            problems.append(Problem(f"{place[0]} of {place[1]} ranks was given before", key))
        try:
            times = tuple(map(float, entry["seconds"]))
            curves[place] = Curve(tuple(map(float, entry["bytes"])), times, jump)
        except CalibrationError as error:
            problems.append(Problem(str(error), key))
    return curves, problems


def _wrong_keys(
    data: Mapping[str, object], known: tuple[str, ...], required: tuple[str, ...], head: str
) -> Iterator[Problem]:
    for key in data:
        if key not in known:
            yield Problem(f"unknown key; {nearest(str(key), known)}", f"{head}{key}")
    for key in required:
        if key not in data:
            yield Problem("missing", f"{head}{key}")


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _is_date(text: str) -> bool:
    try:
        dt.date.fromisoformat(text if text.count("-") > 1 else f"{text}-01")
    except ValueError:
        return False
    return True
