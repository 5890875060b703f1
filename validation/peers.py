"""Peers: other calculators of training steps on the same measured runs as mpsim, beside its own errors, as Markdown and JSON.

Covers: rows of validation/data/published-runs.csv (names hidden) and single-node-runs.csv that a peer can express.
Question: how far is each of them off where both can be asked?

Run from the repository's root: python validation/peers.py FOLDER, or with MPSIM_PEERS=FOLDER. FOLDER holds checkouts that are no part of this repository:

- calculon: https://github.com/calculon-ai/calculon (needs psutil)
- simumax: https://github.com/MooreThreads/SimuMax (needs pandas, sympy, tabulate, graphviz, matplotlib)
- llm-analysis: https://github.com/cli99/llm-analysis (needs fire)

A peer whose folder is missing is left out. Each gets its authors' files of chips and their defaults, and from a row what it asks of its users: shape, layout, batch,
what runs again, rate of the network. It rewrites validation/peers.md and peers.json.
"""

from __future__ import annotations

import abc
import argparse
import contextlib
import copy
import csv
import dataclasses
import importlib
import io
import json
import logging
import os
import statistics
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

from bench.rows import Row
from bench.runs import read_run, simulated
from bench.training import MEASURED, MEASURED_ON_NODE, as_published, blank, blank_on_node
from mpsim.errors import MpsimError
from mpsim.formats.tables import Cells
from mpsim.scenario import Scenario

HERE = Path(__file__).resolve().parent
GIGA = 1e9
NODE = 8  # accelerators that the peers' files of chips join by fast links
INTRO = """# Other simulators on the same runs

Steps of `validation/data/published-runs.csv` (names of families and sources hidden) and `single-node-runs.csv`, by programmes that compute a step from a
configuration. Each is scored on the rows that it can express, and mpsim on those same rows; error = predicted / measured - 1. They have their authors' files of
chips and defaults (llm-analysis the 0.5 of peak that its authors name for Megatron-LM), and of each row what they ask of their users. Written by
`python validation/peers.py FOLDER`, which says what FOLDER holds; nothing of them is part of this repository.
"""
ELSEWHERE = """
Not asked: vTrain profiles the operators of a run on its GPU (CUPTI, apex), so there is no number without one. AMD's Primus projection prices products by a backend
(origami of ROCm) that no package index has, or by a benchmark on an AMD GPU. ASTRA-sim and SimAI take a trace of the run, not its configuration.
"""


class RefusedError(Exception):
    """A run that a peer cannot express."""


@dataclasses.dataclass(frozen=True)
class Run:
    """A measured step: what ran, its seconds, and what mpsim says of it."""

    id: str
    family: str
    scenario: Scenario
    measured: float
    predicted: float


def want(can: object, what: str) -> None:
    """Refuse a run, with what it has that the peer has not."""
    if not can:
        raise RefusedError(what)


class Peer(abc.ABC):
    """An adapter: a run in a peer's words, its answer in seconds."""

    name: ClassVar[str]
    folder: ClassVar[str]
    chips: ClassVar[Mapping[str, str]]
    module: ClassVar[str]

    def __init__(self, root: Path) -> None:
        sys.path.insert(0, str(root))
        self.root = root
        importlib.import_module(self.module)

    def answer(self, scenario: Scenario) -> float:
        """Seconds of a step.

        Raises
        ------
        RefusedError
            If the run cannot be expressed, or the peer says that it cannot run.
        """
        model, mesh = scenario.transformer, scenario.parallelism
        want(scenario.hardware.accelerator.name in self.chips, "no file of this chip")
        want(len(scenario.clusters) == 1, "two kinds of nodes")
        want(not model.encoder_layers, "an encoder and a decoder")
        want(not model.window, "sliding windows")
        want(scenario.training_step.precision in ("bf16", "fp16"), "fp8, fp4 or fp32")
        want(mesh.offload == "none", "states on the host")
        want(not mesh.shard, "sharding inside groups")
        want(mesh.layers_per_stage is None, "stages of different depth")
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            try:
                return self.seconds(scenario)
            except (AssertionError, ValueError, KeyError, ZeroDivisionError) as error:
                raise RefusedError(
                    f"its own check: {str(error).splitlines()[0][:60] if str(error) else type(error).__name__}"
                ) from error

    @abc.abstractmethod
    def seconds(self, scenario: Scenario) -> float:
        """Seconds of a step of a run that passed `answer`."""


