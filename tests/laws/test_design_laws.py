"""Laws of designs: what a search on each cluster finds is what the design has, and no choice or price makes its front worse than it must."""

from __future__ import annotations

import copy
import dataclasses
import functools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import mpsim
from mpsim.errors import ScenarioError
from mpsim.plot import design_chart
from mpsim.report import report
from mpsim.scenario import Scenario
from mpsim.scenario.design import DesignChoice
from mpsim.scenario.schema import known_keys
from mpsim.shipped import say
from mpsim.study.design import Design, design, explore
from mpsim.study.design.explore import Explorer, jobs_of
from mpsim.study.journal import Journal
from mpsim.study.search import search

DATA: dict[str, Any] = {
    "schema": 1,
    "name": "small",
    "model": {"preset": "gpt2-medium", "layers": 2},
    "cluster": {"accelerator": "h100-sxm", "accelerators_per_node": 2, "nodes": 2, "nic": "ib-ndr",
                "nics_per_node": 2, "node_power": "3 kW",
                "fabric": {"kind": "rail-optimized", "radix": 64, "switch_price": 30000, "cable_price": 1500}},
    "parallelism": {},
    "training": {"global_batch": 16, "micro_batch": 4, "sequence_length": 1024},
    "design": {
        "jobs": {"train": {"tokens": "10B"}},
        "choices": {"cluster.nodes": [1, 2], "cluster.nics_per_node": [2, 1]},
        "money": {"basis": "purchase"},
    },
}  # fmt: skip


def study(changes: dict[str, Any] | None = None, **options: Any) -> Design:
    """The design with some of its keys changed; slashes part them, as those of choices have dots."""
    data = copy.deepcopy(DATA)
    for key, value in (changes or {}).items():
        *way, last = key.split("/")
        node = functools.reduce(lambda part, name: part.setdefault(name, {}), way, data["design"])
        node[last] = value
    return design(Scenario.from_mapping(data), upgrades=False, **options)


@functools.cache
def usual() -> Design:
    """The design as it is."""
    return study()


def points(answer: Design) -> list[tuple[float, float]]:
    """Cost and days of the front."""
    return [(row.cost, row.slowness) for row in answer.front]


def covers(larger: Design, smaller: Design) -> bool:
    """Whether each point of a front is reached by the other, to rounding."""
    return all(
        any(cost <= c * (1 + 1e-9) and days <= d * (1 + 1e-9) for cost, days in points(larger))
        for c, d in points(smaller)
    )


def test_each_cluster_has_the_layout_that_a_search_of_its_own_finds() -> None:
    """One search for clusters that differ in their links gives the step times of a search on each."""
    scenario = Scenario.from_mapping(DATA)
    for row in usual().options:
        own = scenario.with_values({"parallelism.dp": None, **row.values}, checked=False)
        found = search(own, top=1, front=False).best
        assert found is not None
        assert row.entries["train"]["step_time_s"] == pytest.approx(found.step_time_s, rel=1e-9)


def test_no_cluster_of_the_choices_beats_the_front() -> None:
    """Every cluster that can run is reached by the front, those ruled out included."""
    answer = usual()
    for row in answer.possible:
        assert any(cost <= row.cost and days <= row.slowness for cost, days in points(answer))


def test_another_choice_never_worsens_the_front() -> None:
    """With one more value the front reaches whatever it reached."""
    more = study({"choices/cluster.nodes": [1, 2, 4]})
    assert covers(more, usual())


def test_dearer_parts_of_the_same_figures_never_enter(tmp_path: Path) -> None:
    """Of clusters that differ in a price alone the cheaper one leads, and one search is for both."""
    journal = tmp_path / "journal.jsonl"
    choices = {"cluster.nodes": [2], "cluster.fabric.cable_price": [1500, 3000]}
    answer = study({"choices": choices}, resume=journal)
    assert [row.values["cluster.fabric.cable_price"] for row in answer.front] == [1500]
    assert len(journal.read_text().splitlines()) == 1


def test_processes_and_a_journal_change_no_byte(tmp_path: Path) -> None:
    """Two processes, and a second run from the journal of the first, print what one process prints."""
    journal = tmp_path / "journal.jsonl"
    answers = [study(jobs=2, resume=journal), study(resume=journal)]
    expected = json.dumps(usual().to_json())
    assert [json.dumps(answer.to_json()) for answer in answers] == [expected, expected]


