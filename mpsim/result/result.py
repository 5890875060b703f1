"""The Result: everything one simulated step can tell."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from mpsim import accessors
from mpsim.cost import Constant
from mpsim.engine import KernelTimes, Timeline, kernel_times
from mpsim.errors import ScenarioError
from mpsim.hardware import Cluster
from mpsim.program.links import Links
from mpsim.program.program import Program
from mpsim.result.communication import CommunicationTime, communication_time
from mpsim.result.links import LinkUse, measure_links
from mpsim.result.memory import Memory, MemoryCurve
from mpsim.result.utilisation import Utilisation, measure_utilisation
from mpsim.scenario import Scenario
from mpsim.version import __version__

__all__ = ["Job", "Pictures", "Result"]


class Job(Protocol):
    """The job that was simulated, a training step or another: what a result asks it."""

    @property
    def plan(self) -> Any:
        """The plan, which is of the job's own kind."""
        ...

    @property
    def class_clusters(self) -> tuple[Cluster, ...]:
        """The cluster as each rank class of the program has it."""
        ...

    def account(self, timeline: Timeline) -> NDArray[np.float64]:
        """Ticks of each rank class by part of the job's account; every row sums to the makespan."""
        ...

    def links(self, program: Program) -> Links:
        """Links that rows of one of its programs use."""
        ...

    def memory(self) -> Memory:
        """What each rank holds at its fullest moment."""
        ...

    def memory_curve(self, timeline: Timeline, memory: Memory, rank: int) -> MemoryCurve:
        """What a rank class holds over time."""
        ...

    def summary(self, result: Result) -> dict[str, Any]:
        """The figures of the outside contract, SI units."""
        ...