def nic_rate(scenario: Scenario) -> float:
    """Rate of an accelerator's share of its node's NICs [GB/s]."""
    node = scenario.hardware.node
    return node.nics * node.nic.bandwidth / node.accelerators / GIGA if node.nics else 0.0


class Calculon(Peer):
    """Calculon (Isaev et al. 2023): closed formulas over layers."""

    name, folder, module = "Calculon", "calculon", "calculon.llm"
    chips: ClassVar = {"a100-sxm-80": "a100_80g", "h100-sxm": "h100_80g_nvl8"}
    again: ClassVar = {"none": "none", "selective": "attn_only", "full": "full"}

    def seconds(self, scenario: Scenario) -> float:
        """Seconds by its three files: application, execution, system."""
        llm, system = sys.modules["calculon.llm"], importlib.import_module("calculon.system")
        model, mesh, training = scenario.transformer, scenario.parallelism, scenario.training_step
        want(model.moe is None and model.mla is None, "experts or latent attention")
        want(model.kv_heads == model.heads, "grouped queries")
        want(not model.gated_mlp, "gated MLPs")
        want(mesh.cp == 1, "context parallelism")
        want(mesh.zero <= 1, "sharded parameters or gradients")
        want(training.recompute in self.again, "recomputation by operator")
        want(
            not training.recompute_modules and not training.recompute_layers,
            "recomputation of some layers",
        )
        want(scenario.schedule.name in ("1f1b", "interleaved-1f1b"), "other schedules")
        chip = json.loads(
            (
                self.root / "systems" / f"{self.chips[scenario.hardware.accelerator.name]}.json"
            ).read_text(encoding="utf-8")
        )
        procs = scenario.hardware.accelerators
        want(procs <= NODE or procs % NODE == 0, "nodes of less than eight")
        inside = procs <= NODE
        if not inside:
            chip["networks"][1]["bandwidth"] = nic_rate(scenario)
        software = scenario.software
        execution = {
            "num_procs": procs,
            "tensor_par": mesh.tp,
            "pipeline_par": mesh.pp,
            "data_par": scenario.dp,
            "tensor_par_net": 0,
            "pipeline_par_net": 0 if inside else 1,
            "data_par_net": 0 if inside else 1,
            "batch_size": training.global_batch,
            "microbatch_size": training.micro_batch,
            "datatype": "float16",
            "fused_activation": software.lowering.fused_bias_activation,
            "attention_type": "multihead",
            "activation_recompute": self.again[training.recompute],
            "pipeline_interleaving": scenario.virtual_stages or 1,
            "optimizer_sharding": mesh.zero == 1 and scenario.dp > 1,
            "tensor_par_comm_type": "rs_ag" if mesh.sequence_parallel else "ar",
            "tensor_par_overlap": "none",
            "seq_par_ag_redo": False,
            "data_par_overlap": scenario.dp > 1 and software.overlaps_gradients(mesh.pp),
            "weight_offload": False,
            "activations_offload": False,
            "optimizer_offload": False,
            "training": True,
        }
        application = llm.Llm.Application(
            {
                "hidden": model.hidden,
                "feedforward": model.ffn_hidden,
                "seq_size": training.sequence_length,
                "attn_heads": model.heads,
                "attn_size": model.head_dim,
                "num_blocks": model.layers,
            }
        )
        machine = system.System(chip)
        answer = llm.Llm(application, logging.getLogger("quiet"))
        try:
            answer.compile(machine, llm.Llm.Execution.from_json(execution))
            answer.run(machine)
        except llm.Llm.Error as error:
            raise RefusedError(
                "its memory is not enough" if "Mem tier" in str(error) else str(error)[:60]
            ) from error
        return float(answer.get_total_time())


