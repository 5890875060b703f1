"""Measured collectives: the sweeps of validation/data/collectives.csv and the clusters they ran on.

A sweep is one (system, GPU, NCCL version, collective, group, way of timing). What the model is told about a sweep is in these tables, nothing else.
"""

from __future__ import annotations

import csv
import dataclasses
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware.cluster import Cluster
from mpsim.hardware.lookup import build_cluster
from mpsim.parallel.crossing import GroupShape

ROOT = Path(__file__).resolve().parent.parent
MEASURED = ROOT / "validation" / "data" / "collectives.csv"
KINDS = {"alltoall": "all_to_all"}
ACCELERATORS = {  # start of the gpu column, longest first
    "A100 40GB": "a100-sxm-40",
    "A100 SXM4 40GB": "a100-sxm-40",
    "A100": "a100-sxm-80",
    "H100": "h100-sxm",
    "H200": "h200-sxm",
    "B200": "b200-sxm",
    "B300": "b300-sxm",
    "GB200": "gb200",
    "L40S": "l40s",
    "RTX PRO 6000": "l40s",  # not in the catalog; its PCIe 5 link is what counts here
    "MI300X": "mi300x",
}
LINKS = {
    "NVLink3": "nvlink3",
    "NVLink4": "nvlink4",
    "NVLink5": "nvlink5",
    "PCIe4": "pcie4-x16",
    "PCIe5": "pcie5-x16",
    "Infinity Fabric": "xgmi-mi300x",
}
NICS = {  # NICs of a node
    "EFA v1 4x100G": ("efa-v1", 4),
    "EFA v3 16x200G": ("efa-v3", 16),
    "EFA v4 8x400G": ("efa-v4", 8),
    "16x100G RoCE": ("roce-100", 16),
    "16x200G RoCE": ("roce-200", 16),
    "8x400G RoCE": ("roce-400", 8),
    "8x400G NDR IB": ("ib-ndr", 8),
    "8x400G": ("ib-ndr", 8),
    "8x200G": ("ib-hdr", 8),
    "HDR IB + SHARP": ("ib-hdr", 8),
    "NDR/XDR IB": ("ib-ndr", 4),
}
APART = (  # what a row's notes or NIC say when it is not the software and tuning that are modelled
    "mis-tuned",
    "slow case",
    "NVLS disabled",
    "no SHARP",
    "NCCL_ALGO=RING",
    "NVLS off",
    "cold start",
    "placeholder",
    "SHARP",
)


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Sweep:
    """Sizes [B] and times [s] of one collective on one machine."""

    system: str
    gpu: str
    version: str
    nic: str
    kind: str
    group: GroupShape
    cluster: Cluster
    harness: str
    apart: str
    sizes: NDArray[np.float64]
    times: NDArray[np.float64]

    @property
    def title(self) -> str:
        """Machine and software in a few words."""
        return " ".join(part for part in (self.system, self.gpu, self.version) if part)


def load_sweeps(path: Path = MEASURED) -> list[Sweep]:
    """Every sweep whose hardware is stated, in the order of the file."""
    found: dict[tuple[str, ...], list[dict[str, str]]] = {}
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            if row["gpu"] == "?" or (row["nodes"] != "1" and row["nic"] not in NICS):
                continue
            keys = "system gpu nccl_version nic collective gpus nodes dtype".split()
            found.setdefault((*(row[key] for key in keys), _apart(row)), []).append(row)
    return [_sweep(rows) for rows in found.values()]


def _sweep(rows: list[dict[str, str]]) -> Sweep:
    first = rows[0]
    ranks, nodes = int(first["gpus"]), int(first["nodes"])
    domains = 1 if first["link"].endswith("NVL72") else nodes
    order = sorted(rows, key=lambda row: float(row["bytes"]))
    return Sweep(
        first["system"],
        first["gpu"],
        first["nccl_version"],
        first["nic"],
        KINDS.get(first["collective"], first["collective"]),
        GroupShape(ranks, ranks // domains, domains),
        cluster_of(first, nodes),
        _harness(first),
        _apart(first),
        np.array([float(row["bytes"]) for row in order]),
        np.array([float(row["time_us"]) * 1e-6 for row in order]),
    )


def cluster_of(row: dict[str, str], nodes: int) -> Cluster:
    """The machine that a row names."""
    nic, count = NICS.get(row["nic"], ("ib-ndr", 8))
    small = row["gpu"].startswith("GB200")
    return build_cluster(
        accelerator=_lookup(row["gpu"], ACCELERATORS),
        accelerators_per_node=4 if small else 8,
        nodes=nodes,
        nics_per_node=4 if small else count,
        nic=nic,
        scale_up=_lookup(row["link"], LINKS),
        domain=72 if small and row["link"].endswith("NVL72") else None,
        name=row["system"],
    )


def _lookup(text: str, table: dict[str, str]) -> str:
    return next(value for key, value in table.items() if text.startswith(key))


def _harness(row: dict[str, str]) -> str:
    """How it was timed: by torch, by one thread that launches on every GPU, or by nccl-tests with a thread or process a GPU."""
    if "torch" in row["dtype"]:
        return "torch"
    return "one-thread" if "-g 8" in row["notes"] else ""


def _apart(row: dict[str, str]) -> str:
    said = f"{row['notes']} {row['nic']}"
    if row["system"] == "HGX H100" and row["nodes"] != "1":
        return "mis-tuned"  # NVIDIA/nccl-tests issue 290, all of it
    return next((why for why in APART if why in said), "")
