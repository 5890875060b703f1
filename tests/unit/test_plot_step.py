"""Pictures of one step: each says what it shows, names what it draws once, and stays bounded."""

from pathlib import Path

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.plot import HeatDisplay, LinksDisplay, MemoryKindsDisplay, RooflineDisplay
from mpsim.plot.palette import BUBBLE, LUMINANCE, rgb
from mpsim.result import MemoryCurve, Result
from mpsim.scenario.scenario import load
from mpsim.simulate import simulate_step
from mpsim.training.bubbles import CAUSES

SCENARIOS = Path(__file__).resolve().parents[2] / "scenarios"
PICTURES = (
    "timeline",
    "bubbles",
    "attribution",
    "utilisation",
    "heat",
    "roofline",
    "links",
    "memory",
    "memory_over_time",
    "memory_by_kind",
)


@pytest.fixture(
    scope="module", params=["quickstart", "mixtral-8x7b-h100", "what-if/oversubscription"]
)
def result(request) -> Result:
    """A dense step, one with experts, and one on a thin fabric."""
    scenario = load(SCENARIOS / f"{request.param}.yaml")
    return simulate_step(scenario.with_values({"training.global_batch": 128}))


def _colours(handle) -> tuple:
    """Colour and mark of a legend entry."""
    if hasattr(handle, "get_facecolor"):
        return (tuple(np.ravel(handle.get_facecolor())), handle.get_hatch())
    return (handle.get_color(), handle.get_linestyle(), handle.get_marker(), handle.get_linewidth())


@pytest.mark.parametrize("picture", PICTURES)
def test_every_picture_has_a_title_with_the_headline(result: Result, picture: str) -> None:
    """The scenario, what is shown and the step time; within the width of the figure."""
    display = getattr(result.plot, picture)()
    figure = display.figure_
    title = figure._suptitle
    assert title.get_text().startswith(f"{result.scenario.name}: ")
    assert f"{result.timeline.step_time_s:.4g} s a step" in title.get_text().replace("\n", " ")
    figure.draw_without_rendering()
    assert title.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("picture", PICTURES)
def test_legends_name_no_colour_twice(result: Result, picture: str) -> None:
    """Entries of a legend differ in colour, hatching or mark."""
    legend = getattr(result.plot, picture)().ax_.get_legend()
    if legend is None:
        return
    seen = [_colours(handle) for handle in legend.legend_handles]
    assert len(set(seen)) == len(seen)
    texts = [text.get_text() for text in legend.get_texts()]
    assert len(set(texts)) == len(texts)


def test_causes_of_the_bubble_are_told_apart_in_grey() -> None:
    """Every cause has a colour, and any two differ in brightness by a tenth at least."""
    assert set(BUBBLE) == set(CAUSES)
    bright = sorted(float(rgb(colour) @ LUMINANCE) for colour in BUBBLE.values())
    assert min(np.diff(bright)) > 0.1


def test_the_heat_map_averages_neighbours_of_many_ranks() -> None:
    """200 ranks become 64 rows, whose mean is that of all ranks."""
    share = np.random.default_rng(3).random((192, 10))
    names = [f"pp {rank}" for rank in range(192)]
    display = HeatDisplay(names, np.linspace(0, 1, 11), share).plot()
    drawn = display.ax_.collections[0].get_array()
    assert drawn.shape == (64, 10)
    assert drawn.mean() == pytest.approx(100 * share.mean())
    with pytest.raises(ScenarioError, match="needed 1 ranks by 2 bins"):
        HeatDisplay(["a"], np.linspace(0, 1, 3), np.zeros((2, 2)))


def test_kernels_of_the_heat_map_are_those_of_the_account(result: Result) -> None:
    """Mean over time of each rank: the time of its kernels over the step."""
    parts = [result.program.vocabulary.part(name) for name in result.program.vocabulary.computing]
    busy = result.parts[:, parts].sum(axis=1) / result.timeline.makespan
    # copies around exchanges run too, and count as their axis
    assert (result.utilisation.kernels.mean(axis=1) >= busy - 1e-9).all()
    assert result.utilisation.kernels.mean(axis=1) == pytest.approx(busy, abs=0.03)


def test_links_stand_by_tier_on_a_scale_of_powers_of_ten(result: Result) -> None:
    """Links of a tier are neighbours, every tier that carries anything is there, and a load of a percent is far from none."""
    display = LinksDisplay.from_result(result).plot()
    use = result.links
    carrying = {tier for tier, carried in zip(use.tiers, use.carried, strict=True) if carried > 0}
    assert set(display.tiers) == carrying
    order = list(dict.fromkeys(display.tiers))
    assert [order.index(tier) for tier in display.tiers] == sorted(
        order.index(tier) for tier in display.tiers
    )
    norm = display.ax_.collections[0].norm
    assert norm(1.0) == pytest.approx(1 / 3, abs=0.05)


def test_memory_by_kind_stacks_to_what_is_held(result: Result) -> None:
    """The top of the stack is the curve; a curve without kinds is refused."""
    display = MemoryKindsDisplay.from_result(result).plot()
    top = max(
        path.vertices[:, 1].max()
        for collection in display.ax_.collections
        for path in collection.get_paths()
    )
    assert top == pytest.approx(result.memory.total.max() / 1e9)
    with pytest.raises(ScenarioError, match="not known by kind"):
        MemoryKindsDisplay("pp 0", MemoryCurve(np.zeros(1), np.zeros(1), 0.0), 1.0)


def test_the_roofline_draws_every_kernel_that_works(result: Result) -> None:
    """One mark a kernel and part, all below the roof; the rest of the time is told."""
    display = RooflineDisplay.from_result(result).plot()
    kernels = display.kernels
    works = kernels.flops > 0
    assert len(display.ax_.collections) == works.sum()
    assert 0 < display.moving_share < 1
    note = f"{display.moving_share:.0%} of the kernel time"
    assert any(text.get_text().startswith(note) for text in display.ax_.texts)
