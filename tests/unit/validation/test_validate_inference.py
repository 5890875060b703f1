"""Rows of measured inference: ids, units, what is skipped by name, and that measured columns are never read."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from bench import validate_files
from bench.files import opened
from bench.inference import plan_of
from bench.instances import InstanceLayout, layout_of, pools_of
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells
from mpsim.serving.result import measurable

DATA = Path(__file__).resolve().parents[3] / "validation" / "data" / "inference-runs.csv"
FIRST = {"ft-0001", "llmservingsim-4090-8b", "aicsil-0095", "trtllm017-0177"}
pytestmark = pytest.mark.skipif(not DATA.is_file(), reason="data is not shipped with the package")


@pytest.fixture(scope="module")
def rows() -> list[dict[str, str]]:
    with DATA.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _written(rows: list[dict[str, str]], folder: Path) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


def _records(rows: list[dict[str, str]], folder: Path):
    return {record.id: record for record in validate_files([_written(rows, folder)]).records}


def _engines(rows: list[dict[str, str]], folder: Path):
    return [plan_of(row)[0].engine for row in opened(_written(rows, folder))[1]]


def test_a_row_has_a_record_for_each_measured_quantity(rows, tmp_path):
    chosen = [row for row in rows if row["id"] in FIRST and not row["trace"]]
    records = _records(chosen, tmp_path)
    assert {"ft-0001#e2e", "ft-0001#throughput", "aicsil-0095#ttft", "aicsil-0095#tpot"} <= set(
        records
    )
    assert all(record.kind == "inference" for record in records.values())
    assert all(record.predicted is not None for record in records.values())
    assert records["ft-0001#e2e"].unit == "ms"
    assert records["ft-0001#throughput"].unit == "tokens/s"


def test_predictions_do_not_move_with_measured_columns(rows, tmp_path):
    chosen = [dict(row) for row in rows if row["id"] in ("ft-0001", "aicsil-0095")]
    before = _records(chosen, tmp_path)
    for row in chosen:
        for column in ("ttft_ms", "tpot_ms", "e2e_latency_ms", "output_tokens_per_s"):
            if row[column]:
                row[column] = repr(float(row[column]) * 1.37)
    after = _records(chosen, tmp_path)
    assert {name: record.predicted for name, record in before.items()} == {
        name: record.predicted for name, record in after.items()
    }


def test_an_engine_that_took_longer_prompts_whole_was_built_for_them(rows, tmp_path):
    """20,000 tokens of prompt, and an engine that chunks none: its limit was as large, and the prediction says so; a stated limit counts."""
    (row,) = (row for row in rows if row["id"] == "trtllm017-0042")
    (record,) = _records([row], tmp_path).values()
    assert any(sentence.startswith("max_tokens = 20000") for sentence in record.assumed)
    assert record.error == pytest.approx(0, abs=0.2)
    (stated,) = _records([{**row, "max_num_batched_tokens": "8192"}], tmp_path).values()
    assert "needed the longest prompt to fit one iteration" in (stated.skipped_because or "")


def test_a_measured_run_had_room_for_its_weights(rows, tmp_path):
    """Where the engine's share of the memory does not hold the weights, a larger one is assumed and told; where it does, none."""
    tight, roomy = (
        next(iter(_records([row], tmp_path).values()))
        for name in ("aicsil-0771", "aicsil-0095")
        for row in rows
        if row["id"] == name
    )
    assert any(sentence.startswith("memory_fraction = 0.9") for sentence in tight.assumed)
    assert tight.predicted is not None
    assert not any("smaller share" in sentence for sentence in roomy.assumed)


def test_a_trace_is_relative_to_the_file(rows, tmp_path):
    chosen = [row for row in rows if row["id"] == "llmservingsim-4090-8b"]
    (record, *_) = _records(chosen, tmp_path).values()
    assert "no file" in (record.skipped_because or "")
    (tmp_path / "inference-traces").symlink_to(DATA.parent / "inference-traces")
    records = _records(chosen, tmp_path)
    assert records["llmservingsim-4090-8b#tpot"].error == pytest.approx(0, abs=0.1)
    assert records["llmservingsim-4090-8b#ttft_p99"].error == pytest.approx(0, abs=0.1)


