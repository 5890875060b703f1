"""What is assumed of published runs where their rows say nothing."""

from __future__ import annotations

import pytest

from bench.assumptions import BY_FAMILY, fill_in, guesses, slices_of, with_batch
from bench.runs import filled, scenario_of
from bench.tables import rule_of
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells

FSDP = {
    "family": "nobody's",
    "framework": "PyTorch FSDP",
    "model": "Llama-2-7B",
    "layers": "2",
    "hidden": "4096",
    "seq_len": "2048",
    "accelerator": "H100-SXM5-80GB",
    "num_accel": "32",
    "global_batch_seqs": "128",
}
RULE = {"framework": {"preset": "torch-fsdp1"}, "model": {"dropout": 0.0}}


def test_every_assumption_is_told_and_a_stated_column_stays() -> None:
    """No column that was stated is among the assumed ones, and each filled one is told once with its reason."""
    found = fill_in(Cells(FSDP), RULE)
    told = [one.to for one in found.assumed]
    assert len(told) == len(set(told))
    assert not set(told) & set(FSDP)
    assert {column for column in found.cells.values if column not in FSDP} == set(told)
    assert all("(" in str(one) for one in found.assumed)


def test_a_bare_row_becomes_a_scenario() -> None:
    """32 GPUs, sharded, 128 sequences: dp 32, microbatches of 128/32 = 4, eight NDR NICs a node, heads of 128."""
    cells = filled(Cells(FSDP), RULE).cells
    scenario = scenario_of(cells, RULE)
    assert scenario["parallelism"]["dp"] == 32
    assert scenario["parallelism"]["zero"] == 3
    assert scenario["training"]["micro_batch"] == 4
    assert scenario["model"]["heads"] == 32
    assert scenario["model"]["gated_mlp"] is True
    assert scenario["cluster"]["nics_per_node"] == 8
    assert scenario["cluster"]["nic"]["bandwidth"] == "400 Gb/s"


def test_one_node_needs_no_network() -> None:
    """Eight GPUs stay in a node, so that nothing of NICs is assumed."""
    found = fill_in(Cells({**FSDP, "num_accel": "8", "accel_per_node": "8"}), RULE)
    assert not [one for one in found.assumed if "nic" in one.to]


def test_a_node_of_four_has_four_of_the_usual_nics() -> None:
    """One NIC a GPU, of a node that has half of the usual GPUs too."""
    found = fill_in(Cells({**FSDP, "accel_per_node": "4"}), RULE)
    assert found.cells.whole("nics_per_node") == 4


@pytest.mark.parametrize(
    ("notes", "factor"),
    [
        ("(tokendrop)", 1.0),
        ("padded to capacity factor 1.25", 1.25),
        # between an even share of 1 and the 8 / 2 times of an expert that has every token
        ("experts padded to the busiest one", 1.0 + 0.55 * 3.0),
        ("", None),
    ],
)
def test_words_say_how_many_rows_an_expert_computes(notes: str, factor: float | None) -> None:
    """Dropped tokens, a stated capacity and padding to the busiest expert fix the rows of all of them."""
    experts = {"moe_experts": "8", "moe_topk": "2", "moe_ffn_hidden": "1024"}
    cells = filled(Cells({**FSDP, **experts, "notes": notes}), RULE).cells
    assert scenario_of(cells, RULE)["model"]["moe"].get("capacity_factor") == factor


def test_the_family_comes_before_what_is_usual() -> None:
    """A rule's word for an empty column wins; a word of the row wins over both."""
    rule = {**RULE, "assume": {"recompute": "none", "precision": "fp16"}}
    cells = fill_in(Cells({**FSDP, "precision": "bf16"}), rule).cells
    assert (cells.text("recompute"), cells.text("precision")) == ("none", "bf16")


@pytest.mark.parametrize(
    ("column", "text", "slices"),
    [
        ("id", "maxtext-v5p-32b-2x128", 2),
        ("inter_node_link", "DCN between 2 pods of 3072", 2),
        ("id", "some-run", 1),
    ],
)
def test_slices_are_read_from_words(column: str, text: str, slices: int) -> None:
    """A torus of several slices is told by the row's own words only."""
    assert slices_of(Cells({column: text})) == slices


def test_a_torus_reaches_as_far_as_its_slice() -> None:
    """512 chips in two slices: hosts of 4, domains of 256."""
    row = {**FSDP, "id": "trillium-x-2xv6e-256", "accelerator": "TPU v6e", "num_accel": "512"}
    cluster = scenario_of(filled(Cells(row), RULE).cells, RULE)["cluster"]
    assert (cluster["preset"], cluster["nodes"], cluster["domain"]) == ("tpu-v6e", 128, 256)


@pytest.mark.parametrize(("name", "shard"), [("trillium-x-2xv6e-256", 256), ("some-run", None)])
def test_every_slice_has_a_copy_where_the_software_says_so(name: str, shard: int | None) -> None:
    """512 chips of which each is a replica: 256 share one copy where they are two slices, all of them where they are one."""
    row = {**FSDP, "id": name, "accelerator": "TPU v6e", "num_accel": "512", "dp": "512"}
    rule = {**RULE, "shard": "slice"}
    parallelism = scenario_of(filled(Cells(row), rule).cells, rule)["parallelism"]
    assert parallelism.get("shard") == shard


