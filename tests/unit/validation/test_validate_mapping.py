"""Rows of families that nobody listed: words of frameworks, GPUs, schedules and formats mean what a reader would say they mean."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import pytest

from bench import training
from bench.assumptions import network_of, system_of
from bench.attention import attention_of
from bench.collectives import kind_of
from bench.files import KINDS, opened, predict_row
from bench.machines import benchmark_cluster, links_of
from bench.rows import Row
from bench.runs import described, fitting, read_run
from bench.tables import affirmed, lookup, on_top, rule_of, table
from mpsim.errors import CalibrationError
from mpsim.formats import Imported
from mpsim.formats.tables import Cells, tidied
from mpsim.formats.words import gpu
from mpsim.hardware import accelerator, accelerator_names
from mpsim.scenario import Scenario
from mpsim.simulate import simulate

LLAMA = {
    "id": "made-up",
    "family": "nobody's",
    "framework": "Megatron-LM",
    "measured_date": "2025",
    "model": "Llama-3-8B",
    "layers": "32",
    "hidden": "4096",
    "heads": "32",
    "kv_heads": "8",
    "head_dim": "128",
    "ffn_hidden": "14336",
    "gated_mlp": "1",
    "vocab": "128256",
    "seq_len": "8192",
    "attention_type": "gqa",
    "accelerator": "H100-SXM5-80GB",
    "num_accel": "64",
    "accel_per_node": "8",
    "intra_node_link": "",
    "inter_node_link": "",
    "nics_per_node": "",
    "nic_gbit_s": "",
    "tp": "1",
    "pp": "4",
    "dp": "16",
    "cp": "1",
    "ep": "1",
    "vp_chunks_per_rank": "1",
    "sequence_parallel": "0",
    "zero_stage": "1",
    "micro_batch_seqs": "1",
    "global_batch_seqs": "256",
    "precision": "bf16",
    "recompute": "none",
    "schedule": "1F1B",
    "iter_time_s": "1",
}
EXPERTS = {
    "model": "Qwen3-30B-A3B",
    "layers": "48",
    "hidden": "2048",
    "kv_heads": "4",
    "ffn_hidden": "6144",
    "moe_experts": "128",
    "moe_topk": "8",
    "moe_ffn_hidden": "768",
    "moe_shared_experts": "0",
    "moe_dense_layers": "0",
    "seq_len": "4096",
    "pp": "1",
    "dp": "64",
    "ep": "64",
    "schedule": "none (PP=1)",
}
NARROW = {"accelerator": "B200-SXM-180GB", "precision": "FP8-MX"}
SHARDED = {"pp": "1", "dp": "64", "zero_stage": "3", "schedule": "FSDP"}


def _described(**change: str) -> Imported:
    cells = Cells({**LLAMA, **change})
    return described(cells, rule_of(cells))


def _step(run: Imported) -> float:
    return float(simulate(Scenario.from_mapping(dict(run.scenario))).summary["step_time_s"])


@pytest.mark.parametrize(
    ("change", "preset"),
    [
        ({"framework": "Megatron-LM v1.1", "measured_date": "2020-09", "pp": "1"}, "megatron-2020"),
        ({"framework": "Megatron-LM v2.0", "measured_date": "2021-01"}, "megatron-2021"),
        ({"framework": "Megatron-LM", "measured_date": "2022-05"}, "megatron-2022"),
        ({"framework": "megatron-lm 23.06", "measured_date": "2023-06"}, "megatron-2023"),
        ({"framework": "Megatron-LM core_r0.8.0"}, "megatron-core"),
        ({"framework": "Megatron-Core 0.12"}, "megatron-core-2025"),
        ({"framework": "MCore 0.12"}, "megatron-core-2025"),
        (
            {"framework": "DeepSpeed + Megatron-LM", "measured_date": "2024"},
            "megatron-deepspeed-2023",
        ),
        ({"framework": "NeoX"}, "gpt-neox"),
        ({"framework": "torch-titan", **SHARDED}, "torchtitan-2025"),
        ({"framework": "PyTorch 2.7 fully_shard", **SHARDED}, "torch-fsdp2"),
        ({"framework": "llm-foundry", "measured_date": "2024", **SHARDED}, "llm-foundry-2024"),
        ({"framework": "Megatron-LM/Megatron-Core", "measured_date": "2024"}, "megatron-core"),
        ({"family": "megatron-moe-modelzoo"}, "megatron-core-2025"),
        ({"framework": "Megatron-Bridge/Core container 26.08"}, "megatron-bridge"),
        ({"framework": "NeMo 26.02"}, "megatron-bridge"),
        ({"framework": "Megatron Bridge 25.11"}, "megatron-bridge"),
        ({"framework": "MindSpeed-LLM", "accelerator": "Ascend 910B"}, "megatron-core-2025"),
        ({"framework": "NeMo-RL (DTensor, FSDP2)", **SHARDED}, "torch-fsdp2"),
        ({"framework": "NeMo 25.04"}, "nemo-2-performance"),
        ({"family": "dgxc-benchmarking", "framework": ""}, "nemo-2-performance"),
        ({"framework": "NeMo 24.07", "measured_date": "2024"}, "nemo-1-2405"),
        ({"framework": "NeMo 24.03.01", "measured_date": "2024-03"}, "nemo-1-2405"),
        ({"framework": "NeMo", "measured_date": "2023-10"}, "nemo-1-2308"),
        ({"framework": "NeMo Megatron 22.11", "measured_date": "2022-11"}, "nemo-1-2303"),
        (
            {"family": "mlperf", "model": "GPT-3 175B", "measured_date": "2023-06"},
            "mlperf-nvidia-2023",
        ),
        ({"family": "zero-bubble", "schedule": "ZB-2p"}, "zero-bubble-2023"),
        ({"framework": "sail-sg zero-bubble", "schedule": "V-Half"}, "zero-bubble-2023"),
        ({"family": "megascale", "framework": "MegaScale"}, "megatron-core-2025"),
        ({"framework": "Somebody's trainer"}, "torch-ddp"),
        ({"framework": "Megatron-like trainer"}, "torch-ddp"),
        ({"framework": "HAI-LLM"}, "hai-llm"),
        ({"framework": "HAI-LLM", "measured_date": "2024-01"}, "megatron-core-2025"),
        (
            {"framework": "Megatron-DeepSpeed", "measured_date": "2024"},
            "megatron-deepspeed-2023",
        ),
        ({"framework": "DeepSpeed ZeRO-3", **SHARDED}, "deepspeed-zero3"),
        ({"framework": "SageMaker (MiCS)", **SHARDED}, "deepspeed-zero3"),
        ({"framework": "GPT-NeoX"}, "gpt-neox"),
        ({"framework": "ColossalAI"}, "colossalai"),
        ({"framework": "BMTrain", **SHARDED}, "bmtrain"),
        ({"framework": "InternEvo"}, "internevo-2023"),
        ({"framework": "TorchTitan", **SHARDED}, "torchtitan-2025"),
        ({"framework": "PyTorch FSDP2", **SHARDED}, "torch-fsdp2"),
        (
            {"framework": "Lightning FSDP", "measured_date": "2023", **SHARDED},
            "torch-fsdp1-2023",
        ),
        ({"framework": "MosaicML Composer", **SHARDED}, "llm-foundry-2024"),
        ({"framework": "metaseq", **SHARDED}, "fairscale-fsdp"),
        ({"framework": "MaxText", **SHARDED}, "maxtext-gpu"),
        ({"framework": "Pax (JAX)", **SHARDED}, "pax-gpu"),
        ({"framework": "T5X", "accelerator": "TPU v4", "measured_date": "2022"}, "maxtext-tpu"),
        ({"framework": "Pax", "accelerator": "TPU v5p"}, "maxtext-tpu"),
        (
            {
                "framework": "Primus (Megatron-Core)",
                "accelerator": "MI300X",
                "measured_date": "2025-06",
            },
            "primus-mi300x",
        ),
        ({"framework": "", "accelerator": "MI325X"}, "torch-ddp"),
        ({"framework": "", **SHARDED, "zero_stage": "DeepSpeed stage 3"}, "torch-fsdp1"),
        ({"framework": "DeepSpeed", **SHARDED, "zero_stage": "Stage 3"}, "deepspeed-zero3"),
        ({"framework": "DeepSpeed", "pp": "1", "zero_stage": ""}, "deepspeed-zero1"),
        (
            {"framework": "DeepSpeed", **SHARDED, "zero_stage": "", "schedule": "ZeRO-3"},
            "deepspeed-zero3",
        ),
        ({"framework": "torchtune", **SHARDED}, "torch-fsdp2"),
        ({"framework": "LLaMA-Factory", **SHARDED}, "torch-fsdp2"),
        ({"framework": "HF Trainer", **SHARDED, "zero_stage": "DDP"}, "torch-ddp"),
        ({"framework": "Primus (torchtitan)", **SHARDED}, "torchtitan-2025"),
        ({"framework": "neuronx-nemo-megatron", "accelerator": "Trn1"}, "neuronx-distributed"),
    ],
)
def test_words_of_a_framework_mean_its_preset(change: dict[str, str], preset: str) -> None:
    """Version before year, family before framework, whatever the spelling."""
    assert rule_of(Cells({**LLAMA, **change}))["framework"]["preset"] == preset


@pytest.mark.parametrize(
    ("words", "accelerator"),
    [
        ("V100", "v100-sxm2-32"),
        ("Tesla V100-SXM2-16GB", "v100-sxm2-16"),
        ("A100-PCIE-40GB", "a100-pcie-40"),
        ("NVIDIA A100-SXM4-40GB", "a100-sxm-40"),
        ("A100-SXM4-80GB", "a100-sxm-80"),
        ("A800-SXM4-80GB", "a800-sxm-80"),
        ("H800-SXM5-80GB", "h800-sxm"),
        ("H20-SXM5-96GB", "h20"),
        ("H200-SXM5-141GB", "h200-sxm"),
        ("B200-SXM-180GB", "b200-sxm"),
        ("B300-SXM-288GB", "b300-sxm"),
        ("GB200-NVL72", "gb200"),
        ("NVIDIA GB300 NVL72", "gb300"),
        ("L40S-48GB", "l40s"),
        ("AMD Instinct MI250X", "mi250x-gcd"),
        ("MI300X-192GB", "mi300x"),
        ("MI325X", "mi325x"),
        ("MI355X (288 GB)", "mi355x"),
        ("A100-40G", "a100-sxm-40"),
        ("DGX H100", "h100-sxm"),
        ("H100 94GB", "h100-nvl"),
        ("GH200", "gh200-96"),
        ("GH200 144GB", "gh200-144"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("Ascend 910B", "ascend-910b"),
        ("Intel Gaudi2", "gaudi2"),
        ("AWS Trainium2", "trainium2"),
        ("Trainium1 (trn1.32xlarge)", "trainium1"),
        ("Intel Data Center GPU Max 1550 (Aurora)", "max1550-tile"),
    ],
)
def test_words_of_an_accelerator_mean_its_entry(words: str, accelerator: str) -> None:
    """No name falls back to another accelerator, and where no network is stated the usual one is told."""
    run = _described(accelerator=words, accel_per_node="", pp="1", dp="64")
    assert run.scenario["cluster"]["accelerator"] == accelerator
    assert any("accel_per_node" in str(one) for one in run.assumed)


@pytest.mark.parametrize(
    ("words", "chunks", "name"),
    [
        ("1F1B", "1", "1f1b"),
        ("1F1B-interleaved", "4", "interleaved-1f1b"),
        ("interleaved 1F1B (VP=4)", "4", "interleaved-1f1b"),
        ("1F1B", "4", "interleaved-1f1b"),
        ("interleaved", "1", "1f1b"),
        ("GPipe", "1", "gpipe"),
        ("GPipe", "2", "looped-bfs"),
        ("breadth-first", "4", "looped-bfs"),
        ("ZB-H1", "1", "zb-h1"),
        ("zb-h2", "1", "zb-h2"),
        ("zero bubble ZB-2p", "1", "zb-2p"),
        ("Zero Bubble (ZB-1p)", "1", "zb-1p"),
        ("ZB1P", "1", "zb-1p"),
        ("zero-bubble", "1", "zb-1p"),
        ("ZBV", "2", "zb-v"),
        ("ZBVZeroBubble", "2", "zb-v"),
        ("ZB-V (zero bubble)", "1", "zb-v"),
        ("V-Half (controllable memory)", "2", "v-half"),
        ("V-Min", "2", "v-min"),
        ("interleaved zero bubble", "2", "interleaved-zb"),
        ("DualPipe", "2", "dualpipe"),
        ("DualPipeV", "2", "dualpipe-v"),
        ("3D parallel", "1", "1f1b"),
        ("1F1B, PP overlap default", "2", "interleaved-1f1b"),
        ("1F1B, p2p overlap off", "1", "1f1b"),
    ],
)
def test_words_of_a_schedule_mean_its_order(words: str, chunks: str, name: str) -> None:
    """Chunks say whether a plain name is interleaved; orders with a fixed number of chunks keep it."""
    run = _described(schedule=words, vp_chunks_per_rank=chunks)
    assert run.scenario["schedule"]["name"] == name
    assert _step(run) > 0


@pytest.mark.parametrize(
    ("notes", "flushes"),
    [
        ("local batch 4 micro-batches per pipeline flush", 2),
        ("8 microbatches each schedule", None),
        ("3 micro-batches per flush", None),
        ("", None),
    ],
)
def test_notes_say_after_how_many_microbatches_a_pipeline_is_empty(
    notes: str, flushes: int | None
) -> None:
    """Eight microbatches in schedules of four are two flushes; in schedules of eight they are one, and three divide them nowhere."""
    run = _described(pp="2", dp="1", micro_batch_seqs="1", global_batch_seqs="8", notes=notes)
    assert run.scenario["schedule"].get("flushes") == flushes


@pytest.mark.parametrize(
    ("words", "precision"),
    [
        ("BF16", "bf16"),
        ("mixed bf16", "bf16"),
        ("bf16-mixed", "bf16"),
        ("mixed precision (fp16)", "fp16"),
        ("FP8-CS", "fp8"),
        ("FP8 hybrid", "fp8"),
        ("fp8 (delayed scaling)", "fp8"),
        ("FP8-MX", "mxfp8"),
        ("MXFP8", "mxfp8"),
        ("mx-fp8", "mxfp8"),
        ("FP8 (finer-grain/MX recipe)", "mxfp8"),
        ("FP8 block-wise (1x128)", "fp8_block"),
        ("FP8-SC", "fp8_block"),
        ("NVFP4", "nvfp4"),
        ("nvfp4+bf16 attention", "nvfp4"),
    ],
)
def test_words_of_a_precision_mean_its_format(words: str, precision: str) -> None:
    """The narrowest format named is the one of the products."""
    run = _described(precision=words, accelerator="B200")
    assert run.scenario["training"]["precision"] == precision


@pytest.mark.parametrize(
    ("count", "domain"), [(32, 32), (64, 64), (72, 72), (144, 72), (256, 64), (2304, 72)]
)
def test_a_rack_joins_what_a_job_takes_of_it(count: int, domain: int) -> None:
    """Accelerators of a rack share one switch: all of a small job, whole racks, or 64 of each for powers of two."""
    change = {"num_accel": str(count), "dp": str(count // 4), "accelerator": "GB200-NVL72"}
    run = _described(**change, accel_per_node="4", global_batch_seqs=str(count))
    assert run.scenario["cluster"]["domain"] == domain
    assert run.scenario["cluster"]["accelerators_per_node"] == 4


def test_experts_in_a_rack_are_exchanged_over_its_links() -> None:
    """64 ranks of experts: through the NICs of 16 trays the same step takes at least a fifth longer, where the host does not hold it up."""
    change = {**EXPERTS, "accelerator": "GB200-NVL72", "accel_per_node": "4"}
    read = _described(**change).scenario
    ahead = {**read["framework"], "launch_cost": "0 us", "product_launch_cost": "1 us"}
    inside = Imported(scenario={**read, "framework": ahead})
    cluster = {**read["cluster"], "domain": 4, "nics_per_node": 4, "nic": "ib-ndr"}
    outside = Imported(scenario={**read, "framework": ahead, "cluster": cluster})
    assert _step(outside) > 1.2 * _step(inside)


def test_a_row_that_counts_a_rack_as_one_node_means_the_same() -> None:
    """72 accelerators and 72 NICs a node are trays of 4 with 4."""
    rack = {"accelerator": "GB300", "num_accel": "144", "dp": "36", "global_batch_seqs": "144"}
    nics = {"nic_gbit_s": "800", "inter_node_link": "InfiniBand XDR"}
    one = _described(**rack, **nics, accel_per_node="72", nics_per_node="72")
    two = _described(**rack, **nics, accel_per_node="4", nics_per_node="4")
    assert one.scenario["cluster"] == two.scenario["cluster"]


@pytest.mark.parametrize("words", ["NVLink4+NVSwitch", "NVLink4+NVSwitch (400 GB/s)"])
def test_a_cut_down_accelerator_keeps_its_own_links(words: str) -> None:
    """Words for the generation do not give an H800 the links of an H100; a stated rate wins over both."""
    own = _described(accelerator="H800-SXM5-80GB", intra_node_link=words)
    assert own.scenario["cluster"]["scale_up"] == "nvlink4-h800"
    stated = _described(
        intra_node_link=words, intra_node_link_gbytes_s_per_accel_bidir="400"
    ).scenario["cluster"]["scale_up"]
    assert stated == {"preset": "nvlink4", "bandwidth": "200 GB/s"}


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"zero_stage": "2"}, "zero_stage 2 counts as 1"),
        ({"zero_stage": "hsdp", "pp": "1", "dp": "64"}, "one copy a node"),
        ({"accelerator": "V100"}, "precision = fp16"),
        ({"precision": "FP8", "accelerator": "A100-SXM4-80GB"}, "precision = bf16"),
        ({"global_batch_seqs": "250"}, "global_batch_seqs = 256"),
        ({"micro_batch_seqs": "3"}, "micro_batch_seqs = 1"),
        (
            {"vp_chunks_per_rank": "2", "pp": "8", "dp": "8", "global_batch_seqs": "224"},
            "global_batch_seqs = 216 (28 microbatches are not whole rounds of 8)",
        ),
        ({"inter_node_link": "carrier pigeon", "nics_per_node": "8", "nic_gbit_s": "400"}, "nic ="),
        ({"intra_node_link": "string"}, "scale_up = nvlink4"),
        ({"recompute": "whatever memory allows"}, "every layer is run again"),
        ({**EXPERTS, **SHARDED, "framework": "torchtitan", "recompute": "SAC"}, "layernorm, moe"),
        ({"recompute": "RMSNorm and MLA up-projection"}, "attention alone is run again"),
        ({"ffn_hidden": ""}, "ffn_hidden = 11008"),
        ({**EXPERTS, "measured_date": "2024", "tp": "2", "dp": "32", "ep": "32"}, "etp = 2"),
        ({**EXPERTS, "tp": "2", "dp": "32", "ep": "32"}, "sequence_parallel = 1"),
        ({"zero_stage": "", "recompute": "", "micro_batch_seqs": ""}, "micro_batch_seqs = 1"),
        (
            {
                "inter_node_link": "4x200G",
                "nics_per_node": "4",
                "nic_gbit_s": "200",
                "measured_date": "2024",
            },
            "A3 High",
        ),
        ({"schedule": "1F1B, PP overlap", "vp_chunks_per_rank": ""}, "the least that interleaves"),
        (
            {"framework": "Megatron-Core", "tp": "4", "dp": "4", "sequence_parallel": ""},
            "sequence_parallel = 1",
        ),
        ({"num_accel": "60", "dp": "15", "global_batch_seqs": "240"}, "accel_per_node = 4"),
    ],
)
def test_what_is_exchanged_or_assumed_is_told_and_runs(change: dict[str, str], told: str) -> None:
    """A prediction that rests on something the row does not say lists it."""
    run = _described(**change)
    assert any(told in str(one) for one in run.assumed), run.assumed
    assert _step(run) > 0


@pytest.mark.parametrize(
    ("name", "memory", "accelerator"),
    [("A100", "40", "a100-sxm-40"), ("V100", "16", "v100-sxm2-16"), ("GH200", "96", "gh200-96")],
)
def test_the_memory_of_a_row_tells_an_accelerator_from_its_kin(
    name: str, memory: str, accelerator: str
) -> None:
    """Where the name leaves it open, and only there."""
    cluster = _described(accelerator=name, accel_mem_gb=memory, accel_per_node="").scenario
    assert cluster["cluster"]["accelerator"] == accelerator
    stated = _described(accelerator="A100-SXM4-80GB", accel_mem_gb="40").scenario["cluster"]
    assert stated["accelerator"] == "a100-sxm-80"


@pytest.mark.parametrize("name", accelerator_names())
def test_every_accelerator_is_known_by_its_title(name: str) -> None:
    """As itself, with a network between its nodes where a row states none."""
    title = accelerator(name).title.partition(",")[0]
    if name in ("trainium1-core", "trainium3"):  # a half of another's title; not in tables yet
        return
    assert gpu(title).name == name
    assert network_of(title) or system_of(title)


@pytest.mark.parametrize(("each", "chip"), [("32", "trainium1-core"), ("16", "trainium1")])
def test_cores_of_a_trainium_are_told_from_chips_by_their_number(each: str, chip: str) -> None:
    """A node of 32 counts NeuronCores, each half a chip."""
    row = {"accelerator": "Trainium1 (trn1.32xlarge)", "accel_per_node": each}
    assert _described(**row).scenario["cluster"]["accelerator"] == chip


def test_a_row_with_every_column_assumes_nothing_of_its_layout() -> None:
    """Nothing is exchanged where all is stated and supported."""
    full = {
        "intra_node_link": "NVLink4+NVSwitch",
        "inter_node_link": "InfiniBand NDR",
        "nics_per_node": "8",
        "nic_gbit_s": "400",
    }
    assert _described(**full).assumed == ()


def test_newer_accelerators_and_narrower_formats_are_faster() -> None:
    """One run on each generation, and on one in three formats: every step beats the one before."""
    chips = ["V100", "A100-SXM4-80GB", "H100-SXM5-80GB", "B200", "GB300"]
    times = [_step(_described(accelerator=one, accel_per_node="")) for one in chips]
    formats = [
        _step(_described(**NARROW | {"precision": one})) for one in ("bf16", "mxfp8", "nvfp4")
    ]
    assert times == sorted(times, reverse=True)
    assert formats == sorted(formats, reverse=True)


@pytest.mark.parametrize("accelerator", ["A100-SXM4-80GB", "H100-SXM5-80GB", "B200", "GB300"])
@pytest.mark.parametrize(
    "framework",
    ["Megatron-LM", "Megatron-Bridge", "NeMo 24.07", "MLPerf", "Megatron-DeepSpeed", "torchtitan"],
)
def test_an_ordinary_run_reaches_an_ordinary_share_of_the_peak(
    framework: str, accelerator: str
) -> None:
    """8B on 64 accelerators in bf16: between a quarter and two thirds on every stack and generation."""
    run = _described(framework=framework, accelerator=accelerator, accel_per_node="")
    summary = simulate(Scenario.from_mapping(dict(run.scenario))).summary
    assert 0.25 < summary["mfu"] < 0.67


@pytest.mark.parametrize(
    ("change", "field", "value"),
    [
        ({"model": "Qwen3-235B-A22B"}, "expert_dispatch", "all-to-all"),
        ({"model": "Qwen3-235B-A22B", "accelerator": "GB200"}, "layer_launches_backward", 6),
        ({"model": "Qwen3-30B-A3B", "accelerator": "B300-SXM-288GB"}, "expert_launches", 14),
    ],
)
def test_recipes_of_megatron_bridge_are_those_of_model_and_accelerator(
    change: dict[str, str], field: str, value: object
) -> None:
    """Graphs, dispatcher and overlap follow the published recipes, not one setting for all."""
    row = {
        **LLAMA,
        "family": "megatron-bridge",
        "framework": "Megatron-Bridge/Core container 26.04",
        "moe_experts": "128",
    }
    assert rule_of(Cells({**row, **change}))["framework"][field] == value


def test_pipelines_of_automodel_reduce_in_every_backward() -> None:
    """Experts' stages are no FSDP modules to torch's pipelines, so nothing defers their reductions."""
    row = {
        **LLAMA,
        "framework": "NeMo AutoModel",
        "moe_experts": "256",
        "notes": "fake balanced gate",
        "model": "DeepSeek-V3",
    }
    settings = rule_of(Cells(row))["framework"]
    assert (settings["pipeline_unsharded"], settings.get("defer_reduction")) == (False, None)


@pytest.mark.parametrize(
    ("release", "graph"),
    [("26.04", None), ("26.06", "0 us"), ("26.06.01", "0 us"), ("26.08", "0 us")],
)
def test_graphs_of_the_whole_iteration_came_with_26_06(release: str, graph: str | None) -> None:
    """DeepSeek-V3 in MXFP8 on GB300: no launch is left from 26.06 on, and exchanges run beside another microbatch."""
    row = {
        **LLAMA,
        "model": "DeepSeek-V3",
        "accelerator": "GB300-NVL72-288GB",
        "precision": "MXFP8",
        "framework": f"Megatron-Bridge/Core container {release}",
    }
    framework = rule_of(Cells(row))["framework"]
    assert (framework.get("launch_cost") == "0 us") == (graph is not None)
    assert (framework.get("expert_overlap") == "microbatch") == (graph is not None)


def test_a_model_that_no_gpu_holds_is_divided_as_little_as_fits() -> None:
    """70B on 80 GB with nothing said of tp, pp and sharding: tp 8 with a sharded optimizer; 8B stays whole, and stated columns stay as they are."""
    large = {"layers": "80", "hidden": "8192", "heads": "64", "ffn_hidden": "28672"}
    silent = {"tp": "", "pp": "", "dp": "", "zero_stage": "", "sequence_parallel": ""}
    row = {**LLAMA, **silent, "framework": "", "seq_len": "2048", "recompute": ""}
    run = read_run(Cells({**row, **large}))[1]
    mesh = run.scenario["parallelism"]
    assert (mesh["tp"], mesh["pp"], mesh["zero"], mesh["dp"]) == (8, 1, 1, 8)
    assert any("no accelerator holds" in str(assumed) for assumed in run.assumed)
    stated = read_run(Cells({**row, **large, "zero_stage": "3"}))[1]
    assert stated.scenario["parallelism"]["tp"] == 1
    small = {"layers": "16", "hidden": "2048", "heads": "16", "ffn_hidden": "8192"}
    assert read_run(Cells({**row, **small}))[1].scenario["parallelism"]["tp"] == 1


def test_words_of_offload_move_the_optimizer_to_the_host() -> None:
    """In whatever column that tells of the stack; a row that shards nothing keeps its states."""
    assert _described(framework="FSDP2 with CPU offload").scenario["parallelism"]["offload"]
    said = _described(overlap_notes="optimizer offloaded to the host").scenario["parallelism"]
    assert said["offload"] == "optimizer"
    plain = _described(framework="DDP with CPU offload", zero_stage="0").scenario["parallelism"]
    assert "offload" not in plain


@pytest.mark.parametrize(
    ("words", "modules"),
    [
        ("selective (mla_up_proj, mlp, norm)", ["layernorm", "mlp", "mla_up_proj"]),
        ("RMSNorm and MLA up-projection", ["layernorm", "mla_up_proj"]),
        ("selective: moe_act + layernorm", ["layernorm", "moe_act"]),
        ("selective", None),
    ],
)
def test_modules_run_again_are_read_where_the_model_has_them(
    words: str, modules: list[str] | None
) -> None:
    """A row that names modules runs those again, a dense one its MLP if that is among them, or else attention alone."""
    latent = {
        **EXPERTS,
        "attention_type": "mla(q_lora1536,kv_lora512,rope64,v128)",
        "moe_dense_layers": "1",
    }
    training = _described(**latent, recompute=words).scenario["training"]
    assert training.get("recompute_modules") == modules
    dense = _described(recompute=words)
    only = ["mlp"] if "mlp" in words else None
    assert dense.scenario["training"].get("recompute_modules") == only
    told = [each for each in dense.assumed if each.to == "recompute"]
    assert not (only and told)


@pytest.mark.parametrize(
    ("pp", "chunks", "split"),
    [
        ("8", "4", [1, *[2] * 30, 1]),
        ("4", "4", [*[4] * 15, 2]),
        ("8", "1", [*[8] * 7, 6]),
        ("1", "1", None),
    ],
)
def test_deepseek_v3_is_laid_out_before_its_further_prediction(
    pp: str, chunks: str, split: list[int] | None
) -> None:
    """61 layers and the module: Et|(tt|)*30mL on 32 stages, four layers and 1 + 1 at the end on 16."""
    row = {
        **EXPERTS,
        "family": "megatron-bridge",
        "framework": "Megatron-Bridge/Core container 26.04",
        "model": "DeepSeek-V3",
        "layers": "61",
        "pp": pp,
        "vp_chunks_per_rank": chunks,
        "dp": str(64 // int(pp)),
        "ep": "8",
        "schedule": "1F1B-interleaved" if chunks > "1" else "1F1B",
    }
    scenario = _described(**row).scenario
    assert scenario["model"]["layers"] == 62
    assert scenario["parallelism"].get("layers_per_stage") == split


def test_what_runs_again_is_as_little_as_fits_where_nobody_says_it() -> None:
    """70B on 8-way stages of 80 GB: nothing runs again at 2,048 tokens, every layer at 32,768; a row that says none keeps it."""
    shape = {"layers": "80", "hidden": "8192", "heads": "64", "ffn_hidden": "28672", "pp": "8"}
    row = {**shape, "tp": "8", "dp": "1", "sequence_parallel": "1", "global_batch_seqs": "16"}
    runs = {
        (words, tokens): fitting(_described(**row, recompute=words, seq_len=tokens))
        for words in ("", "none")
        for tokens in ("2048", "32768")
    }
    kinds = {key: run.scenario["training"]["recompute"] for key, run in runs.items()}
    assert kinds[("", "2048")] == kinds[("none", "2048")] == kinds[("none", "32768")] == "none"
    assert kinds[("", "32768")] == "full"
    assert any("fastest that fits" in str(one) for one in runs[("", "32768")].assumed)


@pytest.mark.parametrize(
    ("change", "etp", "told"),
    [
        ({"framework": "Megatron-Core 0.9"}, 4, "to 0.9"),
        ({"framework": "NeMo 25.04", "measured_date": "2025-05"}, 4, "to 0.9"),
        ({"framework": "Megatron-LM", "measured_date": "2024-06"}, 4, "to 0.9"),
        ({"framework": "Megatron-Core 0.12", "measured_date": "2025-05"}, 1, "usual"),
        ({"framework": "FSDP2", "ep": "1", "zero_stage": "3"}, 4, "what is around them"),
        ({"framework": "Megatron-Core 0.9", "overlap_notes": "ETP 2"}, 2, "as its words say"),
        ({"framework": "Megatron-Core 0.12", "notes": "cut by TP (ETP = TP)"}, 4, "words say"),
        ({"framework": "Megatron-Core 0.9", "etp": "2"}, 2, ""),
    ],
)
def test_experts_are_divided_as_stated_else_as_their_software_did(
    change: dict[str, str], etp: int, told: str
) -> None:
    """Tensor parallelism of experts: the column, then words, then the default of the release; told where it is not the column's."""
    row = {**EXPERTS, "tp": "4", "dp": "16", "ep": "8", "overlap_notes": "", **change}
    run = _described(**row)
    assert run.scenario["parallelism"]["etp"] == etp
    assert [told in each.why for each in run.assumed if each.to == "etp"] == [True] * bool(told)


