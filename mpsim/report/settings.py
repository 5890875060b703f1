"""Settings that the explorer offers: what of a scenario can be moved, and between which values."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Sequence

from mpsim.framework import SelectiveRecompute, framework_names
from mpsim.hardware import system_names
from mpsim.report.choices import Slider, written
from mpsim.scenario import Scenario
from mpsim.schedule import schedule_names
from mpsim.units import Dimension, format_exact
from mpsim.workload import model_names

__all__ = ["Setting", "settings"]

_POWERS = tuple(2**n for n in range(10))
_LENGTHS = tuple(2**n for n in range(9, 18))
_SHARES = (0.25, 0.5, 0.75, 1.0, 1.25, 1.5, 2.0)
_FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)
_CHUNKS = (1, 2, 3, 4, 5, 6, 8)
_RECOMPUTE = ("none", "selective", "full")
_MOST_NODES = 65_536
_LABELS = {
    "model.preset": "model",
    "cluster.preset": "system",
    "schedule.name": "schedule",
    "framework.preset": "framework",
}
"""Words for settings whose section alone says what they are; others are called by the words of their key in it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """One setting that can be moved.

    Parameters
    ----------
    key : str
        Dotted, as `Scenario.with_values` takes it.
    group : str
        Word under which it stands on the page.
    values : tuple
        Values it can have.
    start : int
        Place of the scenario's own.
    """

    key: str
    group: str
    values: tuple[object, ...]
    start: int

    def slider(self) -> Slider:
        """The setting as the page shows it."""
        label = _LABELS.get(self.key, re.sub("[._]", " ", self.key.partition(".")[2]))
        return Slider(self.key, list(map(written, self.values)), self.start, self.group, label)


def settings(scenario: Scenario) -> list[Setting]:
    """Settings of a scenario that the explorer offers: of its model, layout, hardware, and schedule or load."""
    parts = (
        *_model(scenario),
        *(_service(scenario) if scenario.serves else _layout(scenario)),
        *_hardware(scenario),
        *(() if scenario.serves else _schedule(scenario)),
    )
    return [setting for setting in parts if len(setting.values) > 1]


def _numbers(key: str, group: str, own: int, choices: Sequence[float]) -> Setting:
    """Whole numbers in order, the scenario's own among them."""
    values = sorted({own, *(round(choice) for choice in choices if round(choice) >= 1)})
    return Setting(key, group, tuple(values), values.index(own))


def _words(key: str, group: str, own: object, choices: Sequence[object]) -> Setting:
    """Words, the scenario's own among them."""
    values = [own, *choices] if own not in choices else list(choices)
    return Setting(key, group, tuple(values), values.index(own))


def _model(scenario: Scenario) -> Iterator[Setting]:
    group = "model"
    if scenario.model.preset is not None:
        yield _words("model.preset", group, scenario.model.preset, model_names())
    layers = scenario.transformer.layers
    yield _numbers("model.layers", group, layers, [share * layers for share in _SHARES])
    if scenario.training is not None:
        length = scenario.training.sequence_length
        yield _numbers("training.sequence_length", group, length, _LENGTHS)


def _layout(scenario: Scenario) -> Iterator[Setting]:
    group, own, training = "layout", scenario.parallelism, scenario.training_step
    most = scenario.world_size
    for axis in ("tp", "pp", "cp"):
        fitting = [degree for degree in _POWERS if degree <= most]
        yield _numbers(f"parallelism.{axis}", group, getattr(own, axis), fitting)
    if scenario.transformer.moe is not None:
        experts = scenario.transformer.moe.experts
        fitting = [degree for degree in _POWERS if degree <= min(experts, most)]
        yield _numbers("parallelism.ep", group, own.ep, fitting)
    yield _words("parallelism.sequence_parallel", group, own.sequence_parallel, (False, True))
    yield _words("parallelism.zero", group, own.zero, (0, 1, 2, 3))
    yield _numbers("training.micro_batch", group, training.micro_batch, _POWERS[:5])
    batch = training.global_batch
    yield _numbers("training.global_batch", group, batch, [factor * batch for factor in _FACTORS])
    yield _words("training.recompute", group, training.recompute, _recompute(scenario))


def _recompute(scenario: Scenario) -> Sequence[str]:
    """Recomputations by the words of the framework: its selective is one of them already where that is per-op."""
    selective = scenario.software.kernels.recompute_selective
    is_per_op = selective is SelectiveRecompute.PER_OP
    return ("none", selective.value, "full") if is_per_op else _RECOMPUTE


def _service(scenario: Scenario) -> Iterator[Setting]:
    group, own, serving = "layout", scenario.parallelism, scenario.service
    if not serving.disaggregated:
        for axis in ("tp", "pp"):
            fitting = [degree for degree in _POWERS if degree <= scenario.world_size]
            yield _numbers(f"parallelism.{axis}", group, getattr(own, axis), fitting)
    load = serving.workload
    if load.concurrency is not None:
        users = [factor * load.concurrency for factor in _FACTORS]
        yield _numbers("serving.workload.concurrency", "load", load.concurrency, users)
    if load.rate is not None:
        rates = tuple(sorted({load.rate, *(factor * load.rate for factor in _FACTORS)}))
        yield Setting("serving.workload.rate", "load", rates, rates.index(load.rate))


def _hardware(scenario: Scenario) -> Iterator[Setting]:
    group, cluster = "hardware", scenario.hardware
    if scenario.cluster.preset in system_names():
        yield _words("cluster.preset", group, scenario.cluster.preset, system_names())
    nodes = [factor * cluster.nodes for factor in _FACTORS]
    fitting = [count for count in nodes if count <= _MOST_NODES]
    yield _numbers("cluster.nodes", group, cluster.nodes, fitting)
    links = {"nic": cluster.node.nic, "scale_up": cluster.node.scale_up}
    for name, link in links.items():
        key = f"cluster.{name}.bandwidth"
        rates = [format_exact(factor * link.bandwidth, Dimension.BANDWIDTH) for factor in _FACTORS]
        yield Setting(key, group, tuple(rates), _FACTORS.index(1.0))


def _schedule(scenario: Scenario) -> Iterator[Setting]:
    group, own = "schedule and software", scenario.schedule
    if own.name is not None:
        names = [name for name in schedule_names() if name not in ("auto", "forward-only")]
        yield _words("schedule.name", group, own.name, names)
    yield _numbers("schedule.virtual_stages", group, own.chunks, _CHUNKS)
    yield _words("framework.preset", group, scenario.framework.preset, framework_names())
