"""Each kind of measured data: predicted from its configuration alone, skipped with a reason, never a crash."""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench import validate_files
from bench.files import KINDS, FileKind, predict_row
from bench.rows import Row
from bench.runs import scenario_of
from bench.tables import rule_of, table
from mpsim.cost import CollectiveModel, KernelModel
from mpsim.formats.tables import Cells
from mpsim.framework import framework
from mpsim.hardware import accelerator, system
from mpsim.parallel import GroupShape
from mpsim.workload import (
    Phase,
    Role,
    make_gemm,
)

BIGSCIENCE = {
    "framework": "Megatron-DeepSpeed",
    "measured_date": "2022-02-23",
    "pp": "2",
    "dp": "16",
}
TRAINING = {
    "id": "sc21-7.5B",
    "family": "megatron-sc21",
    "framework": "Megatron-LM",
    "measured_date": "2021-04",
    "layers": "36",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "32",
    "head_dim": "128",
    "ffn_hidden": "16384",
    "gated_mlp": "0",
    "vocab": "51200",
    "seq_len": "2048",
    "attention_type": "mha",
    "accelerator": "A100-SXM4-80GB",
    "num_accel": "128",
    "accel_per_node": "8",
    "intra_node_link": "NVLink3+NVSwitch",
    "inter_node_link": "InfiniBand HDR",
    "nics_per_node": "8",
    "nic_gbit_s": "200",
    "tp": "4",
    "pp": "1",
    "dp": "32",
    "cp": "1",
    "vp_chunks_per_rank": "1",
    "sequence_parallel": "0",
    "zero_stage": "0",
    "micro_batch_seqs": "16",
    "global_batch_seqs": "512",
    "precision": "fp16 mixed",
    "recompute": "full",
    "schedule": "1F1B",
    "trust": "high",
    "iter_time_s": "",
    "iter_time_s_derived": "3.6963",
    "memory_gb_reported": "60",
}
SINGLE = {
    "record_id": "VS-1",
    "gpu": "A100-SXM",
    "gpus": "2",
    "gpus_per_node": "8",
    "model_or_op": "GPT",
    "hidden": "1024",
    "ffn_hidden": "4096",
    "heads": "16",
    "layers": "24",
    "seq_len_tokens": "1024",
    "tp": "1",
    "pp": "2",
    "dp": "1",
    "micro_batch_seqs": "8",
    "global_batch_seqs": "16",
    "recompute": "full",
    "interleave_chunks_per_stage": "1",
    "software": "Megatron-DeepSpeed",
    "iteration_time_ms": "372.16",
    "peak_mem_GiB_per_gpu": "20",
}
COLLECTIVE = {
    "system": "h100",
    "gpu": "H100 SXM",
    "nodes": "2",
    "gpus": "16",
    "link": "NVLink4 NVSwitch",
    "nic": "8x400G NDR IB",
    "collective": "all_reduce",
    "bytes": "1073741824",
    "time_us": "5000",
}
KERNEL = {
    "gpu": "H100 SXM 80GB",
    "op": "gemm",
    "dtype": "bf16",
    "m": "4096",
    "n": "4096",
    "k": "4096",
    "time_us": "200",
    "tflops": "",
    "GBps": "",
}
SCHEDULE = {
    "schedule": "1F1B",
    "pp": "4",
    "microbatches": "8",
    "virtual_stages": "1",
    "tF": "1",
    "tB": "1",
    "tW": "1",
    "makespan": "33",
    "peak_inflight_activations": "[4, 3, 2, 1]",
    "overlap_block": "none",
}
PEAK = {
    "id": "tune-3b-packed",
    "family": "torchtune",
    "model": "llama-3.2-3b",
    "params_billion": "3.213",
    "layers": "28",
    "hidden": "3072",
    "heads": "24",
    "kv_heads": "8",
    "ffn_hidden": "8192",
    "vocab": "128256",
    "method": "full",
    "base_weights": "bf16",
    "compute_dtype": "bf16",
    "optimizer": "torch AdamW",
    "optimizer_states_dtype": "bf16",
    "accelerator": "A100",
    "accel_mem_gb": "80",
    "num_accel": "1",
    "tp": "1",
    "pp": "1",
    "dp": "1",
    "seq_len": "4096",
    "seq_len_kind": "packed fixed",
    "micro_batch_seqs": "2",
    "grad_accum": "1",
    "recompute": "none",
    "software": "torchtune",
    "memory_statistic": "active_bytes peak",
    "outcome": "ok",
    "peak_value": "60.0",
    "peak_gib": "60.0",
    "notes": "",
}
ROWS = (TRAINING, SINGLE, COLLECTIVE, KERNEL, SCHEDULE, PEAK)


