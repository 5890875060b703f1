"""Scaling: the same training on more accelerators, and what part of the step eats the gain."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mpsim import structs
from mpsim.accessors import Drawable, chart
from mpsim.errors import MpsimError, ScenarioError, nearest
from mpsim.frame import Tabular
from mpsim.scenario import Scenario
from mpsim.shipped import say
from mpsim.simulate import simulate_step
from mpsim.study.rows import number_of, times_of, warned
from mpsim.table import Section, Sheet, Shown
from mpsim.units import percent

_FIGURES = ("step_time_s", "tokens_per_s", "tokens_per_s_per_accelerator", "mfu")
_BESIDE = ("hfu", "peak_memory_bytes", "fits_memory", "interval")
_GROWN = 3  # parts that are told
_LEAST = 0.0005  # share of the step
MODES = ("strong", "weak")  # strong: the global batch stays; weak: it grows with the accelerators


@structs.dataclass(frozen=True, slots=True)
class Scaled:
    """One size of a cluster."""

    mode: str  # one of `MODES`
    accelerators: int
    # result in the shape of ``mpsim run --json``; None where it cannot run
    summary: Mapping[str, object] | None
    reason: str = ""  # why it cannot; empty where it can

    def figure(self, name: str) -> float:
        """A figure of the summary; NaN where it cannot run."""
        return number_of(self.summary, name)

    @property
    def shares(self) -> dict[str, float]:
        """Share of the step by part; empty where it cannot run."""
        step = self.figure("step_time_s")
        return {name: seconds / step for name, seconds in times_of(self.summary).items()}


@structs.dataclass(frozen=True, slots=True, repr=False)
class Scale(Shown, Tabular):
    """A scenario at several sizes of its cluster."""

    scenario: str
    rows: tuple[Scaled, ...]  # by mode, the fewest accelerators first
    interrupted: bool = False  # whether a KeyboardInterrupt left sizes out

    def of(self, mode: str) -> list[Scaled]:
        """Sizes of one mode that can run, the smallest first."""
        return [row for row in self.rows if row.mode == mode and row.summary is not None]

    def efficiency(self, row: Scaled) -> float:
        """Tokens a second and accelerator over those of the smallest size of its mode."""
        first = self.of(row.mode)[0]
        name = "tokens_per_s_per_accelerator"
        return row.figure(name) / first.figure(name)

    def eaters(self, row: Scaled) -> list[tuple[str, float]]:
        """Parts whose share of the step has grown since the smallest size, the most first."""
        first = self.of(row.mode)[0].shares
        grown = {name: share - first[name] for name, share in row.shares.items()}
        return sorted(
            ((name, more) for name, more in grown.items() if more > 0), key=lambda item: -item[1]
        )

    def table(self) -> list[dict[str, object]]:
        """One mapping a size that can run: figures, and parts of the step as shares."""
        return [
            {**self._plain(row), **{f"{name}_share": share for name, share in row.shares.items()}}
            for row in self.rows
            if row.summary is not None
        ]

    def _plain(self, row: Scaled) -> dict[str, object]:
        """Figures of a size; what it is and why it cannot run where it cannot."""
        known = {"mode": row.mode, "accelerators": row.accelerators}
        if row.summary is None:
            return {**known, "reason": row.reason}
        figures = {name: row.figure(name) for name in _FIGURES}
        return {**known, **figures, "efficiency": self.efficiency(row)}

    def sheet(self) -> Sheet:
        """One line a size, as ``mpsim scale`` prints them."""
        header = (
            *("accelerators", "step (s)", "tokens/s", "tokens/s/acc.", "MFU", "efficiency"),
            "grown since the smallest",
        )
        sizes: dict[str, list[tuple[str, ...]]] = {}
        for row in self.rows:
            if row.summary is not None:
                sizes.setdefault(row.mode, []).append(self._line(row))
        sections = (
            Section(tuple(rows), header, tuple(range(6)), f"{self.scenario}, {mode} scaling")
            for mode, rows in sizes.items()
        )
        return Sheet("", (*sections, Section(lines=self.warnings)))

    @property
    def warnings(self) -> tuple[str, ...]:
        """Warnings of all sizes."""
        sizes = {f"{row.accelerators:,}": row.summary for row in self.rows if row.summary}
        return warned({size: summary.get("warnings") for size, summary in sizes.items()})

    def _line(self, row: Scaled) -> tuple[str, ...]:
        grown = (
            f"{name.replace('_', ' ')} +{100 * more:.1f} points"
            for name, more in list(dict(self.eaters(row)).items())[:_GROWN]
            if more > _LEAST
        )
        return (
            f"{row.accelerators:,}",
            f"{row.figure('step_time_s'):.4g}",
            f"{row.figure('tokens_per_s'):,.0f}",
            f"{row.figure('tokens_per_s_per_accelerator'):,.1f}",
            percent(row.figure("mfu")),
            percent(self.efficiency(row)),
            ", ".join(grown),
        )

    def display(self) -> Drawable:
        """Throughput against accelerators, and the parts of the step at each size."""
        return chart("scaling", self)

    def to_json(self) -> dict[str, object]:
        """Plain data, SI units."""
        rows = [
            self._plain(row)
            if row.summary is None
            else {
                **self._plain(row),
                "shares": row.shares,
                "eaten_by": dict(self.eaters(row)),
                **{name: row.summary[name] for name in _BESIDE},
            }
            for row in self.rows
        ]
        return {
            "scenario": self.scenario,
            "rows": rows,
            "interrupted": self.interrupted,
            "warnings": list(self.warnings),
        }


def doublings(first: int, last: int) -> list[int]:
    """Sizes from `first` to `last`, each twice the one before, the last as given.

    Examples
    --------
    >>> doublings(64, 300)
    [64, 128, 256, 300]
    """
    sizes = []
    while first < last:
        sizes.append(first)
        first *= 2
    return [*sizes, last]


def scale(
    scenario: Scenario,
    accelerators: Sequence[int],
    *,
    modes: Sequence[str] = MODES,
    progress: Callable[[int, int], None] | None = None,
) -> Scale:
    """Simulate a scenario at several sizes of its cluster; data parallelism takes what is added.

    Parameters
    ----------
    scenario : Scenario
        Its degrees other than dp stay.
    accelerators : sequence of int
        Whole nodes each.
    modes : sequence of str
        Of `MODES`. In weak scaling a replica keeps its sequences, so the global batch is that of
        the scenario times the replicas over its own.
    progress : callable, optional
        Called with how many sizes are done, and how many there are.

    Raises ScenarioError: for no or unknown modes, for sizes that are no whole nodes, and where no
    size can run. Raises KeyboardInterrupt: if nothing was simulated until then.
    """
    for mode in modes:
        if mode not in MODES:
            raise ScenarioError(f"got mode {mode!r}; {nearest(mode, MODES)}")
    each = scenario.hardware.node.accelerators
    if scenario.is_mixed:
        raise ScenarioError(say("study.mixed_cluster", name=scenario.name))
    wrong = [size for size in accelerators if size < 1 or size % each]
    if wrong or not accelerators:
        raise ScenarioError(
            say("study.whole_nodes", got=", ".join(map(str, wrong)) or "no", each=each)
        )
    rows: list[Scaled] = []
    wanted = [(mode, size) for mode in modes for size in sorted(set(accelerators))]
    try:
        for mode, size in wanted:
            rows.append(_scaled(scenario, mode, size, size // each))
            if progress:
                progress(len(rows), len(wanted))
    except KeyboardInterrupt:
        if not any(row.summary for row in rows):
            raise
    found = Scale(scenario.name, tuple(rows), interrupted=len(rows) < len(wanted))
    if not any(row.summary for row in rows):
        raise ScenarioError(f"{scenario.name}: no size can run; the first: {rows[0].reason}")
    return found


def _scaled(scenario: Scenario, mode: str, size: int, nodes: int) -> Scaled:
    values: dict[str, object] = {"cluster.nodes": nodes, "parallelism.dp": None}
    if mode == "weak":
        replica = scenario.parallelism.replica_ranks
        if size % replica:
            return Scaled(
                mode, size, None, f"{size} accelerators are no whole replicas of {replica}"
            )
        batch = scenario.training_step.global_batch * (size // replica)
        if batch % scenario.dp:
            return Scaled(mode, size, None, f"no whole batch for {size // replica} replicas")
        values["training.global_batch"] = batch // scenario.dp
    try:
        return Scaled(mode, size, simulate_step(scenario.with_values(values)).summary)
    except MpsimError as error:
        return Scaled(mode, size, None, str(error).partition("\n")[0])
