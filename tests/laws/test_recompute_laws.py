"""Laws of recomputation: nothing is lost between what is kept and what runs again, and more of one is less of the other."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mpsim.parallel import Compute, Item, Sharding, block_backward, block_forward
from mpsim.schedule import Action
from mpsim.training import build_program
from mpsim.training.blocks import Blocks
from mpsim.training.memory.activations import kept_by_stage
from mpsim.training.plan import PlanCosts
from mpsim.training.recompute import MODULES, NOTHING, Recompute, repeats, rerun
from mpsim.workload import (
    Expansion,
    Lowering,
    OperatorKind,
    Phase,
    Role,
    expand_layer,
    make_elementwise,
    model,
)
from tests.nightly import examples
from tests.plans import small_plan

LAYERS = 12  # of a stage: gpt-1.7b has 24 on 2 ranks
LLAMA = model("llama3-8b")
DEEPSEEK = dataclasses.replace(model("deepseek-v2"), layers=2)


def _layer(name: str) -> Expansion:
    shape, kind = (LLAMA, "dense") if name == "llama" else (DEEPSEEK, name)
    return expand_layer(shape, Lowering(), kind=kind, sequences=1, sequence_length=512)


def _sharding(*, tp: int = 1) -> Sharding:
    return Sharding(tp=tp, tokens=512, hidden=LLAMA.hidden, sequence_parallel=tp > 1)


def _whole(layer: Expansion) -> float:
    return sum(one.saved + one.saved_for_weight for one in layer.forward)


def _kept(layer: Expansion, recompute: Recompute) -> float:
    repeated = rerun(layer, recompute)
    return sum(sum(repeated.of(one)) for one in layer.forward)


def _again(items: list[Item]) -> list[str]:
    return [one.operator.name for one in items if isinstance(one, Compute) and one.repeated]


modules = st.sets(st.sampled_from(sorted(MODULES)), min_size=1).map(lambda one: tuple(sorted(one)))


@given(name=st.sampled_from(["llama", "dense", "moe"]), chosen=modules, more=modules)
@settings(max_examples=examples(20, 50), deadline=None)
def test_more_modules_keep_less_and_run_more_again(
    name: str, chosen: tuple[str, ...], more: tuple[str, ...]
) -> None:
    """Each set of modules keeps at most what its subsets keep, and runs all of theirs again."""
    layer = _layer(name)
    few, many = Recompute("selective", chosen), Recompute("selective", tuple({*chosen, *more}))
    assert _kept(layer, many) <= _kept(layer, few) <= _whole(layer)
    fewer, most = (
        {one.name for part in rerun(layer, which).parts for one in part.operators}
        for which in (few, many)
    )
    assert fewer <= most


@given(chosen=modules, name=st.sampled_from(["llama", "dense", "moe"]))
@settings(max_examples=examples(20, 50), deadline=None)
def test_no_kernel_runs_again_twice(chosen: tuple[str, ...], name: str) -> None:
    """Modules inside one another, as an activation in a mixture, run once."""
    parts = rerun(_layer(name), Recompute("selective", chosen)).parts
    names = [one.name for part in parts for one in part.operators]
    assert len(names) == len(set(names))


def test_modules_of_all_names_do_something_in_a_layer_that_has_them() -> None:
    """Of DeepSeek's layers with experts all but the plain MLP, of its dense layers that one."""
    layers = {"moe": _layer("moe"), "dense": _layer("dense")}
    for module in MODULES:
        layer = layers["dense" if module == "mlp" else "moe"]
        alone = Recompute("selective", (module,))
        assert rerun(layer, alone).parts
        assert _kept(layer, alone) < _whole(layer)


