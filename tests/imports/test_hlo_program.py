"""Compiled modules of XLA that run: kernels, loops, collectives and what lies between their starts and ends."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import mpsim
from mpsim.engine import run
from mpsim.errors import FormatError
from mpsim.formats.hlo import program as module_of_programs
from mpsim.formats.hlo.memory import device_memory
from mpsim.formats.hlo.text import device_bytes, parse_module
from mpsim.formats.hlo.work import product_of, work_of
from mpsim.formats.mesh_axes import device_axes

SAMPLES = Path(__file__).parent / "samples"
GPU = SAMPLES / "hlo" / "gpu_dp2tp4_scan.hlo.txt.gz"
EXPECTED = json.loads((SAMPLES / "expected.json").read_text())
MODULES = [name for name, case in EXPECTED.items() if case["format"] == "hlo"]

HEAD = "HloModule m, is_scheduled=true, num_partitions=8\n\n"
DOT = (
    "%{name} = bf16[4096,4096]{{1,0}} dot({left}, %p), lhs_contracting_dims={{1}}, rhs_contracting_dims={{0}}, "
    'metadata={{op_name="{op}"}}'
)
REDUCE = "all-reduce{kind}({operand}), channel_id=1, replica_groups=[1,8]<=[8], use_global_device_ids=true, to_apply=%add"


def _written(tmp_path, text):
    file = tmp_path / "m.hlo.txt"
    file.write_text(text)
    return file


def read(tmp_path, text, cluster="dgx-h100"):
    """The program of some text on a cluster."""
    return mpsim.read(_written(tmp_path, text), format="hlo", cluster=cluster).program


def entry(*lines):
    """A module of one computation."""
    body = "\n".join(f"  {line}" for line in lines)
    return f"{HEAD}ENTRY %main (p: bf16[4096,4096]) -> bf16[4096,4096] {{\n  %p = bf16[4096,4096]{{1,0}} parameter(0)\n{body}\n}}\n"


def dot(name, left="%p", op="jit(step)/jvp()/dot"):
    """A product of two square matrices."""
    return DOT.format(name=name, left=left, op=op)


def overlapped(between):
    """A product, an all-reduce of it with some lines between start and done, and a product of the result."""
    return entry(
        dot("a"),
        "%s = bf16[4096,4096]{1,0} " + REDUCE.format(kind="-start", operand="%a"),
        *between,
        "%d = bf16[4096,4096]{1,0} all-reduce-done(%s)",
        "ROOT " + dot("z", "%d"),
    )


@pytest.mark.parametrize("name", MODULES)
def test_the_account_of_every_sample_sums_to_its_step_time(name):
    """Parts of every module's one rank class are whole ticks that sum to the makespan, and every exposed axis is one the groups show."""
    execution = mpsim.read(SAMPLES / name, cluster="dgx-h100").program.run()
    assert execution.parts.sum() == execution.timeline.makespan > 0
    exposed = {key for key in execution.breakdown if key.startswith("exposed_")}
    assert exposed == {f"exposed_{axis}" for axis in execution.source.axes}
    for times in execution.communication.values():
        assert times["hidden"] >= 0
        assert times["exposed"] >= 0


def test_the_open_gpu_sample_on_a_node_of_h100():
    """Products take what 219 GFLOP a device need at 300 to 800 TFLOP/s, and most communication along the four neighbours hides."""
    recorded = mpsim.read(GPU, cluster="dgx-h100")
    execution = recorded.program.run()
    summary = execution.summary
    assert summary["hardware_flops_per_step"] == 8 * 219_043_332_096
    assert recorded.facts["mesh"] == {"axis_0": 2, "axis_1": 4}
    # products alone at the dense peak of 989 TFLOP/s take 0.22 ms; the rest is bound by memory
    assert 0.22e-3 < summary["step_time_s"] < 4e-3
    assert summary["breakdown_s"]["backward"] > summary["breakdown_s"]["forward"]
    # a ring of n ranks sends 2 (n - 1)/n of what it reduces: five reductions of 8 MiB run twice or once, and the rest is small
    assert summary["communication_s"]["axis_1"]["bytes"] == pytest.approx(
        1.5 * (10 * 8_388_608 + 16_384 + 32_768), rel=1e-3
    )