def test_what_is_hopeless_at_its_best_is_not_searched_and_changes_no_byte() -> None:
    """A cluster that costs more at the best rate of its accelerators than another one does in truth is ruled out; looked at all the same it changes nothing but its own row."""
    chips = {"cluster.accelerator": ["h100-sxm", "l4"], "cluster.nodes": [1, 2]}
    changes = {"choices": chips, "prices": {"l4": 50_000}}
    answers = [study(changes, prune=prune) for prune in (True, False)]
    plain = [answer.to_json() for answer in answers]
    rows = [data.pop("rows") for data in plain]
    assert [data.pop("ruled_out") for data in plain] == [2, 0]
    assert json.dumps(plain[0]) == json.dumps(plain[1])
    differ = [(a["values"], a["jobs"]) for a, b in zip(*rows, strict=True) if a != b]
    wanted = [{"cluster.accelerator": "l4", "cluster.nodes": nodes} for nodes in (1, 2)]
    assert differ == [(values, {}) for values in wanted]


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"model": {"preset": "mixtral-8x7b", "layers": 2}},
        {"training": {"method": "lora"}},
        {"training": {"precision": "fp8"}, "framework": "megatron-core-2025"},
    ],
    ids=["dense", "experts", "lora", "fp8"],
)
def test_no_training_takes_less_than_its_bound(changes: dict[str, Any]) -> None:
    """What is known before a search is below what the best layout takes, in days and in cost."""
    data = {**copy.deepcopy(DATA), **changes}
    data["training"] = {**DATA["training"], **changes.get("training", {})}
    (option, *_) = design(Scenario.from_mapping(data), upgrades=False).possible
    assert option.days is not None
    assert 0.05 * option.days < option.least_days < option.days
    assert option.least_cost < option.cost


MOVED: dict[str, tuple[dict[str, Any], str]] = {
    "jobs": ({"jobs": {"other": {"tokens": "10B"}}}, ""),
    "jobs.scenario": ({"jobs/train/scenario": "absent.yaml"}, "absent.yaml"),
    "jobs.share": ({"jobs/train/share": 0.5}, "share"),
    "jobs.tokens": ({"jobs/train/tokens": "20B"}, ""),
    "jobs.deadline": ({"jobs/train/deadline": "1 h"}, ""),
    "jobs.rate": ({"jobs/train/rate": 3}, "rate"),
    "choices": ({"choices": {"cluster.nodes": [2]}}, ""),
    "bounds": ({"bounds": {"capital": 300000}}, ""),
    "bounds.capital": ({"bounds/capital": 1.0}, "capital"),
    "bounds.hourly": ({"bounds/hourly": "0.5 USD/h"}, "hourly"),
    "bounds.power": ({"bounds/power": "3 kW"}, ""),
    "bounds.racks": ({"bounds/racks": 1}, "rack_power"),
    "bounds.rack_power": ({"bounds/rack_power": "3 kW"}, ""),
    "money": ({"money": {"basis": "purchase", "tariff": 1}}, ""),
    "money.basis": ({"money/basis": "rent"}, "nics_per_node=1"),
    "money.offer": ({"money/offer": "spot"}, "offer"),
    "money.life": ({"money/life": "365 d"}, ""),
    "money.tariff": ({"money/tariff": 3.0}, ""),
    "prices": ({"prices": {"host": 1}}, ""),
    "place": ({"place": {"pue": 2.0}}, ""),
    "place.pue": ({"place/pue": "industry"}, ""),
    "place.region": ({"place/region": "fra"}, ""),
}
"""Each key of the section moved, and a word of the refusal where it is one."""


def test_every_key_is_moved() -> None:
    """The table has every key of the section."""
    assert set(MOVED) == set(known_keys(DesignChoice))