@pytest.mark.parametrize(
    ("column", "value", "reason"),
    [
        ("disaggregated", "1", "pools for prefill and decode are not stated"),
        ("attention", "linear in 3 of 4 layers, gqa in every fourth", "linear attention"),
        ("tp", "", "tp is not stated"),
        ("accelerator", "abacus", "not known"),
        ("engine", "slide rule", "catalog of engines"),
        ("weight_dtype", "fp6", "not known"),
        ("cp", "2", "context parallel"),
        ("speculation", "MTP 3 (only that recipe ran this layout)", "speculation without its"),
        ("complete", "no", "lacking what matters"),
    ],
)
def test_what_cannot_be_served_is_skipped_by_name(rows, tmp_path, column, value, reason):
    row = next(dict(row) for row in rows if row["id"] == "aicsil-0095")
    row[column] = value
    for record in _records([row], tmp_path).values():
        assert reason in (record.skipped_because or "")


def test_options_of_a_named_recipe_are_taken_and_listed(rows, tmp_path):
    """The scripts that a row names keep prompts back on fewer than eight accelerators: first tokens come later."""
    (row,) = (row for row in rows if _is_recipe(row))
    theirs = _records([row], tmp_path)[f"{row['id']}#ttft"]
    plain = _records([{**row, "server_flags": ""}], tmp_path)[f"{row['id']}#ttft"]
    assert any("batch_wait_steps" in sentence for sentence in theirs.assumed)
    assert not any("batch_wait_steps" in sentence for sentence in plain.assumed)
    assert theirs.predicted > 1.5 * plain.predicted
    assert abs(theirs.error) < 0.25


def test_settings_of_the_launch_script_count(rows, tmp_path):
    """A row that says how often its engine looks for requests waits for the next look: first tokens come later."""
    (row,) = (row for row in rows if row["id"] == "aicsil-0095")
    often, seldom = (
        _records([{**row, "poll_iterations": str(steps)}], tmp_path)[f"{row['id']}#ttft"].predicted
        for steps in (1, 200)
    )
    assert seldom > 1.2 * often


def _is_recipe(row):
    return (
        row["model"] == "Llama-3.1-70B"
        and row["weight_dtype"] == "fp8"
        and row["engine"] == "TensorRT-LLM"
        and (row["tp"], row["input_tokens"], row["output_tokens"], row["concurrency"])
        == ("2", "1024", "1024", "16")
    )


def test_budgets_of_a_generated_launch_spread_equal_outputs(rows, tmp_path):
    """Equal outputs come in waves where prompts go first, not where an iteration takes one of them beside the decodes."""
    (row,) = (row for row in rows if row["id"] == "aicsil-1648")
    theirs, stated, elsewhere = (
        _records([{**row, **other}], tmp_path)[f"{row['id']}#ttft"]
        for other in ({}, {"max_num_batched_tokens": "5500"}, {"settings_source": "its script"})
    )
    assert any("max_tokens" in sentence for sentence in theirs.assumed)
    assert theirs.predicted == stated.predicted  # 4,000 and 1,500
    assert abs(theirs.error) < 0.3
    assert elsewhere.predicted > 3.0 * theirs.predicted


def test_an_analysis_of_a_gap_shows_the_runs_that_it_is_about(rows, tmp_path):
    """Its rows are InferenceX's to the digit, and are served as those are: its client draws lengths, and its server has no front end before it."""
    (row,) = (row for row in rows if row["id"] == "aicsil-3782")
    theirs, other = (
        plan_of(row)[0]
        for row in opened(_written([row, {**row, "source_place": "", "id": "other"}], tmp_path))[1]
    )
    assert theirs.workload.prompt.kind == "uniform"
    assert other.workload.prompt.kind == "fixed"
    assert theirs.engine.first_token_time > other.engine.first_token_time


@pytest.mark.parametrize(("row", "pieces"), [("aicsil-0506", True), ("aicsil-0516", False)])
def test_layers_in_pieces_of_graphs_are_those_of_the_script(row, pieces, rows, tmp_path):
    """enable_piecewise_cuda_graph is set from 64 users on: prompts do not wait for their launches then."""
    (plan,) = (
        plan_of(r)[0] for r in opened(_written([x for x in rows if x["id"] == row], tmp_path))[1]
    )
    assert plan.engine.piecewise_graphs is pieces
    assert 128 in plan.engine.graph_sizes


def test_generated_graphs_reach_as_far_as_their_largest_batch(rows, tmp_path):
    """A server whose graphs go up to half of its users launches layer after layer."""
    (row,) = (row for row in rows if row["id"] == "aicsil-0898")
    half, whole = (
        _records([{**row, "batch_per_instance": users}], tmp_path)[f"{row['id']}#tpot"]
        for users in ("1", row["concurrency"])
    )
    assert half.predicted > 3.0 * whole.predicted
    assert abs(half.error) < 0.5