def test_both_engines_agree_on_a_compiled_module():
    """Replay and simpy give every row the same start and end."""
    program = mpsim.read(GPU, cluster="dgx-h100").program.program
    one, other = run(program, "replay"), run(program, "simpy")
    assert np.array_equal(one.start, other.start)
    assert np.array_equal(one.end, other.end)


def test_an_all_reduce_is_hidden_by_what_lies_between_its_start_and_its_done(tmp_path):
    """Two products of 137 GFLOP take 0.4 ms together, longer than a reduction of 32 MiB over eight neighbours."""
    bare = read(tmp_path, overlapped([])).run()
    covered = read(tmp_path, overlapped([dot("b"), dot("c")])).run()
    axis = bare.source.axes[0]
    took = bare.communication[axis]["exposed"]
    assert bare.breakdown[f"exposed_{axis}"] == pytest.approx(took)
    assert bare.communication[axis]["hidden"] == 0
    assert covered.breakdown[f"exposed_{axis}"] == 0
    assert covered.communication[axis]["hidden"] == pytest.approx(took)
    product = bare.breakdown["forward"] / 2
    assert covered.timeline.step_time_s == pytest.approx(4 * product)


def test_a_synchronous_pair_hides_nothing(tmp_path):
    """``is_sync`` says that the backend waits, whatever lies between start and done."""
    text = overlapped([dot("b")]).replace(
        "to_apply=%add", 'to_apply=%add, backend_config={"is_sync":true}'
    )
    execution = read(tmp_path, text).run()
    axis = execution.source.axes[0]
    assert execution.communication[axis]["hidden"] == 0
    assert execution.breakdown[f"exposed_{axis}"] > 0


def test_collectives_of_one_queue_follow_each_other(tmp_path):
    """Two reductions that start together take twice the time of one."""
    start = "%s{n} = bf16[4096,4096]{{1,0}} " + REDUCE.format(kind="-start", operand="%p").replace(
        "{", "{{"
    ).replace("}", "}}")
    both = entry(
        start.format(n=1),
        start.format(n=2),
        "%d1 = bf16[4096,4096]{1,0} all-reduce-done(%s1)",
        "ROOT %d2 = bf16[4096,4096]{1,0} all-reduce-done(%s2)",
    )
    alone = entry(start.format(n=1), "ROOT %d1 = bf16[4096,4096]{1,0} all-reduce-done(%s1)")
    assert (
        read(tmp_path, both).run().timeline.makespan
        == 2 * read(tmp_path, alone).run().timeline.makespan
    )


def looped(trips, condition=""):
    """A loop over one product and one all-reduce that waits."""
    stated = f', backend_config={{"known_trip_count":{{"n":"{trips}"}}}}' if not condition else ""
    compare = f"  %limit = s32[] constant({trips})\n" if condition else ""
    return (
        f"{HEAD}%body (t: (s32[], bf16[4096,4096])) -> (s32[], bf16[4096,4096]) {{\n"
        "  %t = (s32[], bf16[4096,4096]{1,0}) parameter(0)\n"
        "  %p = bf16[4096,4096]{1,0} get-tuple-element(%t), index=1\n"
        f"  {dot('a')}\n"
        "  %r = bf16[4096,4096]{1,0} " + REDUCE.format(kind="", operand="%a") + "\n"
        "  %i = s32[] get-tuple-element(%t), index=0\n"
        "  ROOT %o = (s32[], bf16[4096,4096]{1,0}) tuple(%i, %r)\n}\n\n"
        "%cond (t: (s32[], bf16[4096,4096])) -> pred[] {\n  %t = (s32[], bf16[4096,4096]{1,0}) parameter(0)\n"
        f"{compare}  ROOT %c = pred[] constant(true)\n}}\n\n"
        "ENTRY %main (p: (s32[], bf16[4096,4096])) -> (s32[], bf16[4096,4096]) {\n"
        "  %p = (s32[], bf16[4096,4096]{1,0}) parameter(0)\n"
        f"  ROOT %w = (s32[], bf16[4096,4096]{{1,0}}) while(%p), condition=%cond, body=%body{stated}\n}}\n"
    )