def _file(path: Path, *rows: dict[str, str]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _predict(row: dict[str, str]) -> list:
    kind = _kind(row)
    measured = {key: row[key] for key in kind.measured if key in row}
    rest = {key: value for key, value in row.items() if key not in measured}
    return predict_row(kind, Row("1", Cells(rest), Cells(measured)))


def _kind(row: dict[str, str]) -> FileKind:
    return next(kind for kind in KINDS if kind.columns <= set(row))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: _kind(row).title)
def test_a_prediction_does_not_see_what_was_measured(row: dict[str, str]) -> None:
    """Every measured figure multiplied by seven: the measured side follows, the predicted side stays."""
    columns = [key for key in _kind(row).measured if row.get(key) and row[key][0].isdigit()]
    assert columns
    other = {**row, **{key: str(7 * float(row[key])) for key in columns}}
    before, after = _predict(row), _predict(other)
    assert [one.predicted for one in before] == [one.predicted for one in after]
    assert all(one.predicted for one in before)
    assert [7 * one.measured for one in before] == pytest.approx([one.measured for one in after])


@pytest.mark.parametrize("row", ROWS, ids=lambda row: _kind(row).title)
def test_rows_keep_their_names_and_numbers(tmp_path: Path, row: dict[str, str]) -> None:
    """id, record_id, or the number in the file from 1; a second record for memory."""
    records = validate_files([_file(tmp_path / "x.csv", row)]).records
    name = row.get("id") or row.get("record_id") or "1"
    memory = [f"{name}#memory"] if len(records) > 1 else []
    assert [one.id for one in records] == [name, *memory]
    assert len(records) == (2 if row in (TRAINING, SINGLE) else 1)


def test_a_cell_that_says_it_says_nothing_is_empty(tmp_path: Path) -> None:
    """Unknown recomputation and microbatches are guessed and told, as where the cells are empty."""
    silent = [
        dict.fromkeys(("recompute", "micro_batch_seqs"), text)
        for text in ("", "N/A", "not stated", "unknown")
    ]
    rows = [{**TRAINING, "id": str(n), **change} for n, change in enumerate(silent)]
    records = validate_files([_file(tmp_path / "x.csv", *rows)]).records
    times = {(one.predicted, one.assumed) for one in records if one.kind == "training"}
    assert len(times) == 1


@given(data=st.data())
@settings(max_examples=50, deadline=None)
def test_no_row_crashes_whatever_it_holds(data: st.DataObject) -> None:
    """A few cells of any row replaced by anything: a prediction or a reason that blames the row."""
    row = dict(data.draw(st.sampled_from(ROWS)))
    junk = st.sampled_from(["", "?", "-1", "0", "1e400", "nan", "3.5", "H900", "[1", "x" * 99])
    for key in data.draw(st.lists(st.sampled_from(sorted(row)), min_size=1, max_size=3)):
        row[key] = data.draw(junk)
    for record in _predict(row):
        assert (record.predicted is None) == bool(record.skipped_because), row
        assert "internal error" not in (record.skipped_because or ""), (row, record)


def test_a_collective_is_predicted_on_a_quiet_network() -> None:
    """All-reduce of 1 GiB over 2 x 8 H100: the cost model of that cluster, in microseconds."""
    model = CollectiveModel(system("dgx-h100", nodes=2), loaded=False)
    group = GroupShape(ranks=16, per_domain=8, domains=2)
    (record,) = _predict(COLLECTIVE)
    assert record.predicted == pytest.approx(1e6 * model.seconds("all_reduce", 2.0**30, group))


