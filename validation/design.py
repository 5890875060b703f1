"""Design studies that others published, asked again of mpsim: ``python validation/design.py [JOURNAL]`` writes design.md; a journal keeps its searches.

The order of chips is scored on published rows that ran one model on several; the studies are the scenarios ``scenarios/what-if/design-*.yaml``.
"""

from __future__ import annotations

import collections
import csv
import itertools
import math
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import mpsim
from mpsim.errors import MpsimError
from mpsim.hardware import system, with_overrides
from mpsim.hardware.inventory import inventory_of
from mpsim.scenario import Scenario
from mpsim.shipped import read_shipped
from mpsim.study.design import Design, design

ROOT = Path(__file__).parent
SCENARIOS = ROOT.parent / "scenarios" / "what-if"
SEARCH = 60.0  # seconds for one kind of cluster; where that is too short the page says so
HEAD = """# Design studies

Written by `python validation/design.py`. Each study is a scenario that ships; every cluster has the best layout of its own, as `mpsim search` finds it. Prices are those of
`mpsim/study/data/purchase.yaml` and `prices.yaml`; days hold failures.

"""


class Study(NamedTuple):
    """A scenario with its changes, and what somebody published."""

    title: str
    file: str
    claim: str
    overrides: tuple[str, ...] = ()
    changes: Mapping[str, Any] = {}


NICS = {
    "choices": {"cluster.nodes": [8], "cluster.nics_per_node": [8, 4, 2]},
    "bounds": {},
    "jobs": {"pretrain": {"tokens": "300B"}},
}
CLAIM = "Vendors' reference designs have a NIC an accelerator whatever the model."
STUDIES = (
    Study("A domain of 72 or of eight: a mixture of experts", "design-domain", "NVIDIA argues for 72 by mixtures of experts."),
    Study("A domain of 72 or of eight: a dense model", "design-domain", "The same argument is weaker for dense models.", ("dense",)),
    *(Study(f"Eight, four or two NICs: {model}", "design-nics", CLAIM, (), {"model": model, "design": NICS}) for model in ("gpt-1.7b", "llama3-8b", "llama2-70b")),
    Study("Rails, rails without spines, or a fat tree, and how thin", "design-fabric", "Rail-only networks (arXiv 2307.12169) cost 38 to 77 % less at no loss, for 8-way to 256-way domains and 32,768 GPUs."),
    Study("Dollars for a trillion tokens: H100 and MI300X", "design-chips", "Vendors compare price per hour or peak; the medians of public offers are used here."),
    Study("Dollars for a trillion tokens: TPU", "design-chips", "Google quotes performance per dollar against its own earlier chips.", ("tpu",)),
)  # fmt: skip


def asked(study: Study, journal: str | None) -> Design:
    """The answer to a study."""
    scenario = mpsim.load(SCENARIOS / f"{study.file}.yaml", overrides=study.overrides)
    data = {key: value for key, value in scenario.source.data.items() if key != "overrides"}
    for key, value in study.changes.items():
        data[key] = {**data[key], **value} if isinstance(value, Mapping) else value
    return design(
        Scenario.from_mapping(data), jobs=2, resume=journal, search=SEARCH, upgrades=False
    )


def page_of(study: Study, answer: Design) -> Iterator[str]:
    """A study and its answer."""
    yield f"## {study.title}\n\n`{study.file}.yaml`. {study.claim}\n"
    yield "| cluster | days | 80 % between | USD | of it network | chosen | layout |"
    yield "| --- | ---: | --- | ---: | ---: | --- | --- |"
    for row in answer.options:
        if row.reason:
            yield f"| {row.name} | | | | | {row.reason} | |"
            continue
        if not row.entries:
            yield f"| {row.name} | | | | | ruled out before a search | |"
            continue
        (entry,) = row.entries.values()
        network = math.fsum(
            row.parts[name] for name in row.parts if name[:4] in ("nic-", "swit", "cabl")
        )
        low, high = row.spread
        days = row.days or 0.0
        share = "" if row.bill.capital is None else f"{network / row.cost:.1%}"
        odds = f"P(best) {answer.odds:.0%}" if row is answer.best and answer.odds else ""
        cut = "" if entry["proved"] else " (search cut short)"
        yield f"| {row.name} | {days:.2f} | {low * days:.2f} to {high * days:.2f} | {row.cost:,.0f} | {share} | {odds} | {entry['name']}{cut} |"
    yield ""


