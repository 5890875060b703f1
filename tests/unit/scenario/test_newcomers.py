"""What newcomers write, and what they get for it."""

from __future__ import annotations

import itertools
import re

import pytest

import mpsim
from mpsim.cost.kernels import KernelModel
from mpsim.errors import ScenarioError, nearest
from mpsim.framework import framework_names
from mpsim.hardware import accelerator, accelerator_names
from mpsim.result.result import told_of
from mpsim.scenario import Scenario
from mpsim.scenario.schema import known_keys
from mpsim.schedule import make_orders
from mpsim.schedule.csv_file import write_csv
from mpsim.serving.engines import engine_names
from mpsim.shipped import read_shipped

BASE = """schema: 1
model: llama3.1-8b
cluster: {preset: dgx-h100, nodes: 1, nic: 400Gbps}
parallelism: {tp: 2, pp: 2}
schedule: {name: interleaved-1f1b, virtual_stages: 2}
training: {global_batch: 16, micro_batch: 1, sequence_length: 4096}
framework: torchtitan
"""


@pytest.fixture
def base(tmp_path):
    """A scenario beside an order of actions for it."""
    write_csv(make_orders("1f1b", pp=2, microbatches=8), tmp_path / "own.csv")
    file = tmp_path / "base.yaml"
    file.write_text(BASE, encoding="utf-8")
    return file


@pytest.mark.parametrize("name", ["{name: interleaved-1f1b, virtual_stages: 2}", "1f1b"])
@pytest.mark.parametrize("own", ["schedule: {file: own.csv}", "schedule: own.csv"])
def test_an_own_schedule_takes_the_place_of_an_included_name(own, name, base):
    """With its virtual stages; and a name set on top takes that of the file."""
    inside = base.with_name("own.yaml")
    base.write_text(BASE.replace("{name: interleaved-1f1b, virtual_stages: 2}", name))
    inside.write_text(f"include: base.yaml\n{own}\n", encoding="utf-8")
    schedule = mpsim.load(inside).schedule
    assert schedule.file.endswith("own.csv")
    assert (schedule.name, schedule.virtual_stages) == (None, None)
    assert mpsim.load(inside, set=["schedule.name=gpipe"]).schedule.file is None
    for text in (
        BASE,
        BASE.replace("{name: interleaved-1f1b, virtual_stages: 2}", "gpipe"),
        "\n".join(line for line in BASE.split("\n") if "virtual" not in line),
    ):
        base.write_text(text, encoding="utf-8")
        own = mpsim.load(base, set=[f"schedule.file={schedule.file}"]).schedule
        assert (own.name, own.file) == (None, schedule.file)


def test_both_in_one_file_are_refused(base):
    """Nobody knows which was meant."""
    text = BASE.replace("virtual_stages: 2", "file: own.csv")
    base.write_text(text, encoding="utf-8")
    with pytest.raises(mpsim.ScenarioError, match="got both of name and file"):
        mpsim.load(base)


def test_a_preset_runs_without_its_compiler(base):
    """`compile: false` is what the notes of the preset count; what is written beside it wins."""
    eager = mpsim.load(base, set=["framework.compile=false"])
    usual, slow = (mpsim.prepare(one).plan.layout.framework for one in (mpsim.load(base), eager))
    assert slow.lowering.wide_norms
    assert not slow.lowering.fused_rotary
    assert slow.host.layer_launches_forward > usual.host.layer_launches_forward
    own = mpsim.load(base, set=["framework.compile=false", "framework.memory_kernel_factor=1.5"])
    assert mpsim.prepare(own).plan.layout.framework.kernels.memory_kernel_factor == 1.5


def test_what_nobody_says_of_a_torch_stack_is_eager(base):
    """Norms and rotation of FSDP2 are kernels of one operation each until `compile: true` is beside it; the step is shorter with it."""
    plain = ["framework={preset: torch-fsdp2}", "parallelism.zero=3"]
    eager = mpsim.load(base, set=plain)
    compiled = mpsim.load(base, set=["framework={preset: torch-fsdp2, compile: true}", plain[1]])
    one, other = (mpsim.simulate(each).summary["step_time_s"] for each in (eager, compiled))
    assert mpsim.prepare(eager).plan.layout.framework.lowering.wide_norms
    assert other < one