class Pictures(Protocol):
    """The pictures of a result, one method each; see `mpsim.plot.Plots`."""

    def save(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG; return the files written."""
        ...

    def __getattr__(self, name: str) -> Callable[..., Any]: ...


@dataclasses.dataclass(frozen=True, eq=False)
class Result:
    """One simulated job.

    Parameters
    ----------
    scenario : Scenario
    job : Job
        Such as a training step.
    timeline : Timeline
    constants : tuple of Constant
        Every constant the cost models used, with its source.
    program : Program
        As it was built; the timeline's own may be of finer grain.
    """

    scenario: Scenario
    job: Job
    timeline: Timeline
    constants: tuple[Constant, ...]
    program: Program

    @property
    def plan(self) -> Any:
        """The plan of the job: a `mpsim.training.Plan` of a training step."""
        return self.job.plan

    @functools.cached_property
    def parts(self) -> NDArray[np.float64]:
        """Where each rank class's time went, by part of the job's account [ticks]."""
        return self.job.account(self.timeline)

    @functools.cached_property
    def communication(self) -> CommunicationTime:
        """How long ranks communicate over each axis, beside kernels and not."""
        return communication_time(self.timeline)

    @functools.cached_property
    def memory(self) -> Memory:
        """What each pipeline rank holds at its fullest moment."""
        return self.job.memory()

    def memory_curve(self, rank: int) -> MemoryCurve:
        """What rank class `rank` (the pipeline rank, where replicas are alike) holds over time."""
        return self.job.memory_curve(self.timeline, self.memory, rank)

    @functools.cached_property
    def utilisation(self) -> Utilisation:
        """How busy compute and links were."""
        return measure_utilisation(self.timeline, self.job.class_clusters)

    @functools.cached_property
    def links(self) -> LinkUse:
        """What every link carried over time: ports of rank classes, and links of the fabric that could be too thin."""
        return measure_links(self.timeline, self.job.links)

    @functools.cached_property
    def summary(self) -> dict[str, Any]:
        """The figures of the outside contract, SI units."""
        return self.job.summary(self)

    @property
    def breakdown(self) -> Mapping[str, float]:
        """Mean time over ranks by part; sums to the step time [s]."""
        parts: Mapping[str, float] = self.summary["breakdown_s"]
        return parts

    @property
    def plot(self) -> Pictures:
        """Pictures: ``timeline()``, ``bubbles()``, ``attribution()``, ``utilisation()``, ``links()``, ``memory()``."""
        pictures: Pictures = accessors.call("result.plot", self)
        return pictures

    @functools.cached_property
    def kernels(self) -> KernelTimes:
        """When every kernel ran, inside actions too."""
        return kernel_times(self.timeline)

    def sensitivity(self) -> Any:
        """How the step time answers to each parameter of hardware and software; see `mpsim.study.measure_sensitivity`."""
        return accessors.call("result.sensitivity", self)

    def jitter(
        self,
        compute: float,
        *,
        network: float | None = None,
        samples: int = 100,
        seed: int | None = None,
    ) -> Any:
        """The distribution of the step time when operations vary; see `mpsim.study.simulate_jitter`."""
        return accessors.call(
            "result.jitter", self, compute, network=network, samples=samples, seed=seed
        )

    @functools.cached_property
    def variation(self) -> Any:
        """Step times, percentiles and blame under the scenario's ``variation:``; see `mpsim.study.simulate_variation`."""
        return accessors.call("result.variation", self)

    def save_plots(self, folder: str | Path) -> list[Path]:
        """Draw every picture into `folder` as PNG; return the files written."""
        return self.plot.save(folder)

    def write_trace(self, path: str | Path, *, detail: str = "chunk") -> None:
        """Write a trace that Perfetto opens; gzipped when `path` ends in ``.gz``."""
        accessors.call("timeline.write_trace", self.timeline, path, detail=detail)

    def to_json(self) -> str:
        """The summary as one line of JSON; equal results give equal bytes."""
        return json.dumps(self.summary, allow_nan=False)

    def save(self, path: str | Path) -> None:
        """Write summary and resolved scenario, enough to rerun it."""
        content = {
            "mpsim": __version__,
            "digest": self.scenario.digest,
            "scenario": self.scenario.resolved(),
            "summary": self.summary,
        }
        Path(path).write_text(
            json.dumps(content, indent=1, allow_nan=False) + "\n", encoding="utf-8"
        )

    @classmethod
    def load(cls, path: str | Path) -> Result:
        """Rerun what `save` wrote.

        Raises
        ------
        ScenarioError
            If the file is not a saved result, or this version of mpsim no longer gives its figures.
        """
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
            scenario, summary = content["scenario"], content["summary"]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ScenarioError(f"{path} is not a saved result: {error}") from error
        result: Result = accessors.call("simulate", Scenario.from_mapping(scenario))
        if json.loads(result.to_json()) != summary:
            raise ScenarioError(
                f"{path} was written by mpsim {content.get('mpsim')} and gives other figures now; run it again"
            )
        return result

    def __repr__(self) -> str:
        return "\n".join(f"{name:<12} {value}" for name, value in self._lines())

    def _repr_html_(self) -> str:
        rows = "".join(f"<tr><th>{name}</th><td>{value}</td></tr>" for name, value in self._lines())
        return f"<table>{rows}</table>"

    def _lines(self) -> Sequence[tuple[str, str]]:
        """Five lines, the same in text and HTML."""
        one = self.summary
        memory = one["memory"]
        return (
            (
                "scenario",
                f"{one['scenario']}, {_accelerators(self)}",
            ),
            ("step time", f"{one['step_time_s']:.4g} s, {one['tokens_per_s']:.4g} tokens/s"),
            ("MFU, HFU", f"{one['mfu']:.1%}, {one['hfu']:.1%}"),
            ("bubble", f"{one['bubble_fraction']:.1%}"),
            (
                "memory",
                f"{memory['total'] / 1e9:.1f} of {memory['capacity'] / 1e9:.1f} GB on rank {memory['rank']}",
            ),
        )


def _accelerators(result: Result) -> str:
    """How many of each kind of accelerator."""
    counts: dict[str, int] = {}
    clusters = result.job.class_clusters
    for cluster, size in zip(clusters, result.program.class_size.tolist(), strict=True):
        title = cluster.accelerator.title
        counts[title] = counts.get(title, 0) + size
    return " + ".join(f"{count} x {title}" for title, count in counts.items())
