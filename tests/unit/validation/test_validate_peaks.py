"""Rows of measured peak memory: what their words mean, what is refused, and how far off the shipped ones are."""

from __future__ import annotations

import statistics
from pathlib import Path

import pytest

from bench import validate_files
from bench.peaks import peak_of, scenario_of
from bench.tables import lookup
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells
from mpsim.scenario import Scenario
from mpsim.simulate import resolve
from mpsim.training.plan import Plan
from mpsim.validate.records import Record
from tests.plans import small_plan
from tests.unit.validation.test_validate_kinds import PEAK

DATA = Path(__file__).resolve().parents[3] / "validation" / "data" / "memory-runs.csv"
GIBI = 2.0**30


ASKED = ("tune-", "litgpt", "mb-70bsft", "titan", "peft-", "mrel-", "stas-")
"""How the ids of rows begin that are asked for below; those of adapters have lora in them."""


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Record]:
    """Records of the shipped rows by id."""
    head, *rows = DATA.read_text("utf-8").splitlines(keepends=True)
    kept = [row for row in rows if row.startswith(ASKED) or "lora" in row.partition(",")[0]]
    few = tmp_path_factory.mktemp("peaks") / DATA.name
    few.write_text(head + "".join(kept), "utf-8")
    return {record.id: record for record in validate_files([few]).records}


def plan_of(**columns: str) -> Plan:
    """The plan of a row with other columns."""
    return resolve(Scenario.from_mapping(scenario_of(Cells({**PEAK, **columns}))[0]))


def seen(**columns: str) -> float:
    """Allocated memory of a row with other columns [B]."""
    return peak_of(plan_of(**columns), "allocated")


def test_every_switch_of_torchtunes_ladder_is_predicted(shipped: dict[str, Record]) -> None:
    """torchtune README: packed, compiled, loss in chunks, checkpoints, step in backward, activations on the host, moments in 8 bits: each within 5 %."""
    ladder = ("packed", "compile", "chunkedCE", "AC", "optbwd", "actoffload", "adam8")
    for name in ladder:
        error = shipped[f"tune-3b-{name}"].error
        assert error is not None
        assert abs(error) < 0.05, (name, error)


def test_shipped_rows_are_as_close_as_the_page_says(shipped: dict[str, Record]) -> None:
    """27 complete rows of full training are within 15 %, 5 % in the mean; the states alone of llama-3.2-1B take more than its source says was used."""
    left_out = "litgpt-llama-3.2-1B-full-1a10g"
    rows = {name: record for name, record in shipped.items() if record.error is not None}
    complete = [
        abs(record.error or 0.0)
        for name, record in rows.items()
        if name.startswith(("tune-3b-", "tune-8b-full-4090", "litgpt", "mb-70bsft", "titan"))
        and name != left_out
        and "lora" not in name
    ]
    assert len(complete) == 27
    assert sum(complete) / len(complete) < 0.05
    assert max(complete) < 0.15


def test_what_was_reserved_since_the_start_holds_the_model_whole(
    shipped: dict[str, Record],
) -> None:
    """8.03 B parameters in 16 bits are 15 GiB, which ZeRO-3 divides after they are on the device; 64k tokens take more."""
    short, long = (shipped[f"stas-llama31-8b-h200-8-{tokens}k"] for tokens in (8, 64))
    assert short.predicted == pytest.approx(2 * 8.03e9, rel=1e-3)
    assert (long.predicted or 0.0) > 2 * (short.predicted or 0.0)


def test_a_log_of_the_last_rank_has_its_peak(shipped: dict[str, Record]) -> None:
    """Megatron-Bridge of before 2026-05-08 logs the last stage's allocator: 1F1B keeps least there, and a device reports itself."""
    plan = small_plan(pp=4, tp=1, dp=1, microbatches=8, recompute="none")
    for kind in ("allocated", "reserved"):
        assert peak_of(plan, kind, last=True) < peak_of(plan, kind)
    assert peak_of(plan, "memory", last=True) == peak_of(plan, "memory")
    for name in ("core_attn", "core_attn-expandable", "core_attn-pp8", "vpp10"):
        assert abs(shipped[f"mb-70bsft-{name}"].error or 1.0) < 0.015


def test_runs_that_ended_for_want_of_memory_do_not_fit(shipped: dict[str, Record]) -> None:
    """Three of litgpt's on 24 GB: predicted beyond it, or refused for their states alone."""
    for name in ("llama-2-7b-full-4a10g", "llama-3-8b-full-4a10g", "llama-3.1-8b-full-1a10g"):
        record = shipped[f"litgpt-{name}"]
        beyond = (record.predicted or 0.0) > 24e9
        assert beyond or "alone, more than the 24 GB" in (record.skipped_because or "")


