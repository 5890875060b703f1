"""Posterior of a user's errors: what measured runs say of others, and how sure that makes them."""

from __future__ import annotations

import numpy as np
import pytest

from mpsim.measured.posterior import Errors, Posterior, errors_of, spreads
from mpsim.result.residuals import Setting


def setting(tp: int = 1, *, exchange: float = 0.1, framework: str = "torch-ddp") -> Setting:
    """A run of one user."""
    labels = {
        "framework": (framework, "pytorch"), "accelerator": ("h100-sxm", "hopper"), "format": ("bf16", "wide"),
        "length": ("short",), "seen": ("memory",), "model": ("dense",), "layout": (f"tp {tp}, pp 1, cp 1, ep 1, dp 8",),
        "rest": ("1 a microbatch, zero 1, 1f1b, recompute none",),
    }  # fmt: skip
    return Setting(
        labels, 64, shares={"compute": 0.9 - exchange, "exchange": exchange, "rest": 0.1}
    )


def given(errors: Errors, *seen: float) -> Posterior:
    """What the first runs say."""
    return Posterior.of(errors.less(range(len(seen))), np.array(seen))


@pytest.mark.parametrize("figure", ["step", "memory"])
def test_nothing_measured_moves_nothing_and_more_runs_leave_less_unsure(figure: str) -> None:
    """The mean is 0 before anything ran; equal runs move the last one towards them, never beyond, and narrow its interval each time."""
    errors = errors_of([setting()] * 6, figure)
    widths = []
    for count in range(6):
        posterior = given(errors, *[0.05] * count)
        low, high = posterior.ends(errors.rows[:, -1:])
        widths.append(float(high[0] / low[0]))
        assert 0.0 <= (posterior.mean @ errors.rows)[-1] < 0.05
    assert widths == sorted(widths, reverse=True)
    assert not given(errors).mean.any()


def test_an_error_of_links_is_told_from_one_of_kernels_by_the_shares_of_a_step() -> None:
    """Runs that are as much longer as their exchanges are of the step lengthen one that exchanges much more than one that does not."""
    settings = [setting(exchange=share) for share in (0.0, 0.0, 0.3, 0.5, 0.0, 0.6)]
    errors = errors_of(settings, "step")
    quiet, busy = (given(errors, 0.0, 0.0, 0.06, 0.1).mean @ errors.rows)[4:]
    assert abs(quiet) < 0.02
    assert busy > 0.06


@pytest.mark.parametrize("tp", [1, 2, 8])
def test_all_that_runs_have_alike_is_one_level(tp: int) -> None:
    """Whatever the degree is: of runs that differ in nothing it is the whole error, of others no part of tp."""
    errors = errors_of([setting(tp)] * 3, "step")
    posterior = given(errors, 0.05, 0.08)
    assert posterior.mean @ errors.alike == pytest.approx((posterior.mean @ errors.rows)[0])
    mixed = errors_of([setting(tp), setting(2 * tp)], "step")
    assert mixed.alike[mixed.names.index("tp")] == 0.0
    assert mixed.alike[mixed.names.index("level")] == 1.0


def test_who_is_less_sure_learns_more_of_the_level() -> None:
    """Of a stack that nobody measured a run says more; a figure surer than users' errors make it changes nothing."""
    settings = [setting(), setting()]
    usual, sure, unsure = (errors_of(settings, "step", sigma=sigma) for sigma in (0.0, 0.01, 0.3))
    assert sure.sigma.tolist() == usual.sigma.tolist()
    few, many = ((given(errors, 0.1).mean @ errors.rows)[1] for errors in (usual, unsure))
    assert few < many < 0.1


def test_other_software_learns_less_than_the_same() -> None:
    """What is measured of one stack is in part its own."""
    errors = errors_of([setting(), setting(), setting(framework="megatron-core")], "step")
    same, other = (given(errors, 0.1).mean @ errors.rows)[1:]
    assert 0.0 < other < same


def test_a_run_far_off_says_that_its_user_is_far_off() -> None:
    """Twice as far off is learnt by more than twice as much: users differ in how far they are off."""
    errors = errors_of([setting()] * 4, "step")
    near, far = ((given(errors, off, off, off).mean @ errors.rows)[-1] for off in (0.04, 0.3))
    assert far / 0.3 > near / 0.04


def test_the_run_asked_for_is_unlike_those_that_were_measured() -> None:
    """After runs without tensor parallelism the one with most of it tells most, not a fourth of the same."""
    errors = errors_of([setting(), setting(), setting(), setting(), setting(4), setting(8)], "step")
    assert given(errors, 0.0, 0.0, 0.0).most_telling(errors, [3, 4, 5]) in (4, 5)


def test_draws_have_the_mean_and_the_spread_of_the_posterior() -> None:
    """Four thousand draws of a run that was not measured."""
    errors = errors_of([setting(), setting(2), setting(8)], "step")
    posterior = given(errors, 0.05, 0.08)
    drawn, noise = posterior.draw(4000, np.random.default_rng(1))
    last = drawn @ errors.rows[:, 2]
    assert last.mean() == pytest.approx(float((posterior.mean @ errors.rows)[2]), abs=4e-3)
    assert last.std() == pytest.approx(float(posterior.spread(errors.rows[:, 2:])[0]), rel=0.1)
    assert noise.min() < spreads("step")["noise"] < noise.max()
