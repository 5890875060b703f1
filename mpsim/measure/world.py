"""The processes that measure together: who started them, devices, groups, what they tell."""

from __future__ import annotations

import datetime as dt
import os
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple, Self, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from mpsim import structs
from mpsim.errors import CalibrationError
from mpsim.measure.plan import load_grid
from mpsim.measure.recorder import cuda
from mpsim.measured.records import SCHEMA, Header, RankRecord
from mpsim.shipped import say
from mpsim.version import __version__

T = TypeVar("T")
PINGS = 20  # round trips from which the offset of a clock is taken


class Groups(NamedTuple):
    """Some ranks as those who measure, and as those who agree; None for a process alone."""

    measuring: dist.ProcessGroup | None
    control: dist.ProcessGroup | None


class World:
    """One process among all that measure; ``with World.join("auto") as world``.

    Notes
    -----
    Measurements use the backend of the device (NCCL on GPUs, gloo on CPUs); what the processes
    agree on goes over gloo always, so that a full GPU or a failed kernel cannot stop it.
    """

    def __init__(self, launch: Launch, device: torch.device) -> None:
        self.launch = launch
        self.device = device
        self.rank, self.size = launch.rank, launch.world_size
        self.threads = torch.get_num_threads()
        self.groups: dict[tuple[int, ...], Groups] = {}
        self.meshes: dict[tuple[int, int, int], DeviceMesh] = {}
        self.ranks: tuple[RankRecord, ...] = ()
        self.clock_offset = 0.0

    @classmethod
    @contextmanager
    def join(cls, device: str) -> Iterator[Self]:
        """Meet the other processes, and leave them at the end."""
        slurm = load_grid()["slurm"]
        launch = read_launch(os.environ, port=slurm["port"], ports=slurm["ports"])
        world = cls(launch, _device(device, launch))
        world._start()
        try:
            yield world
            if world.size > 1:  # nobody leaves while others still talk to it
                dist.barrier(world.control(world.everyone))
        finally:
            world._leave()

    @property
    def kind(self) -> str:
        """``cpu`` or ``cuda``: which half of the grid counts."""
        return self.device.type

    @property
    def backend(self) -> str:
        """Backend of torch.distributed."""
        if self.size == 1:
            return "none"
        return "nccl" if self.kind == "cuda" else "gloo"

    @property
    def everyone(self) -> tuple[int, ...]:
        """Every rank."""
        return tuple(range(self.size))

    def group(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """The group of `ranks` that measurements use; None for a process alone."""
        return self.groups[tuple(ranks)].measuring

    def control(self, ranks: Sequence[int]) -> dist.ProcessGroup | None:
        """The group of `ranks` over which they agree."""
        return self.groups[tuple(ranks)].control

    def group_sizes(self) -> list[tuple[int, ...]]:
        """The first 2, 4, 8, ... ranks, all, and of several hosts two, and one rank of each."""
        sizes = [n for n in (2**i for i in range(1, self.size.bit_length())) if n < self.size]
        groups = [tuple(range(n)) for n in sizes]
        hosts = [rank.host for rank in self.ranks]
        leaders = tuple(hosts.index(host) for host in dict.fromkeys(hosts))
        if len(leaders) > 1:
            groups += [leaders[:2], leaders]
        return list(dict.fromkeys([*groups, self.everyone])) if self.size > 1 else []

    def mesh(self, pp: int, dp: int, tp: int) -> DeviceMesh:
        """Every rank as (pp, dp, tp), tp fastest; made once, by every rank at the same time."""
        key = (pp, dp, tp)
        if key not in self.meshes:
            self.meshes[key] = init_device_mesh(self.kind, key, mesh_dim_names=("pp", "dp", "tp"))
        return self.meshes[key]

    def barrier(self, ranks: Sequence[int]) -> None:
        """Wait for this rank's device, then for `ranks`."""
        self.synchronize()
        if len(ranks) > 1:
            dist.barrier(group=self.control(ranks))

    def synchronize(self) -> None:
        """Wait for this rank's device."""
        if self.kind == "cuda":
            torch.cuda.synchronize(self.device)

    def largest(self, value: float, ranks: Sequence[int]) -> float:
        """The largest `value` among `ranks`."""
        if len(ranks) == 1:
            return value
        tensor = torch.tensor([value], dtype=torch.float64)
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX, group=self.control(ranks))
        return float(tensor.item())

    def gather(self, value: T, ranks: Sequence[int]) -> list[T]:
        """The `value` of each of `ranks`, on every one of them."""
        if len(ranks) == 1:
            return [value]
        values = [value] * len(ranks)
        dist.all_gather_object(values, value, group=self.control(ranks))
        return values

    def from_first(self, value: T) -> T:
        """The value of the first rank, on every rank."""
        if self.size == 1:
            return value
        box = [value]
        dist.broadcast_object_list(box, src=0, group=self.control(self.everyone))
        return box[0]

    def header(self, seed: int) -> Header:
        """The header of a file that is begun now."""
        cuda = self.kind == "cuda"
        return Header(
            schema=SCHEMA,
            mpsim=__version__,
            torch=torch.__version__,
            python=platform.python_version(),
            os=f"{platform.system()} {platform.release()}",
            cuda=str(torch.version.cuda or "") if cuda else "",
            nccl=_nccl_version() if cuda else "",
            driver=_nvidia_smi("driver_version", self.launch.local_rank) if cuda else "",
            created=dt.datetime.now(dt.UTC).isoformat(timespec="seconds"),
            backend=self.backend,
            world_size=self.size,
            ranks=self.ranks,
            cores=len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1,
            seed=seed,
        )

    def clock_hz(self) -> float:
        """Clock of the device now [Hz]; 0 where nothing tells."""
        if self.kind == "cuda":
            text = _nvidia_smi("clocks.sm", self.launch.local_rank)
            return float(text.split()[0]) * 1e6 if text[:1].isdigit() else 0.0
        return max(map(float, _proc("cpuinfo", "cpu MHz")), default=0.0) * 1e6

    def free_bytes(self) -> float:
        """Memory of the device that is free, this rank's share of it [B]."""
        if self.kind == "cuda":
            return float(torch.cuda.mem_get_info(self.device)[0])
        local = sum(record.host == self.ranks[self.rank].host for record in self.ranks)
        return _memory("MemAvailable") / local

    def _start(self) -> None:
        if self.kind == "cpu":
            torch.set_num_threads(1 if self.size > 1 else self.threads)
            self.threads = torch.get_num_threads()
        else:
            torch.cuda.set_device(self.device)
            # a stream of its own: a backward runs on its forward's, and the default is not captured
            cuda.set_stream(cuda.Stream())
        if self.size > 1:
            self._init_process_group()
        self.groups[self.everyone] = Groups(dist.group.WORLD, self._control_of(self.everyone))
        self.ranks = tuple(self.gather(self._record(), self.everyone))
        for ranks in self.group_sizes():
            if ranks not in self.groups:
                self.groups[ranks] = Groups(dist.new_group(ranks), self._control_of(ranks))
        self.clock_offset = self._clock_offset()

    def _leave(self) -> None:
        """Let go of every group in time: threads that outlive the interpreter abort the process."""
        self.groups.clear()
        self.meshes.clear()
        if self.size > 1:
            dist.destroy_process_group()

    def _init_process_group(self) -> None:
        launch = self.launch
        if launch.address:
            os.environ.update(MASTER_ADDR=launch.address, MASTER_PORT=str(launch.port))
        dist.init_process_group(
            self.backend,
            rank=self.rank,
            world_size=self.size,
            timeout=self._timeout(),
            device_id=self.device if self.kind == "cuda" else None,
        )

    def _control_of(self, ranks: tuple[int, ...]) -> dist.ProcessGroup | None:
        if self.size == 1:
            return None
        group: dist.ProcessGroup = dist.new_group(ranks, backend="gloo", timeout=self._timeout())
        return group

    @staticmethod
    def _timeout() -> dt.timedelta:
        return dt.timedelta(seconds=load_grid()["timing"]["timeout_seconds"])

    def _record(self) -> RankRecord:
        if self.kind == "cuda":
            properties = torch.cuda.get_device_properties(self.device)
            name, memory = properties.name, float(properties.total_memory)
        else:
            name, memory = _cpu_name(), _memory("MemTotal")
        return RankRecord(
            rank=self.rank,
            host=socket.gethostname(),
            device=str(self.device),
            device_name=name,
            threads=self.threads,
            memory_bytes=memory,
            clock_hz=self.clock_hz(),
        )

    def _clock_offset(self) -> float:
        """Offset from this rank's clock to the first rank's [s]; 0 on one host.

        Notes
        -----
        Of several round trips the shortest counts: the other clock was read in its middle (Cristian
        1989, Distributed Computing 3:146).
        """
        from time import perf_counter

        if len({rank.host for rank in self.ranks}) == 1:
            return 0.0
        best = (float("inf"), 0.0)
        group = self.control(self.everyone)
        for peer in range(1, self.size):
            for _ in range(PINGS):
                clock = torch.zeros(1, dtype=torch.float64)
                if self.rank == 0:
                    dist.recv(clock, peer, group=group)
                    dist.send(
                        torch.tensor([perf_counter()], dtype=torch.float64), peer, group=group
                    )
                elif self.rank == peer:
                    start = perf_counter()
                    dist.send(clock, 0, group=group)
                    dist.recv(clock, 0, group=group)
                    trip = perf_counter() - start
                    best = min(best, (trip, float(clock.item()) - start - trip / 2))
        return best[1]


