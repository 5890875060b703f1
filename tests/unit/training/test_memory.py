"""Memory over time, when a rank is fullest, and what would make it fit."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from mpsim import Scenario, load, memo, simulate, structs
from mpsim.result.residuals import LEVEL
from mpsim.schedule import Action
from mpsim.study.fitting import changes_that_fit
from mpsim.study.search.given import ranked_by
from mpsim.training.memory.account import (
    account_memory,
    at_the_peak,
    memory_constants,
    outside_allocator,
)
from mpsim.training.memory.activations import Kept, held_by_rank, kept_by_piece, kept_by_stage
from mpsim.training.memory.fresh import blocks_as_one, fresh_gradients
from mpsim.training.memory.states import buffers, step_scratch
from mpsim.training.plan import Plan
from mpsim.training.planning import make_plan
from mpsim.training.recompute import Recompute
from mpsim.training.replicas.residency import matrices
from mpsim.units import Dimension, format_quantity
from mpsim.workload import Experts, model
from tests.plans import small_plan

TIGHT = {
    "schema": 1,
    "model": "llama2-7b",
    "cluster": {"preset": "dgx-a100-80gb", "nodes": 1},
    "parallelism": {"tp": 1, "pp": 1},
    "training": {"global_batch": 16, "micro_batch": 2, "sequence_length": 4096},
    "framework": "megatron-core",
}


def kept_by_part(plan: Plan) -> dict[str, Kept]:
    """Bytes of every piece of the model, layers by number."""
    return dict(piece for stage in kept_by_piece(plan) for piece in stage)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zb-h1"])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_activations_start_and_end_with_nothing_held(schedule: str, recompute: str) -> None:
    """What forwards keep, gradients free to the last byte; and nothing is ever held that is not kept."""
    plan = small_plan(pp=4, microbatches=6, schedule=schedule, recompute=recompute)
    kept = kept_by_stage(plan)
    for rank in range(4):
        held = held_by_rank(plan, kept)[rank]
        assert held.after[-1] == pytest.approx(0.0, abs=1.0)
        assert (held.after > -1.0).all()
        assert (held.most >= np.maximum(held.before, held.after) - 1.0).all()


def test_first_stage_of_1f1b_holds_as_many_microbatches_as_there_are_stages() -> None:
    """The peak of rank r is pp - r microbatches and what one layer's backward needs."""
    plan = small_plan(pp=4, microbatches=8, recompute="none")
    kept = kept_by_stage(plan)
    one = kept[1]
    held = held_by_rank(plan, kept)[1]
    assert held.most.max() == pytest.approx(3 * (one.for_input + one.for_weight) + one.in_layers)


@pytest.mark.parametrize(
    ("in_layers", "in_head", "most"),
    [(9.0, 4.0, 27.0), (20.0, 4.0, 35.0), (3.0, 0.0, 23.0)],
)
def test_logits_are_gone_when_a_layer_is_differentiated(
    in_layers: float, in_head: float, most: float
) -> None:
    """A microbatch keeps 10 + 5 B in its layers and 8 B of logits: 23 when its backward starts.

    The head adds 4 to these; a layer of 9 comes on top of 15, the logits having gone: 24, so the head's 27 is most. A layer of 20 makes 35. One of 3
    never reaches the 23 of the start.
    """
    plan = small_plan(tp=1, pp=1, dp=1, microbatches=2, overrides={"step_scratch": 0})
    kept = Kept(for_input=10.0, for_weight=5.0, logits=8.0, in_layers=in_layers, in_head=in_head)
    (held,) = held_by_rank(plan, [kept])
    assert held.most.tolist() == [*[23.0, most] * 2, 0.0]  # nothing in the optimizer's step