def test_peaks_of_adapters_are_near_those_measured(shipped: dict[str, Record]) -> None:
    """Complete rows of LoRA are within 8 % in the mean, and of QLoRA, none of them fitted."""
    for method in ("-lora", "-qlora"):
        named = (record for name, record in shipped.items() if method in name)
        errors = [abs(record.error) for record in named if record.error is not None]
        assert len(errors) > 15
        assert statistics.fmean(errors) < 0.08


def test_other_ways_to_train_a_part_of_the_model_are_refused_by_name(
    shipped: dict[str, Record],
) -> None:
    """No row of DoRA, BOFT or prompt tuning is predicted as full training or LoRA."""
    for name in ("lora--llama-3.2-3B-rank32-dora", "boft--llama-3.2-3B-default"):
        record = shipped[f"peft-{name}"]
        assert record.predicted is None
        assert "simulated by this version" in (record.skipped_because or "")


def test_states_that_no_accelerator_holds_are_refused(shipped: dict[str, Record]) -> None:
    """8 B a parameter of 3.6 billion are 28.9 GB, more than the 24 of an A10G: the columns cannot all be right."""
    reason = shipped["litgpt-llama-3.2-3B-full-1a10g"].skipped_because
    assert "take 28.9 GB alone, more than the 24 GB" in (reason or "")


def test_parameters_tell_how_a_model_is_built() -> None:
    """3.213 billion parameters of these widths: a gated MLP and one table for both ends; 3.607 with a table each."""
    assert plan_of().layout.model.gated_mlp
    assert plan_of().layout.model.tied_embeddings
    assert not plan_of(params_billion="3.607").layout.model.tied_embeddings


def test_parameters_of_another_model_are_refused() -> None:
    """30 billion of them in 28 layers of 3,072 are experts, of which the row says nothing."""
    with pytest.raises(CalibrationError, match="experts are not stated"):
        scenario_of(Cells({**PEAK, "params_billion": "30.5"}))


def test_bytes_of_states_follow_the_words_of_the_optimizer() -> None:
    """Moments in bf16 take 4 B a parameter, in 8 bits 2.03, on managed memory none of the allocator's."""
    count = float(plan_of().layout.rank_parameters[0])
    peaks = [
        seen(recompute="full", loss="CE with chunked output", optimizer_states_dtype=states)
        for states in ("bf16", "8-bit", "8-bit paged")
    ]
    assert peaks[0] - peaks[1] == pytest.approx((4 - 2.03) * count)
    assert peaks[1] - peaks[2] == pytest.approx(2.03 * count)


def test_more_tokens_take_more() -> None:
    """A longer sequence and a larger microbatch."""
    assert seen(seq_len="2048") < seen() < seen(micro_batch_seqs="4")


def test_the_runs_own_file_says_how_many_devices_it_uses() -> None:
    """A file of one device on a machine of four: nothing is sharded, and litgpt makes no checkpoints then."""
    columns = {
        "software": "litgpt",
        "num_accel": "4",
        "dp": "4",
        "sharding": "fsdp1 full shard",
        "recompute": "full per block",
        "notes": "yaml: devices 1, global batch 32",
    }
    scenario, assumed = scenario_of(Cells({**PEAK, **columns}))
    assert scenario["cluster"]["accelerators_per_node"] == 1
    assert scenario["training"]["recompute"] == "none"
    assert any("the run's own file" in assumption.why for assumption in assumed)


def test_software_of_training_runs_is_read_by_their_table() -> None:
    """Megatron-Core keeps a master copy and fp32 gradients beside 16-bit weights, whatever dtype a row gives them; eager torch has what the row says."""
    sizes = plan_of(software="Megatron-Core 0.12", source_date="2025-04").layout.framework.optimizer
    assert (sizes.parameter_bytes, sizes.gradient_bytes, sizes.optimizer_bytes) == (2, 4, 12)
    alone = plan_of(software="torchtune", base_weights="bf16").layout.framework.optimizer
    assert (alone.parameter_bytes, alone.gradient_bytes) == (2, 2)


def test_peaks_that_releases_of_megatron_core_print_are_predicted(
    shipped: dict[str, Record],
) -> None:
    """Runs of Megatron-Core whose releases print what was allocated are within 5 %."""
    rows = [record for name, record in shipped.items() if name.startswith("mrel-")]
    assert len(rows) == 3
    assert all(abs(record.error or 1.0) < 0.05 for record in rows)


