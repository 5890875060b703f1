"""Sessions: every turn follows its answer, nothing is lost, and prefixes that are kept are not computed again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mpsim
from mpsim.errors import ScenarioError
from mpsim.scenario import Scenario
from mpsim.serving.planning import make_service
from mpsim.serving.result import ServiceResult

LOAD = {
    "rate": 8,
    "requests": 120,
    "turns": 6,
    "think_time": "2 s",
    "prompt": {"kind": "lognormal", "tokens": 300, "spread": 0.8},
    "output": {"kind": "lognormal", "tokens": 60, "spread": 0.5},
}


def scenario(load: dict[str, Any] | None = None, **serving: Any) -> Scenario:
    """A service of two replicas for sessions."""
    engine = {"preset": "vllm-v1", "prefix_cache": True, **serving.pop("engine", {})}
    own = {"replicas": 2, "engine": engine, "workload": {**LOAD, **(load or {})}, **serving}
    cluster = {"preset": "dgx-h100", "nodes": 1}
    return Scenario.from_mapping(
        {"schema": 1, "model": "llama3-8b", "cluster": cluster, "serving": own}
    )


def served(load: dict[str, Any] | None = None, **serving: Any) -> ServiceResult:
    """The service of `scenario`, run."""
    result = mpsim.simulate(scenario(load, **serving))
    assert isinstance(result, ServiceResult)
    return result


def kept(result: ServiceResult) -> float:
    """Share of the prompts' tokens that no engine computed."""
    summary = result.summary
    brought = sum(summary.get("prefix_brought_share", {}).values())
    return float(summary["prefix_hit_share"]) + brought


OPEN: dict[str, Any] = {}
CLOSED = {"arrival": "closed", "rate": None, "concurrency": 7}


@pytest.mark.parametrize("load", [OPEN, CLOSED], ids=["open", "closed"])
def test_a_turn_follows_the_answer_to_the_one_before(load: dict[str, Any]) -> None:
    """All requests are served; a prompt is what went before it and new tokens; the next comes after the answer."""
    result = served(load)
    drawn = make_service(scenario(load)).requests()
    assert sorted(result.requests.prompt) == sorted(drawn.prompt)
    assert np.isfinite(result.served.last).all()
    assert (np.diff(result.served.arrival) >= 0).all()
    whole = {int(p): at for at, p in enumerate(result.requests.prompt)}
    later = 0
    for number, follows in enumerate(drawn.following if drawn.following is not None else ()):
        if follows < 0:
            continue
        assert drawn.prompt[follows] > drawn.prompt[number] + drawn.output[number]
        before, after = whole[int(drawn.prompt[number])], whole[int(drawn.prompt[follows])]
        later += bool(result.served.arrival[after] > result.served.last[before])
    assert later >= 95  # of 100, but for prompts of equal length


def test_the_same_seed_gives_the_same_sessions(tmp_path: Path) -> None:
    """Twice the same figures, those of a saved result as well, and others with another seed."""
    one, two = served(), served()
    assert one.summary == two.summary
    one.save(tmp_path / "one.mpsim")
    assert mpsim.Result.load(tmp_path / "one.mpsim").summary == one.summary
    other = mpsim.simulate(scenario().with_values({"simulation.seed": 3}))
    assert other.summary["ttft_s"] != served().summary["ttft_s"]


def test_a_router_that_knows_prefixes_finds_more_of_them() -> None:
    """A session that stays with its instance finds what went before; in turn, half of it at most."""
    aware, turn = (served(routing=name) for name in ("prefix-aware", "round-robin"))
    assert kept(aware) > kept(turn)
    assert kept(served(engine={"prefix_cache": False})) == 0.0
    assert aware.summary["ttft_s"]["mean"] < turn.summary["ttft_s"]["mean"]


def test_memory_below_the_device_gives_back_what_it_dropped() -> None:
    """With little cache and much memory on the host as much is kept as with much cache; drives are slower than memory, and neither is slower than to compute again."""
    large, small = served(replicas=1), served(replicas=1, kv_blocks=600)
    host, disk = (
        served(replicas=1, kv_blocks=600, engine={f"{where}_cache": "200 GB"})
        for where in ("host", "disk")
    )
    assert kept(small) < 0.8 * kept(large)
    assert kept(host) == pytest.approx(kept(disk), rel=0.05)
    assert 0.9 * kept(large) < kept(host) <= 1.02 * kept(large)
    ttft = [one.summary["ttft_s"]["mean"] for one in (large, host, disk, small)]
    assert ttft == sorted(ttft)
    assert host.summary["prefix_brought_share"]["host_cache"] > 0.0
    assert disk.summary["prefix_brought_share"]["disk_cache"] > 0.0


def test_users_of_a_closed_loop_think() -> None:
    """With the time that they think users come round more seldom."""
    load = {**CLOSED, "turns": 1, "requests": 60}
    quick, slow = (served({**load, "think_time": f"{wait} s"}) for wait in (0, 20))
    ratio = quick.summary["request_rate_per_s"] / slow.summary["request_rate_per_s"]
    assert ratio > 5


def test_a_ramp_that_hides_the_stated_rate_is_told() -> None:
    """Sessions that last longer than they begin for show fewer requests a second, which is said with the mend."""
    (warning,) = (w for w in served().summary["warnings"] if "not the 8 stated" in w)
    assert "set warmup to" in warning
    long = served({"requests": 1200, "warmup": "15 s"}).summary
    assert not any("stated" in w for w in long["warnings"])
    assert long["request_rate_per_s"] == pytest.approx(8, rel=0.1)


@pytest.mark.parametrize(
    ("load", "reason"),
    [
        ({"arrival": "all-at-once", "rate": None}, "got turns with arrival: all-at-once"),
        ({"turns": 1}, "whose requests wait for no answer"),
        ({**CLOSED, "requests": None, "duration": "20 s"}, "give requests in its place"),
    ],
)
def test_sessions_without_sense_are_refused(load: dict[str, Any], reason: str) -> None:
    """What has no answers to follow, and what nobody could tell the end of."""
    with pytest.raises(ScenarioError, match=reason):
        scenario(load)
    with pytest.raises(ScenarioError, match="needed 1 to search for a rate") as caught:
        mpsim.search(scenario(slo={"ttft": "1 s"}), objective="rate")
    assert [problem.key for problem in caught.value.problems] == ["serving.workload.turns"]


@pytest.mark.parametrize(("block", "shared"), [(16, 400), (64, 384), (256, 256), (512, 0)])
@pytest.mark.parametrize("host", ["0 GB", "10 GB"])
def test_whole_blocks_alone_are_shared(block, shared, host):
    """Of a prefix of 400 tokens engines keep those of full blocks; one shorter than a block is computed by every request."""
    load = {"turns": 1, "think_time": "0 s", "prompt": 1000, "output": 2, "shared_prefix": 400}
    engine = {"block": block, "host_cache": host}
    result = served({**load, "requests": 40}, engine=engine, replicas=1)
    assert kept(result) == pytest.approx(39 / 40 * shared / 1000)


@pytest.mark.filterwarnings("error")
def test_answers_of_one_token_are_counted_without_a_warning():
    """Numpy has nothing to say of requests that give no second token."""
    assert served({"output": 1, "requests": 40}).summary["output_tokens_per_s"] > 0
