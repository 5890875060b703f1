"""Residuals: how far predictions were off on measured runs whose names they did not know, and the
interval that a new prediction gets from that.

A residual is e = ln(predicted / measured). Its spread is that of its parts, and grows with the
distance of what is predicted to the nearest measured runs:

    sigma^2 = sum over parts of (share x noise)^2 + sum over attributes of what is not shared with
    them + (doubling x doublings of the size beyond theirs)^2 + single^2 + guess^2

where the parts of a step are those of its account (its ``compute``, ``compiled`` where a compiler
chose and ordered all kernels, exposed ``exchange``, ``rest``), and other figures are one part, of
the kind that a label names (`KIND_OF`); ``single`` counts if fewer than two sources measured the
accelerator or its rate of products is assumed, and ``guess`` for each setting that was left open.
80 % of e / sigma lie between two quantiles, whose sizes differ because the mean of e is not 0;
sigma is ``wider`` where few families have a part, whose noise may be these families' own.
Where the peak may be more than there is, measured runs are slower alone: an allocator that finds no
room synchronises, frees what it cached and allocates again, so odds x ``full``^2 adds to that side.
Everything is fitted by ``validation/intervals.py`` with whole families of runs left out, one file a
figure in ``mpsim/result/data``.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence

from mpsim import structs
from mpsim.hardware import SCALED_FORMATS, Accelerator, rates_apart
from mpsim.memo import Memo, remembered
from mpsim.result.words import Figures
from mpsim.shipped import read_shipped
from mpsim.table import plural

_PACKAGE = "mpsim.result.data"
_PLACES = 256  # settings whose nearest runs are kept
_REST = ("micro batch", "sharding", "schedule", "recompute")  # parts of the label `rest`
_PAIRED = {"format": "format", "framework": "release"}  # attributes that pairs were measured with
_NARROW = ("fp8", "fp4", "int8", "int4")
_NUMBERS = ("size", "guessed", "full")  # fields of a `Setting`
_STEPS = ("step", "step-experts")  # figures whose parts are those of the account of a step
MOST_GUESSED = 4  # guessed settings from which one more widens an interval no further
LEVEL = 0.8  # share of measured values that lie in their interval
HALF_WIDTH = 1.2816  # half-width of such an interval of a normal distribution over its sigma
FIGURES = (*(*_STEPS, "memory", "collective", "kernel"), *("ttft", "tpot", "throughput"))
"""Figures whose residuals are known: one file each."""
KIND_OF = {
    "memory": "seen",  # as what is handed out, what is reserved or what a device reports
    "ttft": "arrival",  # requests that meet wait for each other
    **dict.fromkeys(("tpot", "throughput"), "model"),
}
"""Label of which each name has a noise of its own; a step has one for each part of its account."""
FASTEST_BY = ("accelerator", "format", "length", "model")
"""Attributes that trainings share which are of one kind, of which the fastest was measured."""
EXACT = "exact: an order of actions has no residual"  # basis of an interval of no width


@structs.dataclass(frozen=True, slots=True)
class Interval:
    """Range that holds the measured value in `LEVEL` of all cases, and the prediction always."""

    low: float  # low, high: in the unit of the prediction
    high: float
    basis: str = ""  # what it rests on, in words

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high

    @property
    def sigma(self) -> float:
        """Spread of the logarithm of the measured figure, taken as normal."""
        return math.log(self.high / self.low) / 2 / HALF_WIDTH

    def inverse(self, amount: float) -> Interval:
        """The interval of ``amount / figure``: of a rate, where this one is of a time."""
        return Interval(amount / self.high, amount / self.low, self.basis)

    def odds(self, limit: float) -> float:
        """Probability that the measured figure is at most `limit`: of a logarithm that is normal
        and has the ends as its quantiles.

        Examples
        --------
        >>> interval = Interval(9.0, 16.0)
        >>> interval.odds(12.0), round(interval.odds(16.0), 3)
        (0.5, 0.9)
        """
        sigmas = (math.log(limit) - math.log(self.low * self.high) / 2) / self.sigma
        return 0.5 * math.erfc(-sigmas / math.sqrt(2.0))

    def limit(self, odds: float) -> float:
        """Figure that the measured one is above with probability ``1 - odds``.

        Examples
        --------
        >>> interval = Interval(9.0, 16.0)
        >>> round(interval.limit(0.5), 9), round(interval.limit(0.9), 3)
        (12.0, 16.0)
        """
        sigmas = statistics.NormalDist().inv_cdf(odds)
        return math.sqrt(self.low * self.high) * math.exp(sigmas * self.sigma)

    def to_json(self) -> list[float]:
        """Both ends."""
        return [self.low, self.high]


@structs.dataclass(frozen=True, slots=True)
class Setting:
    """The attributes of a prediction that its residual depends on.

    Examples
    --------
    >>> near = Setting({"framework": ("megatron-core", "nvidia")}, 64)
    >>> mine, other = ("nemo-2", "nvidia"), ("torch-ddp", "pytorch")
    >>> near.level("framework", mine), near.level("framework", other)
    (1, 2)
    """

    # attributes such as ``framework``: its names from the most special to the most general,
    # ``("megatron-core", "nvidia")``
    labels: Mapping[str, tuple[str, ...]]
    size: float  # accelerators, bytes or whatever the figure grows with; distances are ratios
    # settings that matter (degrees, recomputation, ...) and were left open by the describer
    guessed: int = 0
    # of a step that was accounted, or of a whole request: how much of it each part is
    shares: Mapping[str, float] = structs.field(default_factory=dict)
    full: float = 0.0  # odds that its peak is beyond memory, of software that allocates as it runs
    own: int = 0  # runs like it whose measured times the machine was calibrated with

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        labels = {name: list(names) for name, names in self.labels.items()}
        numbers = structs.named(self, *_NUMBERS) | ({"own": self.own} if self.own else {})
        return {**labels, **numbers, "shares": dict(self.shares)}

    @classmethod
    def from_json(cls, data: Figures) -> Setting:
        """The setting that `to_json` gave."""
        known = {name: data[name] for name in (*_NUMBERS, "own", "shares") if name in data}
        labels = {name: tuple(map(str, own)) for name, own in data.items() if name not in known}
        return cls(labels, **known)

    def parts(self, figure: str) -> Mapping[str, float]:
        """Shares of the parts of a figure; none of a step that was not accounted."""
        if figure in _STEPS:
            return self.shares
        return {next(iter(self.labels.get(KIND_OF.get(figure, ""), ())), ""): 1.0}

    def level(self, attribute: str, names: Sequence[str]) -> int:
        """How far up to go until names are shared: 0 the same; their number where none is."""
        mine = self.labels.get(attribute, ())
        for level, (a, b) in enumerate(zip(mine, names, strict=False)):
            if a and a == b:  # an empty name is one that is not known, which nothing shares
                return level
        return max(len(mine), len(names))


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredRuns:
    """Measured runs of one family that share every attribute, predicted."""

    family: str  # table that they come from
    labels: Mapping[str, tuple[str, ...]]  # as those of a `Setting`
    smallest: float  # smallest, largest: sizes
    largest: float
    rows: int
    # mean_abs_error, bias: of predictions with names hidden and the family left out of the fit, as
    # fractions; the bias with its sign
    mean_abs_error: float
    bias: float

    def scale(self, size: float) -> float:
        """Factor by which a size is beyond the largest (above 1) or least (below 1) run; else 1."""
        return max(1.0, size / self.largest) * min(1.0, size / self.smallest)


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Residuals:
    """Residuals of one figure."""

    figure: str  # of `FIGURES`
    noise: Mapping[str, float]  # sigma right beside measured runs of each of `Setting.parts`
    usual: Mapping[str, float]  # shares of what was measured in the mean, for what says none
    # sigma that each level of an attribute adds where it is not shared; see `Setting.level`
    attributes: Mapping[str, tuple[float, ...]]
    doubling: float  # sigma that a doubling of the size beyond measured runs adds
    most_doublings: float  # doublings that count where nothing was measured
    guess: float  # sigma that each setting adds that is guessed, up to `MOST_GUESSED`
    quantiles: tuple[float, float]  # of e / sigma: the lower one negative, the upper one positive
    # half-widths, at `LEVEL`, of the difference of two residuals of one family that differ in one
    # kind of `decisions` or in nothing (``same``); empty where none was measured
    pairs: Mapping[str, float]
    rows: int  # rows, families: that the fit rests on
    families: int
    runs: tuple[MeasuredRuns, ...]
    # accelerators that two sources or more measured, with rates of products of their own
    several: frozenset[str] = frozenset()
    single: float = 0.0  # sigma that any other accelerator adds
    full: float = 0.0  # sigma that a peak beyond memory adds to the slower side
    # factor of sigma by how many families have each of `Setting.parts`: noise of few may be theirs
    wider: Mapping[str, float] = structs.field(default_factory=dict)
    # a sweep's thousands of layouts of one model are equally far from everything
    _places: Memo[tuple[object, ...], tuple[float, MeasuredRuns | None]] = structs.field(
        default_factory=lambda: Memo(_PLACES), init=False, compare=False, repr=False
    )

    def sigma(self, setting: Setting) -> float:
        """Spread of a setting's residual, by its parts and its distance to measured runs."""
        alone = self.several.isdisjoint(setting.labels.get("accelerator", ())[:1])
        parts, widest = setting.parts(self.figure) or self.usual, max(self.noise.values())
        noise = math.hypot(*(parts[kind] * self.noise.get(kind, widest) for kind in parts))
        rest = self.single**2 * alone + self.guess**2 * min(setting.guessed, MOST_GUESSED)
        apart = rest + self._place(setting)[0]
        if self.figure in _STEPS:  # n runs of one's own find a level as n noisy readings do
            apart /= 1.0 + setting.own * apart / noise**2
        factor, most = 1.0, max(self.wider.values(), default=1.0)
        if self.wider:
            factor = math.fsum(share * self.wider.get(kind, most) for kind, share in parts.items())
        return factor * math.sqrt(noise**2 + apart)

    def nearest(self, setting: Setting) -> MeasuredRuns | None:
        """The nearest measured runs of the nearest stack, of equals the most; or None."""
        return self._place(setting)[1]

    def _place(self, setting: Setting) -> tuple[float, MeasuredRuns | None]:
        """Variance by the distance to the nearest runs, and these."""
        key = (*(setting.labels.get(name) for name in self.attributes), setting.size)
        if key not in self._places:
            # other hardware says less of a stack than other software of a machine
            first = next(iter(self.attributes))
            apart = [self._variance(setting, run) for run in self.runs]
            order = (
                (setting.level(first, run.labels.get(first, ())), far, -run.rows, place)
                for place, (run, far) in enumerate(zip(self.runs, apart, strict=True))
            )
            nearest = self.runs[min(order)[-1]] if apart else None
            least = min(apart, default=self._widest)
            self._places[key] = least, nearest
        return self._places[key]

    def knows(self, setting: Setting) -> bool:
        """Whether the software of a setting was measured, or does not differ."""
        run = self.nearest(setting)  # software is the first attribute: they share it if any do
        return "framework" not in self.attributes or (
            run is not None and setting.level("framework", run.labels["framework"]) == 0
        )

    def interval(self, value: float, setting: Setting) -> Interval:
        """The interval of a prediction, with what it rests on. `value`: predicted figure, above 0.

        Notes
        -----
        With quantiles q of e / sigma the measured value lies between ``value exp(-q_high sigma)``
        and ``value exp(-q_low sigma)``.
        """
        return structs.replace(self.around(value, setting), basis=self.basis(setting))

    def around(self, value: float, setting: Setting) -> Interval:
        """The interval without words, which take longer than its ends."""
        sigma = self.sigma(setting)
        slower = math.hypot(sigma, self.full * math.sqrt(setting.full))
        low, high = self.quantiles
        return Interval(value * math.exp(-high * sigma), value * math.exp(-low * slower))

    def difference(self, a: Setting, b: Setting) -> float:
        """Half-width of the interval of ln(figure of b / figure of a): shared residuals cancel.

        Notes
        -----
        Two measurements of the same differ too (``same``), so no difference is known better. Kinds
        of decision that two runs differ in add in squares, unmeasured ones as the widest; what else
        they differ in (another line of software, accelerator, ...) adds twice its variance, once
        for each. No difference is known worse than that of two runs that share nothing.
        """
        kinds = decisions(a, b) if self.pairs else frozenset[str]()
        widest = max(self.pairs.values(), default=0.0)
        squares = math.fsum(self.pairs.get(kind, widest) ** 2 for kind in kinds)
        square = max(self.pairs.get("same", 0.0) ** 2, squares)
        for name, levels in self.attributes.items():
            if _PAIRED.get(name) not in kinds:
                level = a.level(name, b.labels.get(name, ()))
                square += 2 * HALF_WIDTH**2 * sum(each**2 for each in levels[:level])
        doublings = abs(math.log2(b.size / a.size)) if a.size and b.size else 0.0
        square += (HALF_WIDTH * self.doubling * min(doublings, self.most_doublings)) ** 2
        half = (self.quantiles[1] - self.quantiles[0]) / 2
        return min(math.sqrt(square), half * math.hypot(self.sigma(a), self.sigma(b)))

    def basis(self, setting: Setting) -> str:
        """The residuals that an interval rests on, in words."""
        fitted = f"{LEVEL:.0%} interval from leave-one-family-out errors of {self.rows:,} runs"
        fitted += "" if self.knows(setting) else "; nobody measured this software"
        run = self.nearest(setting)
        if run is None:
            return f"{fitted}; nothing like it was measured: the widest interval"
        apart = [name for name in self.attributes if setting.level(name, run.labels.get(name, ()))]
        apart += ["scale"] if run.scale(setting.size) != 1.0 else []
        names = ", ".join(names[0] for names in run.labels.values() if names[0])
        other = f"{'; other ' * bool(apart)}{', '.join(apart)}"
        other += f"; {plural(setting.guessed, 'setting')} guessed" * bool(setting.guessed)
        if setting.own and self.figure in _STEPS:
            other += f"; {plural(setting.own, 'run')} of one's own like it"
        return f"{fitted}; nearest: {run.rows} of {names}{other}"

    def without(self, family: str) -> Residuals:
        """The same where nothing of a family was measured."""
        return structs.replace(self, runs=tuple(r for r in self.runs if r.family != family))

    @property
    def _widest(self) -> float:
        added = math.fsum(math.fsum(x**2 for x in levels) for levels in self.attributes.values())
        return added + (self.doubling * self.most_doublings) ** 2

    def _variance(self, setting: Setting, run: MeasuredRuns) -> float:
        """Variance of what is not shared with measured runs."""
        variance = 0.0
        for name, levels in self.attributes.items():
            level = setting.level(name, run.labels.get(name, ()))
            variance += sum(each**2 for each in levels[:level])
        doublings = abs(math.log2(run.scale(setting.size))) if setting.size else 0.0
        return variance + (self.doubling * min(doublings, self.most_doublings)) ** 2


