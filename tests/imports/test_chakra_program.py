"""Chakra execution traces: what is exported comes back, and what others wrote runs."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest

import mpsim
from mpsim.engine import run
from mpsim.errors import FormatError, ScenarioError
from mpsim.formats.chakra.trace import (
    add_attributes,
    framed,
    message,
    messages,
    read_rank,
    read_ranks,
)
from mpsim.formats.chakra.writer import write_chakra
from mpsim.program import TICK, Stream
from mpsim.program.csr import owners
from mpsim.program.expand import expand
from mpsim.program.unfold import Unfolding

SAMPLES = Path(__file__).parent / "samples"
SMALL = {
    "schema": 1,
    "name": "small",
    "model": {"preset": "llama2-7b", "layers": 4},
    "cluster": {"preset": "dgx-h100", "nodes": 1},
    "parallelism": {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
    "training": {"global_batch": 8, "sequence_length": 1024, "precision": "bf16"},
    "framework": "megatron-core",
}
MICRO_TICKS = 1e-6 / TICK


def prepared(**changes):
    """A small step on eight GPUs, two replicas of two stages of pairs."""
    return mpsim.prepare(mpsim.Scenario.from_mapping({**SMALL, **changes}))


def unfolded(plan, program):
    """Every rank with rows of its own, and the rank of the job that each is."""
    mesh = plan.layout.mesh
    every = Unfolding(expand(program), {"tp": mesh.tp, "cp": mesh.cp, "dp": mesh.dp}).program()
    return every, mesh.ranks.reshape(-1)


def keys(program, ranks):
    """Every row by its place on the queues it occupies: (rank, queue, how many rows come before it there)."""
    row, slot = owners(program.slot_ptr), program.slot
    order = np.lexsort((row, slot))
    count = {}
    found = [[] for _ in range(len(program))]
    for number, where in zip(row[order].tolist(), slot[order].tolist(), strict=True):
        rank, stream = divmod(where, len(Stream))
        place = count[where] = count.get(where, -1) + 1
        found[number].append((int(ranks[rank]), stream, place))
    return [min(places) for places in found]


def described(program, ranks):
    """What every row does, by its place."""
    labels = [program.labels[label] for label in program.label.tolist()]
    return {
        key: (label, collective, size)
        for key, label, collective, size in zip(
            keys(program, ranks),
            labels,
            program.collective.tolist(),
            np.rint(program.size).tolist(),
            strict=True,
        )
    }


def waits(program, ranks):
    """Pairs of places, the second of which ends before the first starts."""
    place = keys(program, ranks)
    row, before = program.waits()
    return {
        (place[later], place[earlier])
        for later, earlier in zip(row.tolist(), before.tolist(), strict=True)
    }


def named(described_rows):
    """Rows whose empty labels are the names of their kinds, as the files name them."""
    return {
        key: (label, collective, size)
        for key, (label, collective, size) in described_rows.items()
        if label
    }


@pytest.mark.parametrize(
    "parallelism",
    [
        {"tp": 2, "pp": 2, "sequence_parallel": True, "zero": 1},
        {"tp": 1, "pp": 4, "zero": 0},
        {"tp": 8, "pp": 1, "sequence_parallel": True},
        {"tp": 1, "pp": 1, "zero": 3},
    ],
)
def test_a_program_comes_back_from_chakra(tmp_path, parallelism):
    """Operations, bytes and dependencies of every rank are the same, and times within half a microsecond each."""
    step = prepared(parallelism=parallelism)
    export = write_chakra(step, tmp_path)
    assert not any("left out" in loss.why for loss in export.lost)
    every, ranks = unfolded(step.plan, step.program)
    back = mpsim.read(tmp_path, cluster="dgx-h100").program.program
    own = np.arange(back.ranks)
    assert named(described(every, ranks)).items() <= described(back, own).items()
    assert len(every) == len(back)
    assert waits(every, ranks) == waits(back, own)
    stated = mpsim.read(tmp_path).program
    assert stated is not None
    before = dict(zip(keys(every, ranks), every.duration.tolist(), strict=True))
    after = dict(zip(keys(stated.program, own), stated.program.duration.tolist(), strict=True))
    assert before.keys() == after.keys()
    assert max(abs(before[key] - after[key]) for key in before) <= 0.5 * MICRO_TICKS


def test_bytes_on_links_come_back_where_the_cluster_is_named(tmp_path):
    """Collectives are priced by the same models from the same sizes, so that every rank sends what it sent."""
    step = prepared()
    write_chakra(step, tmp_path)
    every, ranks = unfolded(step.plan, step.program)
    back = mpsim.read(tmp_path, cluster="dgx-h100").program.program
    communicates = every.collective >= 0
    sums = [
        np.bincount(
            ranks[program.rank[chosen]] if program is every else program.rank[chosen],
            program.up_bytes[chosen],
            8,
        )
        for program, chosen in ((every, communicates), (back, back.collective >= 0))
    ]
    assert sums[0].sum() == pytest.approx(sums[1].sum(), rel=1e-6)


def test_an_imported_step_takes_the_time_of_the_exported_one(tmp_path):
    """Rounding to microseconds moves a step by less than its operations on the longest path together."""
    step = prepared()
    write_chakra(step, tmp_path)
    execution = mpsim.read(tmp_path).program.run()
    assert execution.timeline.step_time_s == pytest.approx(
        step.run().timeline.step_time_s, rel=5e-3
    )
    assert execution.parts.sum(axis=1).tolist() == [execution.timeline.makespan] * 8
    assert execution.breakdown["exposed_tp"] > 0


@pytest.mark.parametrize(
    ("model", "parallelism"),
    [
        ({"preset": "llama2-7b", "layers": 2}, {"tp": 2, "cp": 2, "zero": 1}),
        (
            {"preset": "mixtral-8x7b", "layers": 2},
            {"tp": 2, "ep": 4, "sequence_parallel": True, "zero": 1},
        ),
        ({"preset": "llama2-7b", "layers": 2}, {"cp": 4, "pp": 2}),
    ],
)
def test_rings_and_experts_go_through_chakra(tmp_path, model, parallelism):
    """Steps of a ring become messages, all-to-alls of experts keep their groups; the step and its account stay within a few percent."""
    step = prepared(model=model, parallelism=parallelism)
    write_chakra(step, tmp_path)
    result, execution = step.run(), mpsim.read(tmp_path).program.run()
    assert execution.timeline.step_time_s == pytest.approx(result.timeline.step_time_s, rel=0.05)
    assert not execution.source.warnings
    for part in ("forward", "backward", "weight_gradient", "optimizer", "host"):
        assert execution.breakdown[part] == pytest.approx(
            result.breakdown[part], rel=0.01, abs=1e-6
        )


def test_both_engines_agree_on_an_imported_trace(tmp_path):
    """Replay and simpy give every row the same start."""
    write_chakra(prepared(), tmp_path)
    program = mpsim.read(tmp_path).program.program
    assert np.array_equal(run(program, "replay").start, run(program, "simpy").start)


def test_types_of_attributes_are_those_that_astra_sim_reads(tmp_path):
    """A wrong member of the oneof reads 0 there: fields 7, 9, 13, 27 and 29 hold int32, int64, uint64, bool and string."""
    write_chakra(prepared(), tmp_path)
    _, nodes = read_rank(tmp_path / "small.0.et")
    send = next(node for node in nodes if node.kind == "COMM_SEND")
    call = next(node for node in nodes if node.kind == "COMM_COLL")
    assert send.attributes["comm_src"] == 0
    assert {"comm_dst", "comm_tag", "comm_size", "is_cpu_op"} <= send.attributes.keys()
    assert call.attributes["is_cpu_op"] is False
    _, *written = messages((tmp_path / "small.0.et").read_bytes())
    members = {
        (item.name, item.WhichOneof("value")) for message in written for item in message.attr
    }
    assert {
        ("comm_type", "int64_val"),
        ("comm_src", "int32_val"),
        ("tensor_size", "uint64_val"),
        ("is_cpu_op", "bool_val"),
        ("pg_name", "string_val"),
    } <= members


def test_the_wire_is_that_of_the_schema():
    """Bytes of a node by hand: id 3 (field 1), type 7 (field 3), an int64 attribute (field 10) whose scalar is field 9."""
    node = message("Node", id=3, type=7)
    add_attributes(node, {"comm_type": 2})
    assert (
        framed(node).hex() == "13" + "0803" + "1807" + "520d" + "0a09" + b"comm_type".hex() + "4802"
    )


def test_without_protobuf_the_command_says_what_to_install(mpsim_cli, monkeypatch):
    """Reading and writing need the extra; the message holds the line that brings it."""
    from mpsim.memo import forget

    forget()
    monkeypatch.setitem(sys.modules, "google.protobuf", None)
    done = mpsim_cli("import", "chakra", SAMPLES / "chakra")
    forget()
    assert done.code == 1
    assert "pip install 'mpsim[chakra]'" in done.err


def test_an_all_gather_states_its_shard_and_a_reduce_scatter_its_input(tmp_path):
    """ASTRA-sim multiplies the size of an all-gather by the ranks; ours is the gathered one."""
    step = prepared(parallelism={"tp": 8, "pp": 1, "sequence_parallel": True})
    write_chakra(step, tmp_path)
    _, nodes = read_rank(tmp_path / "small.0.et")
    sizes = {
        node.attributes["comm_type"]: node.attributes["comm_size"]
        for node in nodes
        if node.kind == "COMM_COLL" and node.attributes["comm_size"] > 1000
    }
    activations = 1024 * 4096 * 2  # tokens of a microbatch x hidden x 2 B
    assert sizes[2] * 8 == sizes[7] == activations


def test_the_command_writes_a_file_a_rank(mpsim_cli, tmp_path):
    """`mpsim export chakra` makes the folder, tells the losses, and needs to know where."""
    scenario = tmp_path / "small.yaml"
    scenario.write_text(json.dumps(SMALL))
    done = mpsim_cli("export", "chakra", str(scenario), "-o", str(tmp_path / "out"), "--json")
    told = json.loads(done.out)
    assert done.code == 0
    assert len(told["files"]) == len(list((tmp_path / "out").iterdir())) == 9
    assert told["lost"]
    homeless = mpsim_cli("export", "chakra", str(scenario))
    assert homeless.code == 2
    assert "folder" in homeless.err


def test_too_many_operations_and_unlike_replicas_are_refused(tmp_path, monkeypatch):
    """The message says how many there are; nothing is written."""
    monkeypatch.setattr("mpsim.formats.chakra.writer.MOST_NODES", 10)
    with pytest.raises(ScenarioError, match="needed at most 10"):
        write_chakra(prepared(), tmp_path / "out")
    assert not (tmp_path / "out").exists()


# --- traces of others


def node(number, name, kind, *, data=(), control=(), micros=0, **attributes):
    """One node, as a generator of traces writes it."""
    made = message(
        "Node",
        id=number,
        name=name,
        type=kind,
        ctrl_deps=control,
        data_deps=data,
        duration_micros=micros,
    )
    add_attributes(made, attributes)
    return framed(made)


def write(folder, *ranks, groups=None):
    """Files of some ranks."""
    for rank, nodes in enumerate(ranks):
        (folder / f"t.{rank}.et").write_bytes(
            framed(message("GlobalMetadata", version="1.0.0")) + b"".join(nodes)
        )
    if groups is not None:
        (folder / "t.comm_group.json").write_text(json.dumps(groups))
    return folder


def pair(late=100):
    """Two ranks that compute for 50 and for `late` microseconds, then reduce for 10, then compute for 5."""
    return [
        [
            node(1, "a", 4, micros=first),
            node(2, "r", 7, data=[1], micros=10, comm_type=0, comm_size=1 << 20, pg_name="1"),
            node(3, "b", 4, data=[2], micros=5),
        ]
        for first in (50, late)
    ]


def test_a_collective_starts_when_its_last_rank_arrives(tmp_path):
    """Rank 0 waits 50 us for rank 1 and both 10 us for the reduction: 100 + 10 + 5."""
    execution = mpsim.read(write(tmp_path, *pair(), groups={"1": [0, 1]})).program.run()
    assert execution.timeline.makespan == 115 * MICRO_TICKS
    mean = {name: seconds / 1e-6 for name, seconds in execution.breakdown.items() if seconds}
    assert mean == pytest.approx({"compute": (55 + 105) / 2, "bubble": 25, "exposed_axis_0": 10})


def test_messages_meet_by_tag_and_a_receiver_waits(tmp_path):
    """Two messages whose receives are listed the other way round: each meets its own."""
    sends = [
        node(1, "s1", 5, comm_src=0, comm_dst=1, comm_size=8, comm_tag=1, micros=10),
        node(2, "s2", 5, comm_src=0, comm_dst=1, comm_size=8, comm_tag=2, micros=10),
    ]
    receives = [
        node(1, "r2", 6, comm_src=0, comm_dst=1, comm_size=8, comm_tag=2, micros=10),
        node(2, "r1", 6, comm_src=0, comm_dst=1, comm_size=8, comm_tag=1, micros=10),
        node(3, "c", 4, data=[2], micros=7),
    ]
    recorded = mpsim.read(write(tmp_path, sends, receives))
    execution = recorded.program.run()
    assert recorded.facts["messages"] == 2
    assert (
        execution.timeline.makespan == 20 * MICRO_TICKS
    )  # the second message behind the first, c beside it
    assert execution.breakdown["exposed_pp"] > 0


def test_groups_of_metadata_count_where_no_json_lies_beside(tmp_path):
    """PyTorch lists its groups among the inputs of a metadata node; dependencies on metadata lead nowhere."""
    listed = json.dumps([{"pg_name": "1", "ranks": [0, 1], "group_size": 2}])
    ranks = [
        [
            framed(
                message(
                    "Node",
                    id=9,
                    name="## process_group:init ##",
                    type=1,
                    inputs=message("IOInfo", values=listed),
                )
            ),
            *nodes,
        ]
        for nodes in pair()
    ]
    trace = read_ranks(write(tmp_path, *ranks))
    assert trace.groups == {"1": (0, 1)}
    assert mpsim.read(tmp_path).program.run().timeline.makespan == 115 * MICRO_TICKS


def test_what_states_no_time_is_priced_on_the_cluster(tmp_path):
    """Computations by FLOPs and bytes, communication by the cost models; without a cluster there is no program."""
    folder = SAMPLES / "chakra"
    assert mpsim.read(folder).program is None
    execution = mpsim.read(folder, cluster="dgx-h100").program.run()
    assert execution.timeline.makespan > 0
    assert set(execution.source.axes) == {"axis_0", "pp"}
    assert execution.parts.sum(axis=1).tolist() == [execution.timeline.makespan] * 2


@pytest.mark.parametrize(
    ("ranks", "groups", "word"),
    [
        ([pair()[0][:1], pair()[1]], {"1": [0, 1]}, "calls 0 collectives"),
        (pair(), {"2": [0, 1]}, "neither the JSON"),
        (pair(), {"1": [0, 7]}, "has rank 7"),
        (pair(), {"1": [1]}, "in which it is not"),
        (
            [
                [
                    node(1, "a", 4, data=[2], micros=1),
                    node(2, "b", 4, data=[1], micros=1),
                    node(3, "s", 5, comm_dst=9, micros=1),
                ]
            ],
            None,
            "names rank 9",
        ),
        (
            [
                [
                    node(1, "a", 4, data=[2], micros=1),
                    node(2, "b", 4, data=[1], micros=1),
                    node(3, "r", 7, comm_type=0, comm_size=8, micros=1),
                ]
            ],
            None,
            "wait for each other",
        ),
    ],
)
def test_traces_that_cannot_run_are_refused_by_name(tmp_path, ranks, groups, word):
    """Ranks that call different collectives, groups nobody lists, cycles: the message names the rank."""
    with pytest.raises(FormatError, match=word):
        mpsim.read(write(tmp_path, *ranks, groups=groups), cluster="dgx-h100")