def test_experts_drop_tokens_at_the_capacity_that_words_name() -> None:
    """A capacity factor is read from words and notes; experts filled up to it let no host wait."""
    row = {**EXPERTS, "dp": "64", "ep": "32", "notes": "experts padded to capacity factor 1.25"}
    scenario = _described(**row).scenario
    assert scenario["model"]["moe"]["capacity_factor"] == 1.25
    assert scenario["framework"]["expert_synchronizations"] == 0
    assert "capacity_factor" not in _described(**{**row, "notes": ""}).scenario["model"]["moe"]


@pytest.mark.parametrize("sequences", ["1024", "1025", "4096"])
def test_a_batch_smaller_than_its_accelerators_divides_the_model(sequences: str) -> None:
    """Nobody trains on more sequences than the batch says: ranks share a layer where no division is stated, and what contradicts itself is refused."""
    open_ones = dict.fromkeys(("tp", "pp", "dp", "zero_stage", "micro_batch_seqs"), "")
    row = {**open_ones, "num_accel": "2048", "global_batch_seqs": sequences}
    if sequences == "1025":
        with pytest.raises(CalibrationError, match="1025 does not divide among 2048"):
            _described(**row)
        return
    run = fitting(_described(**row))
    assert run.scenario["training"]["global_batch"] == int(sequences)
    assert run.scenario["parallelism"]["tp"] == (2 if sequences == "1024" else 1)
    with pytest.raises(CalibrationError, match="does not divide among"):
        _described(**{**row, "global_batch_seqs": "1024", "tp": "1", "pp": "1"})