def test_a_script_that_divides_the_experts_itself_counts(rows, tmp_path):
    """A launch script with EP_SIZE of its own says more than the row, where it sets it; so does one that has it always on, or no option for it."""
    known = {"aicsil-0481": 8, "aicsil-2935": 4, "aicsil-2162": 4, "aicsil-0298": 1}
    chosen = [row for row in rows if row["id"] in known]
    few = [{**row, "id": "few", "concurrency": "8"} for row in rows if row["id"] == "aicsil-0481"]
    plans = [plan_of(row)[0] for row in opened(_written(chosen + few, tmp_path))[1]]
    assert {plan.name: plan.ep for plan in plans} == {**known, "few": 1}
    kernels = {plan.name: plan.engine.expert_kernel for plan in plans}
    assert (kernels["aicsil-2162"], kernels["aicsil-0298"]) == ("triton", "auto")


def test_pools_keep_requests_on_every_rank_where_their_launch_says_so(rows, tmp_path):
    """The layout of a row has lost dp-attn, which its configuration has: of prompts, and of sixteen ranks that decode, not of four instances of four."""
    chosen = [row for row in rows if row["id"] in ("aicsil-0797", "aicsil-0801")]
    plans = [plan_of(row)[0] for row in opened(_written(chosen, tmp_path))[1]]
    ranks = [[pool.attention_dp for pool in plan.pools.values()] for plan in plans]
    assert ranks == [[4, 16], [4, 1]]


@pytest.mark.parametrize(
    ("name", "tp", "ep", "ranks"),
    [
        ("agg_c4_tp2_ep2_9", 4, 2, 2),
        ("agg_c4_tp4_ep2_9", 4, 2, 4),
        ("agg_c4_tp8_ep1_3", 8, 1, 8),
        ("", 4, 2, 4),
    ],
)
def test_accelerators_that_were_multiplied_by_ranks_of_experts_are_told(name, tp, ep, ranks):
    """A file named tp2_ep2 is a run on two accelerators, whatever its row says."""
    cells = {"tp": str(tp), "ep": str(ep), "accel_per_instance": str(tp), "source_place": name}
    assumed = []
    found = layout_of(Cells({**cells, "moe_experts": "128"}), assumed)
    assert (found.tp, found.ep) == (ranks, ep)
    assert len(assumed) == (ranks != tp)


def test_pools_are_read_from_their_layout():
    """Two instances for prompts, four ranks of data parallel attention each; one that decodes on 32."""
    text = "prefill 2 x [tp1 pp1 dp4 moe_tp1 ep4 batch 1]; decode 1 x [tp2 pp1 dp16 moe_tp1 ep32 batch 64]"
    cells = Cells({"disagg_layout": text, "num_accel": "40", "moe_experts": "256"})
    assert pools_of(cells) == [InstanceLayout(4, 1, 4, 4, 2), InstanceLayout(32, 1, 32, 16, 1)]


@pytest.mark.parametrize(
    ("text", "prefill", "decode"),
    [
        ("2P1D: prefill TP4, decode DEP8", (4, 1, 1, 2), (8, 8, 8, 1)),
        ("prefill TP2 x 4, decode TEP8", (2, 1, 1, 4), (8, 8, 1, 1)),
        ("1P1D TP8", (8, 1, 1, 1), (8, 1, 1, 1)),
    ],
)
def test_pools_are_read_from_words(text, prefill, decode):
    """Ranks, those that divide experts, those with requests of their own, and replicas of each pool."""
    pools = pools_of(Cells({"disagg_layout": text, "moe_experts": "256"}))
    found = [(pool.tp, pool.ep, pool.attention_dp, pool.replicas) for pool in pools]
    assert found == [prefill, decode]


@pytest.mark.parametrize(
    ("text", "accelerators", "reason"),
    [
        ("decode 1 x [tp4 pp1 dp1 moe_tp1 ep4 batch 1]", "4", "not stated"),
        (
            "prefill 1 x [tp4 pp1 dp1 moe_tp1 ep2 batch 1]; decode 1 x [tp4 pp1 dp1 moe_tp1 ep4]",
            "8",
            "prefill: experts on 1 x 2",
        ),
        (
            "prefill 1 x [tp4 pp1 dp1 moe_tp1 ep4 batch 1]; decode 1 x [tp4 pp1 dp1 moe_tp1 ep4]",
            "12",
            "take 8 accelerators",
        ),
    ],
)
def test_pools_that_cannot_be_are_refused(text, accelerators, reason):
    with pytest.raises(CalibrationError, match=reason):
        pools_of(Cells({"disagg_layout": text, "num_accel": accelerators, "moe_experts": "256"}))