@pytest.mark.parametrize(
    ("of_loss", "grows", "lost"), [(4.0, False, 8.0), (4.0, True, 4.0), (3.0, False, 0.0)]
)
def test_the_largest_tensor_of_other_moments_needs_a_place_of_its_own(
    of_loss: float, grows: bool, lost: float
) -> None:
    """A loss of 4 B, and as much of layers of 9 as it frees, which cut its places where segments do not grow; a loss no larger than their largest tensor, 3 B, lies in its place."""
    changes = {"step_scratch": 0, "expandable_segments": grows}
    plan = small_plan(tp=1, pp=1, dp=1, microbatches=2, overrides=changes)
    kept = Kept(for_input=10.0, in_layers=9.0, in_head=4.0, of_layers=3.0, of_loss=of_loss)
    (held,) = held_by_rank(plan, [kept])
    assert held.elsewhere.tolist() == [lost] * 5


@pytest.mark.parametrize(("kept", "stays"), [(10.0, 8.0), (1.0, 5.0)])
def test_what_layers_cut_and_do_not_keep_is_given_back(kept: float, stays: float) -> None:
    """Of the 4 B that layers cut out of a loss's place, what they keep lies there when memory runs out: less where they run again."""
    plan = small_plan(tp=1, pp=1, dp=1, microbatches=1, overrides={"step_scratch": 0})
    alone = Kept(for_input=kept, in_layers=9.0, in_head=4.0, of_layers=3.0, of_loss=4.0)
    (held,) = held_by_rank(plan, [alone])
    assert held.elsewhere.max() == 8.0
    assert held.stays.max() == stays


def test_lists_of_an_optimizer_are_reserved_and_not_needed() -> None:
    """Torch gives their segments back before it gives up, so that a rank fits that reserves more than there is, and no less is needed."""
    parts = {"parallelism": {"dp": 8, "zero": 3}, "cluster": {"preset": "dgx-h100", "nodes": 1}}
    memories = []
    for lists in (0, 4):
        framework = {"preset": "torch-fsdp2", "root_unit": False, "step_scratch": lists}
        scenario = Scenario.from_mapping({**TIGHT, **parts, "framework": framework})
        memories.append(account_memory(make_plan(scenario)))
    fused, listed = memories
    assert listed.total > fused.total
    assert listed.needed == pytest.approx(fused.needed)
    short = structs.replace(listed, capacities=listed.needed)
    assert short.fits
    assert not structs.replace(listed, capacities=0.999 * listed.needed).fits


def test_gradients_cast_for_a_whole_reduction_are_reserved_and_not_needed() -> None:
    """DeepSpeed's BF16_Optimizer sums its flat fp32 gradients in bf16: a copy of all, when activations are gone."""
    parts = {"parallelism": {"pp": 2, "dp": 4, "zero": 1}, "cluster": {"preset": "dgx-h100", "nodes": 1}}  # fmt: skip
    memories = []
    for size in (4, 2):
        framework = {"preset": "deepspeed-pipeline-2022-bf16", "reduced_bytes": size}
        memories.append(account_memory(make_plan(Scenario.from_mapping({**TIGHT, **parts, "framework": framework}))))  # fmt: skip
    whole, cast = memories
    assert (cast.total > whole.total).all()
    assert (cast.total <= whole.total + whole.components["gradients"] / 2).all()
    assert cast.needed == pytest.approx(whole.needed)


def test_segments_grow_on_chips_of_nvidia_alone() -> None:
    """Fewer fragments with expandable segments under FSDP2, and as many as without on ROCm."""
    lost = {}
    for cluster in ("dgx-h100", "mi300x-8"):
        for grows in (False, True):
            changes = {"preset": "torch-fsdp2", "expandable_segments": grows}
            parallelism = {"dp": 8, "zero": 3}
            scenario = {**TIGHT, "cluster": {"preset": cluster, "nodes": 1}}
            scenario |= {"framework": changes, "parallelism": parallelism}
            scenario["training"] = {**TIGHT["training"], "global_batch": 64, "micro_batch": 8}
            memory = account_memory(make_plan(Scenario.from_mapping(scenario)))
            lost[cluster, grows] = float(memory.components["overhead"][0])
    assert lost["dgx-h100", True] < 0.95 * lost["dgx-h100", False]
    assert lost["mi300x-8", True] == lost["mi300x-8", False]