def test_a_guessed_micro_batch_that_does_not_fit_is_withdrawn() -> None:
    """8B over 8 ranks of 80 GB that keep all activations: four sequences of 16,384 tokens do not fit, fewer do; a stated number stays, unless its table calls it assumed and the run ran."""
    row = {"pp": "1", "tp": "8", "dp": "2", "num_accel": "16", "seq_len": "16384"}
    row |= {
        "recompute": "none",
        "global_batch_seqs": "64",
        "schedule": "",
        "vp_chunks_per_rank": "",
    }
    guessed, stated = (
        fitting(_described(**row, micro_batch_seqs=each)).scenario["training"]["micro_batch"]
        for each in ("", "4")
    )
    assert guessed < stated == 4
    for assumed, kept in (("micro-batch; network", False), ("network", True)):
        cells = Cells({**LLAMA, **row, "micro_batch_seqs": "4", "assumed_fields": assumed})
        run = fitting(described(cells, rule_of(cells)), rule_of(cells), cells)
        assert (run.scenario["training"]["micro_batch"] == 4) is kept


ALONE = {"num_accel": "8", "pp": "1", "dp": "8", "schedule": "none (PP=1)"}
LARGE = {"layers": "80", "hidden": "8192", "heads": "64", "ffn_hidden": "28672"}


