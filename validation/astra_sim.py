"""The same steps by mpsim and by ASTRA-sim: every operation of mpsim's program, exported as Chakra traces and run there.

Covers: mpsim export chakra, mpsim.formats.write_chakra, and ASTRA-sim's legacy feeder with the analytical network.
Question: does another simulator read what mpsim writes, and what does it say of the same steps?

Run from the repository's root with the binary of ASTRA-sim: python validation/astra_sim.py AstraSim_Analytical_Congestion_Unaware. It rewrites validation/astra_sim.md.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import mpsim
from mpsim.formats import write_chakra
from mpsim.simulate import Prepared

REPORT = Path(__file__).with_suffix(".md")
BASE = {
    "schema": 1,
    "model": {"preset": "llama2-7b", "layers": 8},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "training": {"global_batch": 16, "sequence_length": 4096, "precision": "bf16"},
    "framework": {"preset": "megatron-core", "step_overhead": "0 s", "step_rank_time": "0 s"},
}
LAYOUTS = {
    "8 replicas": {"tp": 1, "zero": 1},
    "tensor 8": {"tp": 8, "sequence_parallel": True},
    "pipeline 8": {"pp": 8},
    "tensor 2, pipeline 2, 2 replicas": {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
}
SYSTEM = {
    "scheduling-policy": "LIFO",
    "endpoint-delay": 10,
    "active-chunks-per-dimension": 2,
    "preferred-dataset-splits": 4,
    **{
        f"{name}-implementation": ["ring"]
        for name in ("all-reduce", "all-gather", "reduce-scatter", "all-to-all")
    },
    "collective-optimization": "localBWAware",
    "local-mem-bw": 3350,
    "boost-mode": 0,
}
"""Settings of ASTRA-sim's own example of an HGX H100 (examples/system/native_collectives, 2025-02-19)."""
LATENCY_NS = 936.25  # of a message, from the same example
HEAD = """# The same steps by ASTRA-sim

Written by `validation/astra_sim.py`. Eight layers of Llama 2 7B on eight H100 of one node, 16 sequences of 4,096 tokens: mpsim exports every kernel, collective and message of every rank as Chakra traces
(`mpsim export chakra`), and ASTRA-sim (commit of 19 February 2025 with its legacy feeder, analytical network without congestion, ring collectives, settings of its own HGX H100 example) runs them. Kernels and host times are the
same in both, to the microsecond that the format holds; each prices communication by its own model: mpsim NCCL's algorithms as training runs see them, ASTRA-sim rings of four chunks at {bandwidth:.0f} GB/s and {latency:.0f} ns a message.

| layout | nodes of all ranks | kernels and host [ms] | pipeline bubble, mpsim [ms] | exposed communication, mpsim [ms] | mpsim, step [ms] | ASTRA-sim, step [ms] | ASTRA-sim over mpsim |
|---|---|---|---|---|---|---|---|
"""
TAIL = """
Both wait for the same operations: where little communication is exposed (eight stages) the steps agree, and what differs is the price of communication. Of what tensor parallelism exchanges in every layer, mpsim exposes {ours:.0f} ms and ASTRA-sim {theirs:.0f}: its rings
run at the link's rate whatever the size of a message, mpsim's collectives as they were measured inside training runs.
"""


def bandwidth(prepared: Prepared) -> float:
    """Bandwidth of an accelerator into its node in one direction [GB/s], as both simulators use it."""
    link = prepared.plan.layout.cluster.node.scale_up
    return float(link.bandwidth * link.efficiency) / 1e9


def astra(binary: str, folder: Path, prefix: str, rate: float, ranks: int) -> float:
    """Step time [s]."""
    (folder / "system.json").write_text(json.dumps(SYSTEM))
    (folder / "memory.json").write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}))
    (folder / "network.yml").write_text(
        f"topology: [ Switch ]\nnpus_count: [ {ranks} ]\nbandwidth: [ {rate} ]\nlatency: [ {LATENCY_NS} ]\n"
    )
    command = [
        binary,
        f"--workload-configuration={folder / prefix}",
        f"--comm-group-configuration={folder / prefix}.comm_group.json",
        f"--system-configuration={folder / 'system.json'}",
        f"--remote-memory-configuration={folder / 'memory.json'}",
        f"--network-configuration={folder / 'network.yml'}",
    ]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=600, cwd=folder
    )
    told = re.findall(r"finished, (\d+) cycles", done.stdout)
    if len(told) < ranks:
        raise SystemExit(
            f"{prefix}: {len(told)} of {ranks} ranks finished\n{done.stdout[-500:]}\n{done.stderr[-500:]}"
        )
    return max(map(int, told)) * 1e-9


def main(binary: str) -> None:
    """Run every layout in both simulators and write the report."""
    rows, exposed, rate = [], {}, 0.0
    for name, parallelism in LAYOUTS.items():
        prepared = mpsim.prepare(
            mpsim.Scenario.from_mapping({**BASE, "name": "step", "parallelism": parallelism})
        )
        result, rate = prepared.run(), bandwidth(prepared)
        with tempfile.TemporaryDirectory() as place:
            export = write_chakra(prepared, place, prefix="step")
            theirs = astra(binary, Path(place), "step", rate, len(export.files) - 1)
        ours, parts = result.timeline.step_time_s, result.breakdown
        waits = sum(seconds for part, seconds in parts.items() if part.startswith("exposed_"))
        busy = ours - waits - parts["bubble"]
        times = [f"{seconds * 1e3:.1f}" for seconds in (busy, parts["bubble"], waits, ours, theirs)]
        rows.append(f"| {name} | {export.nodes:,} | {' | '.join(times)} | {theirs / ours:.3f} |")
        exposed[name] = waits * 1e3, (theirs - busy) * 1e3
        print(rows[-1])
    head = HEAD.format(bandwidth=rate, latency=LATENCY_NS)
    ours, theirs = exposed["tensor 8"]
    REPORT.write_text(head + "\n".join(rows) + "\n" + TAIL.format(ours=ours, theirs=theirs))


if __name__ == "__main__":
    main(sys.argv[1])
