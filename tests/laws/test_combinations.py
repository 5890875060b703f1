"""Every pair of axes that a stack allows runs; what none allows is refused with the reason."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

import mpsim
from mpsim.scenario import Scenario, check

AXES: dict[str, dict[str, Any]] = {
    "tp": {"tp": 2, "sequence_parallel": True},
    "pp": {"pp": 2},
    "cp": {"cp": 2},
    "ep": {"ep": 2},
    "etp": {"etp": 1},
    "zero": {"zero": 1},
}
DENSE = {"preset": "gpt2-medium"}
MOE = {**DENSE, "moe": {"experts": 8, "top_k": 2, "ffn_hidden": 1024, "shared_experts": 1}}


def _scenario(model: dict[str, Any], parallelism: dict[str, Any], **sections: Any) -> Scenario:
    return Scenario.from_mapping(
        {
            "schema": 1,
            "model": model,
            "cluster": {"preset": "dgx-h100", "nodes": 1},
            "parallelism": parallelism,
            "schedule": sections.pop("schedule", "1f1b"),
            "training": {
                "global_batch": 16,
                "sequence_length": 1024,
                **sections.pop("training", {}),
            },
            "framework": {"preset": "megatron-core", **sections.pop("framework", {})},
        },
        checked=False,
    )


PAIRS = [
    *((DENSE, pair) for pair in itertools.combinations(("tp", "pp", "cp", "zero"), 2)),
    *((MOE, pair) for pair in itertools.combinations(AXES, 2)),
]


@pytest.mark.parametrize(
    ("model", "pair"),
    PAIRS,
    ids=[f"{'experts' if model is MOE else 'dense'}-{'-'.join(pair)}" for model, pair in PAIRS],
)
def test_every_pair_of_axes_runs(model: dict[str, Any], pair: tuple[str, str]) -> None:
    """Two axes at once on eight GPUs; the parts of the step sum to it."""
    result = mpsim.simulate(_scenario(model, {**AXES[pair[0]], **AXES[pair[1]]}))
    assert sum(result.breakdown.values()) == pytest.approx(result.summary["step_time_s"])


@pytest.mark.parametrize("exchange", ["ring", "all-gather", "ulysses", "hierarchical"])
@pytest.mark.parametrize("overlap", ["none", "weight-gradient", "decomposed"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_all_axes_at_once_run_with_every_habit(exchange: str, overlap: str, recompute: str) -> None:
    """tp 2, pp 2, cp 2, ep 2 on eight GPUs, whatever overlaps and whatever is recomputed."""
    habits = {"context_exchange": exchange, "tensor_overlap": overlap}
    axes = {"tp": 2, "pp": 2, "cp": 2, "ep": 2, "zero": 1, "sequence_parallel": True}
    one = _scenario(MOE, axes, framework=habits, training={"recompute": recompute})
    assert mpsim.simulate(one).summary["step_time_s"] > 0


@pytest.mark.parametrize(
    ("parallelism", "sections", "reason"),
    [
        ({"ep": 2}, {"model": DENSE}, "the model is dense"),
        ({"etp": 2}, {"model": DENSE}, "the model is dense"),
        ({"tp": 2}, {}, "each rank routes its own 1/2 of the tokens"),
        ({"ep": 3}, {}, "8 experts do not divide by ep 3"),
        ({"tp": 4, "sequence_parallel": True, "ep": 4}, {}, "set ep to 1 or 2, or etp to 1"),
        ({"cp": 2}, {"framework": {"fused_attention": False}}, "needs fused attention"),
        ({"tp": 2, "cp": 4, "sequence_parallel": True}, {"framework": {"context_exchange": "ulysses"}, "model": {**MOE, "heads": 4, "head_dim": 64}}, "divides 4 heads"),
        ({"tp": 2}, {"framework": {"tensor_overlap": "decomposed"}}, "all-reduces, which are not cut"),
        ({"pp": 2, "ep": 2}, {"framework": {"expert_overlap": "microbatch"}}, "every one waits for the other"),
        ({"ep": 2}, {"framework": {"expert_overlap": "microbatch"}, "training": {"recompute": "full"}}, "a forward of its own"),
    ],
)  # fmt: skip
def test_pairs_that_no_stack_allows_are_refused(
    parallelism: dict[str, Any], sections: dict[str, Any], reason: str
) -> None:
    """The message says which rule is broken."""
    one = _scenario(**{"model": MOE, "parallelism": parallelism, **sections})
    told = " ".join(problem.message for problem in check(one))
    assert reason in told


def test_only_a_balanced_causal_mask_asks_for_two_chunks_a_rank() -> None:
    """1022 tokens on cp 2: refused for a ring under the mask, fine for Ulysses and for BERT."""
    odd = {"global_batch": 16, "sequence_length": 1022}
    for exchange, model, wrong in (
        ("ring", DENSE, True),
        ("ulysses", DENSE, False),
        ("ring", {"preset": "bert-large", "max_positions": 1022}, False),
    ):
        one = _scenario(model, {"cp": 2}, training=odd, framework={"context_exchange": exchange})
        assert any("not a multiple of 2 x cp = 4" in p.message for p in check(one)) is wrong
        if not wrong:
            assert mpsim.simulate(one).summary["step_time_s"] > 0
