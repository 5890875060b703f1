"""Faults on trial: recordings with known faults, explained: which cause comes first, its seconds, and alarms on clean ones.

Covers: 60 simulated recordings of `tests/faults.py` (half with two faults), 20 clean ones, and the real ones of validation/measured/explained. Question: can an explanation be believed?

Run from any folder, with mpsim installed (two minutes): python validation/explain.py [--check]. It writes validation/explain.md.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import mpsim
from mpsim.explain import Explanation, explain

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))
from tests import faults as trial  # noqa: E402 - beside the package

PAGE, REAL = HERE / "explain.md", HERE / "measured" / "explained"
COUNT, CLEAN, NEAR, ALARM = 60, 20, 0.15, 0.05
HEAD = """# Faults on trial

Recordings whose faults are known, explained by `mpsim explain`. Simulated ones are those of `tests/faults.py`: four ranks of DDP on H100 with the names of kernels as torch.profiler writes them, noise of
1 %, every fault in turn with 12 to 35 % of the step, half of them with a second one. They come from the simulator itself, so they try the taking apart of a trace, not the prediction. Written by
`python validation/explain.py`.

"""


class Tried(NamedTuple):
    """One recording: the larger of its faults, true seconds by fault, and what was said."""

    first: str
    truth: dict[str, float]
    said: Explanation

    @property
    def cause(self) -> str:
        """The first cause that was named."""
        return self.said.causes[0].cause if self.said.causes else "none"

    @property
    def error(self) -> float:
        """Error of the seconds of the first fault; 1 where another was named."""
        return (
            abs(self.said.causes[0].seconds / self.truth[self.first] - 1)
            if self.cause == self.first
            else 1.0
        )


def simulated() -> tuple[list[Tried], list[Explanation]]:
    """Faulty recordings, and clean ones."""
    result, kernels = trial.simulated()
    step, tried, clean = float(result.summary["step_time_s"]), [], []
    with tempfile.TemporaryDirectory() as folder:
        for number in range(COUNT):
            chosen = trial.drawn(number, step)
            truth = trial.seconds_of(kernels, chosen, number)
            files = trial.write(trial.recorded(kernels, chosen, number), Path(folder))
            tried.append(
                Tried(max(truth, key=lambda name: truth[name]), truth, explain(result, files))
            )
        for number in range(CLEAN):
            files = trial.write(trial.recorded(kernels, {}, 1000 + number), Path(folder))
            clean.append(explain(result, files))
    return tried, clean


def real() -> list[tuple[str, Tried]]:
    """Recordings of gloo ranks."""
    found = []
    for folder in sorted(path for path in REAL.iterdir() if path.is_dir()):
        truth = json.loads((folder / "truth.json").read_text())
        said = explain(
            mpsim.simulate(mpsim.load(folder / "scenario.yaml")),
            sorted(folder.glob("rank*.json.gz")),
        )
        seconds = truth.get("injected_s", truth["seconds_per_step"])
        found.append((folder.name, Tried(truth["cause"], {truth["cause"]: seconds}, said)))
    return found


def page() -> str:
    """The page as Markdown."""
    tried, clean = simulated()
    right = sum(each.cause == each.first for each in tried)
    near = sum(each.error <= NEAR for each in tried)
    alarms = sum(
        any(cause.seconds > ALARM * each.measured for cause in each.causes) for each in clean
    )
    lines = [
        HEAD,
        "| | asked | got |\n| --- | ---: | ---: |\n",
        f"| first cause right | 85% | {right / COUNT:.0%} ({right} of {COUNT}) |\n",
        f"| its seconds within 15% | | {near / COUNT:.0%} |\n",
        f"| clean recordings with a cause above 5% of the step | 0 | {alarms} of {CLEAN} |\n\n",
        "## Which fault was named first\n\n",
    ]
    names = [*trial.FAULTS, "none"]
    named = Counter((each.first, each.cause) for each in tried)
    lines.append(
        f"| fault | {' | '.join(name.replace('_', ' ') for name in names)} |\n| --- |{' ---: |' * len(names)}\n"
    )
    for fault in trial.FAULTS:
        cells = " | ".join(str(named[fault, name] or "") for name in names)
        lines.append(f"| {fault.replace('_', ' ')} | {cells} |\n")
    lines.append(
        "\nUneven stages, imbalance of experts and bubbles beyond the schedule's are named and not tried here.\n\n## Real recordings\n\n"
    )
    lines.append(
        "| recording | fault | named first | true (ms) | said (ms) | unexplained (ms) |\n| --- | --- | --- | ---: | ---: | ---: |\n"
    )
    for name, each in real():
        said = f"{1e3 * each.said.causes[0].seconds:.0f}" if each.said.causes else "0"
        lines.append(
            f"| {name} | {each.first} | {each.cause} | {1e3 * each.truth[each.first]:.0f} | {said} | {1e3 * each.said.unexplained:.0f} |\n"
        )
    return "".join(lines)


def main() -> int:
    """Write the page, or say whether it is as it would be written."""
    parser = argparse.ArgumentParser(prog="explain.py", description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if it is stale")
    options = parser.parse_args()
    text = page()
    if options.check:
        return int(PAGE.read_text(encoding="utf-8") != text)
    PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
