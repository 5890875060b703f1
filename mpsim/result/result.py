"""The Result: what that of any job can do, and everything one simulated program can tell."""

from __future__ import annotations

import abc
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mpsim import accessors, archive, structs
from mpsim.arrays import Floats
from mpsim.cost import Constant, Constants, unheld_caps
from mpsim.engine.timeline import Step, Timeline
from mpsim.hardware import Cluster, accelerator, borrowed_prices, unlikely_nics, unverified
from mpsim.program.links import Links
from mpsim.program.program import Program
from mpsim.result.communication import CommunicationTime, communication_time
from mpsim.result.intervals import Waits
from mpsim.result.memory import Memory, MemoryCurve
from mpsim.result.utilisation import Utilisation, kernel_seconds, measure_utilisation, used_of
from mpsim.result.words import Figures, summary_sheet
from mpsim.scenario import Scenario
from mpsim.scenario.balance import unruly_split
from mpsim.scenario.settled import homeless, other_attention
from mpsim.scenario.unused import unused
from mpsim.table import Sheet, Shown

if TYPE_CHECKING:  # imported by those who ask for it
    from mpsim.engine.kernels import KernelTimes
    from mpsim.engine.lanes import Lane, Measure
    from mpsim.result.links import LinkUse
    from mpsim.result.slices import CommunicationSlices


class Summary(dict[str, Any]):
    """Figures by name, SI units; printed without those that are tables of their own."""

    def __repr__(self) -> str:
        scalars = {key: own for key, own in self.items() if isinstance(own, str | int | float)}
        words = (
            f"{key}: {figure:.6g}" if isinstance(figure, float) else f"{key}: {figure}"
            for key, figure in scalars.items()
        )
        return f"Summary({', '.join(words)}; {len(self) - len(scalars)} tables)"


