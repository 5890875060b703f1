"""Pictures of networks: what they show of given numbers, and what they refuse."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.hardware import FabricKind, system
from mpsim.plot import Axis, Heat, answer_chart, fabric_chart


def _heat(names, edges, values):
    return Heat(names=names, edges=edges, values=values, x=Axis(name="time"), z=Axis(name="use"))


def test_rows_of_a_heat_map_stand_in_the_order_given():
    """Two links by three bins; the first is on top."""
    shown = _heat(["a", "b"], np.linspace(0, 3, 4), np.array([[0, 0.5, 1], [1, 0, 0]])).plot()
    assert [tick.get_text() for tick in shown.ax_.get_yticklabels()] == ["a", "b"]
    assert shown.ax_.yaxis_inverted()


@pytest.mark.parametrize(
    "make",
    [
        lambda: _heat(["a"], np.linspace(0, 1, 3), np.zeros((1, 3))),
        lambda: _heat(["a"], np.linspace(0, 1, 3), np.zeros((2, 2))),
        lambda: answer_chart(["a"], {"": [1.0, 2.0]}, ylabel="", answer=""),
    ],
)
def test_numbers_that_do_not_fit_are_refused(make):
    """Shares for other bins, a matrix of another shape, a value too many."""
    with pytest.raises(ScenarioError, match="needed"):
        make()


def test_the_sentence_stands_under_the_bars():
    """The answer is part of the picture."""
    chart = answer_chart(["a", "b"], {"": [1.0, 2.0]}, ylabel="s", answer="b is twice a.")
    assert "b is twice a." in [text.get_text() for text in chart.plot().ax_.texts]


@pytest.mark.parametrize(
    "kind", ["rail-optimized", "dragonfly+", "torus", "single-switch", "graph"]
)
def test_every_fabric_can_be_drawn(kind, tmp_path):
    """Tiers, points of a torus, any graph."""
    usual = system("dgx-h100", nodes=12)
    links = tuple((f"node {node}", f"switch {node % 3}", 400e9) for node in range(12))
    links += (("switch 0", "switch 1", 1e12), ("switch 1", "switch 2", 1e12))
    fabric = dataclasses.replace(
        usual.fabric, kind=FabricKind(kind), links=links if kind == "graph" else ()
    )
    path = fabric_chart(dataclasses.replace(usual, fabric=fabric)).save(tmp_path / "one.png")
    assert path.read_bytes().startswith(b"\x89PNG")


def _rows(display) -> list[str]:
    return [one.get_text() for one in display.ax_.get_yticklabels()]


def test_a_fabric_names_the_rate_of_one_nic_and_what_its_tiers_are():
    """Eight NICs of 50 GB/s a node; leaves and spines with their switches and oversubscription."""
    cluster = system("dgx-h100", nodes=64)
    nodes, leaves, spine = _rows(fabric_chart(cluster).plot())
    assert nodes == "64 nodes, one in 2 drawn\n8 NICs, 50 GB/s each"
    assert leaves == "16 leaf switches in 2 units\nunit: 12.8 TB/s up, 1:1"
    assert spine == "8 spine switches in 1 unit"


def test_a_single_switch_is_one_switch():
    """Not one switch switches; and no more boxes are left out than need be."""
    usual = system("dgx-h100", nodes=40)
    fabric = dataclasses.replace(usual.fabric, kind=FabricKind("single-switch"))
    shown = fabric_chart(dataclasses.replace(usual, fabric=fabric)).plot()
    assert _rows(shown) == ["40 nodes\n8 NICs, 50 GB/s each", "1 switch in 1 unit"]