@pytest.mark.parametrize(("preset", "each"), [("megatron-bridge", 4.0), ("megatron-core", 0.0)])
def test_an_optimizer_casts_gradients_of_16_bits_for_its_step(preset: str, each: float) -> None:
    """4 B of each parameter that a rank owns beside the 16-bit gradients; those in fp32 are used as they are."""
    plan = small_plan(tp=1, pp=1, dp=4, zero=1, preset=preset)
    owned = float(plan.layout.rank_parameters[0]) / 4
    assert step_scratch(plan)[0] == pytest.approx(each * owned)


def test_masters_of_narrow_weights_are_cast_to_16_bits_together() -> None:
    """2 B of each parameter of layers that a rank owns, beside fp32 copies of gradients, where weights are 8 bits themselves; none in bf16."""
    extra = {}
    for precision in ("fp8", "bf16"):
        wide, narrow = (
            small_plan(
                tp=1,
                pp=1,
                dp=4,
                zero=1,
                preset="megatron-bridge",
                precision=precision,
                cluster="dgx-h100",
                overrides={"gathered_bytes": size},
            )
            for size in (0, 1)
        )
        extra[precision] = float((step_scratch(narrow) - step_scratch(wide))[0])
    assert extra == {"fp8": pytest.approx(2 * matrices(narrow)[0] / 4), "bf16": 0.0}


def test_autocast_leaves_a_wide_stream_and_casts_until_the_loss() -> None:
    """Under full recomputation layers keep fp32 inputs, 2 B an element more; the head's moment has 16-bit copies of all weights but the table's beside, less 16-bit logits, which its forward has instead."""
    parts = {"parallelism": {"dp": 8, "zero": 3}, "cluster": {"preset": "dgx-h100", "nodes": 1}}
    training = {**TIGHT["training"], "recompute": "full"}
    wide, narrow = (
        make_plan(
            Scenario.from_mapping(
                {**TIGHT, **parts, "training": training}
                | {"framework": {"preset": "torch-fsdp2", "autocast": casts}}
            )
        )
        for casts in (True, False)
    )
    elements = 2 * 4096 * 4096
    inputs = [kept_by_part(plan)["layers.7"].for_weight for plan in (wide, narrow)]
    assert inputs == [4 * elements, 2 * elements]
    casts = 2 * (float(wide.layout.rank_parameters[0]) - 32000 * 4096 - 2 * 4096 * 32000)
    more = fresh_gradients(wide).at_head - fresh_gradients(narrow).at_head
    assert more == pytest.approx(casts, rel=1e-3)


def test_scores_of_a_long_sequence_are_larger_than_its_logits() -> None:
    """Without fused attention a head's scores are a row of the sequence for each token; with it the logits are the largest tensor."""
    for fused in (True, False):
        changes = {"framework": {"preset": "megatron-core", "fused_attention": fused}}
        plan = make_plan(Scenario.from_mapping({**TIGHT, **changes}))
        (stage,) = kept_by_stage(plan)
        assert (stage.of_loss > stage.of_layers) == fused


def test_messages_have_four_buffers_of_what_a_rank_sends() -> None:
    """Activations and gradients, sent and received: 2 B x 2,048 tokens x 2,304 each, a quarter of it with sequence parallelism over 4; none on one stage."""
    message = 2 * 2048 * 2304
    for sequence_parallel, divided in ((False, 1), (True, 4)):
        plan = small_plan(tp=4, pp=2, dp=1, preset="torch-ddp", sequence_parallel=sequence_parallel)
        assert buffers(plan).tolist() == [4 * message / divided] * 2
    assert buffers(small_plan(tp=4, pp=1, dp=1, preset="torch-ddp")).tolist() == [0.0]