def test_a_word_for_the_loss_says_how_much_of_the_logits_there_is(base):
    """12 B a logit in fp32, 16-bit logits with one chunk in fp32, or a chunk alone; what is written beside the word wins."""
    words = ("eager", "chunked", "fused")
    loaded = [
        mpsim.load(base, set=[f"framework={{preset: torch-fsdp2, loss: {word}}}"]) for word in words
    ]
    peaks = [mpsim.prepare(each).plan.layout.framework.lowering.loss_peak_bytes for each in loaded]
    assert peaks == [12.0, 2.25, 0.25]
    held = [mpsim.simulate(each).memory.total.max() for each in loaded]
    assert held == sorted(held, reverse=True)
    own = "framework={preset: torch-fsdp2, loss: fused, loss_peak_bytes: 4}"
    assert mpsim.prepare(mpsim.load(base, set=[own])).plan.layout.framework.lowering.loss_peak_bytes == 4.0  # fmt: skip


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("model=meta-llama/Llama-3.1-8B", "did you mean 'llama3.1-8b'"),
        ("model.experts=8", "did you mean 'model.moe.experts'"),
        ("serving.limits={ttft: 1 s}", "did you mean 'serving.slo'"),
        ("framework.compile=3", "needed true or false"),
        ("framework={preset: megatron-core, compile: true}", "a stack of torch, which"),
        ("framework={preset: torch-fsdp2, loss: liger}", "needed one of eager, chunked, fused"),
    ],
)
def test_a_near_miss_is_told_what_was_meant(setting, words, base):
    """The key below, where there is one, before a key of the same name elsewhere."""
    with pytest.raises(mpsim.ScenarioError, match=words):
        mpsim.load(base, set=[setting])


@pytest.mark.parametrize("own", ["", "schedule: 1f1b"])
def test_a_schedule_can_be_set_where_a_file_has_none_or_a_name_alone(own, tmp_path):
    """A search lays a schedule over a scenario that says nothing of schedules."""
    lines = [line for line in BASE.splitlines() if not line.startswith("schedule")]
    file = tmp_path / "plain.yaml"
    file.write_text("\n".join([*lines, own]), encoding="utf-8")
    scenario = mpsim.load(file)
    assert scenario.with_values({"schedule.name": "gpipe"}).schedule.name == "gpipe"


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("cluster.power_limit=400 W", "cluster.accelerator.tdp"),
        ("cluster.gpus_per_node=4", "cluster.accelerators_per_node"),
        ("parallelism.tensor-parallel=2", "parallelism.tp"),
        ("parallelism.zero_stage=3", "parallelism.zero"),
        ("serving.tp=2", "parallelism.tp"),
        ("training.method=dpo", "training.reference: true"),
    ],
)
def test_words_of_other_tools_are_answered_with_ours(theirs, ours, base):
    """The nearest spelling is another thing: nics_per_node for gpus_per_node, layers_per_stage for zero_stage."""
    with pytest.raises(mpsim.ScenarioError, match=f"did you mean [^?]*{ours}"):
        mpsim.load(base, set=[theirs])


def test_every_key_that_is_answered_exists():
    """A hint that leads to another unknown key would be worse than none."""
    keys = {*known_keys(Scenario), "serving.engine.max_sequences"}
    assert keys >= set(
        itertools.chain(*read_shipped("mpsim.scenario.data", "others.yaml")["keys"].values())
    )


def test_trays_are_not_taken_for_racks(base):
    """Eight nodes of an NVL72 rack are 32 GPUs, and 18 make the rack."""
    rack = mpsim.load(base, set=["cluster={preset: gb200-nvl72, nodes: 8}"])
    assert rack.told["nodes"] == "8 of 4 are 32 accelerators; 18 make a domain of 72"
    assert "nodes" not in mpsim.load(base).told


