"""Laws of serving: floors of an iteration, Little's law, the closed form of equal requests, and what more hardware may not make worse."""

from __future__ import annotations

import dataclasses
import itertools

import numpy as np
import pytest

import mpsim
from mpsim.hardware import accelerator, accelerator_names, build_cluster
from mpsim.scenario.fields import LengthChoice
from mpsim.scenario.serving import ServiceLevel, Workload
from mpsim.serving import service
from mpsim.serving.batching import Batch
from mpsim.serving.engines import engine
from mpsim.serving.log import Log
from mpsim.serving.plan import ServicePlan
from mpsim.serving.requests import Requests
from mpsim.serving.service import Service, open_lanes
from mpsim.serving.stream import draw_requests
from mpsim.serving.summary import figures_of
from mpsim.serving.tally import tally_of
from mpsim.workload import model
from tests.fuzz.laws import outdoes


def _plan(name="llama3-8b", *, preset="vllm-v1", tp=1, pp=1, **fields):
    return ServicePlan(
        name="law",
        model=model(name),
        cluster=build_cluster(accelerator="h100-sxm", accelerators_per_node=8, nodes=1),
        engine=engine(preset),
        workload=Workload(rate=8.0, requests=120),
        slo=ServiceLevel(),
        tp=tp,
        pp=pp,
        **fields,
    )


_SPREAD = LengthChoice(kind="uniform", tokens=80, shortest=0.5)


def _equal(count, prompt=512, output=64):
    return Requests(np.zeros(count), np.full(count, prompt), np.full(count, output))


def _serve(plan, requests, *, users=None, turnaround=0.0, front_end=0.0, stream=0.0, **fields):
    """Serve requests on one replica, as many users in a closed loop, or as they come."""
    own = dataclasses.replace(
        plan.engine, first_token_time=turnaround, tokenizer_time=front_end, stream_time=stream
    )
    load = Workload(arrival="closed", concurrency=users) if users else plan.workload
    fields = {"replicas": 1, "engine": own, "workload": load, **fields}
    return Service(requests, dataclasses.replace(plan, **fields)).run()


@pytest.mark.parametrize("name", ["llama3-8b", "mixtral-8x7b"])
@pytest.mark.parametrize("weights", ["bf16", "fp8"])
@pytest.mark.parametrize(("decodes", "prompt"), [(1, 0), (64, 0), (256, 0), (32, 2048), (0, 8192)])
def test_an_iteration_is_no_faster_than_memory_and_compute_allow(name, weights, decodes, prompt):
    plan = _plan(name, tp=2, weights=weights)
    work, rates = plan.work, plan.rates
    context = decodes * 1000.0
    seconds = plan.prices.seconds(Batch(decodes, context, prompt, prompt**2 / 2), int(prompt > 0))
    tokens = decodes + prompt
    moved = sum(linear.weights * linear.layers * linear.format.bytes for linear in work.linears)
    flops = sum(2 * linear.weights * linear.layers * tokens for linear in work.linears)
    for experts in work.experts:
        moved += experts.layers * experts.touched(tokens) * experts.elements * experts.format.bytes
        flops += 2 * experts.layers * experts.elements * experts.top_k * tokens / experts.ep
    moved += context * work.cache_elements * 2.0
    assert seconds >= moved / rates.bandwidth
    assert seconds >= flops / max(rates.peaks[form] for form in ("bf16", "fp8"))


@pytest.mark.parametrize("weights", ["bf16", "fp8", "w4a16", "mxfp4"])
def test_faster_memory_slows_no_iteration(weights):
    """Weights that multiprocessors widen slower than memory brings them take no longer where memory is faster, in prompts neither."""
    slow = _plan(weights=weights)
    node = slow.cluster.node
    for times in (1.1, 1.5, 3.0):
        chip = dataclasses.replace(
            node.accelerator, memory_bandwidth=times * node.accelerator.memory_bandwidth
        )
        cluster = dataclasses.replace(
            slow.cluster, node=dataclasses.replace(node, accelerator=chip)
        )
        fast = dataclasses.replace(slow, cluster=cluster)
        for tokens in (1, 32, 128, 512, 4096):
            batch = Batch(0, 0.0, tokens, 0.0)
            assert fast.prices.seconds(batch, 1) <= slow.prices.seconds(batch, 1) * (1 + 1e-9)