@pytest.mark.parametrize(
    ("columns", "key", "value"),
    [
        ({"method": "full fine-tuning"}, "training.method", None),
        ({"method": "SFT full-parameter"}, "training.method", None),
        ({"method": "DPO (full)"}, "training.reference", True),
        ({"method": "Q-LoRA", "base_weights": "nf4"}, "training.method", "qlora"),
        ({"recompute": "gradient checkpointing"}, "training.recompute", "full"),
        ({"recompute": "True"}, "training.recompute", "full"),
        ({"recompute": "no"}, "training.recompute", "none"),
        ({"optimizer": "Adafactor"}, "training.optimizer", "adafactor"),
        ({"optimizer": "Muon"}, "training.optimizer", "muon"),
        ({"optimizer": "paged_adamw_8bit"}, "training.optimizer", "paged-adamw-8bit"),
        ({"optimizer": "adamw_bnb_8bit"}, "training.optimizer", "adamw-8bit-bnb"),
        ({"offload": "CPU offload"}, "parallelism.offload", "parameters"),
        ({"compute_dtype": "float8", "accelerator": "H100"}, "training.precision", "fp8"),
        ({"loss": "Liger fused linear cross entropy"}, "framework.loss_kept_bytes", 0.0625),
        ({"software": "LLaMA-Factory"}, "framework.preset", "huggingface-peft"),
        ({"software": "somebody's", "sharding": "HSDP"}, "framework.preset", "torch-fsdp2"),
    ],
)
def test_strangers_words_mean_what_training_rows_mean(
    columns: dict[str, str], key: str, value: object
) -> None:
    """Methods, recomputation, optimizers, offload, losses and stacks, as people write them."""
    section, _, name = key.partition(".")
    assert scenario_of(Cells({**PEAK, **columns}))[0][section].get(name) == value


def test_states_that_nobody_describes_have_the_format_of_what_trains() -> None:
    """AdamW of 16-bit weights has 16-bit moments, and the row says so; a stated format counts."""
    silent = {"optimizer_states_dtype": "", "base_weights": "bf16", "software": "torchtune"}
    scenario, assumed = scenario_of(Cells({**PEAK, **silent}))
    assert scenario["framework"]["optimizer_bytes"] == 4
    assert any(each.to == "optimizer_states_dtype" for each in assumed)
    wide = scenario_of(Cells({**PEAK, **silent, "optimizer_states_dtype": "fp32"}))[0]
    assert wide["framework"]["optimizer_bytes"] == 8


def test_adapters_stand_beside_all_that_words_call_all() -> None:
    """`all-linear` of PEFT is every product of a layer."""
    words = {"method": "lora", "adapter_rank": "8", "adapter_targets": "all-linear"}
    adapter = scenario_of(Cells({**PEAK, **words}))[0]["training"]["adapter"]
    assert adapter["modules"] == ["query", "key", "value", "output", "up", "down"]


def test_projected_gradients_are_refused_by_name() -> None:
    """GaLore's states are not those of 8-bit AdamW, nor LAMB's those of AdamW."""
    for name in ("GaLore AdamW 8-bit", "LAMB", "somebody's"):
        with pytest.raises(CalibrationError, match="states of this optimizer"):
            scenario_of(Cells({**PEAK, "optimizer": name}))


SAME: list[tuple[str, str, tuple[str, ...]]] = [
    ("method", "full", ("SFT", "FFT", "full parameter tuning", "continued pretraining")),
    ("method", "lora", ("LoRA fine-tuning", "SFT (LoRA)", "LoRA r=8", "peft lora")),
    ("method", "qlora", ("QLoRA (NF4)", "4-bit LoRA", "qlora sft", "LoRA (4-bit base)")),
    ("sharding", "FSDP", ("FULL_SHARD", "full shard", "fully_shard")),
    ("compute_dtype", "bf16", ("bfloat16", "bf16-mixed")),
    ("offload", "", ("none", "off")),
    ("offload", "optimizer to CPU", ("ZeRO-Offload", "optimizer states on CPU", "optimizer")),
    ("offload", "CPU offload", ("CPUOffloadPolicy", "cpu_offload=True")),
    ("loss", "liger", ("fused linear cross entropy", "CCE")),
]


@pytest.mark.parametrize(
    ("column", "usual", "words"),
    [(column, usual, words) for column, usual, others in SAME for words in others],
)
def test_a_peak_does_not_hang_on_which_word_of_several(column: str, usual: str, words: str) -> None:
    """Methods, divisions, formats, offload, losses and readings by any of their names are the same row."""
    cells = {**PEAK, "software": "somebody's", "sharding": "FSDP", "base_weights": ""}
    scenarios = [scenario_of(Cells({**cells, column: text}))[:2] for text in (usual, words)]
    assert scenarios[0][0] == scenarios[1][0]


@pytest.mark.parametrize("words", ["NVML used", "DCGM FB used", "gpustat", "GPU memory usage"])
def test_what_a_device_reports_is_not_what_an_allocator_handed_out(words: str) -> None:
    assert lookup("peaks", "statistics", words)["seen"] == "memory"