def test_a_kernel_is_predicted_at_burst_clocks() -> None:
    """A 4096^3 product on an H100: the kernel model's burst time, in microseconds."""
    model = KernelModel(accelerator("h100-sxm"), "bf16", clocks="burst")
    n = 4096
    product = make_gemm(Role.KERNEL, Phase.FORWARD, m=n, n=n, k=n)
    (record,) = _predict(KERNEL)
    assert record.predicted == pytest.approx(1e6 * float(model.seconds([product])[0]))
    (rate,) = _predict({**KERNEL, "time_us": "", "tflops": "700"})
    assert rate.unit == "TFLOP/s"
    assert rate.predicted == pytest.approx(2e-12 * n**3 / (record.predicted * 1e-6))


@pytest.mark.parametrize(("op", "share"), [("cuDNN attention", 0.5), ("flash attention (TE)", 1.0)])
def test_a_causal_rate_counts_half_or_all_flops_as_its_source_does(op: str, share: float) -> None:
    """FLOPs of both masks are counted as the source counts them; time is the same whatever the unit."""
    shape = {"m": "", "n": "", "k": "", "batch": "2", "heads": "32", "seq": "4096"}
    row = {**KERNEL, **shape, "op": op, "head_dim": "128", "causal": "yes", "pass": "fwd"}
    (time,) = _predict(row)
    (rate,) = _predict({**row, "time_us": "", "tflops": "500"})
    (fraction,) = _predict({**row, "time_us": "", "fraction_of_peak": "0.5"})
    flops = share * 2 * 2 * 32 * 4096**2 * (128 + 128)
    assert rate.predicted == pytest.approx(1e-6 * flops / time.predicted)
    peak = accelerator("h100-sxm").peak("bf16") / 1e12
    assert fraction.predicted == pytest.approx(rate.predicted / peak)


def test_a_schedule_that_differs_from_its_oracle_says_in_what() -> None:
    """1F1B of 4 ranks and 8 microbatches holds 4 3 2 1, and takes (8 + 3) x 3 = 33."""
    (right,) = _predict(SCHEDULE)
    assert (right.predicted, right.mismatched, right.error) == (33, (), 0)
    (wrong,) = _predict({**SCHEDULE, "makespan": "30", "peak_inflight_activations": "[4, 4, 2, 1]"})
    assert wrong.mismatched == ("makespan", "peak_inflight_activations")
    assert wrong.error == pytest.approx(0.1)


def test_a_row_of_adapters_is_not_predicted_as_training_of_the_whole_model() -> None:
    """LoRA trains adapters, of which a stack without habits says what is assumed; its kin are refused by name."""
    (whole, *_), (lora, *_), (dora, *_) = (
        _predict({**TRAINING, "model": f"GPT 7B{words}"})
        for words in ("", " (LoRA fine-tuning)", " (DoRA fine-tuning)")
    )
    assert lora.predicted < whole.predicted
    assert any("every product" in why for why in lora.assumed)
    assert dora.predicted is None
    assert "LoRA and QLoRA" in dora.skipped_because


def test_an_unknown_stack_says_what_is_assumed_for_it() -> None:
    """A row without a framework, and one whose family alone names one, tell so."""
    unknown = {**TRAINING, "family": "x", "framework": "", "measured_date": ""}
    for change, words in (({}, "nothing is known"), ({"family": "internevo"}, "family's name")):
        (record, *_) = _predict({**unknown, **change})
        assert any(words in text for text in record.assumed)


def test_a_training_row_becomes_the_scenario_it_describes() -> None:
    """Every field that a row states is in the scenario; what it leaves open comes from its family."""
    cells = Cells(
        {
            **TRAINING,
            "pp": "2",
            "dp": "16",
            "vp_chunks_per_rank": "3",
            "schedule": "1F1B-interleaved",
        }
    )
    scenario = scenario_of(cells, rule_of(cells))
    assert scenario["schedule"] == {"name": "interleaved-1f1b", "virtual_stages": 3}
    assert scenario["cluster"]["nic"] == {"preset": "ib-hdr", "bandwidth": "200 Gb/s"}
    assert scenario["training"]["precision"] == "fp16"
    assert scenario["model"]["dropout"] == 0.1
    assert scenario["framework"]["preset"] == "megatron-2021"


