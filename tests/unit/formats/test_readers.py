"""Readers of other tools' files: what they give, and what they refuse."""

from __future__ import annotations

import dataclasses
import gzip
import json
import tracemalloc

import pytest

from mpsim.errors import CalibrationError
from mpsim.formats import read
from mpsim.formats.kineto import stream_events
from mpsim.formats.tables import table_of
from mpsim.measured.sources import read_source

TABLE = """\
# nccl-tests version 2.17.6 nccl-headers=22803 nccl-library=22803
# Collective test starting: all_gather_perf
# nThread 1 nGpus 1 minBytes 8 maxBytes 1048576 step: 2(factor) warmup iters: 1 iters: 20 agg iters: 1 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  11 on node1 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  12 on node1 device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#  Rank  2 Group  0 Pid  13 on node2 device  0 [0000:04:00] NVIDIA H100 80GB HBM3
#  Rank  3 Group  0 Pid  14 on node2 device  1 [0000:05:00] NVIDIA H100 80GB HBM3
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw  #wrong     time   algbw   busbw  #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)             (us)  (GB/s)  (GB/s)
        1024            64     float    none      -1    20.50    0.05    0.04       0    20.10    0.05    0.04       0
     1048576         65536     float    none      -1    55.00   19.07   14.30       0    54.00   19.42   14.56       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 7.1
#
# Collective test concluded: all_gather_perf
"""


def report():
    """What -J writes for a run of two ranks on one node."""
    devices = [
        {"rank": rank, "group": 0, "hostname": "node1", "device_info": "NVIDIA H200"}
        for rank in range(2)
    ]
    row = {
        "size": 4096,
        "count": 1024,
        "type": "float",
        "redop": "sum",
        "root": "-1",
        "out_of_place": {"time": 12.5, "alg_bw": 0.3, "bus_bw": 0.3, "nwrong": 0.0},
        "in_place": {"time": 12.0, "alg_bw": 0.3, "bus_bw": 0.3, "nwrong": 0.0},
    }
    return {
        "version": 2,
        "args": ["./build/all_reduce_perf", "-J", "out.json"],
        "nccl_version": 22803,
        "config": {"nthreads": 1, "ngpus": 1, "devices": devices},
        "results": [row],
        "end_time": "2026-11-21 08:00:00",
    }


def trace(events):
    """A trace with a head as torch.profiler writes it."""
    return {
        "schemaVersion": 1,
        "deviceProperties": [{"id": 0, "name": "NVIDIA H100 80GB HBM3"}],
        "traceEvents": events,
    }


def product(external, name="aten::mm", dims=((64, 32), (32, 128))):
    return {
        "ph": "X",
        "cat": "cpu_op",
        "name": name,
        "ts": 0.0,
        "dur": 9.0,
        "args": {
            "External id": external,
            "Input Dims": [list(one) for one in dims],
            "Input type": ["c10::BFloat16", "c10::BFloat16"],
        },
    }


def gpu_kernel(external, dur, name="sm90_xmma_gemm_bf16"):
    args = {"External id": external, "device": 0}
    return {"ph": "X", "cat": "kernel", "name": name, "ts": 1.0, "dur": dur, "args": args}


def refused(path, text):
    with pytest.raises(CalibrationError) as caught:
        read_source(path)
    assert text in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_table_of_nccl_tests_gives_times_by_size_and_place(tmp_path):
    """Out-of-place times, ranks and nodes as the header lists them."""
    path = tmp_path / "anything.txt"
    path.write_text(TABLE)
    source = read_source(path)
    assert [(m.op, m.shape["bytes"], m.median) for m in source.measurements] == [
        ("all_gather", 1024, pytest.approx(20.5e-6)),
        ("all_gather", 1048576, pytest.approx(55e-6)),
    ]
    assert {(len(m.group), m.domains) for m in source.measurements} == {(4, 2)}
    assert source.device_name == "NVIDIA H100 80GB HBM3"