@pytest.mark.parametrize(
    ("preset", "zero", "filled"),
    [("torch-ddp", 0, 1.0), ("deepspeed-zero1", 1, 0.0), ("megatron-core", 0, 0.0)],
)
def test_buckets_that_gradients_are_copied_into_are_buffers(
    preset: str, zero: int, filled: float
) -> None:
    """torch DDP's hold every gradient of 2 B, DeepSpeed's is one of 1 GB, Megatron's are parts of the gradients."""
    plan = small_plan(tp=1, pp=1, dp=4, preset=preset, zero=zero)
    whole = float(plan.layout.rank_parameters[0])
    fixed = 1e9 if preset == "deepspeed-zero1" else 0.0
    assert buffers(plan)[0] == pytest.approx(filled * 2 * whole + fixed)


def test_a_block_of_two_microbatches_holds_one() -> None:
    """While a layer of one is differentiated a layer of the next runs forward: the second never adds to the first, as it would one after the other."""
    before, after = np.array([0.0, 5.0, 10.0, 5.0]), np.array([5.0, 10.0, 5.0, 0.0])
    blocks_as_one(before, after, np.array([False, True, False, False]))
    assert before.tolist() == [0.0, 5.0, 5.0, 5.0]
    assert after.tolist() == [5.0, 5.0, 5.0, 0.0]


def test_a_rank_is_fullest_in_a_backward_where_gradients_come_on_top() -> None:
    """The moment is named as a person would."""
    backward, step = (
        account_memory(small_plan(pp=2, microbatches=4, overrides={"step_scratch": each}))
        for each in (0, 2)
    )
    assert (backward.when[0], step.when[0]) == ("backward of microbatch 0", "optimizer step")


def test_the_curve_reaches_the_accounted_peak_and_never_exceeds_it() -> None:
    """Moments are in order, the highest is the total of that rank, and the step ends with the standing part."""
    result = simulate(Scenario.from_mapping({**TIGHT, "parallelism": {"tp": 2, "pp": 2}}))
    for rank in range(2):
        curve = result.memory_curve(rank)
        assert (np.diff(curve.time_s) >= 0).all()
        assert curve.held.max() == pytest.approx(result.memory.total[rank])
        assert curve.held[-1] == pytest.approx(curve.standing)
        assert curve.time_s[-1] == pytest.approx(result.summary["step_time_s"])


def test_split_gradients_hold_what_the_weight_gradient_needs() -> None:
    """With W apart, an input gradient leaves the part that W waits for."""
    plan = small_plan(pp=2, microbatches=4, schedule="zb-h1", recompute="none")
    held = held_by_rank(plan, kept_by_stage(plan))[0]
    first = int(np.flatnonzero(plan.orders.kind == Action.I)[0])
    assert 0 < held.after[first] < held.before[first]


def test_what_does_not_fit_comes_with_changes_after_which_it_does() -> None:
    """Every change that is proposed is legal and fits, and changes one or two keys beyond dp."""
    scenario = Scenario.from_mapping(TIGHT)
    assert not simulate(scenario).memory.fits
    changes = changes_that_fit(scenario)
    assert changes
    for change in changes:
        result = simulate(scenario.with_values(change.values))
        assert result.memory.fits
        assert result.memory.total.max() == pytest.approx(change.total)
        assert len(change.values) <= 3


def test_changes_are_three_at_most_and_the_fastest_comes_first() -> None:
    """Each carries its odds and the time of its step, those that `simulate` gives."""
    changes = changes_that_fit(Scenario.from_mapping(TIGHT))
    times = [ranked_by(change.step_time_s, change.odds) for change in changes]
    assert times == sorted(times)
    assert len(times) <= 3
    assert all(0.0 < change.odds <= 1.0 for change in changes)


def test_likely_changes_come_before_those_that_hardly_fit() -> None:
    """Where three changes fit in four of five cases none is proposed that does not."""
    tighter = {"preset": "dgx-a100-80gb", "nodes": 1, "accelerator": {"memory": "75 GB"}}
    scenario = Scenario.from_mapping({**TIGHT, "cluster": tighter})
    assert all(change.odds >= LEVEL for change in changes_that_fit(scenario))