@pytest.mark.parametrize("key", MOVED)
def test_a_key_acts_or_is_refused(key: str) -> None:
    """A key of the section changes the answer, or is refused by name."""
    changes, word = MOVED[key]
    try:
        answer = study(changes)
    except ScenarioError as error:
        assert word
        assert word in str(error)
    else:
        assert json.dumps(answer.to_json()) != json.dumps(usual().to_json())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"choices/cluster.nic": ["ib-ndr", "250 Gb/s"], "choices/cluster.accelerator.memory": ["80 GB", "90 GB"]}, ["design.prices.nic-250", "design.prices.cluster.accelerator.memory=90 GB"]),
        ({"bounds": {"capital": 100.0, "hourly": "0.1 USD/h"}}, ["no cluster keeps them; the nearest", "capital by", "hourly by"]),
        ({"jobs": {"a": {"share": 0.7, "tokens": 1}, "b": {"share": 0.7}}}, ["cannot share the nodes", "1.4"]),
        ({"jobs": {"a": {}, "b": {"rate": 2, "share": 0.5}}, "jobs/a/share": 0.5}, ["a.tokens", "b.rate", "b.tokens"]),
        ({"choices/parallelism.tp": [1, 2]}, ["no key of the cluster"]),
        ({"choices/cluster": [{"preset": "dgx-h100"}]}, ["no price can name; needed cluster.preset"]),
    ],
)  # fmt: skip
def test_mistakes_are_told_together_with_the_mend(
    changes: dict[str, Any], words: list[str]
) -> None:
    """Parts without a price, bounds that nothing keeps, jobs that cannot share: each refusal names them all."""
    with pytest.raises(ScenarioError) as refused:
        study(changes)
    assert [word for word in words if word not in str(refused.value)] == []


@pytest.mark.parametrize(
    ("offer", "words"),
    [
        ("reserved-3y", "warning: no reserved-3y offer of h100-sxm is known: on-demand counts"),
        ("spot", "warning: spot offers are withdrawn at any time: what that costs is not counted"),
    ],
)
def test_an_offer_that_does_not_count_as_asked_is_told(offer: str, words: str) -> None:
    """Nobody publishes three years of H100: the price on demand stands for it, and the answer says so, as a plan does."""
    asked = {"money": {"basis": "rent", "offer": offer}, "choices": {"cluster.nodes": [2]}}
    assert words in study(asked).sheet().text()


def test_a_rack_holds_a_node_or_the_design_misses_its_power() -> None:
    """Nodes of 3 kW do not stand in racks of 2 kW, one each; a rack that holds one counts two of them, one of 6 kW counts one."""
    with pytest.raises(ScenarioError, match="misses rack_power by 50"):
        study({"bounds": {"rack_power": "2 kW"}, "choices": {"cluster.nodes": [2]}})
    for power, racks in (("3 kW", 2), ("6 kW", 1)):
        (row,) = study(
            {"bounds": {"rack_power": power}, "choices": {"cluster.nodes": [2]}}
        ).possible
        assert row.racks == racks


def test_a_rack_is_a_domain_that_a_switch_joins_not_a_torus() -> None:
    """18 trays of 5.4 kW are one rack of 97 kW, more than 40 kW; nobody says how many hosts of a pod of TPUs stand in one."""
    for preset, words in (("gb200-nvl72", "rack_power by 14"), ("tpu-v5p-pod", "node_power")):
        data = {**copy.deepcopy(DATA), "cluster": {"preset": preset, "nodes": 18}}
        data["training"] = {**DATA["training"], "global_batch": 288}
        data["design"] |= {
            "bounds": {"rack_power": "40 kW", "racks": 1},
            "choices": {"cluster.nodes": [18]},
            "money": {"basis": "rent"},
        }
        with pytest.raises(ScenarioError, match=words):
            design(Scenario.from_mapping(data), upgrades=False)


def test_a_deadline_that_nothing_keeps_leaves_the_nearest() -> None:
    """Where only searches show that a bound is missed, the answer has no chosen one and says which misses by least."""
    with pytest.raises(ScenarioError, match="no cluster keeps them"):
        study({"jobs/train/deadline": "2 s"})  # not even at the peak
    answer = study({"jobs/train/deadline": "1 h"})
    assert answer.best is None
    assert answer.nearest is not None
    assert "deadline of train" in answer.nearest.over
    assert "no cluster keeps every bound" in answer.sheet().text()


def test_a_cluster_without_a_layout_says_why_beside_the_chosen_one() -> None:
    """The answer names the first cluster that has none of each reason, which only the count of them told of."""
    answer = usual()
    other = next(row for row in answer.options if row is not answer.best)
    wrong = dataclasses.replace(other, entries={}, reason="no NIC; give one\nand more")
    short = dataclasses.replace(answer, options=(answer.ranking[0], wrong, wrong))
    told = [line for line in short.sheet().text().split("\n") if "no NIC" in line]
    assert told == [f"without a layout: {wrong.name}: no NIC; give one"]