def _device(wanted: str, launch: Launch) -> torch.device:
    if wanted == "cpu" or (wanted == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if count == 0:
        raise CalibrationError(say("measure.no_device"))
    # under srun each process may see its own GPU only
    return torch.device("cuda", launch.local_rank if launch.local_rank < count else 0)


def _nccl_version() -> str:
    version = cuda.nccl.version()
    return ".".join(map(str, version)) if isinstance(version, tuple) else str(version)


def _nvidia_smi(field: str, index: int) -> str:
    """One field of one GPU as nvidia-smi tells it; empty without nvidia-smi."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return ""
    command = [tool, f"--query-gpu={field}", "--format=csv,noheader", f"--id={index}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=20)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _proc(file: str, name: str) -> list[str]:
    """Values of the lines of a file in /proc that begin with a name, if it exists."""
    try:
        lines = Path("/proc", file).read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    return [line.partition(":")[2].strip() for line in lines if line.startswith(name)]


def _cpu_name() -> str:
    names = _proc("cpuinfo", "model name")
    return names[0] if names else platform.processor() or platform.machine() or sys.platform


def _memory(name: str) -> float:
    """A line of /proc/meminfo [B]; 0 where there is none."""
    values = _proc("meminfo", f"{name}:")
    return float(values[0].split()[0]) * 1024 if values else 0.0


@structs.dataclass(frozen=True, slots=True)
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
        raise CalibrationError(say("measure.high_rank", launch=launch))
    if launch.world_size > 1 and not launch.address and "MASTER_ADDR" not in environment:
        raise CalibrationError(say("measure.no_master"))
    return launch


def _number(environment: Mapping[str, str], name: str, *, default: int | None = None) -> int:
    text = environment.get(name)
    if text is None and default is not None:
        return default
    try:
        return int(text or "")
    except ValueError:
        raise CalibrationError(say("measure.no_number", name=name, text=text)) from None


def _first_host(environment: Mapping[str, str]) -> str:
    """Name of the first node of a Slurm job."""
    nodes = environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_JOB_NODELIST", "")
    if nodes and "[" not in nodes:
        return nodes.split(",")[0]
    scontrol = shutil.which("scontrol")
    if not nodes or scontrol is None:
        raise CalibrationError(say("measure.no_first_node"))
    command = [scontrol, "show", "hostnames", nodes]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    hosts = done.stdout.split()
    if not hosts:
        raise CalibrationError(f"scontrol does not know the nodes {nodes!r}; set MASTER_ADDR")
    return hosts[0]
