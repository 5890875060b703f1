"""Laws of optimizers: a row of the catalog moves memory by its states, time by its traffic and its products, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.framework import framework, optimizer_names, stepped_by
from mpsim.hardware import host_of
from mpsim.scenario import Scenario
from mpsim.training import make_plan
from mpsim.workload import make_gemm, orthogonal_products
from mpsim.workload.operators import Phase, Role

BASE: dict[str, Any] = {
    "schema": 1,
    "model": "llama2-7b",
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "framework": "torchtitan-2025",
}
STEP = {"global_batch": 16, "sequence_length": 2048}


def scenario(
    zero: int = 3, offload: dict[str, object] | None = None, **training: object
) -> Scenario:
    """A step of a Llama on eight GPUs."""
    parts = {"parallelism": {"zero": zero, **(offload or {})}, "training": {**STEP, **training}}
    return Scenario.model_validate({**BASE, **parts})


def summary(zero: int = 3, offload: dict[str, object] | None = None, **training: object) -> Any:
    """Summary of that step."""
    return mpsim.simulate(scenario(zero, offload, **training)).summary


@pytest.mark.parametrize("name", optimizer_names())
def test_every_optimizer_of_the_catalog_runs(name: str) -> None:
    """A row has what a step needs, whichever it is, and none is heavier than Adam in float32 with its list."""
    told = summary(optimizer=name)
    assert told["memory"]["optimizer"] <= summary()["memory"]["optimizer"]


def test_fused_and_listed_adam_are_what_presets_describe() -> None:
    """4 + 2 x 4 + 2 x 8 bytes of a float32 shard are 28, and 2 more for a copy in 16 bits beside a master: 30."""
    for preset, traffic in (("torch-fsdp2", 28.0), ("megatron-core", 30.0)):
        steps = stepped_by("adamw-fused", framework(preset).optimizer)
        assert steps.optimizer_traffic == traffic
        assert steps.optimizer_bytes == framework(preset).optimizer.optimizer_bytes
    listed = stepped_by("adamw-foreach", framework("torch-fsdp2").optimizer)
    assert listed.optimizer_traffic == framework("torch-fsdp2").optimizer.optimizer_traffic
    assert listed.step_scratch == 4.0


@pytest.mark.parametrize(
    ("name", "states"),
    [("lion", 4 + 4), ("adamw-precision-aware", 2 + 4), ("adamw-bf16-rounding", 4), ("sgd", 4)],
)
def test_states_beside_a_master_copy_are_those_of_the_row(name: str, states: float) -> None:
    """Megatron-Core keeps 4 B of a master copy and 8 of moments; a row has others."""
    assert stepped_by(name, framework("megatron-core").optimizer).optimizer_bytes == states


@pytest.mark.parametrize(
    ("preset", "name", "alive"),
    [
        ("megatron-2022", "muon", 4),
        ("megatron-2022", "adamw-foreach", 4 + 4),
        ("deepspeed-zero2", "adamw-8bit", 6),
        ("megatron-2022", "adamw-bf16-rounding", 0),  # no master copy
        ("megatron-bridge", "adamw-precision-aware", 0),  # its kernel reads 16 bits
        ("torch-fsdp2", "adamw-fused", 0),  # gradients are fp32: that was AdamW's list
    ],
)
def test_whatever_steps_a_master_copy_has_its_gradients_cast(
    preset: str, name: str, alive: float
) -> None:
    """The copies are the mixed-precision wrapper's, the list of square roots is AdamW's."""
    assert stepped_by(name, framework(preset).optimizer).step_scratch == alive


def test_one_iteration_of_newton_and_schulz_has_two_products_of_a_gram_matrix() -> None:
    """4 m^2 n + 2 m^3 FLOP for the shorter side m, whichever way the matrix lies and however many weights are one product."""
    m, n = 512, 2048
    for rows, columns, weights in ((m, n, 1), (n, m, 1), (2 * m, n, 2)):
        weight = make_gemm(Role.UP, Phase.WEIGHT_GRADIENT, m=rows, n=columns, k=64, weights=weights)
        flops = sum(product.flops for product in orthogonal_products(weight))
        assert flops == weights * (4 * m * m * n + 2 * m**3)


def test_ranks_that_share_the_state_share_muons_products_and_gather_for_them() -> None:
    """Whole replicas each do all products and send nothing for them; sharded ones an eighth."""
    whole, shared = (summary(zero, optimizer="muon")["breakdown_s"]["optimizer"] for zero in (0, 1))
    assert whole > 6 * shared
    extra = summary(1, optimizer="muon")["breakdown_s"]["exposed_dp"]
    assert extra > summary(1, optimizer="lion")["breakdown_s"]["exposed_dp"]


def test_muon_keeps_two_moments_of_what_is_no_matrix_of_a_layer() -> None:
    """32 layers of 4 x 4096^2 + 3 x 4096 x 11008 weights have one, the rest of 6.74 billion two."""
    plan = make_plan(scenario(0, optimizer="muon"))
    matrices = 32 * (4 * 4096**2 + 3 * 4096 * 11008)
    total = plan.layout.parameter_kinds.dense[0]
    states = summary(0, optimizer="muon")["memory"]["optimizer"]
    assert states == pytest.approx(4 * matrices + 8 * (total - matrices))


def test_an_estimate_every_tenth_step_takes_a_tenth_of_the_passes() -> None:
    """Sophia runs a forward and a backward more in one of ten steps."""
    told = summary(0, optimizer="sophia-g")["breakdown_s"]
    # gradients of its microbatches are added up under "other"
    passes = sum(told[part] for part in ("forward", "backward", "weight_gradient", "other"))
    more = told["optimizer"] - summary(0, optimizer="adamw-fused")["breakdown_s"]["optimizer"]
    assert more == pytest.approx(0.1 * passes, rel=0.1)


def test_what_an_optimizer_has_alive_counts_where_that_is_the_fullest_moment() -> None:
    """Without activations a list of all parameters counts whole; what many left, beside a loss in chunks, holds a quarter of its 4 B each."""
    alone = {"cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": 1}}
    chunked = {"preset": "torch-ddp", "loss_kept_bytes": 0.0625, "loss_peak_bytes": 0.0625}
    own = {**BASE, **alone, "model": "gpt2-xl", "framework": chunked}
    gains = []
    for lengths in (
        {"global_batch": 1, "sequence_length": 64},
        {"global_batch": 16, "micro_batch": 16, "sequence_length": 1024},
    ):
        fused, each = (
            mpsim.simulate(
                Scenario.model_validate({**own, "training": {**lengths, "optimizer": name}})
            ).summary
            for name in ("adamw-fused", "adamw-foreach")
        )
        gains.append(each["peak_memory_bytes"] - fused["peak_memory_bytes"])
    assert gains[0] >= 4 * each["parameters"]["total"]
    assert gains[1] == pytest.approx(0.75 * 4 * each["parameters"]["total"], rel=1e-3)


def test_a_share_of_the_state_on_the_host_takes_a_share_of_the_time_and_of_the_memory() -> None:
    """A host steps a quarter of the parameters in a quarter of its time, and the device keeps three quarters of the state."""
    offload = {"offload": "optimizer"}
    whole, quarter, none = (
        summary(1, parts) for parts in ({**offload}, {**offload, "offload_fraction": 0.25}, {})
    )
    assert quarter["memory"]["optimizer"] == pytest.approx(0.75 * none["memory"]["optimizer"])
    assert none["step_time_s"] < quarter["step_time_s"] < whole["step_time_s"]


def test_a_rank_steps_on_the_host_no_faster_than_its_core() -> None:
    """An eighth of 6.74 billion parameters at 170 B each over 14 GB/s of one core: 10.2 s."""
    told = summary(3, {"offload": "optimizer"})
    assert told["breakdown_s"]["optimizer"] == pytest.approx(6.738e9 / 8 * 170 / 14e9, rel=0.01)


def test_one_replica_steps_on_its_host_after_its_backward() -> None:
    """Where nobody reduces, the host waits for the backward and for the copy of all gradients."""
    alone = {"cluster": {"preset": "dgx-h100", "nodes": 1, "accelerators_per_node": 1}}
    times = [
        mpsim.simulate(
            Scenario.model_validate(
                {
                    **BASE,
                    **alone,
                    "parallelism": {"zero": 1, "offload": offload},
                    "training": {**STEP, "global_batch": 1},
                }
            )
        ).summary["step_time_s"]
        for offload in ("none", "optimizer")
    ]
    assert times[1] > times[0] + 6.738e9 * 170 / 14e9


@pytest.mark.parametrize(
    ("zero", "offload", "training", "word"),
    [
        (3, {}, {"optimizer": "adamv"}, "did you mean"),
        (3, {}, {"optimizer": "muon", "method": "lora"}, "take adamw"),
        (3, {"offload": "optimizer"}, {"optimizer": "muon"}, "set parallelism.offload to none"),
        (3, {"offload_fraction": 0.5}, {}, "needed offload: optimizer"),
    ],
)
def test_what_no_optimizer_does_is_refused_with_the_mend(
    zero: int, offload: dict[str, object], training: dict[str, object], word: str
) -> None:
    """Each mistake is told at its key with what would do."""
    with pytest.raises(ScenarioError, match=word):
        make_plan(scenario(zero, offload, **training))


@pytest.mark.parametrize(("chip", "moves"), [("rtx4090", True), ("h100-sxm", False)])
def test_a_paged_state_without_room_crosses_the_hosts_link_once_a_step(
    chip: str, moves: bool
) -> None:
    """Two moments of 1.016 B beside the weights of 8B: the 16 GB do not fit on a card of 24, and come and go at once; on one of 80 they stay."""
    alone = {"accelerator": chip, "accelerators_per_node": 1, "nodes": 1}
    training = {"global_batch": 1, "micro_batch": 1, "sequence_length": 2048, "recompute": "full"}
    steps = {
        name: mpsim.simulate(
            Scenario.from_mapping(
                {
                    "schema": 1,
                    "model": "llama3-8b",
                    "cluster": alone,
                    "training": {**training, "optimizer": name},
                    "framework": {"preset": "torchtune", "steps_in_backward": True},
                }
            )
        )
        for name in ("adamw-8bit-bnb", "paged-adamw-8bit")
    }
    stays, paged = (result.timeline.step_time_s for result in steps.values())
    plan = steps["paged-adamw-8bit"].plan
    state = 2 * 1.015625 * float(plan.layout.rank_parameters[0])
    link = host_of(plan.layout.cluster).link_bandwidth
    assert paged - stays == pytest.approx(moves * state / link, rel=1e-6, abs=1e-9)
