"""Launch lines of serving engines, read and written."""

from __future__ import annotations

import pytest

import mpsim
from mpsim.errors import FormatError
from mpsim.formats import export, read
from mpsim.formats.ledger import flat, laid
from mpsim.formats.scenarios import over
from mpsim.scenario import Scenario

VLLM = "vllm serve meta-llama/Llama-3.1-70B-Instruct -tp 4"
SGLANG = "python3 -m sglang.launch_server --model-path deepseek-ai/DeepSeek-R1 --tp 8"
TRTLLM = "trtllm-serve openai/gpt-oss-120b --tp_size 4 --ep_size 4"


@pytest.fixture
def launched(tmp_path):
    """Values of the scenario that a launch line means, by dotted key."""

    def values(line, **options):
        path = tmp_path / "serve.sh"
        path.write_text(f"#!/bin/bash\n{line}\n")
        return flat(read(path, **options).scenario)

    return values


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ("export NCCL_P2P_DISABLE=1 NCCL_IB_HCA=mlx5_0", "NCCL_P2P_DISABLE"),
        ("NCCL_IB_DISABLE=0 CUDA_DEVICE_MAX_CONNECTIONS=1 NVTE_FUSED_ATTN=1", ""),
        ("NCCL_ALGO=Ring NVTE_FUSED_ATTN=0", "NCCL_ALGO, NVTE_FUSED_ATTN"),
        ("- name: VLLM_ATTENTION_BACKEND\n  value: FLASHINFER", "VLLM_ATTENTION_BACKEND"),
    ],
)
def test_variables_that_move_a_service_are_told(tmp_path, words, named):
    """Without peer-to-peer copies tensor parallelism goes through the host's memory."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{words}\n{VLLM}\n")
    told = [line for line in read(path, format="vllm").warnings if line.startswith("variables")]
    assert [line.rpartition(": ")[2] for line in told] == ([named] if named else [])


@pytest.mark.parametrize(
    ("line", "moves"),
    [
        (f"{VLLM} --prefill-context-parallel-size 2 --port 80", "prefill-context-parallel-size"),
        (f"{VLLM} --dtype float32", "dtype"),
        (f"{VLLM} --dtype bfloat16 --served-model-name x --max-model-len 8192 -O3", ""),
        (f"{VLLM} --an-option-of-next-year 3", "an-option-of-next-year"),
        (f"{SGLANG} --dcp-size 2 --context-length 8192", "dcp-size"),
        (f"{SGLANG} --host 0.0.0.0 --trust-remote-code --random-seed 1", ""),
        (f"{TRTLLM} --log_level info --max_beam_width 4", "max-beam-width"),
    ],
)
def test_options_that_nobody_judged_idle_are_told(tmp_path, line, moves):
    """An option that the tables do not know is no reason to answer as if it were not there."""
    path = tmp_path / "serve.sh"
    path.write_text(line)
    told = [line for line in read(path).warnings if line.startswith("not simulated")]
    assert [line.rpartition(": ")[2] for line in told] == ([moves] if moves else [])


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (f"{VLLM} --kv-cache-dtype fp8", {"parallelism.tp": 4, "serving.kv": "fp8"}),
        (f"MB=512\n{VLLM} --max-num-seqs $MB", {"serving.engine.max_sequences": 512}),
        (f"{VLLM} --enforce-eager", {"serving.engine.graph_sizes": []}),
        (f"{VLLM} --data-parallel-size 2", {"serving.replicas": 2, "parallelism.tp": 4}),
        (
            "vllm serve Qwen/Qwen3-235B-A22B-FP8 -tp 2 -dp 4 --enable-expert-parallel",
            {"parallelism.tp": 8, "parallelism.ep": 8, "serving.attention_dp": 4},
        ),
        (
            "vllm serve my/Mixture-7x -tp 2 -dp 4 --enable-expert-parallel",
            {"parallelism.tp": 8, "parallelism.ep": 8, "serving.attention_dp": 4},
        ),
        (
            "vllm serve deepseek-ai/DeepSeek-V3.1-Terminus -tp 8",
            {"model.preset": "deepseek-v3", "serving.weights": "fp8_block"},
        ),
        ("vllm serve moonshotai/Kimi-K2-Thinking -tp 8", {"serving.weights": "w4a16"}),
        (
            f"{SGLANG} --dp 8 --enable-dp-attention --max-running-requests 1024",
            {"parallelism.tp": 8, "serving.attention_dp": 8, "serving.engine.max_sequences": 128},
        ),
        (
            f"{SGLANG} --attn-dp-size 8 --dp-size 2 --max-running-requests 1024",
            {"serving.attention_dp": 8, "serving.replicas": 2, "serving.engine.max_sequences": 128},
        ),
        (f"{SGLANG} --disable-decode-cuda-graph", {"serving.engine.graph_sizes": []}),
        (
            f"{SGLANG} --speculative-algorithm EAGLE --speculative-num-steps 3",
            {"serving.speculation.draft": "mtp", "serving.speculation.tokens": 3},
        ),
        (
            f"{VLLM} --spec-method ngram --spec-tokens 4 --stream-interval 8",
            {
                "serving.speculation.draft": "n-gram",
                "serving.speculation.tokens": 4,
                "serving.engine.stream_interval": 8,
            },
        ),
        (
            f"{VLLM} --speculative-config.method eagle3 --speculative-config.num_speculative_tokens 3",
            {"serving.speculation.draft": "mtp", "serving.speculation.tokens": 3},
        ),
        (
            f"{SGLANG} --speculative-num-steps 5 --speculative-num-draft-tokens 32",
            {"serving.speculation.tokens": 5},
        ),
        (f"{SGLANG} --quantization fp8", {"serving.weights": "fp8_block"}),
        (
            "vllm serve Qwen/Qwen3-32B-FP8 -tp 2 --quantization fp8",
            {"serving.weights": "fp8_block"},
        ),
        (f"{VLLM} --quantization fp8", {"serving.weights": "fp8"}),
        (f"{VLLM} -O0", {"serving.engine.graph_sizes": []}),
        (f"{VLLM} --optimization-level 0", {"serving.engine.graph_sizes": []}),
        (f"{VLLM} --device-memory-utilization 0.8", {"serving.engine.memory_fraction": 0.8}),
        (f"{SGLANG} --chunked-prefill-size -1", {"serving.engine.chunked": False}),
        (f"{SGLANG} --ep 2 --moe-a2a-backend deepep", {"parallelism.ep": 8}),
        (f"{SGLANG} --ep 2 --moe-a2a-backend none", {"parallelism.ep": 2}),
        (f"{SGLANG} --scheduler-recv-interval 30", {"serving.engine.poll_steps": 30}),
        (TRTLLM, {"parallelism.ep": 4, "serving.weights": "mxfp4"}),
        (VLLM, {"serving.engine.preset": "vllm-async"}),
        (f"{VLLM} --no-async-scheduling", {"serving.engine.preset": "vllm-v1"}),
        ("VLLM_USE_V1=0 vllm serve Qwen/Qwen3-8B", {"serving.engine.preset": "vllm-0.5"}),
        (f"pip install vllm==0.9.1\n{VLLM}", {"serving.engine.preset": "vllm-0.8"}),
        (f"{VLLM} --other-option $WHO", {"parallelism.tp": 4}),
        ("vllm serve google/gemma-3-27b-it", {"model.preset": "gemma3-27b"}),
        (
            f'{VLLM} --speculative-config \'{{"method": "ngram", "num_speculative_tokens": 4}}\'',
            {"serving.speculation.draft": "n-gram", "serving.speculation.tokens": 4},
        ),
        (
            f"{SGLANG[:-1]}72 --enable-deepep-moe --init-expert-location a --ep-num-redundant-experts 32",
            {
                "parallelism.ep": 72,
                "serving.engine.eplb": True,
                "serving.engine.redundant_experts": 32,
            },
        ),
        (
            f"{SGLANG} --nnodes 2 --node-rank 0\n{SGLANG} --nnodes 2 --node-rank 1",
            {"parallelism.tp": 8},
        ),
        (f"{TRTLLM} --backend tensorrt", {"serving.engine.preset": "tensorrt-llm-0.17"}),
        (
            "docker run --gpus all vllm/vllm-openai:v0.11.0 --model Qwen/Qwen3-8B -tp 2",
            {
                "model.preset": "qwen3-8b",
                "parallelism.tp": 2,
                "serving.engine.preset": "vllm-v1",
            },
        ),
    ],
)
def test_a_launch_line_is_a_service(launched, line, expected):
    """Options land on the key that has their meaning, ranks counted as the engine counts them."""
    assert expected.items() <= launched(line).items()


@pytest.mark.parametrize(
    "runs",
    [
        'command: ["/bin/sh", "-c"]\n        args: ["vllm serve Qwen/Qwen3-8B -tp 2 --max-num-seqs 64"]',
        'args: ["--model=Qwen/Qwen3-8B", "-tp=2", "--max-num-seqs", "64"]',
    ],
)
def test_a_deployment_of_kubernetes_is_its_containers_line(tmp_path, runs):
    """What a container runs is read behind its image, whose version is the engine's; pods count."""
    path = tmp_path / "serve.yaml"
    path.write_text(
        "spec:\n  replicas: 3\n  template:\n    spec:\n      containers:\n"
        f"      - image: vllm/vllm-openai:v0.10.1.1\n        {runs}\n"
    )
    found = read(path)
    assert found.lines["parallelism.tp"] == "serve.yaml:6 tensor-parallel-size"
    values = flat(found.scenario)
    expected = {
        "model.preset": "qwen3-8b",
        "parallelism.tp": 2,
        "serving.engine.max_sequences": 64,
        "serving.engine.preset": "vllm-0.8",
        "serving.replicas": 3,
    }
    assert expected.items() <= values.items()