def test_a_nic_in_bytes_that_was_meant_in_bits_is_told(base):
    """400 GB/s a port is 3,200 Gb/s, six times what PCIe brings it; 400 Gb/s is nothing to tell."""
    two = ["cluster.nodes=2", "parallelism.pp=1", "schedule=1f1b"]
    for rate, told in (("400 GB/s", 1), ("400 Gb/s", 0)):
        scenario = mpsim.load(base, set=[*two, f"cluster.nic={rate}"])
        assert sum("3,200 Gb/s" in warning for warning in told_of(scenario)) == told


def test_names_are_near_in_any_case():
    """Vendors write H100."""
    assert "did you mean 'h100-sxm'" in nearest("H100", ["h100-sxm", "tpu-v4"])


def test_a_word_of_one_key_is_no_hint_for_another(base):
    """`dpo` is a method; as a recomputation it is one of no choices."""
    with pytest.raises(mpsim.ScenarioError, match="needed one of none, selective"):
        mpsim.load(base, set=["training.recompute=dpo"])


@pytest.mark.parametrize("key", ["parallelism.zero", "parallelism", "training.micro_batch"])
def test_null_leaves_a_key_out(key, base):
    """As if the file did not say it, and a key that has to be there is missing then."""
    base.write_text(BASE.replace("pp: 2", "pp: 2, zero: 1"), encoding="utf-8")
    loaded = mpsim.load(base, set=[f"{key}=null"])
    section, _, name = key.partition(".")
    written = loaded.source.data.get(section, {})
    assert name not in written if name else section not in loaded.source.data
    assert loaded.digest == mpsim.load(base).with_values({key: None}).digest
    with pytest.raises(mpsim.ScenarioError, match="model: missing"):
        mpsim.load(base, set=["model=null"])


def test_a_stack_without_a_pipeline_says_so_once(base):
    """Its own ZeRO 3, which nobody wrote, is not a second mistake."""
    with pytest.raises(mpsim.ScenarioError) as refused:
        mpsim.load(base, set=["framework=deepspeed-zero3", "schedule=1f1b"])
    assert [problem.key for problem in refused.value.problems] == ["parallelism.pp"]


def test_a_step_that_waits_for_its_launches_says_what_mends_it(base):
    """CUDA graphs, experts launched at once and larger microbatches; a graph takes its part of the advice away."""
    small = ["model=olmoe-1b-7b", "training.sequence_length=512", "schedule=1f1b"]
    small += ["framework={preset: megatron-core-2025, grouped_gemm: false}"]
    small += ["parallelism.sequence_parallel=true"]
    eager, graph = (
        " ".join(mpsim.simulate(mpsim.load(base, set=small + more)).summary["warnings"])
        for more in ([], ["framework.launch_cost=0 us"])
    )
    for mend in ("CUDA graphs", "grouped_gemm: true", "a larger training.micro_batch (1)"):
        assert mend in eager
    assert "CUDA graphs" not in graph


@pytest.mark.parametrize(
    ("stack", "chips", "words"),
    [
        ("torchtitan-2025", "tpu-v6e", "not written for tpu-v6e, .*; take maxtext-tpu"),
        ("megatron-lm", "aws-trn2", "not written for trainium2, .*; take neuronx-distributed"),
        ("maxtext", "dgx-h100", "maxtext was not written for h100-sxm, .*; take maxtext-gpu"),
        ("maxtext", "mi300x-8", "for mi300x, and is simulated all the same($|[^;])"),
        ("maxtext-tpu", "tpu-v6e", ""),
        ("torchtitan-2025", "mi300x-8", ""),
        ("neuronx-distributed", "aws-trn2", ""),
        ("primus-mi300x", "dgx-h100", "not written for h100-sxm, .*; take megatron-core"),
        ("primus-mi300x", "mi300x-8", ""),
        ("primus-mi300x", "tpu-v6e", "not written for tpu-v6e, .*; take maxtext-tpu"),
    ],
)
def test_a_stack_on_chips_it_was_not_written_for_is_told(stack, chips, words, base):
    """A plan of Megatron-LM on TPUs is nobody's run; stacks of GPUs run on all GPUs."""
    sets = [f"framework={stack}", f"cluster={{preset: {chips}, nodes: 4}}", "schedule=1f1b"]
    sets += ["parallelism.tp=1", "parallelism.pp=1", "training.global_batch=256"]
    told = " ".join(told_of(mpsim.load(base, set=sets)))
    assert re.search(words, told) if words else "not written for" not in told