def decisions(a: Setting, b: Setting) -> frozenset[str]:
    """Kinds of decision that two settings differ in: an axis, ``micro batch``, ``sharding``,
    ``schedule``, ``recompute``, ``format``, or ``release`` of one line of software.

    Examples
    --------
    >>> labels = {"layout": ("tp 8, pp 1, cp 1, ep 1, dp 2",)}
    >>> labels["rest"] = ("1 a microbatch, zero 1, 1f1b, recompute none",)
    >>> other = {"layout": ("tp 4, pp 2, cp 1, ep 1, dp 2",)}
    >>> other["rest"] = ("1 a microbatch, zero 0, 1f1b, recompute none",)
    >>> sorted(decisions(Setting(labels, 16), Setting(other, 16)))
    ['pp', 'sharding', 'tp']
    """
    mine, others = chosen_of(a), chosen_of(b)
    kinds = {kind for kind in {*mine, *others} if mine.get(kind) != others.get(kind)}
    kinds -= {"dp"}  # what the other axes leave
    if a.level("format", b.labels.get("format", ())):
        kinds.add("format")
    if a.level("framework", b.labels.get("framework", ())) == 1:
        kinds.add("release")
    return frozenset(kinds)


def chosen_of(setting: Setting) -> dict[str, str]:
    """Decisions of a setting by kind, as its labels ``layout`` and ``rest`` have them."""
    layout, rest = (
        ", ".join(setting.labels.get(name, ())).split(", ") for name in ("layout", "rest")
    )
    axes = {name: value for name, _, value in (part.rpartition(" ") for part in layout)}
    return {**axes, **dict(zip(_REST, rest, strict=False))}