@pytest.mark.parametrize(
    ("layers", "stages", "notes", "split"),
    [
        (36, 2, "", {}),
        (70, 12, "", {"embedding_counts_as_layer": True, "loss_counts_as_layer": True}),
        (69, 4, "", {"layers_per_stage": [18, 17, 17, 17]}),
        (
            72,
            4,
            "embedding and LM head count as layers in the pipeline split",
            {"layers_per_stage": [18, 19, 18, 17]},
        ),
    ],
)
def test_layers_are_split_evenly_or_with_the_ends_counted(
    layers: int, stages: int, notes: str, split: dict[str, object]
) -> None:
    """36/2 = 18; (70 + 2)/12 = 6; 69/4 = 18 17 17 17; (72 + 2)/4 = 19 19 18 18 less one at each end."""
    row = {**TRAINING, "layers": str(layers), "pp": str(stages), "overlap_notes": notes}
    parallelism = scenario_of(Cells(row), rule_of(Cells(row)))["parallelism"]
    keys = ("layers_per_stage", "embedding_counts_as_layer", "loss_counts_as_layer")
    assert {key: parallelism[key] for key in keys if key in parallelism} == split


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"moe_experts": "8"}, "moe_topk is not stated"),
        ({"model": "DeepSeek-V3"}, "experts of the model are not stated"),
        ({"precision": "int8"}, "int8 is not simulated"),
        ({"accelerator": "H900"}, "'H900' is not known"),
        ({"accelerator": "A100, H100"}, "several GPUs"),
        ({"dp": "31"}, "dp 31"),
    ],
)
def test_a_training_row_that_cannot_be_predicted_says_why(
    change: dict[str, str], reason: str
) -> None:
    """Both records of the row keep what was measured and carry the reason."""
    records = _predict({**TRAINING, **change})
    assert [one.predicted for one in records] == [None, None]
    assert [one.measured for one in records] == [3.6963, 60e9]
    assert all(reason in one.skipped_because for one in records)


@pytest.mark.parametrize(
    ("change", "preset", "field", "value"),
    [
        ({}, "megatron-2021", "preset", "megatron-2021"),
        (
            {"framework": "DeepSpeed ZeRO-3", "zero_stage": "3"},
            "deepspeed-zero3-2021",
            "fused_attention",
            False,
        ),
        (BIGSCIENCE, "bloom-fp16", "preset", "bloom-fp16"),
        ({**BIGSCIENCE, "measured_date": "2022-02-25"}, "bloom-fp16", "launch_cost", "41 us"),
        (
            {"framework": "torchtitan", "measured_date": "2024-12", "overlap_notes": "async TP"},
            "torchtitan-2024",
            "tensor_overlap",
            "micro-pipeline",
        ),
        (
            {"framework": "torchtitan", "measured_date": "2025-06", "schedule": "1F1B"},
            "torchtitan-2025",
            "defer_reduction",
            True,
        ),
        (
            {"family": "x", "framework": "torchtitan", "precision": "float8 row-wise"},
            "torchtitan-2025",
            "narrow_chunks",
            "scatters",
        ),
        (
            {"family": "x", "framework": "torchtitan", "overlap_notes": "async TP, eager"},
            "torchtitan-2025",
            "compile",
            False,
        ),
    ],
)
def test_a_row_runs_the_stack_of_its_era_with_what_its_words_say(
    change: dict[str, str], preset: str, field: str, value: object
) -> None:
    """Family, date, precision and notes choose the preset; notes change fields of it."""
    cells = Cells({**TRAINING, **change})
    chosen = scenario_of(cells, rule_of(cells))["framework"]
    assert (chosen["preset"], chosen[field]) == (preset, value)