def test_closed_loop_obeys_littles_law():
    """Users in the system are the time-mean of requests in it, and that is throughput times the mean time each is there."""
    plan = _plan()
    requests = _equal(200)
    served = _serve(plan, requests, users=20)
    time_in_system = (served.last - served.arrival).sum()
    edges = np.sort(np.concatenate([served.arrival, served.last]))
    inside = [
        ((served.arrival <= low) & (served.last > low)).sum() * (high - low)
        for low, high in itertools.pairwise(edges)
    ]
    assert sum(inside) == pytest.approx(time_in_system, rel=1e-9)
    steady = (edges[:-1] < served.arrival.max()).nonzero()[0]
    counts = {((served.arrival <= edges[i]) & (served.last > edges[i])).sum() for i in steady}
    assert counts <= {0, *range(1, 21)}
    assert max(counts) == 20


@pytest.mark.parametrize("turnaround", [0.0, 0.03])
@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x"])
def test_users_of_a_closed_loop_are_served_or_on_their_way(preset, turnaround):
    """Little's law while requests last: users are the rate of requests times what each takes, the way between two of them included."""
    plan = _plan(preset=preset)
    users, requests = 12, draw_requests(Workload(rate=1.0, requests=150, output=_SPREAD), seed=5)
    served = _serve(plan, requests, users=users, turnaround=turnaround)
    end = served.arrival.max()
    inside = np.minimum(served.last + turnaround, end) - served.arrival
    assert inside.sum() == pytest.approx(users * end, rel=1e-9)
    assert served.arrival[users:].min() >= served.last.min() + turnaround


def test_a_request_on_its_way_misses_the_iteration_that_begins():
    """One user at a time in the engine of two: the second prompt waits for the decoding iteration under way, which one without a way does not."""
    plan = _plan()
    requests = Requests(np.zeros(3), np.full(3, 512), np.array([2, 40, 2]))
    at_once, later = (_serve(plan, requests, users=2, turnaround=way) for way in (0.0, 1e-6))
    assert at_once.started[2] == at_once.arrival[2]
    assert later.started[2] > later.arrival[2]


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x"])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"replicas": 2},
        {"replicas": 3, "routing": "least-load"},
        {"replicas": 2, "users": 24, "turnaround": 0.02},
    ],
    ids=["one", "in turn", "least load", "closed loop"],
)
def test_iterations_folded_into_jumps_change_nothing(preset, options, monkeypatch):
    """Many iterations as one event, or each as its own: the same times."""
    plan = _plan(preset=preset)
    requests = draw_requests(plan.workload, seed=2)
    folded = _serve(plan, requests, **options)
    monkeypatch.setattr(service, "LONGEST_JUMP", 1)
    single = _serve(plan, requests, **options)
    assert len(single.steps["start"]) > 1.5 * len(folded.steps["start"])
    assert folded.first == pytest.approx(single.first, rel=1e-9)
    assert folded.last == pytest.approx(single.last, rel=1e-9)


_CHIPS = [accelerator(name) for name in accelerator_names()]
_PAIRS = [(a.name, b.name) for a, b in itertools.permutations(_CHIPS, 2) if outdoes(b, a)]