class LlmAnalysis(Peer):
    """llm-analysis (cli99, 2023): FLOPs and bytes over stated shares of peak."""

    name, folder, module = "llm-analysis", "llm-analysis", "llm_analysis.analysis"
    chips: ClassVar = {
        "a100-sxm-80": "a100-sxm-80gb",
        "a100-sxm-40": "a100-sxm-40gb",
        "h100-sxm": "h100-sxm-80gb",
        "v100-sxm2-32": "v100-sxm-32gb",
        "v100-sxm2-16": "v100-sxm-16gb",
    }
    efficiency: ClassVar = (
        0.5  # "FLOPS efficiency achieved by Megatron-LM is ~0.5" (llm_analysis/constant.py)
    )

    def seconds(self, scenario: Scenario) -> float:
        """Seconds of one iteration."""
        tool = sys.modules[self.module]
        config = importlib.import_module("llm_analysis.config")
        model, mesh, training = scenario.transformer, scenario.parallelism, scenario.training_step
        want(model.mla is None, "latent attention")
        want(mesh.cp == 1, "context parallelism")
        want(training.recompute in ("none", "selective", "full"), "recomputation by operator")
        want(
            not training.recompute_modules and not training.recompute_layers,
            "recomputation of some layers",
        )
        kinds = tool.ActivationRecomputation
        again = {"none": kinds.NONE, "selective": kinds.ATTN_COMPUTE, "full": kinds.FULL}
        path = (
            self.root
            / "llm_analysis"
            / "gpu_configs"
            / f"{self.chips[scenario.hardware.accelerator.name]}.json"
        )
        figures = json.loads(path.read_text(encoding="utf-8"))
        if scenario.hardware.node.nics:
            figures["inter_node_bandwidth_in_GB_per_sec"] = (
                nic_rate(scenario) * scenario.hardware.node.accelerators
            )
        moe = model.moe
        shape = config.ModelConfig(
            name="run",
            num_layers=model.layers,
            n_head=model.heads,
            hidden_dim=model.hidden,
            vocab_size=model.vocab,
            max_seq_len=training.sequence_length,
            num_key_value_heads=model.kv_heads,
            ffn_embed_dim=moe.ffn_hidden if moe else model.ffn_hidden,
            moe_num_experts=moe.experts if moe else 1,
            moe_top_k=moe.top_k if moe else 1,
            mlp_gated_linear_units=model.gated_mlp,
        )
        want(
            not moe or not (moe.shared_experts or moe.dense_layers),
            "shared experts or dense layers beside experts",
        )
        logging.getLogger("llm_analysis").setLevel(logging.ERROR)
        tool.logger.setLevel(logging.CRITICAL)
        analysis = tool.LLMAnalysis(
            shape,
            config.GPUConfig(**figures),
            config.DtypeConfig(),
            config.ParallelismConfig(
                tp_size=mesh.tp,
                pp_size=mesh.pp,
                dp_size=scenario.dp,
                ep_size=mesh.ep,
                sp_size=mesh.tp if mesh.sequence_parallel else 1,
            ),
            flops_efficiency=self.efficiency,
        )
        summary = analysis.training(
            batch_size_per_gpu=training.micro_batch,
            global_batch_size=training.global_batch,
            seq_len=training.sequence_length,
            activation_recomputation=again[training.recompute],
            ds_zero=list(tool.DSZeRO)[mesh.zero],
            flash_attn=scenario.software.lowering.fused_attention,
            output_dir=None,
        )
        return float(summary["latency_per_iter"])