def _settled(**change: str) -> dict[str, Any]:
    cells = Cells({**LLAMA, **ALONE, **change})
    return dict(read_run(cells)[1].scenario)


@pytest.mark.parametrize(
    ("assumed", "kept"),
    [("layout", False), ("uneven pipeline layout when layers do not divide", True), ("", True)],
)
def test_an_assumed_layout_that_cannot_have_run_is_withdrawn(assumed: str, kept: bool) -> None:
    """8B on one GPU of 80 GB cannot keep 16,384 tokens: ranks share a sequence or a layer, where the row's table says that its layout was assumed."""
    mesh = _settled(seq_len="16384", global_batch_seqs="8", assumed_fields=assumed)["parallelism"]
    assert (mesh["tp"] * mesh["cp"] == 1) is kept
    assert mesh["tp"] * mesh["cp"] * mesh["dp"] == 8


def test_frozen_weights_that_do_not_fit_in_16_bits_are_narrow() -> None:
    """70B beside adapters on 192 GB: the 8 bits that products read, if these are in 8 bits at all and what is smaller fits as it is."""
    tuned = {"framework": "NeMo 2.1", "model": "Llama-2-70B LoRA", "accelerator": "MI300X"}
    tuned |= {"global_batch_seqs": "8", "seq_len": "1024"}
    for change, base in (
        ({**LARGE, "precision": "FP8"}, "fp8"),
        ({**LARGE, "precision": "bf16"}, None),
        ({"precision": "FP8"}, None),
    ):
        adapter = _settled(**tuned, **change)["training"]["adapter"]
        assert adapter.get("base") == base


