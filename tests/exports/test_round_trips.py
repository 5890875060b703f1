"""Scenarios written in the words of other tools and read back: what the file holds and what was told as lost are the whole scenario."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import mpsim
from mpsim.errors import FormatError
from mpsim.formats import WRITERS, export, read
from mpsim.formats.ledger import laid
from mpsim.formats.megatron import MEGATRON
from mpsim.formats.outgoing import read_back as read_back_by
from mpsim.framework import framework_names
from mpsim.scenario import Scenario
from mpsim.workload import model_names
from tests.nightly import NIGHTLY, some

SCENARIOS = sorted((Path(__file__).parents[2] / "scenarios").rglob("*.yaml"))
TRAINING = [path for path in SCENARIOS if not mpsim.load(path).serves]
TEXTS = [writer for writer in WRITERS if writer.ending and not writer.serves]
REFUSED = {
    ("t5-11b-a100", name): "has an encoder and a decoder"
    for name in ("megatron", "megatron-bridge", "nemo")
}
SMALL = {
    "schema": 1,
    "model": "llama3-8b",
    "cluster": {"preset": "dgx-h100", "nodes": 2},
    "parallelism": {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
    "training": {"global_batch": 64, "sequence_length": 4096},
}


def step_time(scenario):
    """Time of a step [s]."""
    return mpsim.simulate(scenario).summary["step_time_s"]


def read_back(exported, folder, name, called):
    """The scenario that an importer reads of a file, with what was told as lost laid over it."""
    ending = next(writer.ending for writer in WRITERS if writer.name == name)
    path = folder / f"file{ending}"
    path.write_text(exported.text)
    imported = read(path, format=name)
    whole = laid(imported.scenario, {})
    for loss in exported.lost:  # a section that is lost replaces what was read of it
        *sections, last = loss.key.split(".")
        place = whole
        for section in sections:
            place[section] = dict(place.get(section, {}))
            place = place[section]
        place[last] = loss.value
    if "preset" not in whole["model"]:  # what a model is called decides nothing
        whole["model"] = {**whole["model"], "name": called}
    return Scenario.from_mapping({"schema": 1, **whole})


@pytest.fixture(scope="module")
def steps():
    """Step time of a scenario, simulated the first time that it is asked for."""
    known = {}

    def time(path):
        if path not in known:
            known[path] = step_time(mpsim.load(path))
        return known[path]

    return time


@pytest.mark.parametrize("name", [writer.name for writer in TEXTS])
def test_a_file_and_its_losses_are_the_whole_scenario(name, steps, tmp_path):
    """Every training scenario of the repository: exported, imported, the losses laid over it, the step takes as long to 1e-12."""
    held = 0
    paths = TRAINING if NIGHTLY else TRAINING[::3]
    for path in paths:
        scenario = mpsim.load(path)
        if (path.stem, name) in REFUSED:
            with pytest.raises(FormatError, match=REFUSED[path.stem, name]):
                export(scenario, name)
            continue
        again = read_back(export(scenario, name), tmp_path, name, scenario.transformer.name)
        if again.digest == scenario.digest:  # nothing differs, so the step does not
            held += 1
            continue
        step = step_time(again)
        assert step == pytest.approx(steps(path), rel=1e-12), path.stem
        held += 1
    assert held >= len(paths) - 3


CHANGES = [
    {"parallelism.zero": 3, "parallelism.pp": 1, "framework": "torch-fsdp2"},
    {"parallelism.zero": 3, "parallelism.pp": 1, "parallelism.shard": 4, "framework": "torch-fsdp1"},
    {"parallelism.zero": 2, "parallelism.pp": 1, "training.precision": "fp8", "framework": "torchtitan-2025"},
    {"parallelism.zero": 3, "parallelism.tp": 1, "framework": "torchtitan-2024", "training.recompute": "per-op"},
    {"parallelism.zero": 3, "parallelism.pp": 1, "framework": "torchtitan-2026", "training.micro_batch": 2},
    {"schedule": {"name": "interleaved-1f1b", "virtual_stages": 4}, "framework": "torchtitan-2025-12", "parallelism.zero": 3},
    {"parallelism.cp": 2, "parallelism.pp": 1, "framework": {"preset": "megatron-core-2025", "context_exchange": "ulysses"}},
    {"parallelism.layers_per_stage": [15, 17], "framework": "megatron-core-2026"},
    {"training.recompute": "selective", "training.recompute_modules": ["core_attn", "mlp"], "framework": "megatron-core-2025"},
    {"training.precision": "mxfp8", "cluster.preset": "dgx-b200", "framework": {"preset": "megatron-core-2025", "gathered_bytes": 1, "gradient_bytes": 2, "weight_grad_bytes": 2}},
    {"framework": {"preset": "megatron-core-2025", "gradient_overlap": "never", "tensor_overlap": "decomposed", "loss_bytes_per_logit": 24.0}},
    {"framework": {"preset": "megatron-2023", "fused_attention": True}, "training.precision": "fp16"},
    {"framework": "megatron-2021", "parallelism.sequence_parallel": False, "parallelism.zero": 0, "training.precision": "fp16", "model": "gpt3-175b", "training.sequence_length": 2048, "parallelism.tp": 8},
    {"framework": "megatron-2020", "parallelism": {"tp": 8}, "training.precision": "fp16", "training.global_batch": 8, "training.micro_batch": 4, "model": "gpt-1.7b", "training.sequence_length": 2048},
    {"framework": "megatron-fsdp", "parallelism.zero": 3, "parallelism.pp": 1},
    {"model": "deepseek-v3", "cluster.nodes": 8, "parallelism": {"tp": 1, "pp": 4, "ep": 16, "zero": 1, "layers_per_stage": [16, 15, 15, 15]}, "framework": "megatron-core-2026"},
    {"model": "gemma2-9b", "parallelism.offload": "optimizer", "framework": "megatron-core-2026"},
    {"framework": {"preset": "deepspeed-zero3", "bucket_bytes": "200 MB", "gradient_norm": False}, "parallelism": {"pp": 1, "zero": 3, "offload": "parameters", "offload_to": "nvme"}},
    {"framework": {"preset": "deepspeed-zero2", "gradient_overlap": "always", "reduced_bytes": 4}, "parallelism": {"pp": 1, "zero": 2}, "training.precision": "fp16"},
    {"framework": "nemo-2", "schedule": {"name": "interleaved-1f1b", "virtual_stages": 4}, "training.precision": "fp8_block"},
    {"framework": "megatron-bridge", "cluster.preset": "dgx-b200", "training.precision": "nvfp4"},
    {"variation": {"jitter": 0.02}, "simulation.seed": 7, "parallelism.order": "tp-dp-cp-ep-pp"},
]  # fmt: skip


@pytest.mark.parametrize("place", range(len(CHANGES)))
def test_every_switch_comes_back_or_is_told(place, tmp_path):
    """Switches, number formats, eras and uneven stages, in all formats that hold them: what the file and its losses say has the digest of the scenario, or its step time."""
    base = Scenario.from_mapping(SMALL)
    try:
        scenario = base.with_values(CHANGES[place])
    except mpsim.ScenarioError as error:
        pytest.fail(f"the change is none: {error}")
    step = None
    for writer in TEXTS:
        exported = export(scenario, writer.name)
        again = read_back(exported, tmp_path, writer.name, scenario.transformer.name)
        if again.digest != scenario.digest:
            step = step or step_time(scenario)
            assert step_time(again) == pytest.approx(step, rel=1e-12), writer.name


@pytest.mark.parametrize("name", [writer.name for writer in TEXTS])
def test_what_a_file_holds_is_what_its_reader_takes(name, tmp_path):
    """Every value that is told as held is mapped from that key when the file is imported, and none of them is lost."""
    scenario = mpsim.load(TRAINING[0].parent / "quickstart.yaml")
    exported = export(scenario, name)
    path = tmp_path / f"file{next(writer.ending for writer in TEXTS if writer.name == name)}"
    path.write_text(exported.text)
    mapped = {(item.to, item.source) for item in read(path, format=name).mapped}
    held = {(item.source, item.to) for item in exported.held}
    assert held <= mapped
    assert "training.micro_batch" in {key for key, _ in held}
    assert not {key for key, _ in held} & {loss.key for loss in exported.lost}


def test_a_value_that_the_file_says_otherwise_is_lost(tmp_path):
    """Experts of torchtitan are whole on a rank unless the file divides them: told, not silent."""
    model = {"preset": "mixtral-8x7b", "name": "mixtral"}
    mesh = {"tp": 2, "pp": 1, "ep": 2, "zero": 3, "sequence_parallel": True}
    scenario = Scenario.from_mapping({**SMALL, "model": model, "parallelism": mesh, "framework": "torchtitan-2025-12"})  # fmt: skip
    lost = {loss.key: str(loss) for loss in export(scenario, "torchtitan").lost}
    assert lost["parallelism.etp"] == "parallelism.etp (left out): the file says 1"


def test_a_layout_that_the_reader_refuses_is_a_mistake_of_the_scenario():
    """Not of the model: a search that starts from such a layout goes on, since its best may be written."""
    scenario = Scenario.from_mapping(SMALL)
    text = export(scenario, "megatron").text
    wrong = text.replace("--pipeline-model-parallel-size 2", "--pipeline-model-parallel-size 3")
    with pytest.raises(mpsim.ScenarioError, match="does not take this layout"):
        read_back_by(scenario, MEGATRON, wrong, tool="Megatron-LM")


def drawn(dice):
    """Values of a layout, which may or may not go together."""
    degrees = {"tp": [1, 2, 4], "pp": [1, 1, 2, 4], "cp": [1, 1, 2], "zero": [0, 1, 2, 3]}
    return {
        "model": dice.choice(model_names()),
        "framework": dice.choice(framework_names()),
        "schedule": dice.choice(["1f1b", "1f1b", "interleaved-1f1b", "gpipe", "zb-h1"]),
        "parallelism": {axis: dice.choice(values) for axis, values in degrees.items()}
        | {"sequence_parallel": dice.random() < 0.5},
        "training.micro_batch": dice.choice([1, 2]),
        "training.precision": dice.choice(["bf16", "fp16", "fp32", "fp8", "tf32"]),
        "training.recompute": dice.choice(["none", "selective", "full"]),
    }


@pytest.mark.parametrize("seed", some(range(3), 1))
def test_any_model_on_any_stack_comes_back_or_is_told(seed, tmp_path):
    """Drawn layouts of all models and frameworks: file and losses have the digest of the scenario, or its step time."""
    dice = random.Random(seed)
    base = Scenario.from_mapping({**SMALL, "parallelism": {}, "cluster": {"preset": "dgx-h100", "nodes": 4}})  # fmt: skip
    done = 0
    while done < 40:
        try:
            scenario = base.with_values(drawn(dice))
        except mpsim.ScenarioError:
            continue
        step = None
        for writer in TEXTS:
            try:
                exported = export(scenario, writer.name)
            except FormatError:
                continue
            done += 1
            again = read_back(exported, tmp_path, writer.name, scenario.transformer.name)
            if again.digest != scenario.digest:
                step = step or step_time(scenario)
                assert step_time(again) == pytest.approx(step, rel=1e-12), (writer.name, scenario)