class SimuMax(Peer):
    """SimuMax (Moore Threads 2025): operators by measured efficiencies, schedules by formula."""

    name, folder, module = "SimuMax", "simumax", "simumax.core.perf_llm"
    chips: ClassVar = {"b200-sxm": "b200_bf16_ceperm", "a100-pcie-80": "a100_pcie"}

    def seconds(self, scenario: Scenario) -> float:
        """Seconds of one iteration."""
        config = importlib.import_module("simumax.core.config")
        model, mesh, training = scenario.transformer, scenario.parallelism, scenario.training_step
        software, moe, mla = scenario.software, model.moe, model.mla
        want(mesh.zero <= 1, "sharded parameters or gradients")
        want(training.recompute == "none", "recomputation in other words")
        want(scenario.schedule.name in ("1f1b", "interleaved-1f1b"), "other schedules")
        want(model.gated_mlp, "plain MLPs")
        strategy = config.StrategyConfig(
            seq_len=training.sequence_length,
            micro_batch_size=training.micro_batch,
            micro_batch_num=scenario.microbatches,
            world_size=scenario.hardware.accelerators,
            tp_size=mesh.tp,
            cp_size=mesh.cp,
            pp_size=mesh.pp,
            ep_size=mesh.ep,
            etp_size=mesh.etp or 1,
            interleaving_size=scenario.virtual_stages or 1,
            enable_sequence_parallel=mesh.sequence_parallel,
            zero_state=mesh.zero,
            use_fp32_accum_grad=software.lowering.weight_grad_bytes == 4,
            enable_recompute=False,
            cross_entropy_loss_fusion=software.lowering.loss_bytes_per_logit < 30,
            overlap_grad_reduce=software.overlaps_gradients(mesh.pp),
            dispatch_probs=software.lowering.weighted_activation,
        )
        sizes: dict[str, Any] = {
            "hidden_size": model.hidden,
            "head_num": model.heads,
            "kv_head_num": model.kv_heads,
            "head_size": model.head_dim,
            "intermediate_size": model.ffn_hidden,
            "layer_num": model.layers,
            "vocab_size": model.vocab,
            "use_swiglu": True,
        }
        if moe:
            sizes |= {
                "expert_num": moe.experts,
                "topk": moe.top_k,
                "moe_ffn_hidden_size": moe.ffn_hidden,
                "moe_shared_expert_intermediate_size": moe.shared_features or None,
                "dense_layers": moe.dense_layers,
                "capacity": moe.capacity_factor or 1,
            }
        if mla:
            sizes |= {
                "attention_type": "mla",
                "v_head_dim": mla.v_head_dim,
                "qk_head_dim": mla.qk_nope_head_dim,
                "qk_pos_emb_head_dim": mla.qk_rope_head_dim,
                "q_lora_rank": mla.q_lora_rank,
                "kv_lora_rank": mla.kv_lora_rank,
            }
        chip = self.chips[scenario.hardware.accelerator.name]
        machine = config.SystemConfig.init_from_config_file(
            str(self.root / "configs" / "system" / f"{chip}.json")
        )
        answer = sys.modules[self.module].PerfLLM()
        with tempfile.TemporaryDirectory() as scratch, contextlib.chdir(scratch):
            answer.configure(
                strategy_config=strategy,
                model_config=config.ModelConfig(**sizes),
                system_config=copy.deepcopy(machine),
            )
            answer.run_estimate()
            figures = answer.analysis_cost().data
        return seconds_of(
            figures["metrics"]["duration_time_per_iter"]
            if "metrics" in figures
            else figures["duration_time_per_iter"]
        )


def seconds_of(told: object) -> float:
    """A time as SimuMax writes it: milliseconds as a number, or with a unit."""
    if isinstance(told, str):
        number, unit = told.split()
        return float(number) * {"s": 1.0, "ms": 1e-3, "us": 1e-6}[unit]
    return float(str(told)) / 1e3


PEERS: tuple[type[Peer], ...] = (Calculon, SimuMax, LlmAnalysis)


def measured_runs(needed: Sequence[str]) -> Iterator[Run]:
    """Runs of both files whose accelerator a peer knows, names hidden, with what mpsim says."""
    files = (
        ("published-runs.csv", MEASURED, blank),
        ("single-node-runs.csv", MEASURED_ON_NODE, blank_on_node),
    )
    for file, hidden, blanks in files:
        with (HERE / "data" / file).open(encoding="utf-8", newline="") as lines:
            for values in csv.DictReader(lines):
                told = {column: "" if column in hidden else text for column, text in values.items()}
                row = Row(values.get("id") or values["record_id"], Cells(told), Cells(values))
                time = blanks(row)[0]
                cells = row.configuration if blanks is blank else as_published(row.configuration)
                cells = Cells({**cells.values, "family": "", "source": ""})
                try:
                    rule, run = read_run(cells)
                    scenario = Scenario.from_mapping(run.scenario)
                    if not time.measured or scenario.hardware.accelerator.name not in needed:
                        continue
                    layer = rule.get("measures") == "layer"
                    if layer:
                        continue
                    said = simulated(run.scenario, layer=False, seen="memory")
                except (MpsimError, ArithmeticError, ValueError):
                    continue
                unit = 1.0 if time.unit == "s" else 1e-3
                yield Run(time.id, time.family, scenario, time.measured * unit, said.seconds)