def test_experts_are_not_cut_thinner_than_a_block_of_scales():
    """A width of 2,048 on 32 ranks is 64: the field is normalised, experts stay whole; on four it is 512. Dense models have none."""
    text = "prefill 1 x [tp1 pp1 dp4 moe_tp4 ep1 batch 1]; decode 1 x [tp1 pp1 dp32 moe_tp32 ep1 batch 8]"
    sizes = {"disagg_layout": text, "moe_experts": "256", "moe_ffn_hidden": "2048"}
    assert [layout.ep for layout in pools_of(Cells(sizes))] == [1, 32]
    dense = "prefill 1 x [tp1 pp1 dp1 moe_tp1 ep1 batch 1]; decode 1 x [tp4 pp1 dp1 moe_tp1 ep1 batch 8]"
    assert [layout.tp for layout in pools_of(Cells({"disagg_layout": dense}))] == [1, 4]


def test_a_row_with_pools_is_predicted(rows, tmp_path):
    row = next(row for row in rows if "decode 2 x [tp4" in row["disagg_layout"])
    record = _records([row], tmp_path)[f"{row['id']}#tpot"]
    assert abs(record.error) < 0.3


def test_assumptions_are_listed(rows, tmp_path):
    chosen = [{**row, "kv_dtype": ""} for row in rows if row["id"] == "aicsil-0095"]
    record = _records(chosen, tmp_path)["aicsil-0095#tpot"]
    assert any(sentence.startswith("kv_dtype = ") for sentence in record.assumed)
    assert any(sentence.startswith("kv_lora_rank") for sentence in record.assumed)


def test_engines_do_not_hang_on_names_of_families_and_sources(rows, tmp_path):
    chosen = [row for row in rows if row["id"] in ("aicsil-1643", "aicsil-1493", "trtllm017-0004")]
    hidden = [{**row, "family": "", "source": "", "source_place": ""} for row in chosen]
    assert _engines(chosen, tmp_path) == _engines(hidden, tmp_path)


@pytest.mark.parametrize(
    ("name", "sequences", "tokens", "graphs"),
    [
        ("trtllm10-0123", 1024, 2048, (512, 1024)),  # 942 of the memory, rounded up
        ("trtllm10-0139", 96, 20096, (64, 96)),  # prompts stay whole, beside all sequences
        ("trtllm017-0009", 384, 2048, ()),  # built without graphs
    ],
)
def test_a_benchmark_sizes_its_engine_for_its_requests(
    rows, tmp_path, name, sequences, tokens, graphs
):
    (engine,) = _engines([row for row in rows if row["id"] == name], tmp_path)
    assert (engine.max_sequences, engine.max_tokens) == (sequences, tokens)
    assert tuple(engine.graph_sizes[-2:]) == graphs


def _changed(rows, folder, **change: str):
    """The plan of a row of one H100 with other words."""
    (row,) = (row for row in rows if row["id"] == "aicsil-0095")
    return plan_of(opened(_written([{**row, **change}], folder))[1][0])[0]


@pytest.mark.parametrize(
    ("weights", "cache", "formats"),
    [
        ("BF16", "auto", "bf16"),
        ("float16", "FP8_E4M3", "fp16"),
        ("W8A8 (FP8)", "fp8_e5m2", "fp8"),
        ("w8a8", "INT8", "int8"),
        ("SmoothQuant", "half", "int8"),
        ("W4A16 (GPTQ)", "bfloat16", "w4a16"),
        ("fp8 (block 128x128)", "fp8", "fp8_block"),
        ("NVFP4 (ModelOpt)", "fp8", "nvfp4"),
        ("unquantized", "same as weights", "bf16"),
        ("modelopt fp8", "e4m3", "fp8"),
        ("4-bit", "native", "w4a16"),
    ],
)
def test_formats_are_read_in_whatever_case_and_words(weights, cache, formats, rows, tmp_path):
    change = {"accelerator": "B200-SXM-180GB", "moe_experts": "", "model": "somebody's"}
    plan = _changed(rows, tmp_path, **change, weight_dtype=weights, kv_dtype=cache)
    assert plan.weights == formats
    wanted = {"auto": "bf16", "bfloat16": "bf16", "half": "fp16", "INT8": "int8"}
    wanted |= {"same as weights": "bf16", "native": "bf16"}
    assert plan.kv == wanted.get(cache, "fp8")