def test_replicas_of_compose_stand_beside_the_command(tmp_path):
    """Compose counts containers in `deploy`, behind what each runs."""
    path = tmp_path / "serve.yaml"
    path.write_text(
        "services:\n  a:\n    image: vllm/vllm-openai:v0.12.0\n"
        "    command: --model Qwen/Qwen3-8B -tp 2\n    deploy: {replicas: 2}\n"
    )
    assert flat(read(path).scenario)["serving.replicas"] == 2


@pytest.mark.parametrize(
    ("args", "words"),
    [("5", "no server is launched"), ('"--model \'Qwen/Qwen3-8B"', "open quote in .*; close it")],
)
def test_a_container_without_words_launches_nothing(tmp_path, args, words):
    """A number is no command, and a quote that nothing closes is told with the file."""
    path = tmp_path / "serve.yaml"
    path.write_text(f"image: vllm/vllm-openai:v0.11.0\nargs: {args}\n")
    with pytest.raises(FormatError, match=f"serve.yaml: .*{words}"):
        read(path, only="vllm")


def test_options_of_a_file_stand_behind_those_of_the_line(launched, tmp_path):
    """vLLM reads `--config` too, and what its line says wins."""
    (tmp_path / "vllm.yaml").write_text("tensor-parallel-size: 2\nmax-num-seqs: 64\n")
    values = launched(f"{VLLM} --config {tmp_path / 'vllm.yaml'}")
    assert (values["parallelism.tp"], values["serving.engine.max_sequences"]) == (4, 64)