def test_experts_latent_attention_and_windows_are_read_from_their_columns() -> None:
    """A row of DeepSeek-V3's shape is one of its model, with the experts on as many ranks as it says."""
    row = {
        **TRAINING,
        "moe_experts": "256",
        "moe_topk": "8",
        "moe_ffn_hidden": "2048",
        "moe_dense_layers": "3",
        "moe_shared_experts": "1",
        "ep": "32",
        "gated_mlp": "1",
        "attention_type": "mla(q_lora1536,kv_lora512,rope64,v128)",
    }
    scenario = scenario_of(Cells(row), rule_of(Cells(row)))
    assert scenario["parallelism"]["ep"] == 32
    assert scenario["model"]["moe"] == {
        "experts": 256,
        "top_k": 8,
        "ffn_hidden": 2048,
        "shared_experts": 1,
        "dense_layers": 3,
        "imbalance": 1.15,  # no word forces its router
    }
    assert scenario["model"]["mla"] == {
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
    }
    sliding = Cells({**TRAINING, "attention_type": "gqa, alternating sliding window 128"})
    assert scenario_of(sliding, rule_of(sliding))["model"]["window"] == 128


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("1 within groups of 8 (replicated across groups)", {"zero": 1, "shard": 8}),
        ("1 within groups of 32 (replicated across groups)", {"zero": 1}),
        ("3", {"zero": 3}),
        ("2", {"zero": 2}),
    ],
)
def test_groups_of_ranks_that_share_states_are_read_from_words(
    words: str, expected: dict[str, int]
) -> None:
    """A group as large as data parallelism is no group."""
    cells = Cells({**TRAINING, "zero_stage": words})
    parallelism = scenario_of(cells, rule_of(cells))["parallelism"]
    assert {key: parallelism[key] for key in ("zero", "shard") if key in parallelism} == expected


def test_every_family_names_a_preset_that_takes_its_changes() -> None:
    """A rule that no row reaches today must not be broken when one does."""
    for entry in table("training")["families"]:
        changes = [one.get("framework", {}) for one in entry.get("also", ())]
        for change in [{}, *changes]:
            given = {**entry["framework"], **change}
            assert framework(given.pop("preset"), given).title


def test_one_layer_is_the_difference_of_two_models() -> None:
    """A row that measured a single layer is not charged for embedding, head and optimizer."""
    layer = {**TRAINING, "num_accel": "8", "tp": "8", "dp": "1"}
    layer |= {"global_batch_seqs": "16", "layers": "1", "memory_gb_reported": ""}
    (one,) = _predict({**layer, "schedule": "one transformer layer forward+backward"})
    (step,) = _predict(layer)
    assert 0 < one.predicted < 0.8 * step.predicted


def test_every_name_in_the_tables_exists() -> None:
    """Accelerators, links, NICs, schedules and framework presets that the tables mean are in the catalogs."""
    from bench.tables import table
    from mpsim.formats import words
    from mpsim.framework import framework
    from mpsim.hardware import accelerator_names, link_names
    from mpsim.schedule import schedule_names

    hardware = {**words.table(words.DATA, "hardware"), **table("hardware")}
    chips = {one["accelerator"] for one in hardware["gpus"] if "accelerator" in one}
    links = {one["link"] for one in hardware["links"]} - {"usual"}
    nics = {one["nic"] for one in hardware["nics"] if "nic" in one}
    assert chips <= set(accelerator_names())
    assert links | nics <= set(link_names())
    assert {one["name"] for one in table("schedules")["schedules"]} <= set(schedule_names())
    for family in table("training")["families"]:
        fields = dict(family["framework"])
        framework(fields.pop("preset"), fields)
        assert family["source"]


def test_pictures_hold_what_was_measured_and_predicted(tmp_path: Path) -> None:
    """Both displays keep the numbers they draw, and say units on their axes."""
    from mpsim.validate.pictures import agreement_of, errors_of

    records = [dataclasses.replace(one, family=f) for f in "ab" for one in _predict(KERNEL)]
    agreement = agreement_of(records).plot()
    drawn = [series for series in agreement.chart.series if series.mark]
    assert [x for series in drawn for x in series.x] == [200, 200]
    assert agreement.ax_.get_xlabel() == "measured (us)"
    error = errors_of(records).plot()
    assert error.ax_.get_ylabel() == "error of the prediction (%)"
    assert [line.get_label() for line in error.ax_.get_legend().get_lines()][:2] == ["a", "b"]
    assert error.save(tmp_path / "e.png").stat().st_size > 1000
