"""Recordings and compiled programs: Kineto, Nsight Systems, Chakra, HLO."""

from __future__ import annotations

import gzip
import json
import sqlite3
from pathlib import Path

import pytest

from mpsim.errors import FormatError
from mpsim.formats import registry as formats
from mpsim.formats.hlo.text import groups_of

SAMPLES = Path(__file__).parent / "samples"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())


def collectives(facts):
    """Kind, times, bytes and groups of every collective, sorted."""
    return sorted(
        [item["kind"], item["times"], item["operand_bytes"], sorted(item["groups"])]
        for item in facts["collectives"]
    )


@pytest.mark.parametrize(
    "name",
    [name for name, case in EXPECTED.items() if case["format"] in ("hlo", "kineto", "chakra")],
)
def test_every_sample_says_what_it_must(name):
    """FLOPs by trip counts, collectives with groups, ranks, actions in order."""
    case, facts = EXPECTED[name], formats.read(SAMPLES / name).facts
    for key in ("rank", "ranks", "actions", "dot_flops"):
        assert facts.get(key) == case.get(key, facts.get(key))
    if case["format"] == "hlo":
        assert collectives(facts) == sorted(case["collectives"])


@pytest.mark.parametrize("rank", [0, 1])
def test_actions_of_an_interleaved_trace_are_in_the_order_of_the_schedule(rank):
    """torch's own order, recorded on two ranks."""
    from mpsim.schedule import make_orders

    facts = formats.read(SAMPLES / "torch" / f"pp_interleaved_rank{rank}.json").facts
    orders = make_orders("interleaved-1f1b", pp=2, microbatches=4, virtual_stages=2).tokens()
    assert facts["actions"] == [token for token in orders[rank] if token]


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}", [[0, 1], [2, 3]]),
        ("replica_groups={}", [[0, 1, 2, 3, 4, 5, 6, 7]]),
        ("replica_groups=[2,4]<=[8]", [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", [[0, 4], [1, 5], [2, 6], [3, 7]]),
        (
            "replica_groups=mesh['axis_0'=2,'axis_1'=1,'axis_2'=4] {'axis_0'}",
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
        (
            "replica_groups=mesh['a'=4,'b'=2], device_ids=([2,4]T(1,0)) {'b'}",
            [[0, 4], [1, 5], [2, 6], [3, 7]],
        ),
        ("source_target_pairs={{0,1},{1,0}}", [[0, 1], [1, 0]]),
    ],
)
def test_the_spellings_of_groups(text, groups):
    """Lists, iota tiles, axes of a mesh."""
    assert groups_of(text, 8) == groups


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("ENTRY %", "%", "no ENTRY"),
        ("\n}\n", "\n", "breaks off"),
        ("replica_groups={{0,1}", "replica_groups=<{0,1}", "spelling"),
    ],
)
def test_a_damaged_module_is_refused(old, new, word, tmp_path):
    """A cut file and unknown groups are named."""
    path = tmp_path / "a.txt"
    text = (SAMPLES / "hlo" / "cpu_groups_222.hlo.txt").read_text()
    path.write_text(new.join(text.rsplit(old, 1)) if old == "\n}\n" else text.replace(old, new))
    with pytest.raises(FormatError, match=word):
        formats.read(path)


def test_a_long_module_is_read_in_seconds(tmp_path):
    """100,000 lines."""
    import time

    text = gzip.decompress((SAMPLES / "hlo" / "gpu_dp2tp4_scan.hlo.txt.gz").read_bytes()).decode()
    head, body = text.split("\n", 1)
    start = body.index("%gemm_fusion_dot.76_computation")
    extra = body[: body.index("\nENTRY")][start:]
    copies = 100_000 // extra.count("\n") + 1
    path = tmp_path / "long.txt"
    path.write_text(
        f"{head}\n"
        + "".join(
            extra.replace("_computation", f"_c{copy}_computation") + "\n" for copy in range(copies)
        )
        + body
    )
    begin = time.process_time()
    formats.read(path)
    assert time.process_time() - begin < 15


def kernel(name, start, length, category="kernel"):
    """A kernel of a CUDA trace."""
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": 0,
        "tid": 7,
        "ts": start,
        "dur": length,
        "args": {"device": 0, "stream": 7},
    }