def test_what_lies_at_the_peak_is_told_by_class_and_layer() -> None:
    """Components add up to the peak, the largest first, and every layer is among the parts that keep something."""
    plan = small_plan(tp=1, pp=1, dp=8, zero=3, preset="torch-fsdp2", recompute="none")
    memory = account_memory(plan)
    *components, layers = at_the_peak(plan, memory)
    sizes = [float(sizes[0]) for sizes in memory.components.values()]
    shown = sorted((size for size in sizes if size > 0.01 * sum(sizes)), reverse=True)
    assert [words.partition(" ")[2] for words in components] == [
        format_quantity(size, Dimension.BYTES) for size in shown
    ]
    assert (
        f"{plan.layout.model.layers} of layers.0 to layers.{plan.layout.model.layers - 1}" in layers
    )


def test_logits_are_no_further_microbatch_at_the_peak() -> None:
    """A rank with the head that has one microbatch keeps one, however small its layers are beside its logits."""
    changes = {"step_scratch": 0}
    plan = small_plan(tp=1, pp=1, dp=8, microbatches=1, recompute="full", overrides=changes)
    assert at_the_peak(plan, account_memory(plan))[-1].startswith("kept of each of 1 microbatch:")


def test_nothing_is_proposed_where_nothing_helps() -> None:
    """A model a hundred times too large for the machine has no near change."""
    model = {"preset": "gpt3-175b", "max_positions": 4096}
    scenario = Scenario.from_mapping({**TIGHT, "model": model})
    assert changes_that_fit(scenario) == []


@pytest.mark.parametrize(
    ("method", "batch", "change"),
    [
        ("lora", 1, {"training.method": "qlora"}),
        ("qlora", 8, {"training.recompute": "full", "training.micro_batch": 1}),
    ],
)
def test_adapters_fit_beside_narrow_weights_or_with_one_sequence_at_a_time(
    method: str, batch: int, change: dict[str, object]
) -> None:
    """LoRA of 8 B parameters in 16 bits fills 16 GiB, which hold NF4; half of eight sequences is not few enough."""
    scenario = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "llama3-8b",
            "cluster": {
                "accelerator": {"preset": "rtx4090", "memory": f"{16 + batch // 2} GiB"},
                "accelerators_per_node": 1,
                "nodes": 1,
            },
            "framework": "peft" if batch > 1 else "torchtune",
            "training": {
                "global_batch": batch,
                "micro_batch": batch,
                "sequence_length": 512 * batch,
                "recompute": "none" if batch > 1 else "full",
                "method": method,
            },
        }
    )
    assert change in [found.values for found in changes_that_fit(scenario)]


def test_the_loss_is_as_large_as_its_tensors_at_a_time() -> None:
    """torchtitan 2024: log-softmax, its gradient and that of the likelihood in fp32, 12 B a logit; compiled, bf16 logits and gradient."""
    plan = small_plan(tp=1, pp=1, dp=8, zero=3, preset="torchtitan-2024", recompute="full")
    logits = plan.sequence_length * plan.layout.padded_vocab
    memory = account_memory(plan)
    assert memory.components["logits"][0] == 12 * logits
    compiled = small_plan(tp=1, pp=1, dp=8, zero=3, preset="torchtitan-2025", recompute="full")
    assert kept_by_stage(compiled)[0].logits == 2 * logits


