"""Who started this process: torchrun, Slurm, or nobody; read from the environment alone."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from collections.abc import Mapping

from mpsim.errors import CalibrationError


@dataclasses.dataclass(frozen=True, slots=True)
class Launch:
    """One process among the others."""

    rank: int
    world_size: int
    local_rank: int
    address: str = ""  # host of rank 0, and
    # the port it listens on; empty and 0 if set for torch already, or of one process
    port: int = 0


def read_launch(environment: Mapping[str, str], *, port: int, ports: int) -> Launch:
    """Read the variables of torchrun, else of Slurm, else one process.

    `port` and `ports`: first port and number of ports a Slurm job chooses from, by its number.
    CalibrationError if some variables are there and others are not, or they contradict each other.
    """
    if "RANK" in environment or "WORLD_SIZE" in environment:
        rank, world = (_number(environment, name) for name in ("RANK", "WORLD_SIZE"))
        return _checked(
            Launch(rank, world, _number(environment, "LOCAL_RANK", default=rank)), environment
        )
    if "SLURM_PROCID" in environment and environment.get("SLURM_NTASKS", "1") != "1":
        rank, world = _number(environment, "SLURM_PROCID"), _number(environment, "SLURM_NTASKS")
        local = _number(environment, "SLURM_LOCALID", default=rank)
        address = environment.get("MASTER_ADDR") or _first_host(environment)
        job = _number(environment, "SLURM_JOB_ID", default=0)
        chosen = _number(environment, "MASTER_PORT", default=port + job % ports)
        return _checked(Launch(rank, world, local, address, chosen), environment)
    return Launch(0, 1, 0)


def _checked(launch: Launch, environment: Mapping[str, str]) -> Launch:
    if not 0 <= launch.rank < launch.world_size:
        raise CalibrationError(
            f"this is rank {launch.rank} of {launch.world_size}; needed a rank below the number of"
            " processes"
        )
    if launch.world_size > 1 and not launch.address and "MASTER_ADDR" not in environment:
        raise CalibrationError(
            "RANK is set and MASTER_ADDR is not; start with torchrun, or set MASTER_ADDR and"
            " MASTER_PORT"
        )
    return launch


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise CalibrationError(
            f"the environment has {name}={text!r}; needed a number, as torchrun or srun sets it"
        ) from None


def _first_host(environment: Mapping[str, str]) -> str:
    """Name of the first node of a Slurm job."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if nodes and "[" not in nodes:
        return nodes.split(",")[0]
    scontrol = shutil.which("scontrol")
    if not nodes or scontrol is None:
        raise CalibrationError(
            "cannot tell the first node of this Slurm job; set MASTER_ADDR to it"
        )
    command = [scontrol, "show", "hostnames", nodes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    hosts = done.stdout.split()
    if not hosts:
        raise CalibrationError(f"scontrol does not know the nodes {nodes!r}; set MASTER_ADDR")
    return hosts[0]