@pytest.mark.parametrize(("micro_batch", "offload"), [("", "optimizer"), ("2", None)])
def test_states_that_nothing_else_makes_fit_are_on_the_host(
    micro_batch: str, offload: str | None
) -> None:
    """70B under ZeRO-2 on 141 GB with full recomputation, which is stated; a stated micro batch is not withdrawn for it."""
    row = {**LARGE, "framework": "DeepSpeed", "accelerator": "H200-SXM5-141GB", "zero_stage": "2"}
    row |= {"recompute": "full", "num_accel": "16", "dp": "16", "global_batch_seqs": "64"}
    run = _settled(**row, seq_len="2048", micro_batch_seqs=micro_batch)
    assert run["parallelism"].get("offload") == offload


def test_a_peak_above_its_accelerator_is_none() -> None:
    """157 GB cannot be the peak of 141 GiB; 120 GB can."""
    cells = Cells({**LLAMA, **ALONE, "accelerator": "H200-SXM5-141GB", "accel_mem_gb": "141"})
    for measured, skipped in (("157", True), ("120", False)):
        row = Row("made-up", cells, Cells({"iter_time_s": "1", "memory_gb_reported": measured}))
        peak = training.predict(row, training.blank(row))[1]
        assert bool(peak.skipped_because) is skipped
        assert (peak.predicted is None) is skipped


@pytest.mark.parametrize(
    ("column", "words", "change"),
    [
        ("accelerator", ("TPU v6e", "Trillium", "v6e"), {"framework": "MaxText", "pp": "1"}),
        ("accelerator", ("H100", "8xH100", "8 x H100 SXM"), {}),
        ("precision", ("fp8", "float8", "E4M3 hybrid"), {}),
        ("framework", ("Megatron-Core 0.12", "MCore 0.12", "Megatron-LM core_r0.12"), {}),
    ],
)
def test_other_words_for_one_thing_make_one_scenario(
    tmp_path: Path, column: str, words: tuple[str, ...], change: dict[str, str]
) -> None:
    """A chip, a number format or a software by any of its names is the same row, down to what is assumed for it."""
    open_ones = ("sequence_parallel", "zero_stage", "accel_per_node", "dp")
    row = {**LLAMA, **dict.fromkeys(open_ones, ""), "tp": "2", **change}
    file = tmp_path / "rows.csv"
    with file.open("w", newline="") as out:
        table = csv.DictWriter(out, row)
        table.writeheader()
        table.writerows({**row, column: text} for text in words)
    runs = [described(each.configuration, rule_of(each.configuration)) for each in opened(file)[1]]
    assert all(run.scenario == runs[0].scenario for run in runs)


STACKS = ("Megatron-Core 0.12", "PyTorch FSDP2", "DeepSpeed ZeRO-3", "Somebody's trainer")
NAMES = [entry for kind in table("training")["names"].values() for entry in kind]
SAID = [
    (words, entry)
    for entry in (*table("training")["everywhere"], *NAMES)
    for words in entry.get("says", ())
]


def _rule(**change: str) -> dict[str, Any]:
    return dict(rule_of(Cells({**LLAMA, "overlap_notes": "", **change})))


@pytest.mark.parametrize("software", STACKS)
@pytest.mark.parametrize(("words", "entry"), SAID, ids=[words for words, _ in SAID])
def test_words_act_in_every_stack_and_their_denial_undoes_them(
    software: str, words: str, entry: dict[str, Any]
) -> None:
    """What a word sets is set wherever it stands; after "without", "no", "w/o" or before "off" the row is as if nobody had said it, or as the word's absence means."""
    plain = _rule(framework=software)
    spoken = _rule(framework=software, overlap_notes=words)
    for field, value in entry.get("framework", {}).items():
        if "\\" not in str(value):
            assert spoken["framework"][field] == value
    for key in ("refused", "offload", "training", "told", "method", "memory"):
        assert spoken.get(key) == entry.get(key, plain.get(key))
    denied = plain
    for other in table("training")["everywhere"]:
        where = {"said": "^$", "words": "", **other["where"]}
        texts = {"said": words, "words": software}
        if "off" in other and all(
            re.search(where[key], texts[key], re.IGNORECASE) for key in texts
        ):
            denied = on_top(denied, other["off"])
    for text in (f"without {words}", f"no {words}", f"w/o {words}", f"{words} off"):
        assert _rule(framework=software, overlap_notes=text) == denied, text


@pytest.mark.parametrize("words", [words for words, _ in SAID])
def test_words_mean_the_same_however_they_are_typed(words: str) -> None:
    """Case, hyphens, underscores, dashes, blanks, brackets and the order of clauses change nothing."""
    plain = _rule(framework=STACKS[-1], overlap_notes=words)
    typed = (words.upper(), words.lower(), words.replace(" ", "_"), words.replace(" ", "  "))
    dashed = (words.replace("-", " "), words.replace("-", "\N{NON-BREAKING HYPHEN}"))
    for text in (*typed, *dashed, f"({words})", f"uses {words}."):
        cell = tidied("overlap_notes", text)
        assert _rule(framework=STACKS[-1], overlap_notes=cell) == plain, text
    beside = "fused rotary"
    first, second = (f"{words}, {beside}", f"{beside}; {words}")
    assert _rule(overlap_notes=first) == _rule(overlap_notes=second)


PHRASES: list[tuple[dict[str, object], tuple[str, ...]]] = [
    (
        {"fused_attention": False},
        (
            *("FlashAttention not used", "flash attention is unavailable", "FlashAttention: no"),
            *("use_flash_attn=False", "--no-flash-attn", "naive attention", "eager attention"),
            *("attn_implementation=eager", "flash attention turned off", "FlashAttention = none"),
            *("unfused attention", "no fused attention", "w/o FA"),
        ),
    ),
    (
        {"compile": False},
        (
            *("uncompiled", "not compiled", "compilation disabled", "torch.compile=False"),
            *("eager mode", "eager"),
        ),
    ),
    ({"compile": True}, ("compilation on", "inductor", "jit compiled")),
    (
        {"gradient_overlap": "never", "parameter_gather_overlap": False},
        (
            *("overlap_comm=false", "non-overlapped gradients", "unoverlapped", "overlap not used"),
            *("does not overlap anything", "blocking all-reduce", "gradients are not hidden"),
            *("synchronous gradient reduction", "exposed communication", "overlap is not enabled"),
            *("DP comm exposed", "gradient all-reduce not overlapped"),
        ),
    ),
    ({"wide_norms": False}, ("apex FusedLayerNorm", "RMSNorm kernel", "rms_norm_fusion=True")),
    ({"fused_rotary": True}, ("apply_rope_fusion", "RoPE fusion")),
    ({"fused_bias_activation": True}, ("bias_swiglu_fusion", "SwiGLU fused")),
    ({"grouped_gemm": True}, ("--moe-grouped-gemm", "Group GEMM")),
    ({"grouped_gemm": False}, ("SequentialMLP", "no grouped GEMM")),
    ({"expert_dispatch": "fused"}, ("deep_ep", "--moe-enable-deepep")),
    (
        {"offload": "optimizer"},
        ("ZeRO-Offload", "optimizer on CPU", "CPU Adam", "host offload of states", "adam offload"),
    ),
    (
        {"offload": "parameters"},
        ("CPU offload of optimizer and parameters", "offload_param", "ZeRO-3 Offload"),
    ),
    (
        {"expert_overlap": "none"},
        (
            *("a2a overlap off", "no EP overlap", "expert overlap: none", "all-to-all exposed"),
            "EP communication not overlapped",
        ),
    ),
    ({"context_exchange": "ulysses"}, ("Ulysses SP 2", "DeepSpeed-Ulysses")),
    ({"context_exchange": "hierarchical"}, ("Ulysses 8 x ring 8", "CP comm type a2a+p2p", "USP")),
    ({"fused_rotary": True, "fused_bias_activation": True}, ("fused rope/swiglu",)),
    (
        {},
        (
            *("unfused kernels", "no TP overlap", "user buffers off", "fused kernels: none"),
            *("activations offloaded to CPU", "no CPU offload", "offload: no"),
            *("without Ulysses", "no activation offload", "triton attention"),
            *("chunked attention with host offload", "CPU offload of activations"),
            *("TP communication not overlapped", "tensor-parallel comm is not hidden"),
        ),
    ),
]