def chip_names(chip: Accelerator) -> tuple[str, str]:
    """An accelerator and its generation, as labels of a setting."""
    # an accelerator with other rates is none that anybody measured
    return f"{chip.kind}, changed" if rates_apart(chip) else chip.kind, chip.family


def format_names(precision: str) -> tuple[str, str]:
    """A number format, and whether elements have 8 bits or fewer, as labels of a setting.

    Examples
    --------
    >>> format_names("mxfp8"), format_names("bf16")
    (('mxfp8', 'narrow'), ('bf16', 'wide'))
    """
    return precision, "narrow" if SCALED_FORMATS.get(precision, precision) in _NARROW else "wide"


@remembered(16)
def residuals(figure: str) -> Residuals:
    """Residuals of a figure of `FIGURES`, written by ``python validation/intervals.py``."""
    data: Figures = read_shipped(_PACKAGE, f"{figure}.yaml")
    names = tuple(data["attributes"])
    low, high = map(float, data["quantiles"])
    apart = read_shipped(_PACKAGE, "differences.yaml")["rows"]
    return Residuals(
        figure=figure,
        noise={str(kind): float(sigma) for kind, sigma in data["noise"].items()},
        wider={str(kind): float(factor) for kind, factor in data.get("wider", {}).items()},
        usual={str(kind): float(share) for kind, share in data.get("usual", {}).items()},
        attributes={name: tuple(map(float, data["attributes"][name])) for name in names},
        doubling=float(data["doubling"]),
        most_doublings=float(data["most_doublings"]),
        guess=float(data["guess"]),
        quantiles=(low, high),
        several=frozenset(map(str, data["several"])),
        single=float(data["single"]),
        full=float(data.get("full", 0.0)),
        pairs={str(row[1]): float(row[2]) for row in apart if row[0] == figure},
        rows=int(data["rows"]),
        families=int(data["families"]),
        runs=tuple(_runs(entry, names) for entry in data["runs"]),
    )


def fastest_measured(setting: Setting) -> float | None:
    """The most model FLOP/s measured on an accelerator in such a training [FLOP/s]; or None."""
    kind = [setting.labels[name][0] for name in FASTEST_BY]
    rows = read_shipped(_PACKAGE, "fastest.yaml")["rows"]
    return next((1e12 * float(row[-2]) for row in rows if row[: len(kind)] == kind), None)


def _runs(entry: Sequence[str], names: Sequence[str]) -> MeasuredRuns:
    """Measured runs of a line of the file: family, labels of each attribute, then figures."""
    family, *labels = entry[: 1 + len(names)]
    smallest, largest, rows, error, bias = entry[1 + len(names) :]
    return MeasuredRuns(
        family=str(family),
        labels={key: tuple(str(own).split(" < ")) for key, own in zip(names, labels, strict=True)},
        smallest=float(smallest),
        largest=float(largest),
        rows=int(rows),
        mean_abs_error=float(error),
        bias=float(bias),
    )