def test_a_softmax_in_kernels_of_torch_goes_back_beside_what_came_before_it() -> None:
    """12 B a score are alive, its float32 result and two gradients as wide, and nothing of the MLP; all else grows as the sequence does."""

    def beside(length: int, ffn: int = 8192) -> float:
        eager = {"fused_attention": False, "fused_softmax": False}
        plan = small_plan(pp=1, preset="torch-ddp", overrides=eager, sequence_length=length)
        shape = dataclasses.replace(plan.layout.model, ffn_hidden=ffn)
        plan = dataclasses.replace(plan, layout=dataclasses.replace(plan.layout, model=shape))
        ((_, layer),) = kept_by_piece(plan)[0][1:2]
        return layer.in_layers

    scores = 4096 * 4096 * model("gpt-1.7b").heads // 2
    assert beside(4096) - 2 * beside(2048) == 12 * (scores - scores // 2)
    assert beside(4096) == beside(4096, ffn=4096)


def test_gradients_of_a_whole_backward_move_the_peak_to_its_end() -> None:
    """DeepSpeed's BF16_Optimizer: bf16 gradients of all layers exist before they are added to the fp32 ones."""
    plan = small_plan(pp=2, preset="deepspeed-pipeline-2022-bf16", recompute="full")
    without = small_plan(
        pp=2, preset="deepspeed-pipeline-2022-bf16", overrides={"microbatch_gradients": 0}
    )
    kept = kept_by_stage(plan)
    held, less = held_by_rank(plan, kept)[0], held_by_rank(without, kept_by_stage(without))[0]
    end = held.fullest
    assert held.collected[end] == 2 * plan.layout.rank_parameters[0]
    alive = kept[0].layer + kept[0].in_layers  # its input is kept until its own gradients are there
    assert held.most[end] == held.after[end] + alive + held.collected[end]
    assert held.most.max() > less.most.max()
    components = account_memory(plan).components
    assert components["gradients"][0] == 6 * plan.layout.rank_parameters[0]


def test_a_gathered_input_that_stays_is_kept_whole() -> None:
    """tp 4 with sequence parallelism: the outputs of two norms of 2,048 tokens x 2,048 take 3/4 of 8 MiB more each."""
    kept = [
        kept_by_part(
            small_plan(
                tp=4,
                sequence_parallel=True,
                recompute="none",
                model_name="gpt-1.7b",
                overrides={"keeps_gathered": stays},
            )
        )["layers.0"]
        for stays in (False, True)
    ]
    hidden = model("gpt-1.7b").hidden
    assert kept[1].for_weight - kept[0].for_weight == 2 * 0.75 * 2 * 2048 * hidden
    assert kept[1].for_input == kept[0].for_input


def test_halves_of_a_layer_run_again_one_after_the_other() -> None:
    """Attention's scores are gone before the MLP's features come back: both recomputed need as much at once as the larger of them alone.

    On one of two ranks 12 heads have 2,048^2 scores of 5 B (probabilities, their dropout and its mask), the MLP half of 9,216 features of 2,048 tokens, before
    and after the activation, of 2 B.
    """
    core, mlp, both, neither = (
        kept_by_part(small_plan(tp=2, recompute=Recompute("selective", modules=modules)))[
            "layers.0"
        ]
        for modules in (("core_attn",), ("mlp",), ("core_attn", "mlp"), ())
    )
    scores, features = 12 * 2048**2 * 5, 2 * 2048 * 9216 // 2 * 2
    assert core.in_layers - neither.in_layers == scores
    assert mlp.in_layers - neither.in_layers == features
    assert both.in_layers == core.in_layers
    kept = [part.for_input + part.for_weight for part in (neither, both)]
    assert kept[0] - kept[1] == scores + features


@pytest.mark.parametrize("modules", [("moe", "moe_act"), ("moe_act", "moe")])
def test_what_two_modules_drop_is_not_kept_by_either(modules: tuple[str, ...]) -> None:
    """The experts run again as a whole, so that the input of their second product, which their activation alone would keep, is not kept."""
    moe = Experts(experts=8, top_k=2, ffn_hidden=1024)
    alone, together, activation = (
        kept_by_part(
            small_plan(tp=1, dp=8, ep=4, moe=moe, recompute=Recompute("selective", modules=chosen))
        )["layers.0"]
        for chosen in (("moe",), modules, ("moe_act",))
    )
    assert (together.for_input, together.for_weight) == (alone.for_input, alone.for_weight)
    assert activation.for_input + activation.for_weight > alone.for_input + alone.for_weight


def test_gathered_logits_are_not_divided() -> None:
    """Where every rank computes the whole loss, tensor parallelism of 4 leaves each rank 4 times the logits of a divided one; nothing else grows."""
    loss = {"loss_kept_bytes": 6, "loss_peak_bytes": 14}
    plans = [small_plan(tp=4, overrides=loss | {"loss_reductions": count}) for count in (0, 3)]
    whole, divided = (kept_by_part(plan) for plan in plans)
    assert whole["head"].logits == 4 * divided["head"].logits
    assert whole["head"].in_loss == 4 * divided["head"].in_loss
    assert whole["layers.0"] == divided["layers.0"]


@pytest.mark.parametrize(
    ("tp", "pp", "dp", "communicators"),
    [(1, 1, 1, 0), (1, 1, 8, 1), (2, 1, 1, 3), (1, 4, 1, 3), (2, 2, 2, 5)],
)
def test_every_group_of_ranks_has_buffers_of_its_own(
    tp: int, pp: int, dp: int, communicators: int
) -> None:
    """One an axis of several ranks, one of those that divide the model, and one of all where there are several."""
    constants = memory_constants()
    more = outside_allocator(small_plan(tp=tp, pp=pp, dp=dp)) - constants["context"]
    assert more == pytest.approx(communicators * constants["communicator"])


def test_narrow_copies_stay_beside_wide_weights_for_the_next_microbatch() -> None:
    """On H100 a byte of every weight of the rank's layers, and another transposed, unless copies are dropped."""
    kept, dropped = (
        small_plan(
            precision="fp8",
            cluster="dgx-h100",
            overrides={"keeps_narrow": True, "transposed_weights": stays},
        )
        for stays in (True, False)
    )
    more = account_memory(kept).components["parameters"]
    more = more - account_memory(dropped).components["parameters"]
    (layer,) = kept.layout.layer_parameters.values()
    layers = kept.layout.model.layers / 2 * kept.layout.held(layer)
    assert more.tolist() == pytest.approx([2 * layers] * 2)


def test_links_of_another_rate_are_the_same_account() -> None:
    """Plans that differ in the rate of a NIC share one memory, and another precision has its own."""
    slow, fast, narrow = (
        make_plan(load("scenarios/quickstart.yaml").with_values(values))
        for values in (
            {"cluster.nic": "100 Gb/s"},
            {"cluster.nic": "200 Gb/s"},
            {"cluster.nic": "200 Gb/s", "training.precision": "fp8"},
        )
    )
    assert account_memory(slow) is account_memory(fast)
    assert account_memory(narrow) is not account_memory(fast)


def test_memory_is_the_same_whichever_plan_of_a_division_was_asked_first() -> None:
    """What stages keep is shared by plans that divide layers alike, and depends on nothing else."""
    plans = [
        small_plan(pp=pp, microbatches=8, recompute=recompute, zero=zero, tp=tp)
        for pp, recompute, zero, tp in (
            (1, "none", 0, 1),
            (4, "none", 0, 1),
            (4, "full", 0, 1),
            (2, "full", 1, 2),
        )
    ]
    asked = []
    for order in (plans, plans[::-1]):
        memo.forget()
        asked.append([kept_by_stage(plan) for plan in order])
    assert asked[0] == asked[1][::-1]


def test_a_model_whose_states_fill_a_card_is_offloaded() -> None:
    """8 B parameters in 16 bits, their gradients and moments are 64 GB: on one card of 24 GB recomputation alone is not enough, and the host is asked."""
    scenario = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "llama3-8b",
            "cluster": {
                "accelerator": "rtx4090",
                "accelerators_per_node": 1,
                "nodes": 1,
                "scale_up": "pcie4-x16",
            },
            "training": {"global_batch": 1, "sequence_length": 2048},
            "framework": "torchtune",
        }
    )
    (change, *_) = changes_that_fit(scenario)
    assert change.values == {
        "training.recompute": "full",
        "parallelism.offload": "optimizer",
    }