def scored(
    peers: Sequence[Peer],
) -> tuple[dict[str, list[tuple[Run, float]]], dict[str, Counter[str]], int]:
    """Answers of each peer, why it gave none, and how many runs were asked of all."""
    answers: dict[str, list[tuple[Run, float]]] = defaultdict(list)
    refusals: dict[str, Counter[str]] = defaultdict(Counter)
    chips = {chip for peer in peers for chip in peer.chips}
    count = 0
    for run in measured_runs(sorted(chips)):
        count += 1
        for peer in peers:
            try:
                answers[peer.name].append((run, peer.answer(run.scenario)))
            except RefusedError as reason:
                refusals[peer.name][str(reason)] += 1
    return answers, refusals, count


def errors(pairs: Sequence[tuple[float, float]]) -> dict[str, float]:
    """Mean absolute error, median, bias and share within 10 % of pairs of predicted and measured."""
    off = [predicted / measured - 1.0 for predicted, measured in pairs]
    return {
        "rows": len(off),
        "mean": statistics.fmean(map(abs, off)),
        "median": statistics.median(map(abs, off)),
        "bias": statistics.fmean(off),
        "within": sum(abs(error) <= 0.1 for error in off) / len(off),
    }


def page(
    answers: Mapping[str, Sequence[tuple[Run, float]]],
    refusals: Mapping[str, Counter[str]],
    count: int,
) -> str:
    """The tables: all rows of each peer, the same by family, and what it cannot express."""
    lines = [INTRO, f"{count} runs on chips that one of them has a file for.\n"]
    lines += [
        "| | rows | mean error % | median | bias | within 10 % | mpsim: mean error % | median | bias | within 10 % |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for name, given in answers.items():
        theirs = errors([(seconds, run.measured) for run, seconds in given])
        ours = errors([(run.predicted, run.measured) for run, _ in given])
        cells = [
            f"{100 * one[key]:{'+' if key == 'bias' else ''}.1f}"
            for one in (theirs, ours)
            for key in ("mean", "median", "bias", "within")
        ]
        lines.append(f"| {name} | {theirs['rows']} | {' | '.join(cells)} |")
    lines += [
        "\n## By family\n",
        "| family | rows | mpsim: mean error % | " + " | ".join(answers) + " |",
        "| --- | ---: | ---: |" + " ---: |" * len(answers),
    ]
    families = sorted({run.family for given in answers.values() for run, _ in given})
    for family in families:
        asked = {
            run.id: run for given in answers.values() for run, _ in given if run.family == family
        }
        ours = errors([(run.predicted, run.measured) for run in asked.values()])
        row = [family, str(len(asked)), f"{100 * ours['mean']:.1f}"]
        for given in answers.values():
            own = [(seconds, run.measured) for run, seconds in given if run.family == family]
            row.append(f"{100 * errors(own)['mean']:.1f} ({len(own)})" if own else "")
        lines.append("| " + " | ".join(row) + " |")
    lines.append(
        "\nIn brackets the rows of the family that a peer can express; mpsim is scored on all that any of them can.\n\n## What they cannot express\n"
    )
    for name, reasons in refusals.items():
        most = ", ".join(f"{reason} ({times})" for reason, times in reasons.most_common(8))
        lines.append(f"- {name}: {sum(reasons.values())} runs: {most}.")
    return "\n".join([*lines, ELSEWHERE])


def main() -> int:
    """Score the peers that are there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", default=os.environ.get("MPSIM_PEERS"), type=Path)
    given = parser.parse_args().folder
    if given is None:
        raise SystemExit(
            "no folder of peers: got none, needed its path as an argument or in MPSIM_PEERS"
        )
    peers = []
    for kind in PEERS:
        if not (given / kind.folder).is_dir():
            print(f"{kind.name} is left out: {given / kind.folder} is no folder")
            continue
        peers.append(kind((given / kind.folder).resolve()))
    if not peers:
        raise SystemExit(f"{given} holds none of {', '.join(kind.folder for kind in PEERS)}")
    answers, refusals, count = scored(peers)
    (HERE / "peers.md").write_text(page(answers, refusals, count), encoding="utf-8")
    figures = {
        name: {
            "peer": errors([(seconds, run.measured) for run, seconds in pairs]),
            "mpsim": errors([(run.predicted, run.measured) for run, _ in pairs]),
        }
        for name, pairs in answers.items()
    }
    (HERE / "peers.json").write_text(json.dumps(figures, indent=2) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
