"""Nouns say of themselves what there is to show: figures with units, sources and what is only recalled."""

from __future__ import annotations

import dataclasses

import pytest

from mpsim import framework, hardware, workload
from mpsim.nouns import Bandwidth, describe_fields
from mpsim.schedule import schedule

NOUNS = [
    *map(hardware.accelerator, hardware.accelerator_names()),
    *map(hardware.link, hardware.link_names()),
    *map(hardware.system, hardware.system_names()),
    *map(workload.model, workload.model_names()),
    *map(framework.framework, framework.framework_names()),
]


@pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
def test_every_figure_of_a_noun_has_a_name_of_its_own_and_a_text(noun) -> None:
    """A table can be laid out without knowing what the noun is; what comes from memory is named."""
    described = noun.describe()
    names = [figure.name for figure in described.figures]
    assert names
    assert len(set(names)) == len(names)
    assert all(figure.text != "" for figure in described.figures)
    for figure in described.figures:
        if figure.source.startswith("recalled"):
            assert described.recalled


def test_a_schedule_shows_its_orders_at_a_small_size() -> None:
    """Four ranks of 1F1B; a schedule that needs two chunks shows two."""
    figures = {figure.name: figure.text for figure in schedule("1f1b").describe().figures}
    assert figures["rank 3"].startswith("3F0 3B0")
    example, *_ = schedule("zb-v").describe().figures
    assert "2 virtual stages" in example.text


@dataclasses.dataclass(frozen=True)
class _Inner:
    rate: Bandwidth
    sources: dict[str, str]


@dataclasses.dataclass(frozen=True)
class _Outer:
    inner: _Inner
    size: float
    sources: dict[str, str]


def test_sources_and_units_are_those_of_the_nearest_thing_a_figure_belongs_to() -> None:
    """A figure's own source wins over its part's, and that over the noun's."""
    noun = _Outer(_Inner(1e9, {"*": "recalled"}), 3.0, {"*": "a table"})
    described = describe_fields(noun)
    assert [(f.name, f.text, f.source) for f in described.figures] == [
        ("inner.rate", "1 GB/s", "recalled"),
        ("size", "3.0", "a table"),
    ]
    assert described.recalled == ("inner.*",)