@pytest.mark.parametrize(
    ("text", "change"), [(text, change) for change, texts in PHRASES for text in texts]
)
def test_what_a_stranger_writes_means_what_it_says(text: str, change: dict[str, object]) -> None:
    """Synonyms, and denials before or behind a word, change what they name and nothing else."""
    plain, spoken = (_rule(framework=STACKS[-1], overlap_notes=words) for words in ("", text))
    keys = {"offload": spoken.get("offload")} if "offload" in spoken else {}
    fields = {**spoken["framework"], **keys}.items()
    assert {k: v for k, v in fields if plain["framework"].get(k) != v} == change


COLUMNS: list[tuple[str, str, object, tuple[str, ...]]] = [
    (
        *("recomputations", "recompute", "none"),
        (
            *("no gradient checkpointing", "gradient_checkpointing=False", "AC off", "not used"),
            *("no selective AC", "selective recompute off", "full (disabled)"),
            *(
                "without activation checkpointing",
                "recomputation is disabled",
                "everything_saveable",
            ),
            *("w/o recompute", "no recomputation", "nothing recomputed", "0 layers recomputed"),
            *("all activations saved", "recompute_granularity: null", "--no-recompute"),
        ),
    ),
    (
        *("recomputations", "recompute", "full"),
        (
            "gradient checkpointing",
            "activation checkpointing enabled",
            "AC: on",
            "nothing_saveable",
            *("full AC", "full recompute", "gradient ckpt", "enable_gradient_checkpointing=True"),
            *("checkpoint activations", "per-layer remat", "remat on", "save_nothing"),
            *("enable_activation_checkpointing: True", "full (no offload)"),
            *("full activation checkpointing offload off",),
        ),
    ),
    (
        *("recomputations", "offload_activations", "inputs"),
        ("full, offloaded to CPU", "offload (carry)", "AC with offload to host"),
    ),
    (*("recomputations", "recompute", "per-op"), ("recompute GeLU", "SwiGLU and norms")),
    (*("recomputations", "recompute", "selective"), ("SAC", "selective AC (no full recompute)")),
    (*("recomputations", "recompute", "selective"), ("--recompute-activations", "sel. AC")),
    (*("sharding", "zero", 0), ("plain DDP", "without ZeRO", "not sharded", "FSDP: off")),
    (*("sharding", "zero", 0), ("DistributedDataParallel", "ZeRO stage 0", "pure DP", "False")),
    (*("sharding", "zero", 1), ("distributed optimiser", "dist opt", "ZeRO_stage_1")),
    (*("sharding", "zero", 1), ("--use-distributed-optimizer", "P_os", "ZeRO (optimizer only)")),
    (*("sharding", "zero", 2), ("deepspeed_stage_2", "P_os+g", "optim_grads")),
    (*("sharding", "zero", 2), ("optimizer and gradient sharding",)),
    (*("sharding", "zero", 3), ("P_os+g+p", "parameters, gradients and optimizer sharded")),
    (*("sharding", "zero", 3), ("ZeRO stage III",)),
    (*("sharding", "zero", 3), ("fully sharded", "hybrid sharding", "ZeRO++", "FSDP full shard")),
    (*("sharding", "zero", 3), ("zero3.json", "deepspeed_stage_3_offload")),
    (
        *("precisions", "precision", "bf16"),
        ("no fp8, bf16", "bfloat16 without FP8", "bf16 (FP8 off)", "BF16; float8: no"),
    ),
    (*("precisions", "precision", "fp16"), ("O2", "fp16 AMP", "AMP O2")),
    (*("precisions", "precision", "fp8_block"), ("blockwise FP8", "block-scaled FP8")),
    (*("schedules", "name", "1f1b"), ("non-interleaved 1F1B", "1F1B without virtual stages")),
    (*("schedules", "name", "gpipe"), ("F-then-B",)),
    (*("schedules", "name", "zb-h1"), ("ZeroBubble H1",)),
    (*("schedules", "name", "zb-v"), ("zero bubble V", "V-schedule zero bubble")),
]


@pytest.mark.parametrize(
    ("section", "field", "value", "text"),
    [(*facts, text) for *facts, texts in COLUMNS for text in texts],
)
def test_columns_are_read_as_strangers_fill_them(
    section: str, field: str, value: object, text: str
) -> None:
    """Recomputation, division of states, number format and schedule, said and denied."""
    assert (
        lookup("training", section, affirmed(text) if section == "precisions" else text)[field]
        == value
    )


@pytest.mark.parametrize(
    ("words", "layers"),
    [
        ("full on 3 of 32 layers", 1),
        ("AC on 1 of 2 layers", 4),
        ("every other layer", 4),
        ("selective, every 4th layer", 2),
        ("full on 4 layers", 4),
        ("full on 40 layers", 8),
        ("recompute block, 1 layer", 1),
    ],
)
def test_some_layers_of_a_stage_run_again(words: str, layers: int) -> None:
    """Of the eight of a stage a share or a number, never more than there are."""
    training = _described(recompute=words).scenario["training"]
    assert (training["recompute"], training["recompute_method"]) == ("full", "block")
    assert training["recompute_layers"] == layers


LATENT = {
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "q_lora_rank": 1536,
}
SWA = {"attention": "sliding"}


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        ("mla(q_lora1536,kv_lora512,rope64,v128)", {"mla": LATENT}),
        ("MLA (q_lora_rank 1536, kv_lora_rank: 512, rope 64, v 128)", {"mla": LATENT}),
        ("multi-head latent attention", {"mla": LATENT}),
        ("mla(kv_lora512,rope64,v128)", {"mla": LATENT | {"q_lora_rank": 0}}),
        ("gqa, alternating sliding window 128", SWA | {"window": 128, "full_every": 2}),
        ("128-token sliding window every other layer", SWA | {"window": 128, "full_every": 2}),
        ("gqa, 5 local (1024) : 1 global", SWA | {"window": 1024, "full_every": 6}),
        ("GQA: 3 sliding (4096) to 1 global", SWA | {"window": 4096, "full_every": 4}),
        ("GQA 5:1, SWA 1024", SWA | {"window": 1024, "full_every": 6}),
        ("gqa, chunked window 8192 on 3 of 4 layers", SWA | {"window": 8192, "full_every": 4}),
        ("gqa, full attention on 1 of 4 layers, SWA 512", SWA | {"window": 512, "full_every": 4}),
        ("SWA 4096", SWA | {"window": 4096}),
        ("hybrid SWA 4096 and full", SWA | {"window": 4096}),
        ("mqa, parallel block", {"parallel_block": True}),
        ("gqa, attention and MLP in parallel", {"parallel_block": True}),
        ("bidirectional", {"attention": "full"}),
        ("gqa with rotary positions", {}),
    ],
)
def test_words_of_attention_mean_their_fields(words: str, fields: dict[str, object]) -> None:
    """Latent sizes, windows and how often a layer sees everything, parallel blocks, in whatever order and case."""
    for text in (words, words.upper(), words.lower()):
        assert attention_of(Cells({"attention_type": text, "head_dim": "128"}))[0] == fields


T5 = {
    "layers": "24",
    "hidden": "1024",
    "heads": "128",
    "kv_heads": "128",
    "head_dim": "128",
    "ffn_hidden": "65536",
    "gated_mlp": "0",
    "vocab": "32128",
    "seq_len": "512",
    "pp": "1",
    "params_billion": "11",
    "dp": "64",
    "attention_type": "encoder-decoder",
}


@pytest.mark.parametrize(
    ("change", "layers", "target"),
    [
        ({}, (24, 48), 114),
        ({"layers": "48"}, (24, 48), 114),
        ({"notes": "decoder length 128"}, (24, 48), 128),
        ({"attention_type": "encoder-decoder (32 + 16 layers)"}, (32, 48), 114),
    ],
)
def test_an_encoder_and_its_decoder_are_two_stacks(
    change: dict[str, str], layers: tuple[int, int], target: int
) -> None:
    """Layers are of one stack or of both as the parameters tell, and a target is as long as T5's where none is stated."""
    model = Scenario.from_mapping(_described(**{**T5, **change}).scenario).transformer
    assert (model.encoder_layers, model.layers) == layers
    assert model.decoder_length == target
    assert model.parameters().total == pytest.approx(11.3e9, rel=0.06)