def test_json_of_nccl_tests_gives_the_same(tmp_path):
    """-J holds ranks, sizes and times in microseconds."""
    path = tmp_path / "out.json"
    path.write_text(json.dumps(report()))
    (one,) = read_source(path).measurements
    assert (one.op, one.shape["bytes"], one.median) == ("all_reduce", 4096, pytest.approx(12.5e-6))
    assert len(one.group) == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t[: t.index("# Out of bounds")], "truncated"),
        (lambda t: t[: t.index("55.00")], "truncated"),
        (lambda t: t.replace("#  Rank  1 Group  0 Pid  12", "#  Rank  9 Group  0 Pid  12"), "rank 1 of 10 is missing"),
        (lambda t: t.replace("node2 device  0 [0000:04:00] NVIDIA H100 80GB HBM3", "node2 device  0 [0000:04:00] NVIDIA A100"), "mixes"),
        (lambda t: t.replace("14.30       0", "14.30       7"), "7 elements were wrong"),
        (lambda t: t.replace("   20.50 ", "     nan "), "time is 'nan'"),
        (lambda t: t.replace("all_gather_perf", "mystery"), "which collective it is"),
    ],
)  # fmt: skip
def test_tables_that_cannot_be_trusted_are_refused(tmp_path, change, message):
    """Truncated, a rank missing, GPUs mixed, wrong results, no number, no name."""
    path = tmp_path / "table.txt"
    path.write_text(change(TABLE))
    refused(path, message)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 9}, "JSON version 9"),
        ({"end_time": None}, "truncated"),
        ({"results": []}, "holds no size"),
    ],
)
def test_reports_that_cannot_be_trusted_are_refused(tmp_path, change, message):
    """Another version, no end, no results."""
    data = {key: value for key, value in (report() | change).items() if value is not None}
    path = tmp_path / "out.json"
    path.write_text(json.dumps(data))
    refused(path, message)


def test_a_report_that_breaks_off_is_refused_with_its_line(tmp_path):
    """Half a JSON file is no JSON file."""
    path = tmp_path / "out.json"
    path.write_text(json.dumps(report(), indent=1)[:200])
    refused(path, "truncated")


def test_a_trace_gives_products_by_shape(tmp_path):
    """Kernels count for the operator that launched them; copies on the way do not."""
    events = [product(1), gpu_kernel(1, 5.0), gpu_kernel(1, 2.0, "elementwise_kernel")]
    events += [product(2), gpu_kernel(2, 7.0)]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace(events)))
    source = read_source(path)
    (one,) = source.measurements
    assert dict(one.shape) == {"m": 64, "n": 128, "k": 32, "batch": 1}
    assert one.seconds[0] == pytest.approx((5e-6, 7e-6))
    assert (one.dtype, source.device_name) == ("bfloat16", "NVIDIA H100 80GB HBM3")


def test_a_trace_gives_collectives_by_message(tmp_path):
    """NCCL kernels say what they carry; the fastest counts, since the others waited."""
    args = {
        "Collective name": "_allgather_base",
        "In msg nelems": 100,
        "Out msg nelems": 400,
        "Group size": 4,
        "dtype": "BFloat16",
    }
    events = [
        {"ph": "X", "cat": "kernel", "name": "ncclDevKernel", "ts": 0, "dur": dur, "args": args}
        for dur in (50.0, 30.0)
    ]
    path = tmp_path / "trace.json.gz"
    path.write_bytes(gzip.compress(json.dumps(trace(events)).encode()))
    source = read_source(path)
    (one,) = source.measurements
    assert (one.op, one.shape["bytes"], len(one.group)) == ("all_gather", 800, 4)
    assert one.median == pytest.approx(30e-6)
    assert "waiting" in source.warnings[0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (json.dumps(trace([product(1), gpu_kernel(1, 5.0)]))[:-40], "truncated"),
        (json.dumps(trace([gpu_kernel(1, 5.0)])), "record_shapes=True"),
        (json.dumps(trace([product(1), gpu_kernel(1, None)])), "has dur None"),
        ('{"schemaVersion": 1, "nothing": 2}', "no traceEvents"),
        (
            '{"schemaVersion": 1, "traceEvents": [{"a": 1}, {"b"' + " " * (1 << 26) + "2}]}",
            "event 2 is no JSON object",
        ),
    ],
)
def test_traces_that_cannot_be_used_are_refused(tmp_path, text, message):
    """Truncated, without shapes, without durations, without events."""
    path = tmp_path / "trace.json"
    path.write_text(text)
    refused(path, message)