def test_a_recomputed_mlp_runs_both_products_again_and_keeps_its_input() -> None:
    """Llama 3 8B: the outputs of fc1 and of the activation are not kept, the norm's output before them is."""
    layer = _layer("llama")
    items = block_backward(
        layer, _sharding(), again=repeats(layer, _sharding(), Recompute("selective", ("mlp",)))
    )
    assert _again(items) == ["fc1", "activation", "fc2"]
    features = LLAMA.fc1_features + LLAMA.ffn_hidden
    saved = _whole(layer) - _kept(layer, Recompute("selective", ("mlp",)))
    assert saved == 2 * 512 * features


def test_per_op_keeps_every_odd_product_of_a_llama_layer() -> None:
    """Kept: input, query, value, attention's output and statistics, gate; again: key, output, up. torchtitan, Llama 3 8B."""
    layer = _layer("llama")
    h, kv, f = LLAMA.hidden, LLAMA.kv_features, LLAMA.ffn_hidden
    statistics = 4 * 512 * LLAMA.heads
    assert _kept(layer, Recompute("per-op")) == 2 * 512 * (3 * h + kv + f) + statistics
    items = block_backward(
        layer, _sharding(), again=repeats(layer, _sharding(), Recompute("per-op"))
    )
    names = _again(items)
    assert names == [
        "norm1",
        "qkv",
        "rotary",
        "proj",
        "bias_dropout_add1",
        "norm2",
        "fc1",
        "activation",
    ]
    products = [one.operator for one in items if isinstance(one, Compute) and one.repeated]
    assert [one.n for one in products if one.n] == [kv, h, f]
    assert sum(one.flops for one in products) == 2 * 512 * h * (kv + h + f)


def test_per_op_gathers_again_but_sums_nothing_again() -> None:
    """tp 4 with sequence parallelism: both gathers of the forward run again, no reduce-scatter."""
    items = block_backward(
        _layer("llama"),
        _sharding(tp=4),
        again=repeats(_layer("llama"), _sharding(tp=4), Recompute("per-op")),
    )
    sent = [
        one.kind
        for one in items
        if not isinstance(one, Compute) and getattr(one, "repeated", False)
    ]
    assert sent == ["all_gather", "all_gather"]


@pytest.mark.parametrize("name", ["llama", "dense"])
def test_full_runs_the_forward_again(name: str) -> None:
    """Full recomputation of a layer is its forward once more, then the plain backward."""
    layer, sharding = _layer(name), _sharding(tp=4)
    full = block_backward(layer, sharding, again=repeats(layer, sharding, Recompute("full")))
    plain = block_backward(layer, sharding, again=repeats(layer, sharding, NOTHING))
    assert len(full) == len(plain) + len(block_forward(layer, sharding))
    assert full[-len(plain) :] == plain


def _held(recompute: Recompute) -> tuple[float, float]:
    """What a stage keeps of a microbatch and what it holds at most while it differentiates it [B]."""
    kept = kept_by_stage(small_plan(pp=2, recompute=recompute))[0]
    return kept.for_input + kept.for_weight, kept.in_layers


def _busy(recompute: Recompute) -> float:
    plan = small_plan(pp=2, microbatches=2, recompute=recompute)
    return float(build_program(plan).duration.sum())


@given(st.integers(0, LAYERS - 1))
@settings(max_examples=6, deadline=None)
def test_one_more_layer_of_a_block_keeps_less_and_takes_longer(layers: int) -> None:
    """Block: bytes kept fall by the same for each layer, time grows."""
    less, more = (Recompute("full", method="block", layers=n) for n in (layers, layers + 1))
    first, full = Recompute("full", method="block", layers=0), Recompute("full")
    each = (_held(first)[0] - _held(full)[0]) / LAYERS
    assert _held(less)[0] - _held(more)[0] == pytest.approx(each)
    assert _busy(less) < _busy(more)


def test_a_block_of_all_layers_is_full_and_of_none_is_none() -> None:
    """The two ends of block recomputation, in bytes and time."""
    for layers, same in ((LAYERS, Recompute("full")), (0, NOTHING)):
        block = Recompute("full", method="block", layers=layers)
        assert _held(block) == _held(same)
        assert _busy(block) == _busy(same)