def test_latent_attention_that_leaves_sizes_out_tells_whose_they_are() -> None:
    """A width of queries that has the rotary part in it means the same."""
    bare, whole = (
        attention_of(Cells({"attention_type": "mla", "head_dim": width})) for width in ("", "192")
    )
    assert bare[0] == whole[0] == {"mla": LATENT}
    assert len(bare[1]) == 5 > len(whole[1])


MAVERICK = {
    "model": "somebody's own copy",
    "layers": "48",
    "hidden": "5120",
    "heads": "40",
    "moe_experts": "128",
    "moe_topk": "1",
    "moe_ffn_hidden": "8192",
    "vocab": "202048",
}


def test_a_published_model_tells_by_its_sizes_what_columns_leave_open() -> None:
    """Whatever the row calls it; what the row states stays, and other sizes are another model."""
    run = _described(**MAVERICK)
    assert run.scenario["model"]["window"] == 8192
    moe = run.scenario["model"]["moe"]
    assert (moe["shared_experts"], moe["dense_layers"], moe["every"]) == (1, 0, 2)
    assert any("llama4-maverick has these sizes" in str(each) for each in run.assumed)
    for half in ({"moe_every": "1"}, {"moe_dense_layers": "24"}):
        moe = _described(**MAVERICK, moe_shared_experts="0", **half).scenario["model"]["moe"]
        assert (moe["shared_experts"], "every" in moe) == (0, False)
    other = _described(**MAVERICK | {"hidden": "4096"}).scenario["model"]
    assert "window" not in other
    assert other["moe"]["shared_experts"] == 0


def test_layers_that_mix_attention_with_others_are_those_of_the_published_model() -> None:
    """Of sizes that the catalog has; of others the row is refused, as its words say too little."""
    sizes = {"layers": "118", "hidden": "8192", "heads": "64", "ffn_hidden": "32768"}
    row = {**sizes, "vocab": "131072", "gated_mlp": "0", "attention_type": "hybrid mamba2"}
    assert _described(**row).scenario["model"]["preset"] == "nemotron-h-56b"
    with pytest.raises(CalibrationError, match="state-space"):
        _described(**row | {"layers": "100"})


@pytest.mark.parametrize("words", ["policy SAVE_DOT_ONLY", "minimal remat", "minimal_with_context"])
def test_a_policy_that_saves_products_runs_again_what_lies_between_them(words: str) -> None:
    """Of every layer norms and activation, and attention where the policy does not name its output; of experts, attention alone."""
    training = _described(framework="MaxText", recompute=words).scenario["training"]
    assert training["recompute"] == "per-op"
    kept = {"query", "key", "value", "output", "gate", "up"}
    assert {*training["recompute_keeps"]} == kept | {"context"} & {words.rpartition("_")[2]}
    experts = _described(**EXPERTS, framework="MaxText", recompute=words).scenario["training"]
    assert experts["recompute"] == "selective"


@pytest.mark.parametrize(
    ("words", "date", "kernel"),
    [
        ("FlashAttention-2", "2023-06", "flash2"),
        ("FlashAttention-3", "2025-01", "flash3"),
        ("FlashAttention 1.0.8", "2024-01", "flash1"),
        ("FlashAttention", "2023-06", "flash1"),
        ("FlashAttention", "2024-06", "flash2"),
        ("no FlashAttention", "2024-06", None),
        ("without FlashAttention-2", "2024-06", None),
    ],
)
def test_versions_in_the_name_of_an_attention_kernel_count(
    words: str, date: str, kernel: str | None
) -> None:
    """A version counts whatever the date; no version is that of the date; a denied kernel leaves scores materialised."""
    chosen = _rule(framework=f"PyTorch FSDP ({words})", measured_date=date)["framework"]
    assert chosen["fused_attention"] is (kernel is not None)
    assert kernel is None or chosen["attention_kernel"] == kernel


def test_ends_that_hold_fewer_layers_are_a_layout() -> None:
    """Thirty layers on four stages whose ends hold one less, 7, 8, 8, 7, in words; the words measure no single layer."""
    row = {"layers": "30", "overlap_notes": "first and last stage hold one layer less"}
    mesh = _described(**row).scenario["parallelism"]
    assert mesh["embedding_counts_as_layer"]
    assert mesh["loss_counts_as_layer"]
    assert "measures" not in _rule(schedule="1F1B, one layer less on the first and last stage")


@pytest.mark.parametrize(
    ("words", "window", "told"),
    [
        ("mqa, parallel block", None, False),
        ("gqa, parallel block, sliding window", None, True),
        ("gqa, sliding window 4096, parallel block", 4096, False),
    ],
)
def test_parallel_blocks_are_read_with_and_without_a_window(
    words: str, window: int | None, told: bool
) -> None:
    """A window that is not stated is left out and told; the block stays parallel."""
    run = _described(attention_type=words)
    assert run.scenario["model"]["parallel_block"]
    assert run.scenario["model"].get("window") == window
    assert any("window" in each.why for each in run.assumed) == told


@pytest.mark.parametrize(
    ("notes", "window"),
    [
        *(("", None), ("packed to 8192", 512), ("packed sequences, mean length 700", 700)),
        *(("sample_packing: true", 512), ("sample_packing: false", None), ("no packing", None)),
        *(("intra-document masking", 512), ("without sequence packing", None)),
    ],
)
def test_packed_documents_attend_to_themselves_alone(notes: str, window: int | None) -> None:
    """Attention is that of documents of their mean length, stated or assumed."""
    run = _described(notes=notes)
    assert run.scenario["model"].get("window") == window
    assert any(each.to == "document_tokens" for each in run.assumed) == bool(window)


@pytest.mark.parametrize(
    ("change", "training"),
    [
        ({"framework": "TRL DPOTrainer"}, {"reference": True}),
        ({"notes": "DPO, LoRA rank 16"}, {"reference": True, "method": "lora"}),
        ({"framework": "lora_finetune_distributed (rank 64)"}, {"method": "lora"}),
        ({"overlap_notes": "Muon"}, {"optimizer": "muon"}),
        ({"overlap_notes": "Adafactor, not Muon"}, {"optimizer": "adafactor"}),
        ({"notes": "from examples/lora/llama.sh, no LoRA"}, {}),
    ],
)
def test_words_say_what_trains_and_with_which_optimizer(
    change: dict[str, str], training: dict[str, object]
) -> None:
    """Notes count as the software's words do, but no paths of files in them."""
    plain, told = (_described(**row).scenario["training"] for row in ({}, change))
    assert {k: v for k, v in told.items() if plain.get(k) != v and k != "adapter"} == training


def test_what_no_column_describes_is_told() -> None:
    """An encoder of images, an optimizer that the catalog lacks, a rank that words state."""
    for words, told in (
        ("vision tower frozen", "language model alone"),
        ("LAMB", "AdamW's work"),
        ("LoRA r=16", "where they stand"),
    ):
        assert any(told in each.why for each in _described(notes=words).assumed), words


def test_a_product_of_degrees_that_does_not_divide_is_named() -> None:
    """The reader sees which degrees contradict the number of accelerators."""
    with pytest.raises(CalibrationError, match=r"tp 8 x pp 12 .* 512 accelerators"):
        _described(num_accel="512", tp="8", pp="12", dp="", cp="", ep="")


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("Llama-2 70B", True),
        ("Llama-3 8B", False),
        ("Llama-3 8B, 4 of 32 layers", False),
        ("Somebody's 6B", False),
        ("Mixtral 8x7B", False),
        ("Llama 3", False),
    ],
)
def test_a_size_in_a_name_that_the_columns_contradict_is_told(name: str, told: bool) -> None:
    """Columns count; names round, and of experts they count something else."""
    kind = next(kind for kind in KINDS if kind.columns <= set(LLAMA))
    (record,) = predict_row(kind, Row("1", Cells({**LLAMA, "model": name}), Cells({})))
    assert record.predicted
    assert any("of its name" in each for each in record.assumed) == told


def test_a_module_of_further_prediction_is_a_layer_more() -> None:
    """MTP in the notes adds one, unless it is denied."""
    counts = [
        _described(**EXPERTS, notes=words).scenario["model"]["layers"]
        for words in ("", "MTP 1", "w/o MTP", "MTP off")
    ]
    assert counts == [48, 49, 48, 48]


def test_unknown_cells_are_refused_with_a_reason() -> None:
    """What cannot be meant is not guessed."""
    for change in ({"accelerator": "H900"}, {"precision": "int8"}, {"attention_type": "mamba"}):
        with pytest.raises(CalibrationError):
            _described(**change)


def test_no_row_ends_in_a_bug() -> None:
    """Blanks, zeros and words anywhere: each row is predicted or says why not."""
    kind = next(one for one in KINDS if one.columns <= set(LLAMA))
    for column in LLAMA:
        for text in ("", "0", "7", "words"):
            records = predict_row(kind, Row("1", Cells({**LLAMA, column: text}), Cells({})))
            assert all("bug" not in (one.skipped_because or "") for one in records), (column, text)