@pytest.mark.parametrize(
    ("engine", "chip", "words"),
    [
        ("trtllm", "mi300x", "serving.engine: tensorrt-llm-1.x was not .* mi300x, .*; take vllm"),
        ("tensorrt-llm-0.6", "tpu-v6e", "not written for tpu-v6e, .*; take vllm"),
        ("fastertransformer", "gaudi3", "not written for gaudi3"),
        ("trtllm", "b200-sxm", ""),
        ("vllm", "tpu-v6e", ""),
        ("sglang", "mi300x", ""),
    ],
)
def test_an_engine_on_chips_that_it_does_not_run_on_is_told(engine, chip, words):
    """TensorRT-LLM is for CUDA alone; a pool's own accelerators count, and what nobody verified of them."""
    data = {"schema": 1, "model": "llama3-8b", "cluster": {"accelerator": chip, "nodes": 1}}
    data["cluster"]["accelerators_per_node"] = 8
    data["serving"] = {"engine": engine, "workload": {"rate": 1}}
    apart = {"prefill": {"tp": 1, "replicas": 8}, "decode": {"tp": 1, "accelerator": "h20"}}
    for pools in ({}, {"disaggregated": apart}):
        serving = {**data["serving"], **pools}
        told = " ".join(told_of(Scenario.from_mapping({**data, "serving": serving}, checked=False)))
        assert re.search(words, told) if words else "not written for" not in told
        assert ("values of h20 that are recalled" in told) == bool(pools)


@pytest.mark.parametrize(
    ("stack", "asked", "chip", "runs"),
    [
        ("torchtitan-2025", "flash2", "v100-sxm2-32", "flash1"),
        ("torchtitan-2025", "flash3", "t4", "flash1"),  # through FlashAttention 2, for Hopper's
        ("torchtitan-2025", "flash3", "b200-sxm", "flash2"),  # alone
        ("torchtitan-2025", "flash3", "mi300x", "flash2"),
        ("torchtitan-2025", "flash3", "trainium2", "flash2"),
        ("torchtitan-2025", "flash3", "h200-sxm", ""),
        ("torchtitan-2025", "flash2", "a100-sxm-80", ""),
        ("torchtitan-2025", "flash2", "mi300x", ""),
        ("megatron-core", "cudnn", "v100-sxm2-32", "scores in memory"),
        ("megatron-core", "cudnn-fp8", "v100-sxm2-32", "scores in memory"),
        ("megatron-core", "cudnn", "tpu-v5p", "flash2"),
        ("megatron-core", "cudnn-2025", "gaudi3", "flash2"),
        ("megatron-core", "cudnn-2025", "mi300x", "cudnn"),  # AITER, the vendor's own
        ("megatron-core", "cudnn", "mi300x", ""),
        ("megatron-core", "cudnn", "mi250x-gcd", "flash2"),  # older than AITER
        ("megatron-core", "cudnn", "b200-sxm", ""),
    ],
)
def test_a_chip_runs_the_attention_that_it_can(stack, asked, chip, runs, base):
    """FlashAttention 2 and cuDNN's need compute capability 8.0: torch has a kernel for older chips, Transformer Engine none. A file that named the kernel is told."""
    cluster = f"cluster={{accelerator: {chip}, nodes: 1, accelerators_per_node: 4}}"
    precision = "bf16" if chip == "tpu-v5p" else "fp16"
    sets = [f"training.precision={precision}", "schedule=1f1b", cluster]
    quiet = mpsim.load(base, set=[*sets, f"framework={stack}"])
    named = mpsim.load(
        base, set=[*sets, f"framework={{preset: {stack}, attention_kernel: {asked}}}"]
    )
    software = named.software
    taken = (
        software.kernels.attention_kernel
        if software.lowering.fused_attention
        else "scores in memory"
    )
    assert taken == (runs or asked)
    assert ("cannot run; simulated with" in " ".join(told_of(named))) == bool(runs)
    assert "cannot run" not in " ".join(told_of(quiet))
    KernelModel(accelerator(chip), precision, attention_kernel=software.kernels.attention_kernel)


