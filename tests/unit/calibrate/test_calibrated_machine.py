"""Machine files: a calibrated cluster that scenarios name, and what becomes of its constants."""

from __future__ import annotations

import pickle

import pytest
import yaml

from mpsim.calibrate.machine import link_entry, sheet_entry
from mpsim.errors import HardwareError, ScenarioError
from mpsim.hardware import accelerator, link
from mpsim.hardware.machine import read_machine
from mpsim.result import Result
from mpsim.scenario import Scenario, load
from mpsim.simulate import simulate

MACHINE = {
    "schema": 1,
    "machine": "test-box",
    "source": "measured in a test",
    "as_of": "2026-11-21",
    "accelerator": {
        "title": "two cores",
        "vendor": "nobody",
        "family": "cpu",
        "year": 2026,
        "compute_units": 1,
        "peak_flops": {"fp32": "50 GFLOP/s"},
        "memory": "8 GB",
        "memory_bandwidth": "10 GB/s",
        "tdp": "10 W",
        "idle": "5 W",
        "source": "measured",
        "as_of": "2026-11-21",
    },
    "scale_up": {
        "title": "loopback",
        "shape": "host",
        "bandwidth": "5 GB/s",
        "latency": "0 s",
        "source": "measured",
        "as_of": "2026-11-21",
    },
    "accelerators_per_node": 2,
    "library": "gloo",
    "framework": {"launch_cost": "3 us", "gradient_overlap": "never"},
    "constants": {
        "kernels.gemm.fp32_sustained_fraction": {"value": 0.9, "unit": "1"},
        "kernels.gemm.launch": {"value": 1e-5, "unit": "s"},
        "kernels.optimizer.fraction": {"value": 0.4, "unit": "1"},
        "libraries.host.gloo.near_latency": {"value": 3e-5, "unit": "s"},
    },
    "kernel_curves": [
        {"kind": "norm", "phase": "forward", "bytes": [1000, 1000000], "seconds": [1e-5, 1e-4]}
    ],
}
SCENARIO = {
    "schema": 1,
    "model": {"layers": 4, "hidden": 256, "heads": 4, "ffn_hidden": 1024, "vocab": 1000},
    "cluster": "./machine.yaml",
    "parallelism": {"dp": 2},
    "training": {"global_batch": 4, "sequence_length": 128, "precision": "fp32"},
    "framework": "torch-ddp",
}


def write(folder, machine=MACHINE, scenario=SCENARIO):
    (folder / "machine.yaml").write_text(yaml.safe_dump(machine, sort_keys=False))
    (folder / "run.yaml").write_text(yaml.safe_dump(scenario, sort_keys=False))
    return folder / "run.yaml"


def test_a_scenario_names_a_machine_file_beside_it(tmp_path):
    """The path is relative to the scenario's file, not to the working directory."""
    scenario = load(write(tmp_path))
    assert scenario.hardware.name == "test-box"
    assert scenario.hardware.accelerators == 2


def test_measured_constants_are_listed_as_calibrated(tmp_path):
    """What the file holds reaches the cost models, and the Result says so."""
    used = {one.name: one for one in simulate(load(write(tmp_path))).constants}
    assert used["kernels.gemm.fp32_sustained_fraction"].value == 0.9
    assert used["kernels.gemm.fp32_sustained_fraction"].status == "calibrated"
    assert used["libraries.host.gloo.near_latency"].value == 3e-5
    assert used["calibration.kernels.norm.forward.points"].value == 2


def test_habits_of_the_host_lose_to_those_of_the_scenario(tmp_path):
    """A machine file says what a launch costs there; the scenario may say otherwise."""
    named = load(write(tmp_path))
    assert named.software.host.launch_cost == 3e-6
    own = SCENARIO | {"framework": {"preset": "torch-ddp", "launch_cost": "9 us"}}
    assert load(write(tmp_path, scenario=own)).software.host.launch_cost == 9e-6


def test_a_slower_optimizer_makes_a_longer_step(tmp_path):
    """Half the fraction of the memory rate is twice the time of the optimizer."""
    fast = simulate(load(write(tmp_path))).breakdown["optimizer"]
    slower = {**MACHINE["constants"], "kernels.optimizer.fraction": {"value": 0.2, "unit": "1"}}
    slow = simulate(load(write(tmp_path, MACHINE | {"constants": slower}))).breakdown["optimizer"]
    assert slow == pytest.approx(2 * fast)