def test_odds_over_a_search_that_was_cut_short_say_so() -> None:
    """Where the search of a rival ended early its best layout may be faster: the odds are those of what was found, and are called so."""
    answer = usual()
    assert answer.odds is not None
    best, rival = answer.ranking[:2]
    cut = {job: {**entry, "proved": False} for job, entry in rival.entries.items()}
    early = dataclasses.replace(rival, entries=cut)
    options = tuple(early if row is rival else row for row in answer.options)
    short = dataclasses.replace(answer, options=options)
    assert short.lead(best, early) == answer.lead(best, rival)
    told = [each.sheet().text().split("\n")[0] for each in (answer, short)]
    assert told[1] == f"{told[0]}, by the layouts found"


def test_prices_that_nobody_was_asked_for_take_certainty_from_the_choice_of_a_chip() -> None:
    """Of rented clusters of two chips the cheaper one leads with more odds once prices are stated."""
    chips = {"choices": {"cluster.accelerator": ["h100-sxm", "a100-sxm-80"]}, "money/basis": "rent"}
    listed = study(chips)
    own = {row.values["cluster.accelerator"]: row.bill for row in listed.options}
    prices = {str(chip): bill.items[str(chip)][1] for chip, bill in own.items()}
    stated = study({**chips, "prices": prices})
    assert listed.best is not None
    assert stated.best is not None
    assert stated.best.cost == pytest.approx(listed.best.cost)
    assert 0.5 < (listed.odds or 0.0) < (stated.odds or 0.0)


def test_parts_of_both_clusters_err_alike() -> None:
    """Clusters of one rented chip that differ in their number have the odds of their times alone."""
    answer = study({"money/basis": "rent", "choices": {"cluster.nodes": [1, 2]}})
    best, other = answer.ranking
    assert best.doubt(other) == pytest.approx(0.0, abs=1e-12)


def test_a_page_and_a_picture_show_the_same_design() -> None:
    """The page of a design has its clusters, front and choices with the figures of its JSON, as the picture has."""
    answer = usual()
    data = json.loads(json.dumps(answer.to_json()))
    (clusters,) = (each for each in report([data])["parts"][0]["sections"] if each["id"] == "best")
    front, *others, table = clusters["blocks"]
    assert [series["y"] for series in front["series"][1:]] == [
        [row.slowness for row in sorted(answer.front, key=lambda row: row.cost)],
        [answer.best.slowness] if answer.best else [],
    ]
    assert [row[3] for row in table["rows"]] == pytest.approx([row.cost for row in answer.options])
    for key, chart in zip(answer.spec.choices, others[-2:], strict=True):
        assert chart["names"] == [str(value) for value in answer.spec.choices[key]]
        assert min(chart["parts"][0]["values"]) == pytest.approx(answer.score(answer.ranking[0]))
    assert len(design_chart(answer).charts) == len(clusters["blocks"]) - 1


def test_the_command_answers_with_the_front(tmp_path: Path, mpsim_cli: Callable[..., Any]) -> None:
    """The JSON of the command has the front, the chosen one with its odds, and upgrades; the table has a line each cluster."""
    file, table = tmp_path / "small.yaml", tmp_path / "clusters.csv"
    file.write_text(yaml.safe_dump(DATA))
    ended = mpsim_cli("design", str(file), "-j", "1", "--csv", str(table), "--json")
    answer = json.loads(ended.out)
    assert ended.code == 0
    assert len(table.read_text().splitlines()) == 1 + len(answer["rows"])
    assert answer["chosen"]["cost_usd"] == min(row["cost_usd"] for row in answer["front"])
    assert {upgrade["name"] for upgrade in answer["upgrades"]} >= {"10 % more memory"}
    assert mpsim.design is design