def test_nics_that_a_recipe_leaves_unused_are_none() -> None:
    """Nanotron's nodes have 32 NICs of EFA and speak TCP on two channels."""
    row = {**FSDP, "framework": "nanotron", "accelerator": "H100-SXM5-80GB", "num_accel": "16"}
    row |= {"dp": "16", "nics_per_node": "32", "nic_gbit_s": "100", "inter_node_link": "EFA v2"}
    cluster = scenario_of(filled(Cells(row), RULE).cells, RULE)["cluster"]
    assert (cluster["nic"], cluster["nics_per_node"]) == ("aws-tcp", 2)


def test_sequences_of_one_accelerator_become_those_of_its_replica() -> None:
    """6 a chip, 4 chips a replica, 16 replicas and 384 in all: 24 at once; with 768 in all the column is left alone."""
    rule = {"micro_batch": "per accelerator"}
    row = {**FSDP, "tp": "4", "dp": "16", "num_accel": "64", "micro_batch_seqs": "6"}
    found = fill_in(Cells({**row, "global_batch_seqs": "384"}), rule)
    assert found.cells.text("micro_batch_seqs") == "24"
    assert any("is of one accelerator" in told.why for told in found.assumed)
    twice = fill_in(Cells({**row, "global_batch_seqs": "768"}), rule)
    assert twice.cells.text("micro_batch_seqs") == "6"


@pytest.mark.parametrize(
    ("given", "column", "value"),
    [
        ({"pp": "4", "dp": "2"}, "tp", "4"),
        ({"tp": "4", "dp": "2"}, "pp", "4"),
        ({"tp": "4", "pp": "4"}, "dp", "2"),
        ({"tp": "4", "pp": "2", "cp": "2"}, "dp", "2"),
        ({"tp": "4", "pp": "4", "num_microbatches": "16"}, "micro_batch_seqs", "4"),
        ({"dp": "3", "pp": "4"}, "tp", "1"),
    ],
)
def test_what_other_columns_leave_is_no_guess(
    given: dict[str, str], column: str, value: str
) -> None:
    """32 accelerators, 128 sequences: the missing degree is the quotient where there is one, a microbatch what their number leaves."""
    assert fill_in(Cells({**FSDP, **given}), RULE).cells.text(column) == value


def test_guesses_are_settings_that_nobody_states() -> None:
    """A degree, a recomputation and a format that are not stated count, each once; what the others leave does not."""
    said = [
        Assumed("tp", "1", "no tensor parallelism is stated"),
        Assumed("recompute", "none", "none is stated"),
        Assumed("recompute", "full", "none does not fit in memory"),
        Assumed("precision", "bf16", BY_FAMILY),
        Assumed("dp", "64", "what the accelerators have room for"),
        Assumed("nics_per_node", "8", "DGX H100: one NDR NIC a GPU"),
    ]
    assert guesses(said) == 3


RATE = {
    "model": "Llama-2-7B",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "num_accel": "16",
    "tp": "1",
    "pp": "8",
}


def test_a_row_measured_as_a_rate_gets_a_batch() -> None:
    """Llama 2 was trained on 4,096 tokens; two replicas of 8 stages run 8 x 8 microbatches of one sequence each: 128 sequences."""
    found = with_batch(Cells(RATE), {})
    columns = ("seq_len", "micro_batch_seqs", "global_batch_seqs")
    assert [found.cells.text(column) for column in columns] == ["4096", "1", "128"]
    assert [assumption.to for assumption in found.assumed] == list(columns)


def test_a_measured_time_gets_no_batch_but_that_of_its_words() -> None:
    """A time is in proportion to the batch; 6 million tokens are 2,930 sequences of 2,048, of which two replicas take as many each."""
    row = {**RATE, "seq_len": "2048"}
    assert not with_batch(Cells(row), {}, timed=True).cells.text("global_batch_seqs")
    for words in (
        "batch of 6M tokens late in training",
        "6M tokens a batch",
        "6 M tokens per step",
    ):
        told = Cells({**row, "notes": words})
        assert with_batch(told, {}, timed=True).cells.text("global_batch_seqs") == "2930"
    silent = Cells({**row, "notes": "6M tokens in all, of a batch"})
    assert not with_batch(silent, {}, timed=True).cells.text("global_batch_seqs")


@pytest.mark.parametrize(
    ("model", "tokens"),
    [("Qwen3-235B-A22B", "4096"), ("Qwen2.5-72B", "4096"), ("Mixtral-8x7B", "8192")],
)
def test_a_length_that_is_not_stated_is_that_of_the_model(model: str, tokens: str) -> None:
    """All but the end of their training: 4,096 tokens of Qwen 2.5 and 3, 8,192 of Mistral."""
    row = {key: value for key, value in RATE.items() if key != "seq_len"} | {"model": model}
    assert with_batch(Cells(row), {}).cells.text("seq_len") == tokens


def test_attention_is_fused_in_torch_from_its_second_release_on() -> None:
    """Torch 2.0 is of 2023-03-15; the words of a row come before its date."""
    row = {"framework": "own trainer", "measured_date": "2023-03"}
    rules = [
        rule_of(Cells({**row, **more}))["framework"].get("fused_attention", True)
        for more in ({}, {"measured_date": "2023-04"}, {"framework": "trainer, FlashAttention"})
    ]
    assert rules == [False, True, True]