@pytest.mark.parametrize("weights", ["bf16", "nvfp4"])
@pytest.mark.parametrize(("old", "new"), _PAIRS)
def test_a_chip_that_another_outdoes_is_never_faster(old, new, weights):
    """No kernel of an iteration takes longer on the better one, whatever the tokens; the head is asked of one rank, as its gather is the link's, and the one host of L40S that was measured is slow."""
    tokens = np.array([1.0, 8.0, 64.0, 256.0, 1024.0, 8192.0])
    parts = []
    for name in (old, new):
        cluster = build_cluster(accelerator=name, accelerators_per_node=8, nodes=1)
        plan = dataclasses.replace(_plan("mixtral-8x7b", tp=4, weights=weights), cluster=cluster)
        alone = dataclasses.replace(plan, tp=1).prices
        heads = np.array([alone.head_seconds(count) for count in tokens])
        parts.append({**plan.prices.parts(tokens), "head": heads})
    for part in ("linear", "experts", "streaming", "head"):
        seconds = parts[0][part]
        assert (parts[1][part] <= seconds * (1 + 1e-9)).all(), part


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x", "fastertransformer"])
def test_simulation_equals_the_closed_form_for_one_batch_of_equal_requests(preset):
    """All prompts fit one iteration; then the batch decodes its tokens one by one."""
    plan = _plan(preset=preset)
    batch, prompt, output = 8, 256, 40
    served = _serve(plan, _equal(batch, prompt, output))
    price = plan.prices.seconds
    first = price(Batch(0, 0.0, batch * prompt, batch * prompt**2 / 2), batch)
    steps = [price(Batch(batch, float(batch * (prompt + done)))) for done in range(1, output)]
    assert served.first == pytest.approx(np.full(batch, first), rel=1e-9)
    assert served.last == pytest.approx(np.full(batch, first + sum(steps)), rel=1e-9)


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x"])
def test_more_bandwidth_never_lowers_throughput(preset):
    ends = []
    for factor in (0.5, 1.0, 2.0):
        plan = _plan(preset=preset)
        rates = dataclasses.replace(plan.rates, bandwidth=plan.rates.bandwidth * factor)
        plan.__dict__["rates"] = rates
        ends.append(Service(_equal(96), plan).run().end)
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize("preset", ["vllm-v1", "sglang", "tensorrt-llm-1.x", "fastertransformer"])
def test_more_cache_never_lowers_throughput(preset):
    """Of equal requests, whose order cannot matter."""
    plan = _plan(preset=preset)
    few = 2000 // plan.engine.block
    ends = [_serve(plan, _equal(48), given_blocks=few * factor).end for factor in (1, 2, 4, 16)]
    assert ends == sorted(ends, reverse=True)


@pytest.mark.parametrize(("pads", "gains"), [(True, True), (False, False)])
def test_more_cache_costs_where_it_ends_between_two_graphs(pads, gains):
    """A cache of 32 requests fills a graph of TensorRT-LLM, and one of 40 none where it does not pad: the host launches its layers, and the service says so."""
    plan = _plan(preset="tensorrt-llm-1.x")
    own = dataclasses.replace(plan.engine, graph_padding=pads)
    blocks = (512 + 64) // own.block
    requests, rates, told = _equal(320), [], []
    for room in (32, 40):
        few = dataclasses.replace(plan, engine=own, given_blocks=room * blocks)
        served = _serve(few, requests)
        figures = figures_of(few, served, tally_of(few, requests, served))
        rates.append(figures["output_tokens_per_s"])
        told.append("graph_padding" in " ".join(figures["warnings"]))
    assert (rates[1] > rates[0]) is gains
    assert told == [False, not pads]


@pytest.mark.parametrize("what", ["bandwidth", "cache", "replicas"])
def test_more_of_the_machine_never_lowers_goodput(what):
    """Requests within their limits under an overload, with one, two and four times as much of one thing.

    More cache lets more sequences share an iteration, which slows each: it helps a limit on the first token, not one on the others.
    """
    kept = []
    requests = draw_requests(Workload(rate=40.0, requests=240, output=_SPREAD), seed=1)
    for factor in (1, 2, 4):
        plan = _plan(replicas=factor if what == "replicas" else 1)
        tpot = "20 ms" if what != "cache" else None
        slo, blocks = ServiceLevel(ttft="500 ms", tpot=tpot), 1200 * factor
        few = blocks if what == "cache" else None
        plan = dataclasses.replace(plan, slo=slo, given_blocks=few)
        if what == "bandwidth":
            rates = dataclasses.replace(plan.rates, bandwidth=plan.rates.bandwidth * factor / 2)
            plan.__dict__["rates"] = rates
        served = Service(requests, plan).run()
        kept.append(
            figures_of(plan, served, tally_of(plan, requests, served))["requests_within_slo"]
        )
    assert kept == sorted(kept)
    assert kept[-1] > kept[0]


def test_equal_seeds_give_equal_figures_and_others_do_not():
    plan = _plan()
    requests = [draw_requests(plan.workload, seed=seed) for seed in (1, 1, 2)]
    ends = [_serve(plan, stream) for stream in requests]
    assert ends[0].last.tobytes() == ends[1].last.tobytes()
    assert ends[0].last.tobytes() != ends[2].last.tobytes()


@pytest.mark.parametrize(("tp", "pp", "replicas"), [(1, 1, 1), (2, 1, 2), (1, 2, 1)])
def test_the_account_sums_to_the_duration(tp, pp, replicas):
    plan = _plan(tp=tp, pp=pp, replicas=replicas)
    requests = draw_requests(plan.workload, seed=0)
    served = _serve(plan, requests, replicas=replicas)
    figures = figures_of(plan, served, tally_of(plan, requests, served))
    parts = figures["account_s"]
    assert sum(parts.values()) == pytest.approx(served.end, rel=1e-9)
    assert min(parts.values()) >= -1e-12
    assert figures["output_tokens_per_s"] == pytest.approx(requests.output.sum() / served.end)