def test_what_no_option_says_is_the_default_on_the_device(tmp_path):
    """A server on small devices takes smaller budgets; SGLang's ranks share one."""
    path = tmp_path / "serve.sh"

    def budget(line, cluster):
        path.write_text(line)
        given = {"schema": 1, **read(path, cluster=cluster).scenario}
        return Scenario.from_mapping(given).resolved()["serving"]["engine"]["max_tokens"]

    chips = ("dgx-a100-80gb", "dgx-h100")
    assert [budget("vllm serve Qwen/Qwen3-8B", chip) for chip in chips] == [2048, 8192]
    apart = f"{SGLANG} --dp 8 --enable-dp-attention"
    assert [budget(line, "dgx-h200") for line in (SGLANG, apart)] == [8192, 1024]


def test_weights_of_a_gguf_repository_are_asked_for(tmp_path):
    """Its name does not say which of many formats."""
    path = tmp_path / "serve.sh"
    path.write_text("vllm serve unsloth/Llama-3.3-70B-Instruct-GGUF -tp 2")
    assert "serving.weights" in read(path).missing


def test_a_launch_line_keeps_the_traffic_of_the_file_below_it(tmp_path):
    """No option says how requests come: the rate of a file that is changed by a line stays."""
    line, base = tmp_path / "serve.sh", tmp_path / "base.yaml"
    line.write_text(f"{VLLM}\n")
    base.write_text(
        "{schema: 1, model: llama3-70b, cluster: dgx-h100, serving: {workload: {rate: 4.0}}}\n"
    )
    merged = over(read(line), base)
    assert flat(merged.scenario)["serving.workload.rate"] == 4.0
    assert "serving.workload.rate" not in {item.to for item in merged.assumed}