def test_points_of_one_grid_have_the_attention_of_their_own_chips(base):
    """A stack that was looked up for a V100 is not taken over for an A100."""
    old = mpsim.load(
        base,
        set=[
            "cluster={accelerator: v100-sxm2-32, nodes: 1, accelerators_per_node: 4}",
            "training.precision=fp16",
            "schedule=1f1b",
        ],
    )
    assert old.software.kernels.attention_kernel == "flash1"
    new = old.with_values({"cluster.accelerator": "a100-sxm-80"})
    assert new.software.kernels.attention_kernel == "flash2"


def test_homes_are_stacks_and_families_of_the_catalog():
    """What was renamed would warn of nothing."""
    known = read_shipped("mpsim.scenario.data", "homes.yaml")
    homes, ports = known["homes"], known["ports"]
    for stacks in ports.values():
        assert set(itertools.chain(stacks, *stacks.values())) <= set(framework_names())
    chips = [accelerator(name) for name in accelerator_names()]
    vendors = {chip.vendor for chip in chips}
    assert set(ports) <= vendors
    assert set(homes) <= {chip.family for chip in chips} | vendors
    assert set(known["elsewhere"]) == set(homes) & vendors
    assert set(itertools.chain(*homes.values())) <= {*framework_names(), *engine_names()}


def test_an_accelerator_that_is_not_listed_is_a_near_one_with_figures_of_its_own():
    """An RTX 2080 Ti from a T4: the refusal says so, and it is slower than a T4 of four times the peak."""
    cluster = {"accelerator": "RTX 2080 Ti", "nodes": 1}
    data = {"schema": 1, "model": "gpt2-small", "cluster": cluster}
    data["training"] = {"global_batch": 8, "sequence_length": 1024, "precision": "fp16"}
    with pytest.raises(mpsim.ScenarioError, match="near preset and its own values"):
        Scenario.from_mapping(data)
    steps = []
    for peak in ("54 TFLOP/s", "216 TFLOP/s"):
        board = {"preset": "t4", "memory": "11 GiB", "peak_flops": {"fp16": peak}}
        data["cluster"] = {"accelerator": board, "accelerators_per_node": 1, "nodes": 1}
        steps.append(mpsim.simulate(Scenario.from_mapping(data)).timeline.step_time_s)
    assert steps[0] > steps[1]


def test_modules_of_a_preset_are_not_said_to_be_the_files(base):
    """HAI-LLM runs again what DeepSeek-V3 has: a file of another model, which names no modules, is told whose they are and what to write; one that does is not."""
    sets = ["framework=hai-llm", "schedule=1f1b"]
    with pytest.raises(
        ScenarioError, match=r"left out, so that hai-llm takes.*write.*core_attn, mlp"
    ):
        mpsim.load(base, set=sets)
    own = "training={global_batch: 16, sequence_length: 4096, recompute: selective, recompute_modules: [%s]}"
    mpsim.load(base, set=[*sets, own % "core_attn"])
    with pytest.raises(ScenarioError, match=r"got mla_up_proj.*can run again core_attn, mlp"):
        mpsim.load(base, set=[*sets, own % "mla_up_proj"])
