"""Draw the synthetic trace of chats that scenarios/serving/replay-trace.yaml replays: ``python scripts/chat_trace.py``.

Nothing in it is measured. Chats begin at random, 0.8 a second for five minutes; each has a few turns, a prompt is everything said before and the new question, and the next turn comes after
the answer was read. Lines are Mooncake's: `hash_ids` name the 512-token blocks of a prompt, so a later turn shares those of the one before.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

PATH = Path(__file__).resolve().parents[1] / "scenarios" / "serving" / "chat-trace.jsonl"
BLOCK = 512
SYSTEM = 700
"""Tokens of the system's prompt, which all chats share."""


def rows() -> list[dict[str, object]]:
    """Requests in order of arrival."""
    random = np.random.default_rng(16)
    found: list[dict[str, object]] = []
    starts = np.cumsum(random.exponential(1 / 0.8, 240))
    for chat, start in enumerate(starts[starts < 300].tolist()):
        at, prompt = start, SYSTEM
        for _ in range(int(random.geometric(0.45))):
            prompt += max(8, int(random.lognormal(5.2, 0.9)))
            output = max(4, int(random.lognormal(5.0, 0.7)))
            blocks = prompt // BLOCK
            shared = SYSTEM // BLOCK
            ids = [
                number if number < shared else 1000 * (chat + 1) + number
                for number in range(blocks)
            ]
            found.append(
                {
                    "timestamp": round(at * 1e3),
                    "input_length": prompt,
                    "output_length": output,
                    "hash_ids": ids,
                }
            )
            prompt += output
            at += 0.03 * output + random.exponential(15.0)
    return sorted(found, key=lambda row: int(str(row["timestamp"])))


if __name__ == "__main__":
    PATH.write_text("".join(json.dumps(row) + "\n" for row in rows()), encoding="utf-8")