def test_a_loop_takes_as_often_as_long_as_it_runs(tmp_path):
    """Seven passes are seven times one, whether the loop states them or its condition compares with them."""
    once = read(tmp_path, looped(1)).run().timeline.makespan
    stated, compared = (read(tmp_path, looped(7, how)).run() for how in ("", "compare"))
    assert stated.timeline.makespan == compared.timeline.makespan == 7 * once
    assert len(stated.timeline.program) == 14


def test_a_loop_too_long_to_unroll_takes_the_same_time(tmp_path, monkeypatch):
    """Times of one pass multiplied give the same end, account and FLOPs."""
    unrolled = read(tmp_path, looped(9)).run()
    monkeypatch.setattr(module_of_programs, "MOST_ROWS", 4)
    scaled = read(tmp_path, looped(9)).run()
    assert len(scaled.timeline.program) == 2
    # each pass is whole ticks, so that nine of them round nine times
    assert scaled.timeline.makespan == pytest.approx(unrolled.timeline.makespan, abs=18)
    assert scaled.summary["hardware_flops_per_step"] == unrolled.summary["hardware_flops_per_step"]
    assert scaled.breakdown == pytest.approx(unrolled.breakdown)
    assert "multiplied" in scaled.summary["warnings"][0]


def test_the_longest_branch_of_a_conditional_runs(tmp_path):
    """Nobody knows which branch a step takes; the longer one bounds it."""
    branch = "%{name} (p: bf16[4096,4096]) -> bf16[4096,4096] {{\n  %p = bf16[4096,4096]{{1,0}} parameter(0)\n  {line}\n}}\n\n"
    text = (
        HEAD
        + branch.format(name="long", line="ROOT " + dot("a"))
        + branch.format(name="short", line="ROOT %n = bf16[4096,4096]{1,0} negate(%p)")
        + "ENTRY %main (p: bf16[4096,4096], q: pred[]) -> bf16[4096,4096] {\n  %p = bf16[4096,4096]{1,0} parameter(0)\n"
        "  %q = pred[] parameter(1)\n  ROOT %c = bf16[4096,4096]{1,0} conditional(%q, %p, %p), true_computation=%short, "
        "false_computation=%long\n}\n"
    )
    assert read(tmp_path, text).flops == 2 * 4096**3


UPDATE = """HloModule m, is_scheduled=true

%fused (a: f32[8,1024], i: s32[], b: f32[1,1024]) -> f32[8,1024] {
  %a = f32[8,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %b = f32[1,1024]{1,0} parameter(2)
  %z = s32[] constant(0)
  ROOT %u = f32[8,1024]{1,0} dynamic-update-slice(%a, %b, %i, %z)
}

%taken (a: f32[8,1024], i: s32[]) -> f32[1,1024] {
  %a = f32[8,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %z = s32[] constant(0)
  ROOT %s = f32[1,1024]{1,0} dynamic-slice(%a, %i, %z), dynamic_slice_sizes={1,1024}
}

ENTRY %main (a: f32[8,1024], i: s32[]) -> f32[8,1024] {
  %a = f32[8,1024]{1,0} parameter(0)
  %i = s32[] parameter(1)
  %t = f32[1,1024]{1,0} fusion(%a, %i), kind=kLoop, calls=%taken
  ROOT %f = f32[8,1024]{1,0} fusion(%a, %i, %t), kind=kLoop, calls=%fused
}
"""


def test_a_fusion_moves_its_slices_and_its_updates():
    """Of 32 KiB a slice reads and writes a row of 4 KiB, and so does an update in place; the index is 4 bytes."""
    module = parse_module(UPDATE, "m")
    lines = module.computations["main"]
    assert work_of(module, "main", lines["t"]).moved == 2 * 4096 + 4
    assert work_of(module, "main", lines["f"]).moved == 2 * 4096 + 4