class Pictures(Protocol):
    """The pictures of a result, one method each; see `mpsim.plot.Plots`."""

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG; return the files written."""
        ...

    def __getattr__(self, name: str) -> Callable[..., Any]: ...


def told_of(scenario: Scenario) -> list[str]:
    """Warnings before anything runs: keys without effect, caps and NICs that no board can have,
    chips that no such stack runs on.
    """
    pools = scenario.pools.values() if scenario.serves else ()
    chips = [each.accelerator for each in scenario.clusters]
    chips += [accelerator(pool.accelerator) for pool in pools if pool.accelerator is not None]
    told = [*unused(scenario), *unheld_caps(chips), *borrowed_prices(chips)]
    told += [*unlikely_nics(scenario.clusters), *homeless(scenario, chips)]
    if not scenario.serves:
        return [*told, *other_attention(scenario), *unruly_split(scenario)]
    return [*told, *unverified(chips, scenario.service.weights)]


@structs.dataclass(frozen=True, eq=False, repr=False)
class JobResult(Shown, abc.ABC):
    """Result of any job: it has figures, draws itself, is saved and read again.

    Parameters
    ----------
    saved_summary : mapping, optional
        The summary of a result that was saved, as the version that wrote it gave it.
    """

    scenario: Scenario
    saved_summary: Figures | None = structs.field(default=None, kw_only=True)

    @functools.cached_property
    def summary(self) -> Summary:
        """The figures of the outside contract, SI units."""
        if self.saved_summary is not None:
            return Summary(self.saved_summary)
        figures = self._figures()
        told = [*figures["warnings"], *told_of(self.scenario)]
        return Summary({**figures, "warnings": told})

    @property
    @abc.abstractmethod
    def plot(self) -> Pictures:
        """Pictures of the job."""

    @abc.abstractmethod
    def _figures(self) -> Figures:
        """The summary, worked out."""

    @abc.abstractmethod
    def _parts(self) -> Mapping[str, object]:
        """Parts that an archive keeps beside scenario and summary, the job's ``kind`` first."""

    @classmethod
    @abc.abstractmethod
    def _fields(cls, saved: archive.Archive, scenario: Scenario) -> dict[str, object]:
        """Fields of a result beside scenario and summary, as its archive holds them."""

    def save_plots(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG; return the files written."""
        return self.plot.save(folder)

    def to_json(self) -> str:
        """The summary as one line of JSON; equal results give equal bytes."""
        return json.dumps(self.summary, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write an archive: scenario, what was simulated, and summary."""
        head = {"scenario": self.scenario.resolved(), "digest": self.scenario.digest}
        archive.save(path, "Result", {**head, **self._parts(), "summary": self.summary})

    @staticmethod
    def load(path: str | Path) -> JobResult:
        """Read what `save` wrote, of a step or of a service; nothing is simulated again.

        Raises
        ------
        ScenarioError
            If the file is not a saved result.

        Warns
        -----
        UserWarning
            If another version of mpsim wrote it; its figures are those of that version.
        """
        saved = archive.Archive(path).of("Result")
        result: type[JobResult] = accessors.call("result.class", saved.part("kind", str))
        scenario, summary = (
            Scenario.from_mapping(saved.part("scenario", dict)),
            saved.part("summary", dict),
        )
        fields = result._fields(saved, scenario)
        return result(scenario, **fields, saved_summary=summary)


@structs.dataclass(frozen=True, eq=False, repr=False)
class Result(JobResult):
    """One simulated program, such as that of a training step (`mpsim.training.result`).

    Parameters
    ----------
    plan : object
        Of the job's own kind.
    constants : tuple of Constant
        Every constant the cost models used, with its source.
    program : Program
        As it was built; the timeline's own may be of finer grain.
    """

    kind: ClassVar[str]
    plan: Any
    timeline: Timeline
    constants: tuple[Constant, ...]
    program: Program
    lane: Lane | None = structs.field(default=None, kw_only=True)  # among steps beside it

    def measured(self, name: str, measure: Measure) -> Floats:
        """A figure of its rank classes, measured together with that of steps beside it."""
        if self.lane is not None:
            return self.lane.measured(name, measure)
        return measure(Step(self.timeline, self.program, self.class_clusters))

    @property
    @abc.abstractmethod
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class of the program has it."""

    @property
    @abc.abstractmethod
    def parts(self) -> Floats:
        """Time of rank classes by part of the job's account; rows sum to the makespan [ticks]."""

    @property
    @abc.abstractmethod
    def idle(self) -> Waits:
        """Idle time of compute streams as intervals, each of one part of the job's account."""

    @property
    @abc.abstractmethod
    def memory(self) -> Memory:
        """Memory of each rank at its fullest moment."""

    @abc.abstractmethod
    def memory_curve(self, rank: int) -> MemoryCurve:
        """Memory of a rank class over time."""

    @abc.abstractmethod
    def links_of(self, program: Program) -> Links:
        """Links that rows of one of its programs use."""

    @functools.cached_property
    def communication(self) -> CommunicationTime:
        """Time in which ranks communicate over each axis, hidden beside kernels and exposed."""
        both = self.measured("communication", lambda step: communication_time(step.timeline).both)
        return CommunicationTime(both)

    def communication_slices(self, ranks: Sequence[int] | None = None) -> CommunicationSlices:
        """Cut what ranks communicate into slices of time, inside actions too, exposed or hidden.

        Parameters
        ----------
        ranks : sequence of int, optional
            Rank classes, or all: one slice or two for each collective of each layer of each action.
        """
        from mpsim.result.slices import communication_slices

        return communication_slices(self.timeline, self.idle, ranks=ranks)

    @functools.cached_property
    def utilisation(self) -> Utilisation:
        """Utilisation of compute and links."""
        used = self.measured("used", lambda step: used_of(step.timeline))
        return measure_utilisation(self.timeline, self.class_clusters, used)

    @functools.cached_property
    def kernel_seconds(self) -> Floats:
        """Kernel time of each rank class by what it draws power for (`mpsim.cost.KERNELS`) [s]."""
        return self.measured("kernels", lambda step: kernel_seconds(step.program))

    @functools.cached_property
    def links(self) -> LinkUse:
        """Bytes that links carried over time: ports of rank classes, thin links of the fabric."""
        from mpsim.result.links import measure_links

        return measure_links(self.timeline, self.links_of)

    @property
    @abc.abstractmethod
    def headline(self) -> Figures:
        """The figures that people measure, with intervals: a part of the summary, sooner."""

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Mean time over ranks by part; sums to the step time [s]."""
        parts: Mapping[str, float] = self.summary["breakdown_s"]
        return parts

    @property
    def plot(self) -> Pictures:
        """Pictures: ``timeline()``, ``bubbles()``, ``attribution()``, ``utilisation()``,
        ``links()``, ``memory()``.
        """
        pictures: Pictures = accessors.call("result.plot", self)
        return pictures

    @functools.cached_property
    def kernels(self) -> KernelTimes:
        """Start and end of every kernel, inside actions too."""
        from mpsim.engine.kernels import kernel_times

        return kernel_times(self.timeline)

    def sensitivity(self) -> Any:
        """Elasticity of the step time in each parameter; see `mpsim.study.measure_sensitivity`."""
        return accessors.call("result.sensitivity", self)

    @functools.cached_property
    def variation(self) -> Any:
        """Step times and blame under ``variation:``; see `mpsim.study.simulate_variation`."""
        return accessors.call("result.variation", self)

    def write_trace(self, path: str | Path, *, detail: str = "chunk") -> None:
        """Write a trace that Perfetto opens; gzipped when `path` ends in ``.gz``."""
        accessors.call("result.write_trace", self, path, detail=detail)

    def _parts(self) -> Mapping[str, object]:
        program = None if self.program is self.timeline.program else self.program
        parts = {"kind": self.kind, "plan": self.plan, "timeline": self.timeline}
        return {**parts, "program": program, "constants": self.constants}

    @classmethod
    def _fields(cls, saved: archive.Archive, scenario: Scenario) -> dict[str, object]:
        timeline = saved.part("timeline", Timeline)
        own: Program | None = saved.part("program", Program | None)  # type: ignore[arg-type]
        return {
            "timeline": timeline,
            "constants": Constants(saved.part("constants", tuple[Constant, ...])),
            "program": timeline.program if own is None else own,
        }

    def sheet(self) -> Sheet:
        """The results of the step with units, as ``mpsim run --long`` prints them."""
        return summary_sheet(self.summary)