@pytest.mark.parametrize("weights", ["q4_k_m (GGUF)", "nf4", "int8_wo", "w4a8"])
def test_formats_without_a_price_are_refused_by_what_they_are(weights, rows, tmp_path):
    with pytest.raises(CalibrationError, match="format"):
        _changed(rows, tmp_path, weight_dtype=weights)


@pytest.mark.parametrize(
    ("column", "text", "drafts"),
    [
        ("speculation", "off", False),
        ("speculation", "no MTP", False),
        ("speculation", "-", False),
        ("notes", "MTP off", False),
        ("notes", "without speculative decoding", False),
        ("speculation", "EAGLE3", True),
        ("notes", "1k/1k, MTP off, no speculative decoding", False),
        ("notes", "MTP n=3", True),
    ],
)
def test_speculation_that_is_denied_is_none(column, text, drafts, rows, tmp_path):
    if drafts:
        with pytest.raises(CalibrationError, match="acceptance"):
            _changed(rows, tmp_path, **{column: text})
    else:
        assert _changed(rows, tmp_path, **{column: text}).speculation is None


def test_the_engine_inside_a_front_is_that_of_its_date(rows, tmp_path):
    front = {"engine": "NVIDIA Dynamo (vLLM backend)", "engine_version": "0.3"}
    engines = [
        _changed(rows, tmp_path, **front, measured_date=date).engine.name
        for date in ("2025-07", "2026-02")
    ]
    assert engines == ["vllm-v1", "vllm-async"]


@pytest.mark.parametrize(
    ("words", "version", "date", "name"),
    [
        ("TRT-LLM", "v0.21", "2025-07", "tensorrt-llm-0.17"),
        ("trtllm-serve", "1.0", "2025-09", "tensorrt-llm-1.x"),
        ("TensorRT LLM", "1.2", "2025-12", "tensorrt-llm-1.x"),
        ("TensorRT-LLM (TRT engine)", "1.0", "2025-09", "tensorrt-llm-0.17"),
        ("Triton Inference Server (tensorrtllm_backend)", "24.07", "2024-07", "tensorrt-llm-0.14"),
        ("NVIDIA NIM (TensorRT-LLM)", "1.8", "2025-03", "tensorrt-llm-0.17"),
        ("vLLM", "nightly (2025-09-15)", "2025-09", "vllm-v1"),
        ("vllm serve", "v0.11.0", "2025-10", "vllm-v1"),
    ],
)
def test_an_engine_is_known_by_its_other_names(words, version, date, name, rows, tmp_path):
    change = {"engine": words, "engine_version": version, "measured_date": date}
    assert _changed(rows, tmp_path, **change).engine.name == name


def test_another_engine_stands_in_with_a_wider_interval(rows, tmp_path):
    """What nothing was measured of is said to be another's figures, and trusted less than that one's."""
    row = {**next(row for row in rows if row["id"] == "aicsil-0095"), "measured_date": "2024-06"}
    wide, known = (
        _records([{**row, "engine": name, "engine_version": version}], tmp_path)["aicsil-0095#tpot"]
        for name, version in (("LMDeploy (TurboMind)", "0.4"), ("vLLM", "0.5"))
    )
    assert any("stands in" in each for each in wide.assumed)
    spans = [each.interval.high / each.interval.low for each in (wide, known)]
    assert spans[0] > 1.1 * spans[1]


@pytest.mark.parametrize(
    ("change", "column", "value"),
    [
        ({"concurrency": "", "notes": "conc=64"}, "concurrency", 64),
        ({"concurrency": "", "notes": "1,000 concurrent users"}, "concurrency", 1000),
        ({"concurrency": "64 users"}, "concurrency", 64),
        ({"concurrency": "", "regime": "single stream"}, "concurrency", 1),
        ({"input_tokens": "", "notes": "ISL/OSL 1k/8k"}, "prompt", 1024),
        ({"output_tokens": "", "notes": "ISL/OSL 1k/8k"}, "output", 8192),
        ({"output_tokens": "", "notes": "1k/2k, no MTP"}, "output", 2048),
    ],
)
def test_words_state_what_columns_leave_open(change, column, value, rows, tmp_path):
    change = {"batch_per_instance": "", "num_requests": "", "regime": "closed loop"} | change
    found = getattr(_changed(rows, tmp_path, **change).workload, column)
    assert getattr(found, "tokens", found) == value


