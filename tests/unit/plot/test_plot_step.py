"""Pictures of one step: each says what it shows, names what it draws once, and stays bounded."""

from pathlib import Path

import numpy as np
import pytest

from mpsim.errors import ScenarioError
from mpsim.plot import step
from mpsim.plot.palette import BUBBLE, LUMINANCE, rgb
from mpsim.plot.step import heat_chart, links_chart, memory_kinds_chart, roofline_chart
from mpsim.result import MemoryCurve, Result
from mpsim.scenario import Scenario
from mpsim.scenario.scenario import load
from mpsim.simulate import simulate_step
from mpsim.training.bubbles import CAUSES
from mpsim.training.roofline import roofline
from tests.nightly import some

SCENARIOS = Path(__file__).resolve().parents[3] / "scenarios"
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


@pytest.mark.parametrize("picture", some(PICTURES, 5))
def test_every_picture_has_a_title_with_the_headline(result: Result, picture: str) -> None:
    """The scenario, what is shown and the step time; within the width of the figure."""
    display = getattr(result.plot, picture)()
    figure = display.figure_
    title = figure._suptitle
    assert title.get_text().startswith(f"{result.scenario.name}: ")
    assert f"{result.timeline.step_time_s:.4g} s a step" in title.get_text().replace("\n", " ")
    figure.draw_without_rendering()
    assert title.get_window_extent().x1 <= figure.bbox.x1


@pytest.mark.parametrize("picture", some(PICTURES, 5))
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


def test_the_heat_map_averages_neighbours_of_many_ranks(monkeypatch, result: Result) -> None:
    """Of more ranks than rows neighbours are averaged, and the mean stays that of all ranks."""
    whole = heat_chart(result)
    monkeypatch.setattr(step, "_MOST_RANKS", 2)
    few = heat_chart(result)
    assert (len(whole.names), len(few.names)) == (len(result.program.rank_name), 2)
    assert few.values.mean() == pytest.approx(whole.values.mean())


def test_kernels_of_the_heat_map_are_those_of_the_account(result: Result) -> None:
    """Mean over time of each rank: the time of its kernels over the step."""
    parts = [result.program.vocabulary.part(name) for name in result.program.vocabulary.computing]
    busy = result.parts[:, parts].sum(axis=1) / result.timeline.makespan
    # copies around exchanges run too, and count as their axis
    assert (result.utilisation.kernels.mean(axis=1) >= busy - 1e-9).all()
    assert result.utilisation.kernels.mean(axis=1) == pytest.approx(busy, abs=0.03)


def test_links_stand_by_tier_on_a_scale_of_powers_of_ten(result: Result) -> None:
    """Links of a tier are neighbours, every tier that carries anything is there, and a load of a percent is far from none."""
    display = links_chart(result).plot()
    groups = display.chart.groups
    use = result.links
    carrying = {tier for tier, carried in zip(use.tiers, use.carried, strict=True) if carried > 0}
    assert set(groups) == carrying
    order = list(dict.fromkeys(groups))
    assert [order.index(tier) for tier in groups] == sorted(order.index(tier) for tier in groups)
    norm = display.ax_.collections[0].norm
    assert norm(1.0) == pytest.approx(1 / 3, abs=0.05)


def test_memory_by_kind_stacks_to_what_is_held(result: Result) -> None:
    """The top of the stack is the curve; a curve without kinds is refused."""
    display = memory_kinds_chart(result).plot()
    top = max(
        path.vertices[:, 1].max()
        for collection in display.ax_.collections
        for path in collection.get_paths()
    )
    assert top == pytest.approx(result.memory.total.max() / 1e9)
    with pytest.raises(ScenarioError, match="not known by kind"):
        step.memory_areas("pp 0", MemoryCurve(np.zeros(1), np.zeros(1), 0.0), 1.0)


def test_memory_by_kind_names_the_peak_and_draws_limit_and_interval(result: Result) -> None:
    """The capacity, both ends of the 80 % interval, and the moment when the rank is fullest."""
    lines = {line.label: line for line in memory_kinds_chart(result).limits}
    capacity, low, high, peak = lines
    assert capacity.startswith("capacity")
    assert peak == f"fullest in the {result.memory.when[result.memory.fullest]}"
    assert [lines[low].value, lines[high].value] == result.summary["interval"]["peak_memory_bytes"]
    curve = result.memory_curve(result.memory.fullest)
    held = curve.held[curve.time_s == lines[peak].value]
    assert held.max() == pytest.approx(float(result.memory.total.max()))


def test_the_roofline_draws_every_kernel_that_works(result: Result) -> None:
    """One mark a kernel and part, all below the roof; the rest of the time is told."""
    display = roofline_chart(result).plot()
    kernels = roofline(result.plan)
    works = kernels.flops > 0
    drawn = [series for series in display.chart.series if series.mark]
    assert sum(len(series.x) for series in drawn) == works.sum()
    roof = np.minimum(max(kernels.peaks.values()), kernels.intensity * kernels.bandwidth)
    assert (kernels.achieved[works] <= 1.001 * roof[works]).all()
    share = kernels.seconds[~works].sum() / kernels.seconds.sum()
    assert display.chart.notes[-1].startswith(f"{share:.0%} of the kernel time")


def test_one_accelerator_saves_every_picture_but_that_of_links(tmp_path: Path) -> None:
    """No link carries anything there; the others are drawn all the same."""
    scenario = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "gpt2-small",
            "cluster": {"accelerator": "rtx4090", "accelerators_per_node": 1, "nodes": 1},
            "training": {"global_batch": 2, "sequence_length": 512},
            "framework": "megatron-core",
        }
    )
    saved = [path.stem for path in simulate_step(scenario).plot.save(tmp_path)]
    assert saved == [picture for picture in PICTURES if picture != "links"]
