"""Power of a board: its curve by hand, caps, locks, and what each kind of kernel loses."""

from __future__ import annotations

import dataclasses

import pytest

from mpsim.cost import Board, Load, PowerCurve
from mpsim.errors import HardwareError
from mpsim.hardware import accelerator

CURVE = PowerCurve(static=0.2, least_voltage=0.8, slope=1.0)


def capped(watts: float, name: str = "h100-sxm") -> Board:
    """A board of the catalog with a cap."""
    return Board(dataclasses.replace(accelerator(name), tdp_w=watts))


def locked(megahertz: float, name: str = "a100-sxm-80") -> Board:
    """A board of the catalog with a locked clock."""
    return Board(dataclasses.replace(accelerator(name), clock_hz=megahertz * 1e6))


def test_power_is_linear_in_the_clock_below_the_knee() -> None:
    """At 0.4 of the clock the voltage is at 0.8: 0.2 + 0.8 x 0.4 x 0.64 = 0.4048; above the knee at 0.9: 0.2 + 0.8 x 0.9 x 0.81 = 0.7832."""
    assert float(CURVE.power(0.4, 1.0)) == pytest.approx(0.4048)
    assert float(CURVE.power(0.9, 1.0)) == pytest.approx(0.7832)
    assert float(CURVE.power(1.0, 1.0)) == 1.0


def test_a_cap_finds_the_clock_that_draws_it() -> None:
    """The clock at 0.7832 of the limit is 0.9, at 0.4048 it is 0.4; a cap at the draw or above it is none."""
    assert CURVE.clock(0.7832, 1.0) == pytest.approx(0.9)
    assert CURVE.clock(0.4048, 1.0) == pytest.approx(0.4)
    assert CURVE.clock(1.0, 1.0) == CURVE.clock(0.5, 0.5) == 1.0


def test_a_cap_below_what_a_board_draws_at_rest_leaves_its_slowest_clock() -> None:
    """No clock is below a tenth of the full one."""
    assert CURVE.clock(0.05, 1.0) == 0.1


def test_a_board_without_cap_and_lock_is_not_limited() -> None:
    """Its own limit and the highest clock hold nothing back, and leave every rate at 1."""
    for board in (capped(700.0), locked(1410.0), capped(900.0)):
        assert not board.limited
        assert all(board.rate(load) == 1.0 for load in Load)


def test_a_cap_takes_of_products_and_leaves_what_memory_bounds() -> None:
    """H100 at 500 W: 0.82 of products as boards of 500 W show, streams and messages whole, and no load above the cap."""
    board = capped(500.0)
    assert board.rate(Load.PRODUCTS) == pytest.approx(0.82, abs=0.005)
    assert board.rate(Load.STREAMS) == board.rate(Load.TRANSFERS) == 1.0
    assert board.watts(Load.PRODUCTS) == pytest.approx(500.0)
    assert board.watts(Load.STREAMS) == 350.0


def test_a_lock_slows_products_from_the_clock_they_run_at() -> None:
    """A100 products run at 0.891 of 1,410 MHz under 400 W: a lock at 1,256 MHz costs nothing, one at 628 MHz half; streams keep their rate, at less power."""
    assert locked(1256.4).rate(Load.PRODUCTS) == 1.0
    half = locked(0.891 * 1410.0 / 2)
    assert half.rate(Load.PRODUCTS) == pytest.approx(0.5)
    assert half.rate(Load.STREAMS) == 1.0
    assert half.watts(Load.STREAMS) < locked(1410.0).watts(Load.STREAMS)


def test_waiting_takes_more_than_idling_and_less_than_sending() -> None:
    """A pause keeps the clock up: idle < waiting < transfers < streams < products."""
    board = capped(700.0)
    order = (Load.WAITING, Load.TRANSFERS, Load.STREAMS, Load.PRODUCTS)
    watts = [board.chip.idle_w, *(board.watts(load) for load in order)]
    assert watts == sorted(watts)
    assert len(set(watts)) == 5


@pytest.mark.parametrize(
    ("name", "megahertz", "says"),
    [
        ("a100-sxm-80", 1500.0, "a100-sxm-80: clock is 1500 MHz, needed at most its boost_clock of 1410 MHz"),
        ("tpu-v4", 900.0, "tpu-v4: clock is 900 MHz, but its highest clock is not known; needed boost_clock beside it"),
        ("h100-sxm", 0.0, "h100-sxm: clock_hz is 0, needed a finite number above 0"),
    ],
)  # fmt: skip
def test_a_lock_that_cannot_be_is_refused(name: str, megahertz: float, says: str) -> None:
    """Above the highest clock, of a chip whose clock nobody gave, or none at all."""
    with pytest.raises(HardwareError) as error:
        locked(megahertz, name)
    assert says in str(error.value)