def test_every_mistake_is_told_at_once(launched):
    """Values that nobody knows are named with their line and what is needed."""
    line = f"{VLLM} --kv-cache-dtype int3 --gpu-memory-utilization 1.5 --max-num-seqs $N"
    with pytest.raises(FormatError) as error:
        launched(line)
    for part in ("serve.sh:2 kv-cache-dtype: got 'int3'", "got '1.5'", "$N (not set in the file)"):
        assert part in str(error.value)


def test_drafted_tokens_ask_how_many_are_right(tmp_path):
    """No launch line says the acceptance."""
    path = tmp_path / "serve.sh"
    path.write_text(f"{VLLM} --speculative-config '{{\"num_speculative_tokens\": 3}}'")
    imported = read(path, format="vllm")
    assert imported.scenario["serving"]["speculation"] == {"tokens": 3}
    assert "serving.speculation.acceptance" in imported.missing


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("vllm", f"{VLLM} --kv-cache-dtype fp8 --max-num-batched-tokens 4096 --enforce-eager"),
        ("vllm", "vllm serve Qwen/Qwen3-235B-A22B -tp 2 -dp 4 --enable-expert-parallel"),
        ("vllm", f"{VLLM} --no-async-scheduling"),
        ("sglang", f"{SGLANG} --dp 4 --enable-dp-attention --chunked-prefill-size 16384"),
        ("trtllm", f"{TRTLLM} --max_num_tokens 20000 --kv_cache_free_gpu_memory_fraction 0.8"),
    ],
)
def test_what_is_written_and_what_is_lost_are_the_whole_service(name, line, tmp_path):
    """A line written from a scenario is read as the same layout and the same engine."""
    path = tmp_path / "serve.sh"
    path.write_text(line)
    first = Scenario.from_mapping({"schema": 1, **read(path, cluster="dgx-h200").scenario})
    written = export(first, name)
    assert [loss.key for loss in written.lost] == ["cluster"]
    path.write_text(written.text)
    again = read(path, format=name, cluster="dgx-h200").scenario
    assert laid(again, {}) == laid(read(path, cluster="dgx-h200").scenario, {})
    assert Scenario.from_mapping({"schema": 1, **again}).resolved() == first.resolved()


def test_traffic_and_limits_are_told_as_lost(scenarios):
    """The words of an engine hold no requests and no promises."""
    scenario = mpsim.load(scenarios / "serving/llama3-70b-h100.yaml")
    lost = {loss.key for loss in export(scenario, "vllm").lost}
    assert {"serving.workload.rate", "serving.slo.ttft", "serving.routing", "cluster"} <= lost
    with pytest.raises(FormatError, match="needed sglang for SGLang"):
        export(scenario, "sglang")