def test_memory_counts_a_buffer_from_its_writer_to_its_last_reader():
    """The arguments are 32 KiB and an index; the slice lives until the update, which takes the argument's place."""
    memory = device_memory(parse_module(UPDATE, "m"))
    assert memory["arguments"] == 32 * 1024 + 4
    assert memory["temporaries"] == 0.0
    assert memory["total"] == memory["arguments"] + memory["results"]


def test_arrays_in_a_space_of_their_own_take_no_main_memory():
    """``S(1)`` of a TPU is its vector memory."""
    assert device_bytes("bf16[8,128]{1,0:T(8,128)(2,1)}") == 2048
    assert device_bytes("bf16[8,128]{1,0:T(8,128)(2,1)S(1)}") == 0


def test_a_convolution_of_a_tpu_is_the_product_that_it_stands_for():
    """The TPU's module of the same model has the FLOPs of the GPU's, whose products are dots."""
    facts = [
        mpsim.read(SAMPLES / "hlo" / f"{device}_dp2tp4_scan.hlo.txt.gz").facts["dot_flops"]
        for device in ("gpu", "tpu")
    ]
    assert facts[0] == facts[1]


@pytest.mark.parametrize(
    ("window", "labels", "left", "right", "result", "flops"),
    [
        # a plain convolution: 3 places of the window in 6 outputs, 4 input and 5 output features, batch 2
        ("size=3", "b0f_0io->b0f", (2, 8, 4), (3, 4, 5), (2, 6, 5), 2 * 3 * 6 * 4 * 5 * 2),
        # padded by one on each side, the outermost outputs meet two places only: 3 x 8 - 2
        ("size=3 pad=1_1", "b0f_0io->b0f", (2, 8, 4), (3, 4, 5), (2, 8, 5), 2 * 22 * 4 * 5 * 2),
        # a batched product in TPU's spelling: each of 8 outputs meets its own place of the window
        (
            "size=8 stride=7 lhs_dilate=8",
            "0bf_0oi->0bf",
            (8, 16, 32),
            (8, 64, 32),
            (8, 16, 64),
            2 * 8 * 16 * 32 * 64,
        ),
    ],
)
def test_flops_of_convolutions_count_places_that_meet_an_input(
    window, labels, left, right, result, flops
):
    """Padding is not multiplied."""
    shapes = [f"f32[{','.join(map(str, shape))}]" for shape in (left, right, result)]
    text = (
        f"HloModule m\n\nENTRY %main (a: {shapes[0]}, b: {shapes[1]}) -> {shapes[2]} {{\n  %a = {shapes[0]} parameter(0)\n"
        f"  %b = {shapes[1]} parameter(1)\n  ROOT %c = {shapes[2]} convolution(%a, %b), window={{{window}}}, dim_labels={labels}\n}}\n"
    )
    module = parse_module(text, "m")
    product = product_of(module, "main", module.computations["main"]["c"])
    assert product is not None
    assert product.flops == flops


@pytest.mark.parametrize(
    ("groups", "pairs", "named", "sizes", "names"),
    [
        ([[[0, 1, 2, 3], [4, 5, 6, 7]]], [], [], (2, 4), ("axis_0", "axis_1")),
        (
            [[[0, 2], [1, 3]], [[0, 1, 4, 5], [2, 3, 6, 7]]],
            [],
            [],
            (2, 2, 2),
            ("axis_0", "axis_1", "axis_2"),
        ),
        ([], [[[0, 2], [2, 4], [4, 6], [6, 0]]], [], (4, 2), ("axis_0", "axis_1")),
        ([[[0, 4]]], [], [[("data", 2), ("one", 1), ("tensor", 4)]], (2, 4), ("data", "tensor")),
        ([[[0, 3, 5]]], [], [], (8,), ("axis_0",)),
    ],
)
def test_groups_show_the_axes_of_the_mesh(groups, pairs, named, sizes, names):
    """Strides cut the devices into axes; names of a mesh that somebody spelled out count."""
    axes = device_axes(groups, 8, pairs=pairs, named=named)
    assert (axes.sizes, axes.names) == (sizes, names)