def test_results_of_a_machine_file_round_trip(tmp_path):
    """A saved result holds the machine's content, so it outlives the file."""
    result = simulate(load(write(tmp_path)))
    result.save(tmp_path / "result.json")
    (tmp_path / "machine.yaml").unlink()
    again = Result.load(tmp_path / "result.json")
    assert again.summary["step_time_s"] == result.summary["step_time_s"]
    assert again.scenario.digest == result.scenario.digest


def test_scenarios_of_a_machine_file_pickle(tmp_path):
    """Sweeps send scenarios to other processes."""
    scenario = load(write(tmp_path))
    assert pickle.loads(pickle.dumps(scenario)).digest == scenario.digest


def test_an_accelerator_of_a_machine_file_joins_another_cluster(tmp_path):
    """Kernel constants travel with the accelerator; its links may be others."""
    cluster = {
        "accelerator": "./machine.yaml",
        "accelerators_per_node": 4,
        "nodes": 2,
        "nic": "100 Gb/s",
    }
    parallelism = {"dp": 8}
    training = SCENARIO["training"] | {"global_batch": 8}
    changed = SCENARIO | {"cluster": cluster, "parallelism": parallelism, "training": training}
    scenario = load(write(tmp_path, scenario=changed))
    assert scenario.hardware.accelerators == 8
    assert scenario.hardware.calibration is None
    again = Scenario.from_mapping(scenario.resolved())
    assert again.digest == scenario.digest
    names = {one.name for one in simulate(again).constants if one.status == "calibrated"}
    assert "kernels.gemm.fp32_sustained_fraction" in names


def test_other_wires_drop_the_measured_collectives(tmp_path):
    """What was measured on one link says nothing about another."""
    changed = SCENARIO | {"cluster": {"preset": "./machine.yaml", "scale_up": "1 GB/s"}}
    assert load(write(tmp_path, scenario=changed)).hardware.calibration is None


def test_mistakes_of_a_machine_file_have_their_line(tmp_path):
    """Unknown keys, other schemas and broken curves are refused together."""
    curves = [{"kind": "norm", "bytes": [2, 1], "seconds": [1.0, 1.0]}]
    broken = MACHINE | {"schema": 9, "sauce": "x", "kernel_curves": curves}
    write(tmp_path, broken)
    with pytest.raises(HardwareError) as caught:
        read_machine(tmp_path / "machine.yaml")
    text = str(caught.value)
    assert "machine.yaml:1:1 schema: got 9" in text
    assert "sauce: unknown key; did you mean 'source'?" in text
    assert "bytes have to rise" in text


def test_a_missing_machine_file_is_a_mistake_of_the_scenario(tmp_path):
    """The message says which command writes one."""
    path = write(tmp_path)
    (tmp_path / "machine.yaml").unlink()
    with pytest.raises(ScenarioError, match="mpsim calibrate"):
        load(path)


@pytest.mark.parametrize("chip", ["a100-sxm-80", "l40s", "gb200"])
def test_a_machine_is_its_datasheets_where_nothing_was_measured(tmp_path, chip):
    """Links, hosts, collectives and intervals of the chip that it names count for a machine file without constants."""
    sheet, joined = accelerator(chip), link(accelerator(chip).scale_up)
    figures = sheet_entry(sheet), link_entry(joined, None, "2026-11-29")
    parts = dict(zip(("accelerator", "scale_up"), figures, strict=True))
    own = {**MACHINE, **parts, "datasheet": chip, "accelerators_per_node": 4, "library": "nccl"}
    for part in ("framework", "constants", "kernel_curves"):
        del own[part]
    model = {"preset": "llama2-7b", "layers": 2}
    cluster = {"accelerator": chip, "accelerators_per_node": 4, "nodes": 1}
    step = {"global_batch": 8, "sequence_length": 2048}
    split = {"dp": 2, "tp": 2, "zero": 1, "offload": "optimizer"}
    run = {"schema": 1, "model": model, "cluster": cluster, "parallelism": split, "training": step}
    known = simulate(load(write(tmp_path, own, run))).summary
    file = write(tmp_path, own, {**run, "cluster": {**cluster, "accelerator": "./machine.yaml"}})
    measured = simulate(load(file)).summary
    for figure in ("breakdown_s", "interval", "energy_j_per_step", "peak_memory_bytes"):
        assert measured[figure] == known[figure]