def test_a_service_that_contradicts_its_own_parameters_is_skipped(rows, tmp_path):
    """Columns that make another model than the parameters stated are told, as in training."""
    with pytest.raises(CalibrationError, match="where it states 700"):
        _changed(rows, tmp_path, params_billion="700B")


@pytest.mark.parametrize(
    "flags",
    [
        "--max-num-seqs 48 --max-num-batched-tokens=4096 --no-enable-prefix-caching",
        "max_num_seqs=48, max_num_batched_tokens: 4096, disable_radix_cache=True",
    ],
)
def test_flags_of_a_launch_line_are_limits_of_the_engine(flags, rows, tmp_path):
    unsaid = {"max_num_seqs": "", "max_num_batched_tokens": ""}
    engine = _changed(rows, tmp_path, **unsaid, server_flags=flags).engine
    assert (engine.max_sequences, engine.max_tokens, engine.prefix_cache) == (48, 4096, False)


@pytest.mark.parametrize(
    ("words", "eager"),
    [
        ("--enforce-eager", True),
        ("CUDA graphs disabled", True),
        ("--disable-cuda-graph", True),
        ("enforce_eager=False", False),
        ("cuda graphs on", False),
    ],
)
def test_a_server_without_graphs_launches_every_kernel(words, eager, rows, tmp_path):
    """Without graphs no iteration is shorter than its host, so that few users wait longer for each token."""
    change = {"engine": "SGLang", "engine_version": "0.4", "concurrency": "4", "num_requests": "8"}
    plain, plan = (_changed(rows, tmp_path, **change, server_flags=each) for each in ("", words))
    assert (plan.engine.graph_sizes == ()) is eager
    assert (measurable(plan)["tpot"] > 1.2 * measurable(plain)["tpot"]) is eager


def test_graphs_of_an_unsaid_size_are_padded_to(rows, tmp_path):
    """One user more than a size of a graph does not double a token's time where nobody says that batches are not padded."""
    change = {"engine": "TensorRT-LLM", "engine_version": "1.0", "length_distribution": "fixed"}
    change |= {"settings_source": "", "server_flags": "", "num_requests": ""}
    few, more = (
        measurable(_changed(rows, tmp_path, **change, concurrency=users))["tpot"]
        for users in ("32", "33")
    )
    assert more < 1.1 * few


@pytest.mark.parametrize(
    ("words", "ranks"), [("8", 8), ("DP8", 8), ("DP-attention 8", 8), ("true", 8), ("no", 1)]
)
def test_ranks_with_requests_of_their_own_have_other_words(words, ranks):
    cells = Cells({"tp": "8", "attention_dp": words, "accel_per_instance": "8"})
    assert layout_of(cells, []).attention_dp == ranks


def test_a_hybrid_of_published_sizes_is_served_as_published(rows, tmp_path):
    """What no column says of layers without attention is the published model's."""
    sizes = {"layers": "48", "hidden": "2048", "heads": "16", "kv_heads": "2", "vocab": "151936"}
    sizes |= {"moe_experts": "512", "moe_topk": "10", "moe_ffn_hidden": "512", "head_dim": "256"}
    row = {**sizes, "attention": "gqa", "params_billion": "80", "model": "Next"}
    model = _changed(rows, tmp_path, **row).model
    assert model.layer_pattern == "SSSA"


@pytest.mark.parametrize(
    ("words", "arrival"),
    [
        ("static", "all-at-once"),
        ("Offline throughput", "all-at-once"),
        ("request rate: inf", "all-at-once"),
        ("closed_loop", "closed"),
        ("constant concurrency", "closed"),
    ],
)
def test_regimes_have_other_names(words, arrival, rows, tmp_path):
    change = {"regime": words, "batch_per_instance": "8", "concurrency": "8"}
    assert _changed(rows, tmp_path, **change).workload.arrival == arrival


def test_words_of_attention_are_those_of_training_rows(rows, tmp_path):
    change = {"attention": "gqa, 5 local (1024) : 1 global", "moe_experts": "", "kv_heads": "8"}
    model = _changed(rows, tmp_path, **change).model
    assert (model.window, model.full_every) == (1024, 6)
    with pytest.raises(CalibrationError, match="what comes later"):
        _changed(rows, tmp_path, **change | {"attention": "bidirectional"})
