"""Refresh the prices of chips in the catalog from the offers (``python scripts/market.py --write``): like for like, whoever happens to list which chip.

ln(price) of an offer on demand is a level of the chip, a level of the provider (0 is the middle one)
and what remains, of which the sum of absolute values is least: one odd offer moves nothing. A
provider counts as if it had one more offer at the middle: who lists one chip says little of its own
level. A chip that its own maker alone rents out costs what that one asks. Sources stand beside each
offer in ``prices.yaml``; a test holds the catalog and the spread to this.
"""

from __future__ import annotations

import functools
import math
import re
import statistics
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent / "mpsim"
OFFERS = ROOT / "study" / "data" / "prices.yaml"
CATALOG = ROOT / "hardware" / "catalog" / "accelerators.yaml"
ROUNDS = 800  # levels move by less than 1e-6 then
CLOSE = 0.1  # of ln(price): offers that near weigh alike
NORMAL = 1.4826  # standard deviation of a normal error over its median size
Offer = tuple[str, str, float]  # chip, provider, ln of USD/h


def offers_of(listed: Mapping[str, list[Mapping[str, Any]]]) -> list[Offer]:
    """Offers on demand; a provider is the first word of its name, as products follow it."""
    return [
        (chip, re.split(r"[ ,]", each["provider"])[0], math.log(float(each["rate"].split()[0])))
        for chip, entries in listed.items()
        for each in entries
        if each["offer"] == "on-demand"
    ]


def levels_of(offers: list[Offer]) -> tuple[dict[str, float], float]:
    """Price of each chip at the middle provider [USD/h], and the standard deviation of what remains of ln(price)."""
    chips = dict.fromkeys((chip for chip, _, _ in offers), 0.0)
    providers = dict.fromkeys((provider for _, provider, _ in offers), 0.0)
    for _ in range(ROUNDS):
        heavy = [1.0 / max(abs(y - chips[c] - providers[p]), CLOSE) for c, p, y in offers]
        weighed = list(zip(offers, heavy, strict=True))
        for chip in chips:
            chips[chip] = _mean([(y - providers[p], w) for (c, p, y), w in weighed if c == chip])
        for name, level in providers.items():
            rest = [(y - chips[c], w) for (c, p, y), w in weighed if p == name]
            providers[name] = _mean([*rest, (0.0, 1.0 / max(abs(level), CLOSE))])
        middle = statistics.median(providers.values())
        providers = {name: level - middle for name, level in providers.items()}
    apart = [abs(y - chips[c] - providers[p]) for c, p, y in offers]
    left = len(offers) - len(chips) - len(providers) + 1
    spread = NORMAL * statistics.median(apart) * math.sqrt(len(apart) / left)
    return {chip: math.exp(level) for chip, level in chips.items()}, spread


def _mean(values: list[tuple[float, float]]) -> float:
    return math.fsum(y * w for y, w in values) / math.fsum(w for _, w in values)


def prices() -> tuple[dict[str, float], float]:
    """Price of each chip that somebody offers on demand [USD/h], and the spread around it."""
    offers = offers_of(yaml.safe_load(OFFERS.read_text())["offers"])
    catalog, (levels, spread) = yaml.safe_load(CATALOG.read_text()), levels_of(offers)
    for chip in levels:
        asked = {
            p: [math.exp(y) for c, q, y in offers if (c, q) == (chip, p)] for _, p, _ in offers
        }
        makers = asked.get(catalog[chip]["vendor"])
        if makers and sum(map(bool, asked.values())) == 1:
            levels[chip] = statistics.median(makers)
    return {chip: float(f"{level:.3g}") for chip, level in levels.items()}, round(spread, 2)


def told(entries: list[Mapping[str, Any]]) -> str:
    """Source and date of a chip's price, as lines of the catalog."""
    entries = [each for each in entries if each["offer"] == "on-demand"]
    asked = sorted(float(each["rate"].split()[0]) for each in entries)
    who = ", ".join(sorted({each["provider"] for each in entries}))
    recalled = ", some recalled" * any("recalled" in each["source"] for each in entries)
    newest = (max(each["as_of"] for each in entries) + "-01-01")[:10]
    prices = "list price" if len(asked) == 1 else f"list prices, {asked[0]:g} to {asked[-1]:g}"
    words = f"level of {len(asked)} on-demand {prices} ({who}{recalled}): scripts/market.py"
    lines = textwrap.wrap(words, 110, initial_indent=" " * 8, subsequent_indent=" " * 8)
    return "\n".join(["      source: >-", *lines, f"      as_of: {newest}", ""])


def _with(lines: str, found: re.Match[str]) -> str:
    return found[1] + lines


def write() -> None:
    """Bring the catalog and the spread up to date."""
    levels, spread = prices()
    text, listed = CATALOG.read_text(), yaml.safe_load(OFFERS.read_text())["offers"]
    for chip, level in levels.items():
        entry = rf"(?m)(^{re.escape(chip)}:\n(?:  .*\n|\n)*?"
        text = re.sub(rf"{entry}  price_per_hour: )\S+", rf"\g<1>{level:g}", text)
        block = rf"{entry}    price_per_hour:\n)(?:      .*\n)+"
        text = re.sub(block, functools.partial(_with, told(listed[chip])), text)
    CATALOG.write_text(text)
    OFFERS.write_text(re.sub(r"(?m)^spread: \S+", f"spread: {spread}", OFFERS.read_text()))


if __name__ == "__main__":
    if "--write" in sys.argv:
        write()
    levels, spread = prices()
    print(
        f"spread {spread}",
        *(f"{chip:16} {level:g} USD/h" for chip, level in levels.items()),
        sep="\n",
    )