def order_of_chips() -> Iterator[str]:
    """Pairs of chips on one model, length and format of one source: is the measured order the predicted one, and how far are the ratios apart."""
    with (ROOT / "residuals.csv").open(newline="") as file:
        residuals = {row["id"]: row for row in csv.DictReader(file) if row["figure"] == "step"}
    rates: dict[tuple[str, ...], dict[str, list[tuple[float, float]]]] = {}
    with (ROOT / "data" / "published-runs.csv").open(newline="") as file:
        for row in csv.DictReader(file):
            known, rate = residuals.get(row["id"]), row["check_model_tflops_per_accel"]
            if known and rate:
                key = row["family"], row["model"], row["seq_len"], known["format"]
                # log_error is ln(predicted / measured) of the step: a longer step is a lower rate
                predicted = float(rate) * math.exp(-float(known["log_error"]))
                chips = rates.setdefault(key, {})
                chips.setdefault(known["accelerator"], []).append((float(rate), predicted))
    right: collections.Counter[tuple[str, str]] = collections.Counter()
    apart: dict[tuple[str, str], list[float]] = {}
    for chips in rates.values():
        for a, b in itertools.combinations(sorted(chips), 2):
            measured = max(chips[b])[0] / max(chips[a])[0]
            predicted = max(p for _, p in chips[b]) / max(p for _, p in chips[a])
            right[a, b] += (measured > 1) == (predicted > 1)
            apart.setdefault((a, b), []).append(abs(math.log(predicted / measured)))
    every = [error for errors in apart.values() for error in errors]
    yield "## Order of chips\n"
    yield f"The fastest published run of each chip on one model, length, format and source, {len(every)} pairs: predicted in the measured order in {sum(right.values()):,}, ratios apart by {math.fsum(every) / len(every):.1%} on average. Predictions know these rows as `accuracy.md` has them.\n"
    yield "| chips | pairs | order right | ratios apart |\n| --- | ---: | ---: | ---: |"
    for pair, errors in sorted(apart.items(), key=lambda item: -len(item[1])):
        yield f"| {pair[0]}, {pair[1]} | {len(errors)} | {right[pair]} | {math.fsum(errors) / len(errors):.1%} |"
    yield ""


def networks() -> Iterator[str]:
    """Parts of networks of H100 nodes, counted."""
    prices = read_shipped("mpsim.study.data", "purchase.yaml")["parts"]
    switch, cable = (float(prices[name]["price"]) for name in ("switch-64x400", "cable-400"))
    yield "## Parts of a network\n\nSwitches and cables of the built fabric and their price, without NICs; rail-only against a full fat tree.\n"
    yield "| GPUs | fat tree: switches | cables | MUSD | rail-only: switches | cables | MUSD | less |"
    yield "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    for nodes in (128, 512, 2048, 4096):
        built = [
            inventory_of(with_overrides(system("dgx-h100", nodes=nodes), fabric_kind=kind))
            for kind in ("fat-tree", "rail-only")
        ]
        sums = [each.switches * switch + each.cables * cable for each in built]
        cells = [
            f"{each.switches:,} | {each.cables:,} | {total / 1e6:.1f}"
            for each, total in zip(built, sums, strict=True)
        ]
        yield f"| {8 * nodes:,} | {' | '.join(cells)} | {1 - sums[1] / sums[0]:.0%} |"
    yield "\nThe paper has 38 to 77 %, by the size of a domain; here a rail of 4,096 NICs needs a third tier as the fat tree does, and nothing is saved.\n"


TAIL = """## Not answered

Calculon's budget table (SC'23): the paper's prices and rows by size of memory were not at hand in a form that could be checked, so nothing is scored against it. `cluster.accelerator.memory` with prices
`cluster.accelerator.memory=120 GB` asks the same question of mpsim. Prices of what is bought are recalled estimates; the flips of `mpsim design` say how wrong one may be.
"""


def main(journal: str | None = None) -> None:
    """Write the page."""
    parts = [*order_of_chips(), *networks()]
    for study in STUDIES:
        try:
            parts += page_of(study, asked(study, journal))
        except MpsimError as error:
            parts.append(f"## {study.title}\n\nrefused: {error}\n")
        print(parts[-1], file=sys.stderr)
    (ROOT / "design.md").write_text(HEAD + "\n".join(parts) + "\n" + TAIL, encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