@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5, 12])
def test_chunks_keep_one_input_each_and_run_as_much_again(chunk: int) -> None:
    """Uniform: the number of chunks times one input; the largest chunk is whole while it runs again."""
    uniform, full, none = Recompute("full", layers=chunk), Recompute("full"), NOTHING
    ends = _held(none)[0] - LAYERS * _layer_bytes()  # embedding
    one = (_held(full)[0] - ends) / LAYERS
    kept, alive = _held(uniform)
    assert kept == pytest.approx(ends + -(-LAYERS // chunk) * one)
    gradients = _held(none)[1]
    assert alive == pytest.approx(chunk * _layer_bytes() - one + gradients)
    assert _busy(uniform) == pytest.approx(_busy(full), rel=1e-9)


def _layer_bytes() -> float:
    """All that one layer keeps: the difference between stages with and without recomputation of one layer, plus its input."""
    block = Recompute("full", method="block", layers=1)
    alive = _held(Recompute("full"))[1] - _held(NOTHING)[1]
    dropped = _held(NOTHING)[0] - _held(block)[0]
    assert alive == pytest.approx(dropped)
    return dropped + _input_bytes()


def _input_bytes() -> float:
    plan = small_plan(pp=2)
    return 2.0 * plan.sharding.tokens * plan.layout.model.hidden


@pytest.mark.parametrize("name", ["llama", "dense", "moe"])
def test_recomputation_that_stops_early_leaves_out_what_no_gradient_reads(name: str) -> None:
    """Behind the last value that is kept only a product, which keeps its input, and additions follow: they do not run again."""
    layer = _layer(name)
    whole, early = (
        [one.name for one in rerun(layer, Recompute("full", stops_early=early)).parts[0].operators]
        for early in (False, True)
    )
    left = whole[len(early) :]
    assert whole[: len(early)] == early
    saved = [one.name for one in layer.forward if one.saved + one.saved_for_weight]
    assert set(left) & set(saved) <= {"fc2", "shared_fc2", "experts_fc2"}
    assert ("fc2" in left) == (name != "moe")


def test_a_product_whose_input_is_cast_runs_again_though_recomputation_stops_early() -> None:
    """In fp8 the cast and the product are one function, which keeps its tensors when it is done."""
    layer = _layer("llama")
    place = next(i for i, one in enumerate(layer.forward) if one.role is Role.DOWN)
    product = layer.forward[place]
    cast = make_elementwise(
        Role.DOWN, Phase.FORWARD, moved=1.0, kind=OperatorKind.QUANTISE, module=product.module
    )
    narrow = dataclasses.replace(
        layer, forward=(*layer.forward[:place], cast, *layer.forward[place:])
    )
    (part,) = rerun(narrow, Recompute("full", stops_early=True)).parts
    assert part.operators[-1] == product
    # compiled: functions have no bounds
    (part,) = rerun(narrow, Recompute("full", prunes=True)).parts
    assert part.operators[-1] == cast


def test_other_granularities_keep_the_habit_of_stopping_early() -> None:
    """A search that tries another granularity runs on the same stack."""
    habit = Recompute("full", stops_early=True)
    assert habit.at("none").at("full") == habit
    assert habit.of_layer(0, 1).stops_early
    assert Recompute("full", prunes=True).of_layer(0, 1).prunes


@pytest.mark.parametrize("part", ["embedding", "head"])
def test_ends_are_one_template_whatever_layers_run_again(part):
    """Recomputation is of layers: plans that differ in it alone share embedding and head."""
    plans = [small_plan(pp=2, recompute=recompute) for recompute in ("none", "selective", "full")]
    made = []
    for plan in plans:
        stage = plan.layout.stages[0 if part == "embedding" else -1]
        row = Blocks(plan, PlanCosts(plan)).of(stage, Action.B).blocks
        made.append(next(block for block in row if block.layer == -1).template)
    assert made[0] is made[1] is made[2]