def test_a_service_on_a_cluster_of_a_design_has_no_problem() -> None:
    """What a design lays over a service, degrees left open, is nothing that only training knows."""
    service = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "llama3-8b",
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "serving": {"workload": {"rate": 4}, "slo": {"ttft": "1 s"}},
            "design": {"jobs": {"chat": {"rate": 4}}, "choices": {"cluster.nodes": [1, 2]}},
        }
    )
    assert service.design is not None
    explorer = Explorer(
        scenario=service,
        spec=service.design,
        jobs=jobs_of(service, service.design),
        journal=Journal(None, what="a cluster"),
    )
    for values in ({"cluster.nodes": 1}, {"cluster.nodes": 2}):
        assert explorer.on("chat", values, explorer.machine(values)).problems == []


@pytest.mark.parametrize("bound", [{"capital": 0}, {"power": "0 W"}, {"hourly": "0 USD/h"}])
def test_a_bound_of_nothing_is_refused(bound: dict[str, Any]) -> None:
    """No cluster costs or draws nothing: such a bound is a mistake, and not one that everybody keeps."""
    with pytest.raises(ScenarioError, match=f"design.bounds.{next(iter(bound))}"):
        study({f"bounds/{key}": value for key, value in bound.items()})


def test_a_deadline_is_kept_with_odds() -> None:
    """A deadline at the end of the chosen one's interval of 80 % is kept nine times in ten, and the answer says so."""
    best = usual().best
    assert best is not None
    assert best.days is not None
    late = f"{best.days * best.spread[1] * 86400.0} s"
    answer = study({"jobs/train": {"tokens": "10B", "deadline": late}, "choices": best_alone(best)})
    assert "within its deadline with odds of 90.0 %" in str(answer)


def best_alone(best: Any) -> dict[str, list[object]]:
    """Choices of one cluster."""
    return {key: [value] for key, value in best.values.items()}


def test_clusters_of_two_kinds_of_accelerators_are_refused() -> None:
    """A bill counts one kind of accelerator: stages and pools with their own are not priced as if they were all of it."""
    stages = [{"count": 1}, {"count": 1, "accelerator": "a100-sxm-80"}]
    mixed = {**DATA, "cluster": {**DATA["cluster"], "stages": stages}, "parallelism": {"pp": 2}}
    pools = {"prefill": {"tp": 2}, "decode": {"tp": 2, "accelerator": "a100-sxm-80"}}
    load = {"rate": 1, "prompt": 100, "output": 10}
    serving = {"disaggregated": pools, "slo": {"ttft": "1 s"}, "workload": load}
    served = {key: part for key, part in DATA.items() if key not in ("training", "parallelism")}
    served |= {"serving": serving, "design": {**DATA["design"], "jobs": {"chat": {"rate": 4}}}}
    for data in (mixed, served):
        with pytest.raises(ScenarioError, match="prices clusters of one kind of accelerator"):
            design(Scenario.from_mapping(data))


def test_progress_counts_searches_to_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clusters that share a search count once, those ruled out not at all; changes to the chosen one count from the start."""
    told: list[tuple[int, int]] = []
    entry = usual().front[0].entries["train"]
    monkeypatch.setattr(explore, "explore", lambda points, *_: [entry] * len(points))
    answer = design(Scenario.from_mapping(DATA), progress=lambda *share: told.append(share))
    done, totals = zip(*told, strict=True)
    assert answer.upgrades
    assert done[0] == 0
    assert sorted(set(done)) == [*range(totals[-1] + 1)]
    assert list(done) == sorted(done)
    assert max(totals) <= 1.5 * totals[-1]


def test_a_fabric_chosen_by_a_network_that_does_not_tell_it_apart_says_so_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where fabrics are varied and the chosen one's thin links are free to stages, the second line says it; else it is one of the remarks."""
    thin = say("training.thin_links")
    best = usual().best
    assert best is not None
    entry = {job: {**own, "warnings": [thin]} for job, own in best.entries.items()}
    monkeypatch.setattr(Explorer, "entries", lambda self, values: [entry for _ in values])
    for key, place in (("cluster.fabric.oversubscription", 0), ("cluster.nics_per_node", -1)):
        answer = study({"choices": {key: [1, 2]}})
        first, last = (
            section.lines for section in (answer.sheet().sections[0], answer.sheet().sections[-1])
        )
        told = say("study.thin_choice") if place == 0 else f"warning: {thin}"
        assert told in (first[1].strip(), last[-1])[place]
        assert answer.to_json()["remarks"] == [told]
        assert (
            sum(
                text in line
                for line in (*first, *last)
                for text in (thin, say("study.thin_choice"))
            )
            == 1
        )
