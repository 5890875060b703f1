"""What `mpsim measure` decides before torch is there: who started it, what divides how, what is taken up, what is refused."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path

import pytest

from mpsim.errors import CalibrationError
from mpsim.measure.plan import Split, best_first, degrees, load_grid, round_robin
from mpsim.measure.runner import take_up
from mpsim.measure.world import Launch, read_launch
from mpsim.measured.files import RecordWriter
from mpsim.measured.records import FAMILIES, End, Header, Measurement, RankRecord

PORTS = {"port": 29500, "ports": 1000}
RANK = RankRecord(0, "node", "cpu", "some CPU", 1, 8e9)
HEADER = Header(
    1, "0", "2.13.0", "3.13", "Linux", "", "", "", "2026-11-21", "none", 1, (RANK,), 2, 0
)
ONE = Measurement(
    "gemm/1",
    "kernels",
    "gemm",
    {"m": 1, "n": 1, "k": 1},
    {},
    "float32",
    (0,),
    1,
    False,
    "burst",
    "clock",
    ((1.0,),),
)


def test_nobody_started_it() -> None:
    """Without a launcher's variables there is one process."""
    assert read_launch({}, **PORTS) == Launch(0, 1, 0)
    assert read_launch({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, **PORTS) == Launch(0, 1, 0)


def test_torchrun_says_everything() -> None:
    """RANK, WORLD_SIZE and LOCAL_RANK are taken, and torch finds the address by itself."""
    given = {"RANK": "9", "WORLD_SIZE": "16", "LOCAL_RANK": "1", "MASTER_ADDR": "a"}
    assert read_launch(given, **PORTS) == Launch(9, 16, 1)


def test_slurm_names_the_first_node_and_a_port() -> None:
    """srun without torchrun: the first of the nodes listens, on a port that the job's number picks."""
    given = {
        "SLURM_PROCID": "3",
        "SLURM_NTASKS": "4",
        "SLURM_LOCALID": "1",
        "SLURM_JOB_ID": "1234567",
        "SLURM_STEP_NODELIST": "node7,node9",
    }
    assert read_launch(given, **PORTS) == Launch(3, 4, 1, "node7", 29500 + 567)
    given |= {"MASTER_ADDR": "here", "MASTER_PORT": "4000"}
    assert read_launch(given, **PORTS) == Launch(3, 4, 1, "here", 4000)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"RANK": "0"}, "WORLD_SIZE=None"),
        ({"RANK": "x", "WORLD_SIZE": "2"}, "RANK='x'"),
        ({"RANK": "2", "WORLD_SIZE": "2", "MASTER_ADDR": "a"}, "rank 2 of 2"),
        ({"RANK": "0", "WORLD_SIZE": "2"}, "MASTER_ADDR"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "2"}, "set MASTER_ADDR"),
    ],
)
def test_half_a_launcher_is_refused(given: dict[str, str], words: str) -> None:
    """Variables that are missing or contradict each other are named."""
    with pytest.raises(CalibrationError, match=words):
        read_launch(given, **PORTS)


@pytest.mark.parametrize("world", [1, 2, 3, 4, 6, 8])
def test_every_split_fills_the_world(world: int) -> None:
    """A step runs on every rank of the world, or on each rank alone; two ranks have all four schedules."""
    splits = [degrees(entry, world) for entry in load_grid()["parallel"]]
    found = [one for one in splits if one is not None]
    assert {one.ranks for one in found} <= {1, world}
    assert Split() in found
    assert len(found) == len(set(found))
    if world > 1:
        assert {one.schedule for one in found} >= {"gpipe", "1f1b", "interleaved-1f1b", "zb-v"}
        assert {one.data_parallel for one in found} >= {"ddp", "fsdp2"}


def test_any_number_of_first_items_covers_the_range() -> None:
    """The first three of 15 sizes lie in its middle and quarters, and none is lost."""
    order = best_first(range(15))
    assert order[:3] == [7, 3, 11]
    assert sorted(order) == list(range(15))
    assert best_first([]) == []
    assert list(round_robin([])) == []


@pytest.mark.parametrize("kind", ["cpu", "cuda"])
def test_the_grid_is_consistent(kind: str) -> None:
    """Heads divide widths, shares sum to one, and sizes that have to rise do."""
    grid = load_grid()
    own = grid[kind]
    assert sum(grid["share"].values()) == pytest.approx(1.0)
    assert set(grid["share"]) == set(FAMILIES)
    assert all(one["hidden"] % one["heads"] == 0 for one in own["models"])
    assert all(hidden % heads == 0 for hidden, heads, *_ in own["layers"])
    assert own["collective_bytes"][0] == 1024
    assert own["collective_bytes"][-1] == 2**30
    assert sorted(own["collective_bytes"]) == own["collective_bytes"]
    assert set(own["plain_dtypes"]) <= set(own["dtypes"])


def _write(path: Path, *, complete: bool, header: Header = HEADER) -> None:
    with RecordWriter(path) as writer:
        writer.write(header)
        writer.write(ONE)
        writer.finish(End(1, complete, 1.0, (1.0, 1.0), (0.0,)))


def test_what_was_measured_is_not_measured_again(tmp_path: Path) -> None:
    """A file that the budget cut short is gone on with: its measurements stay, its end line goes."""
    path = tmp_path / "m.jsonl"
    assert take_up(path, HEADER, FAMILIES).lines == ()
    _write(path, complete=False)
    past = take_up(path, HEADER, FAMILIES)
    assert past.lines == (HEADER, ONE)
    assert past.done == {"gemm/1"}


def test_a_complete_file_needs_nothing(tmp_path: Path) -> None:
    """Unless a family is asked for that it has not."""
    path = tmp_path / "m.jsonl"
    _write(path, complete=True)
    assert take_up(path, HEADER, ("kernels",)).whole is not None
    assert take_up(path, HEADER, FAMILIES).whole is None


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"torch": "2.4.0"}, "torch was '2.13.0' and is '2.4.0' now"),
        ({"ranks": (dataclasses.replace(RANK, device_name="other"),)}, "ran on some CPU"),
        ({"ranks": (dataclasses.replace(RANK, threads=8),)}, "with 8 now"),
    ],
)
def test_another_machine_is_not_mixed_in(tmp_path: Path, changed: dict, words: str) -> None:
    """Going on elsewhere, or with other software, is refused."""
    path = tmp_path / "m.jsonl"
    _write(path, complete=False)
    with pytest.raises(CalibrationError, match=words):
        take_up(path, dataclasses.replace(HEADER, **changed), FAMILIES)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--budget", "soon"), "90s, 5m or 1h"),
        (("--budget", "0s"), "90s, 5m or 1h"),
        (("--only", "kernel"), "'kernels'"),
    ],
)
def test_a_wrong_option_is_bad_input(mpsim_cli, arguments: tuple[str, ...], words: str) -> None:
    """Exit 2, and the message says what would have been right."""
    outcome = mpsim_cli("measure", *arguments)
    assert outcome.code == 2
    assert words in " ".join(outcome.err.split())


def test_without_torch_the_command_says_how_to_get_it(mpsim_cli, monkeypatch, tmp_path) -> None:
    """The exact pip line, and exit 1."""
    monkeypatch.setitem(sys.modules, "torch", None)
    outcome = mpsim_cli("measure", "--out", tmp_path / "m.jsonl")
    assert outcome.code == 1
    assert "pip install 'mpsim[validate]'" in outcome.err
    assert list(tmp_path.iterdir()) == []
