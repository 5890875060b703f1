"""Hold the laws of tests/fuzz/laws.py against many random scenarios, and keep those that break one.

    python scripts/fuzz_laws.py --count 2000                     # seeds 0 to 1,999
    python scripts/fuzz_laws.py --first 5000 --count 100 --save /tmp/broken
    python scripts/fuzz_laws.py --services 1 --count 1000        # streams of requests only

Exit 1 if a law is broken. It prints at the end what became of the scenarios.
"""

from __future__ import annotations

import argparse
import collections
import sys
import time
from pathlib import Path
from random import Random

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.fuzz.laws import LAWS, Case, broken  # noqa: E402
from tests.fuzz.scenarios import draw_scenario  # noqa: E402


def main() -> int:
    """Run the laws; the number of scenarios that broke one decides the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--first", type=int, default=0, help="first seed")
    parser.add_argument("--count", type=int, default=2000, help="how many seeds")
    parser.add_argument("--services", type=float, default=0.12, help="share of services")
    parser.add_argument("--save", type=Path, help="folder for scenarios that break a law")
    asked = parser.parse_args()
    counts: collections.Counter[str] = collections.Counter()
    worst, begun = 0.0, time.process_time()
    done = 0
    try:
        for seed in range(asked.first, asked.first + asked.count):
            data = draw_scenario(Random(seed), services=asked.services)
            since = time.process_time()
            told = broken(data, counts)
            worst = max(worst, time.process_time() - since)
            for law, how in told.items():
                counts[f"broken: {law}"] += 1
                print(f"seed {seed}: {law}: {how}", flush=True)
            if told and asked.save is not None:
                asked.save.mkdir(parents=True, exist_ok=True)
                text = f"# {'; '.join(told)} (seed {seed})\n{yaml.safe_dump(data, sort_keys=False)}"
                (asked.save / f"scenario-{seed}.yaml").write_text(text)
            done += 1
    except KeyboardInterrupt:  # what was done until now is told
        print(f"interrupted at seed {asked.first + done}")
    spent = time.process_time() - begun
    print(
        f"\n{done} scenarios from seed {asked.first}: {counts[Case.RAN]} ran, {counts[Case.REFUSED]} were refused, {spent:.0f} s of CPU, the longest {worst:.1f} s\n"
    )
    print("| law | held for | broken by |\n| --- | --- | --- |")
    for law in LAWS:
        print(f"| {law} | {counts[law]} | {counts[f'broken: {law}']} |")
    failures = sum(count for name, count in counts.items() if name.startswith("broken"))
    print(
        f"| no internal error | {done - counts['broken: no internal error']} | {counts['broken: no internal error']} |"
    )
    return 1 if failures else 0


if __name__ == "__main__":
    raise SystemExit(main())