def test_the_file_that_a_line_names_is_read_where_the_script_writes_it(launched):
    """trtllm-serve has no option for the cache's format: it stands in a YAML file, here a heredoc."""
    config = "kv_cache_config:\n  dtype: fp8\n  enable_block_reuse: false\nenable_attention_dp: true\nmoe_load_balancer: {num_slots: 144}\ncuda_graph_config: {enable_padding: true, max_batch_size: 20}"
    line = f"cat > opt.yml << EOF\n{config}\nEOF\n{TRTLLM} --extra_llm_api_options opt.yml"
    values = launched(line)
    expected = {
        "serving.kv": "fp8",
        "serving.engine.prefix_cache": False,
        "serving.attention_dp": 4,
        "serving.engine.eplb": True,
        "serving.engine.redundant_experts": 16,
        "serving.engine.graph_padding": True,
        "serving.engine.graph_sizes": [1, 2, 4, 8, 16, 20],
    }
    assert expected.items() <= values.items()


@pytest.mark.parametrize(
    ("largest", "sizes"),
    [
        (3, [1, 2, 3]),
        (136, [*range(8, 129, 8), 136]),
        (512, [*range(8, 129, 8), 256, 512]),
    ],
)
def test_graphs_above_128_sequences_double(largest, sizes, launched):
    """As TensorRT-LLM captures them up to a largest one: 130 sequences run in the next one, or in 256."""
    config = f"cuda_graph_config: {{enable_padding: true, max_batch_size: {largest}}}"
    line = f"cat > opt.yml << EOF\n{config}\nEOF\n{TRTLLM} --extra_llm_api_options opt.yml"
    found = launched(line)["serving.engine.graph_sizes"]
    assert found[-len(sizes) :] == sizes


@pytest.mark.parametrize("name", ["vllm", "sglang", "trtllm"])
def test_balanced_experts_and_a_narrow_cache_come_back(name, tmp_path):
    """What no option says of TensorRT-LLM goes into the file that the line names."""
    engine = {"vllm": "vllm-v1", "sglang": "sglang", "trtllm": "tensorrt-llm-1.x"}[name]
    first = Scenario.from_mapping(
        {
            "schema": 1,
            "model": "qwen3-235b-a22b",
            "cluster": "dgx-h200",
            "parallelism": {"tp": 8, "ep": 8},
            "serving": {
                "engine": {"preset": engine, "eplb": True, "redundant_experts": 16},
                "kv": "fp8",
                "workload": {"rate": 1.0},
            },
        }
    )
    path = tmp_path / "serve.sh"
    path.write_text(export(first, name).text)
    again = flat(read(path, format=name, cluster="dgx-h200").scenario)
    assert again["serving.kv"] == "fp8"
    assert again["serving.engine.redundant_experts"] == 16
    assert again["serving.engine.eplb"] is True


def test_memory_of_the_host_for_prefixes_comes_back(tmp_path):
    """vLLM counts it in GiB, of all ranks of an instance; other servers' options a rank are not mapped."""
    path = tmp_path / "serve.sh"
    words = "vllm serve meta-llama/Meta-Llama-3-8B --kv-offloading-size 37.5"
    path.write_text(words)
    first = {"schema": 1, **read(path, format="vllm", cluster="dgx-h100").scenario}
    assert flat(first)["serving.engine.host_cache"] == "37.5 GiB"
    path.write_text(export(Scenario.from_mapping(first), "vllm").text)
    again = read(path, format="vllm", cluster="dgx-h100").scenario
    assert flat(again)["serving.engine.host_cache"] == "37.5 GiB"
    path.write_text(words.replace("37.5", "much"))
    with pytest.raises(FormatError, match="a number of GiB"):
        read(path, format="vllm", cluster="dgx-h100")