@pytest.mark.parametrize(
    ("name", "section", "words", "field", "value"),
    [
        ("hardware", "links", "NVLink 4", "link", "nvlink4"),
        ("hardware", "links", "NVLink 2.0", "link", "nvlink2"),
        ("hardware", "links", "NVLink", "link", "usual"),
        ("hardware", "links", "xGMI", "link", "usual"),
        ("hardware", "links", "PCIe Gen4 x16", "link", "pcie4-x16"),
        ("hardware", "nics", "8x400G NDR", "nic", "ib-ndr"),
        ("hardware", "nics", "8 x 400GbE Spectrum-X", "nic", "roce-400"),
        ("hardware", "nics", "8x CX-7 400G", "nic", "generic-nic"),
        ("schedules", "schedules", "Interleaved 1F1B", "name", "interleaved-1f1b"),
        ("schedules", "schedules", "DAPPLE", "name", "1f1b"),
        ("schedules", "schedules", "AFAB", "name", "gpipe"),
        ("schedules", "schedules", "zero bubble v", "name", "zb-v"),
        ("hardware", "links", "NVLink 4th gen", "link", "nvlink4"),
        ("hardware", "links", "fifth-generation NVLink", "link", "nvlink5"),
        ("hardware", "nics", "8xHDR", "nic", "ib-hdr"),
        ("hardware", "nics", "32x100G EFA", "nic", "efa-v2"),
        ("hardware", "nics", "EFA 8x400G", "nic", "efa-v4"),
        ("kernels", "operations", "torch.matmul", "form", "gemm"),
        ("kernels", "operations", "torch._scaled_mm", "form", "gemm"),
        ("kernels", "operations", "DeepGEMM fp8_gemm_nt", "form", "gemm"),
        ("kernels", "operations", "rocBLAS GEMM NT", "form", "gemm"),
        ("kernels", "operations", "SGEMM", "form", "gemm"),
        ("kernels", "operations", "flash_attn_func (v2.7)", "kernel", "flash2"),
        ("kernels", "operations", "torch SDPA (cuDNN)", "kernel", "cudnn"),
        ("kernels", "operations", "xFormers memory_efficient_attention", "kernel", "flash1"),
        ("kernels", "operations", "fused add + rmsnorm", "passes", 4),
        ("kernels", "operations", "cast bf16 -> fp8", "passes", 1.5),
        ("kernels", "precisions", "fp8 block 128", "precision", "fp8_block"),
        ("kernels", "precisions", "NVFP4 (cuBLAS)", "precision", "nvfp4"),
        ("kernels", "precisions", "bf16 (fp32 accumulate)", "precision", "bf16"),
        ("kernels", "precisions", "INT8", "precision", "int8"),
        ("kernels", "operations", "FA3", "kernel", "flash3"),
        ("kernels", "operations", "FlashAttention-2 forward", "kernel", "flash2"),
        ("kernels", "operations", "hipblaslt gemm", "form", "gemm"),
        ("kernels", "operations", "RMSNorm", "kind", "norm"),
        ("kernels", "precisions", "torch.bfloat16", "precision", "bf16"),
        ("kernels", "precisions", "FP8 (e4m3)", "precision", "fp8"),
    ],
)
def test_words_of_kernels_and_collectives_mean_what_they_say(
    name: str, section: str, words: str, field: str, value: str
) -> None:
    """Links, NICs, operations and formats, as their tools print them."""
    assert lookup(name, section, words)[field] == value


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("AllReduce", "all_reduce"),
        ("all_gather_perf", "all_gather"),
        ("All-to-All", "all_to_all"),
        ("rccl-tests all_gather_perf", "all_gather"),
        ("AllReduce (in-place)", "all_reduce"),
        ("ncclReduceScatter out-of-place", "reduce_scatter"),
        ("alltoallv", "all_to_all"),
        ("psum", "all_reduce"),
        ("p2p sendrecv_perf (nccl-tests)", "send_recv"),
    ],
)
def test_collectives_are_known_by_the_names_that_tools_print(words: str, kind: str) -> None:
    """With the library or its tests before or behind, in place or out of it."""
    assert kind_of(words) == kind


@pytest.mark.parametrize(
    ("words", "ports", "rate"),
    [
        ("8x NDR400", 8, 400),
        ("400G InfiniBand x8", 8, 400),
        ("8\N{MULTIPLICATION SIGN}400 Gb/s", 8, 400),
        ("3.2 Tb/s InfiniBand", 8, 400),
        ("400 Gb/s per GPU", 8, 400),
        ("3,200 Gbps EFA", 32, 100),
        ("4x200G HDR", 4, 200),
    ],
)
def test_words_of_nics_state_number_and_rate(words: str, ports: int, rate: float) -> None:
    """Of each NIC, of all of a node or of one accelerator; bytes are not taken for bits."""
    node = benchmark_cluster("H100", "NVLink4", words, 2, 16).node
    assert (node.nics, node.nic.bandwidth * 8 / 1e9) == (ports, rate)
    with pytest.raises(CalibrationError, match="number and rate"):
        benchmark_cluster("H100", "NVLink4", "50 GB/s per GPU", 2, 16)


KERNEL = {
    "gpu": "A100 SXM",
    "op": "FlashAttention-2",
    "dtype": "bf16",
    "pass": "fwd",
    "batch": "2",
    "heads": "32",
    "seq": "16384",
    "head_dim": "128",
    "causal": "1",
}


def _kernel(**change: str) -> Any:
    kind = next(kind for kind in KINDS if kind.title == "kernels")
    (record,) = predict_row(kind, Row("1", Cells({**KERNEL, **change}), Cells({})))
    return record


def test_the_first_flash_attention_is_slower_than_the_second() -> None:
    """By 1.7 to 2 times (FlashAttention 2, arXiv 2307.08691, section 4.1), in a benchmark as in a step."""
    kernel = {"seq": "8192", "head_dim": "128", "heads": "16", "batch": "4", "causal": "causal"}
    first, second, other = (
        _kernel(**kernel, op=op, **{"pass": "fwd_bwd"}).predicted
        for op in ("flash attention 1", "flash attention 2", "xformers")
    )
    assert 1.6 * second < first < 2.1 * second
    assert other == first


def test_a_window_shortens_attention() -> None:
    """Of 1,024 of 16,384 tokens, an eighth of a causal mask's half."""
    whole, part = _kernel(), _kernel(op="FlashAttention-2 window 1024")
    assert part.predicted == pytest.approx(whole.predicted / 8, rel=0.2)


def test_backwards_of_norms_read_what_comes_back() -> None:
    """Three passes over memory for two, whether the column says it or the name."""
    norm = {"op": "LayerNorm", "m": "16384", "n": "4096"}
    forward, back = _kernel(**norm).predicted, _kernel(**norm, **{"pass": "bwd"}).predicted
    assert back == pytest.approx(1.5 * forward, rel=0.02)
    named = _kernel(**norm | {"op": "LayerNorm backward", "pass": ""})
    assert named.predicted == back


def test_int8_products_are_faster_than_those_of_16_bits() -> None:
    """And read half the bytes."""
    wide, narrow = (
        _kernel(op="gemm", m="8192", n="8192", k="8192", batch="", dtype=form).predicted
        for form in ("fp16", "int8")
    )
    assert 1.5 < wide / narrow < 2.1


@pytest.mark.parametrize(
    ("words", "usual"),
    [
        ("torch.mm", "gemm"),
        ("cublasGemmEx", "gemm"),
        ("F.scaled_dot_product_attention", "SDPA"),
        ("silu_and_mul", "SwiGLU"),
        ("fused_add_rmsnorm", "add + rmsnorm"),
    ],
)
def test_an_operation_by_its_name_in_a_library_is_the_same(words: str, usual: str) -> None:
    shape = dict.fromkeys("mnk", "4096")
    named, plain = (_kernel(**shape, op=op).predicted for op in (words, usual))
    assert named == plain
    assert plain is not None


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"op": "FlashAttention-3", "dtype": "fp8", "gpu": "H100"}, "no known times"),
        ({"op": "Grouped GEMM (8 experts)"}, "one group or of all"),
        ({"op": "FlashMLA decode"}, "one token a sequence"),
        ({"op": "naive attention (eager)"}, "several kernels"),
    ],
)
def test_kernels_without_a_price_are_refused_by_what_they_are(
    change: dict[str, str], why: str
) -> None:
    """No other kernel is priced in their place."""
    assert why in (_kernel(**change).skipped_because or "")


def test_links_of_pcie_are_not_taken_for_others() -> None:
    """PCIe without a generation is a board's own; of a module with NVLink it is not known which."""
    assert links_of(gpu("RTX 3090"), "PCIe")[0].name == "pcie4-x16"
    with pytest.raises(CalibrationError, match="not stated"):
        links_of(gpu("H100 SXM"), "PCIe")