def test_kernels_of_a_cuda_trace_are_computation_or_communication(tmp_path):
    """Busy times and what overlaps; copies are neither; action ranges of the device count, not the host's."""
    events = [
        kernel("gemm", 0, 10), kernel("gemm", 5, 10), kernel("ncclDevKernel_AllReduce", 12, 8), kernel("Memcpy HtoD", 30, 5, "gpu_memcpy"),
        {"ph": "X", "cat": "user_annotation", "name": "PP:0F0", "ts": 1, "dur": 1, "pid": 1, "tid": 1},
        {"ph": "X", "cat": "gpu_user_annotation", "name": "PP:0F1", "ts": 2, "dur": 1, "pid": 0, "tid": 7},
    ]  # fmt: skip
    path = tmp_path / "trace.json.gz"
    trace = {
        "schemaVersion": 1,
        "distributedInfo": {"rank": 3, "world_size": 8},
        "host_name": "secret-host",
        "traceEvents": events,
    }
    path.write_bytes(gzip.compress(json.dumps(trace).encode()))
    read = formats.read(path)
    assert "secret-host" not in str(read)
    expected = {
        "rank": 3,
        "ranks": 8,
        "actions": ["0F1"],
        "compute_s": 15e-6,
        "communication_s": 8e-6,
        "overlap_s": 3e-6,
    }
    assert {key: read.facts[key] for key in expected} == {
        key: pytest.approx(value) if isinstance(value, float) else value
        for key, value in expected.items()
    }


def test_an_export_of_nsight_is_read(tmp_path):
    """Kernels by class and what overlaps, one device; the file is not changed."""
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        base.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, demangledName INTEGER)"
        )
        base.execute("CREATE TABLE TARGET_INFO_SYSTEM_ENV (name TEXT, value TEXT)")
        base.executemany(
            "INSERT INTO StringIds VALUES (?, ?)", [(1, "gemm"), (2, "ncclDevKernel_AllGather")]
        )
        base.executemany(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 7, ?)",
            [(0, 100, 0, 1), (50, 150, 0, 2), (0, 900, 1, 1)],
        )
    base.close()
    facts = formats.read(path).facts
    assert facts["devices"] == 2
    assert [facts[key] for key in ("compute_s", "communication_s", "overlap_s")] == pytest.approx(
        [100e-9, 100e-9, 50e-9]
    )


def test_a_database_without_kernels_is_refused(tmp_path):
    """Tables are made lazily: a recording without CUDA has none."""
    path = tmp_path / "report.sqlite"
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    base.close()
    with pytest.raises(FormatError, match="--trace=cuda"):
        formats.read(path)


def test_messages_of_a_chakra_trace_are_pairs():
    """All ranks are found beside the one that is named."""
    facts = formats.read(SAMPLES / "chakra" / "two_rank.1.et").facts
    assert (facts["ranks"], facts["messages"], facts["collectives"][0]["groups"]) == (
        2,
        1,
        [[0, 1]],
    )


def test_a_folder_is_read_for_its_one_module_or_trace(tmp_path):
    """What --xla_dump_to leaves, and the ranks of a Chakra trace."""
    assert formats.read(SAMPLES / "chakra").facts["ranks"] == 2
    text = (SAMPLES / "hlo" / "cpu_groups_222.hlo.txt").read_text()
    (tmp_path / "module_0001.jit_f.cpu_after_optimizations.txt").write_text(text)
    (tmp_path / "module_0001.jit_f.before_optimizations.txt").write_text("HloModule x")
    assert formats.read(tmp_path).facts["ranks"] == 8
    (tmp_path / "module_0002.jit_g.cpu_after_optimizations.txt").write_text(text)
    with pytest.raises(FormatError, match="name the file"):
        formats.read(tmp_path)


@pytest.mark.parametrize("cut", [1, 50, 200])
def test_a_cut_chakra_trace_is_refused(cut, tmp_path):
    """The file and the reason are named."""
    for rank in (0, 1):
        content = (SAMPLES / "chakra" / f"two_rank.{rank}.et").read_bytes()
        (tmp_path / f"two_rank.{rank}.et").write_bytes(content[: -cut or None])
    with pytest.raises(FormatError, match=r"two_rank\.0\.et"):
        formats.read(tmp_path / "two_rank.0.et")