BESIDE = """HloModule m, is_scheduled=true, num_partitions=8

%begin (a: bf16[1024]) -> (bf16[1024], bf16[8192], u32[]) {
  %a = bf16[1024]{0:T(1024)} parameter(0)
  %g = bf16[8192]{0:T(1024)} all-gather(%a), channel_id=82, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
  ROOT %s = (bf16[1024]{0:T(1024)}, bf16[8192]{0:T(1024)}, u32[]{:S(2)}) custom-call(%g), custom_call_target="AsyncCollectiveStart"
}

%async_collective_fusion.1 (a: bf16[1024], x: bf16[4096,4096]) -> (bf16[8192], bf16[4096,4096]) {
  %a = bf16[1024]{0:T(1024)} parameter(0)
  %g = bf16[8192]{0:T(1024)} all-gather(%a), channel_id=82, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
  %x = bf16[4096,4096]{1,0:T(8,128)} parameter(1)
  %y = bf16[4096,4096]{1,0:T(8,128)} dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  ROOT %t = (bf16[8192]{0:T(1024)}, bf16[4096,4096]{1,0:T(8,128)}) tuple(%g, %y)
}

%end (a: bf16[1024]) -> bf16[8192] {
  %a = bf16[1024]{0:T(1024)} parameter(0)
  %g = bf16[8192]{0:T(1024)} all-gather(%a), channel_id=82, replica_groups=[1,8]<=[8], dimensions={0}, use_global_device_ids=true
  ROOT %d = bf16[8192]{0:T(1024)} custom-call(%g), custom_call_target="AsyncCollectiveDone"
}

ENTRY %main (a: bf16[1024], x: bf16[4096,4096]) -> bf16[8192] {
  %a = bf16[1024]{0:T(1024)} parameter(0)
  %x = bf16[4096,4096]{1,0:T(8,128)} parameter(1)
  %s = (bf16[1024]{0:T(1024)}, bf16[8192]{0:T(1024)}, u32[]{:S(2)}) fusion(%a), kind=kCustom, calls=%begin
  %b = bf16[1024]{0:T(1024)} get-tuple-element(%s), index=0
  %f = (bf16[8192]{0:T(1024)}, bf16[4096,4096]{1,0:T(8,128)}) fusion(%b, %x), kind=kOutput, calls=%async_collective_fusion.1
  ROOT %d = bf16[8192]{0:T(1024)} fusion(%b), kind=kCustom, calls=%end
}
"""


def test_a_collective_of_a_tpu_that_runs_beside_kernels_counts_once(tmp_path):
    """Its start, the kernel that carries it on and its end name it three times; the kernel hides it."""
    recorded = mpsim.read(_written(tmp_path, BESIDE), format="hlo", cluster="tpu-v5e")
    program = recorded.program
    assert [item["times"] for item in recorded.facts["collectives"]] == [1]
    execution = program.run()
    axis = program.axes[0]
    assert execution.communication[axis]["hidden"] > 0
    assert execution.breakdown[f"exposed_{axis}"] == 0


def test_a_constant_over_several_lines_is_one_instruction():
    """Older printers give every row of a matrix a line."""
    text = "HloModule m\n\nENTRY %main () -> f32[2,2] {\n  ROOT %c = f32[2,2]{1,0} constant({\n    { 1, 2 },\n    { 3, 4 }\n  })\n}\n"
    assert parse_module(text, "m").computations["main"]["c"].kind == "constant"


@pytest.mark.parametrize(
    ("old", "new", "word"),
    [
        ("[1,8]<=[8]", "{{0,9}}", "device 9 of 8"),
        ("%z = bf16", "%z = token", ""),
    ],
)
def test_impossible_modules_are_refused_by_name(tmp_path, old, new, word):
    """A group of devices that are not there names the device; a strange type is only work that is not known."""
    text = overlapped([]).replace(old, new)
    if word:
        with pytest.raises(FormatError, match=word):
            read(tmp_path, text)
    else:
        assert read(tmp_path, text).run().timeline.makespan > 0