def test_a_gzipped_trace_that_breaks_off_is_refused(tmp_path):
    """Half a gzip stream."""
    path = tmp_path / "trace.json.gz"
    packed = gzip.compress(json.dumps(trace([product(i) for i in range(3000)])).encode())
    path.write_bytes(packed[: len(packed) // 2])
    refused(path, "truncated")


def test_a_damaged_gzip_stream_is_refused(tmp_path):
    """Bytes that changed in the middle."""
    path = tmp_path / "trace.json.gz"
    packed = bytearray(gzip.compress(json.dumps(trace([product(i) for i in range(9000)])).encode()))
    packed[len(packed) // 2] ^= 0xFF
    packed[len(packed) // 2 + 9] ^= 0xFF
    path.write_bytes(packed)
    refused(path, "damaged")


def test_traces_are_streamed(tmp_path):
    """Memory does not grow with the file: 20 MB of events are read within 8 MB."""
    path = tmp_path / "large.json"
    filler = {"ph": "X", "cat": "other", "name": "x" * 500, "ts": 0, "dur": 1, "args": {}}
    line = json.dumps(filler)
    with path.open("w") as stream:
        stream.write('{"schemaVersion": 1, "traceEvents": [' + line)
        for _ in range(36_000):
            stream.write("," + line)
        stream.write("]}")
    assert path.stat().st_size > 20e6
    tracemalloc.start()
    count = sum(1 for _ in stream_events(path))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert count == 36_002
    assert peak < 8e6


KERNELS = """\
gpu,op,dtype,m,n,k,batch,heads,kv_heads,seq,head_dim,causal,pass,time_us,tflops,GBps,fraction_of_peak
H100 SXM,gemm,bf16,4096,4096,4096,,,,,,,,210,,,
H100 SXM,attention,bf16,,,,2,16,16,4096,128,1,fwd,900,,,
H100 SXM,gemm,bf16,4096,4096,1024,,,,,,,,,600,,
H100 SXM,attention,bf16,,,,2,16,16,4096,128,1,fwd,,500,,
H100 SXM,gemm incl. casts,fp8,4096,4096,1024,,,,,,,,300,,,
"""


def test_csv_of_kernels_keeps_rows_with_shape_and_time(tmp_path):
    """A product's time follows from its rate; attention without a time is left out."""
    path = tmp_path / "kernels.csv"
    path.write_text(KERNELS)
    found = read_source(path).measurements
    assert [one.op for one in found] == ["gemm", "attention", "gemm"]
    assert found[1].shape["sequence"] == 4096
    assert found[2].median == pytest.approx(2 * 4096 * 4096 * 1024 / 600e12)


def test_csv_of_kernels_tells_causal_attention_from_full(tmp_path):
    """The column decides, and a row that leaves it open is left out."""
    head, _, row, *_ = KERNELS.splitlines()
    path = tmp_path / "kernels.csv"
    whole, open_ = (row.replace("128,1,fwd", f"128,{word},fwd") for word in ("0", "not stated"))
    path.write_text(f"{head}\n{row}\n{whole}\n{open_}")
    assert [one.variant["causal"] for one in read(path).points] == [True, False]


COLLECTIVES = """\
system,collective,bytes,time_us,gpus,nodes
dgx-h100,all_reduce,1048576,55,16,2
dgx-h100,all_gather,4096,20.5,8,1
"""


def test_csv_of_collectives_says_how_many_ranks_on_how_many_nodes(tmp_path):
    """Two of a table: name, bytes, time, ranks and nodes; the table that is written of them reads back as the same points."""
    path, again = tmp_path / "collectives.csv", tmp_path / "again.csv"
    path.write_text(COLLECTIVES)
    found = read(path)
    points = [
        (one.op, one.bytes, one.seconds, one.ranks, one.domains, one.shape) for one in found.points
    ]
    assert points == [
        ("all_reduce", 1048576.0, (pytest.approx(55e-6),), 16, 2, {"bytes": 1048576}),
        ("all_gather", 4096.0, (pytest.approx(20.5e-6),), 8, 1, {"bytes": 4096}),
    ]
    again.write_text(table_of(found))
    assert table_of(read(again)) == table_of(found)
    assert [one.domains for one in read(again).points] == [2, 1]


def test_the_fastest_of_several_times_is_written(tmp_path):
    """What is slower waited for something else."""
    path = tmp_path / "collectives.csv"
    path.write_text(COLLECTIVES)
    found = read(path)
    noisy = dataclasses.replace(found.points[0], seconds=(70e-6, 55e-6, 60e-6))
    text = table_of(dataclasses.replace(found, points=(noisy, *found.points[1:])))
    assert text == table_of(found)


def test_csv_of_several_machines_asks_for_one(tmp_path):
    """Constants of a mixture are those of no machine; --only picks one."""
    path = tmp_path / "kernels.csv"
    path.write_text(KERNELS + KERNELS.splitlines()[1].replace("H100 SXM", "A100") + "\n")
    refused(path, "mixes gpus 'H100 SXM', 'A100'; pick one, such as --only gpu='H100 SXM'")
    assert len(read_source(path, only={"gpu": "A100"}).measurements) == 1


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"one,two\n1,2\n", "neither collectives nor kernels"),
        ("a.bin", b"\x00\x01\x02", "binary"),
        ("a.txt", b"", "is empty"),
        ("a.txt", b"hello\n", "nothing known wrote this"),
        ("a.json", b'{"some": "thing"}', "neither nccl-tests -J nor torch.profiler"),
        ("a.csv", KERNELS.replace("210", "NaN").encode(), "time_us is 'NaN'"),
        ("a.csv", KERNELS.replace("210", "-210").encode(), "time_us is '-210'"),
    ],
)
def test_files_of_nobody_are_refused(tmp_path, name, content, message):
    """Unknown columns, binary, empty, prose, other JSON, NaN."""
    path = tmp_path / name
    path.write_bytes(content)
    refused(path, message)