def test_two_replicas_of_half_the_load_are_one():
    """Round robin gives each replica every other request: each is served as if alone."""
    plan = _plan(replicas=2)
    workload = Workload(rate=8.0, requests=60, prompt=LengthChoice(tokens=700))
    requests = draw_requests(workload, seed=3)
    both = _serve(plan, requests, replicas=2)
    for part in range(2):
        own = Requests(
            requests.arrival[part::2], requests.prompt[part::2], requests.output[part::2]
        )
        alone = _serve(plan, own)
        assert both.last[part::2] == pytest.approx(alone.last, rel=1e-9)


@pytest.mark.parametrize("closed", [True, False])
def test_requests_pass_the_front_end_one_after_another(closed):
    """Eight requests that come at once: the k-th is queued k times its time later, and its first token waits for that too."""
    plan, each = _plan(), 0.5
    requests = Requests(np.zeros(8), np.full(8, 64), np.full(8, 4))
    users = 8 if closed else None
    slow, fast = (_serve(plan, requests, users=users, front_end=f) for f in (each / 64, 0.0))
    assert (slow.started >= each * np.arange(1, 9)).all()
    assert np.diff(slow.started).min() >= 0.99 * each
    assert (slow.first - slow.arrival > fast.first - fast.arrival).all()


_EVERYWHERE = np.argsort(np.sin(np.arange(320)))  # lengths in no order


def test_a_server_sends_no_more_tokens_than_it_has_time_for():
    """Behind a slow server the first tokens wait for those of others, the longer the answers are."""
    waits = []
    for output in (40, 160):
        requests = _equal(320, 64, output)
        requests.output[:] = np.linspace(0.5 * output, 1.5 * output, 320)[_EVERYWHERE]
        served = _serve(_plan(), requests, users=32, stream=0.5e-3)
        assert 0.9 < 0.5e-3 * requests.output.sum() / served.last.max() <= 1.0
        waits.append(np.mean(served.first - served.arrival))
    assert waits[1] > 1.5 * waits[0]


@pytest.mark.parametrize("before", [0.0, 0.9, 5.0])
@pytest.mark.parametrize("stream", [0.0, 0.5e-3, 2e-3])
def test_tokens_of_iterations_passed_at_once_are_sent_as_one_by_one(before, stream):
    lanes = [open_lanes(plan := _plan(), Log(_equal(1), plan, None))[0][0] for _ in range(2)]
    for lane in lanes:
        lane.stream_time, lane.sent = stream, before
    ends = 0.5 + 0.1 * np.arange(1, 9)
    one_by_one = [lanes[0].send(100, end) for end in ends]
    assert lanes[1].send(100, ends[-1], len(ends), 0.8) == pytest.approx(one_by_one[-1])


def test_a_piece_of_several_tokens_is_sent_once():
    plan = _plan("llama3-8b", preset="sglang")
    pieces = dataclasses.replace(plan.engine, stream_interval=10)
    assert dataclasses.replace(plan, engine=pieces).stream_time == plan.stream_time / 10 > 0
    assert dataclasses.replace(plan, prefill=plan).stream_time == 0  # front ends of their own


@pytest.mark.parametrize("engine", ["sglang", "vllm-0.5", "vllm-v1"])
def test_gaps_between_tokens_sum_to_the_time_of_the_answers(engine: str) -> None:
    """Engines that compute prompts first hold those who decode: gaps count that (SGLang's were half of the time per token), and none is counted twice."""
    data = {
        "schema": 1,
        "model": {"preset": "llama3-8b", "layers": 4},
        "cluster": {"preset": "dgx-h100", "nodes": 1},
        "serving": {
            "engine": engine,
            "replicas": 1,
            "workload": {
                "rate": 300,
                "requests": 60,
                "prompt": {"tokens": 700},
                "output": {"tokens": 40},
            },
        },
    }
    summary = mpsim.simulate(mpsim.Scenario.from_mapping(data)).summary
    # beside it, what the server takes to send them
    assert summary["itl_s"]["mean"] == pytest.approx(summary["tpot_s"]["mean"], rel=0.05)
