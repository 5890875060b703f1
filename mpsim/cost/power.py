"""Power of an accelerator: what kernels draw, the clock a cap or lock leaves, the slow-down.

The clock is relative to the one of matrix products that only the board's own limit holds back.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Iterable

import numpy as np
from numpy.typing import ArrayLike

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import ConstantGroup, choose_group, constant_groups
from mpsim.hardware.components import Accelerator
from mpsim.hardware.lookup import board_power
from mpsim.memo import remembered
from mpsim.workload.operators import Operator, OperatorKind

_SLOWEST = 0.1  # of the clock: no board goes below, 210 of 1,410 MHz
_CURVE = ("static", "least_voltage", "slope")
_HALVINGS = 60  # of the interval in which a clock lies: beyond what a float can tell apart


class Load(enum.StrEnum):
    """Something that an accelerator does, by what it draws; a word of data and summaries."""

    PRODUCTS = "products"  # plain and grouped matrix products
    ATTENTION = "attention"
    STREAMS = "streams"  # kernels that memory bounds: norms, activations, casts, the optimizer
    TRANSFERS = "transfers"  # messages and collectives with no kernel beside them
    WAITING = "waiting"  # a context is open, clocks are up, nothing runs


KERNELS = (Load.PRODUCTS, Load.ATTENTION, Load.STREAMS)  # loads that are kernels


def load_of(operator: Operator) -> Load:
    """The load that a kernel is."""
    if operator.kind in (OperatorKind.GEMM, OperatorKind.GROUPED_GEMM):
        return Load.PRODUCTS
    matrix = operator.kind in (OperatorKind.ATTENTION, OperatorKind.SCAN)
    return Load.ATTENTION if matrix else Load.STREAMS


@structs.dataclass(frozen=True, slots=True)
class PowerCurve:
    """Power of kernels over the clock.

    Notes
    -----
    ``P(f) = static + (full - static) f v(f)^2`` with ``v(f) = max(least_voltage, 1 - slope (1 -
    f))``: linear in the clock at the lowest voltage, above the knee like its third power.

    References
    ----------
    Mei et al., A survey and measurement study of GPU DVFS on energy conservation, Digital
    Communications and Networks 3 (2017).

    Examples
    --------
    >>> curve = PowerCurve(static=0.23, least_voltage=0.77, slope=1.5)
    >>> round(curve.clock(0.6, 1.0), 3), curve.clock(1.0, 1.0)
    (0.81, 1.0)
    """

    static: float  # what a board that works draws whatever its clock, over its own limit
    least_voltage: float  # lowest voltage over that of full clock
    # fall of the voltage with the clock, both relative, above the knee at `least_voltage`
    slope: float

    def power(self, clock: ArrayLike, full: float) -> Floats:
        """Power at a clock of a load that draws `full` at full clock; the same below `static`."""
        clocks = np.asarray(clock, dtype=np.float64)
        voltage = np.maximum(self.least_voltage, 1.0 - self.slope * (1.0 - clocks))
        low = min(self.static, full)
        result: Floats = low + (full - low) * clocks * voltage**2
        return result

    def clock(self, cap: float, full: float) -> float:
        """Highest clock at which a load that draws `full` stays within a cap; 1 where it does at
        full clock, at least that of a board at its slowest.
        """
        if cap >= full:
            return 1.0
        low, high = _SLOWEST, 1.0
        if float(self.power(low, full)) >= cap:
            return low
        # power grows with the clock, so halving the interval ends at the one root
        for _ in range(_HALVINGS):
            middle = (low + high) / 2
            low, high = (middle, high) if float(self.power(middle, full)) <= cap else (low, middle)
        return low


@remembered(64)  # of each accelerator that a study meets
def _least_share(curve: PowerCurve) -> float:
    """Power of the hottest kernels at the slowest clock over the limit of a board."""
    draws = constant_groups("kernels")["power_draw"]
    return float(curve.power(_SLOWEST, max(draws.value(load.value) for load in KERNELS)))


class Board:
    """An accelerator under its limits: its own, a cap below it, a lock of its clock.

    `chip`: `tdp_w` below what the catalog has is a cap, `clock_hz` a lock. `use`: reads a constant
    of a group and records that it was used.
    """

    def __init__(
        self, chip: Accelerator, *, use: Callable[[ConstantGroup, str], float] | None = None
    ) -> None:
        self.chip = chip
        self._use = use or (lambda group, leaf: group.value(leaf))
        self._limit = board_power(chip)
        self._group = choose_group("kernels", "power_curve", chip.kind, chip.family)
        self._draws = constant_groups("kernels")["power_draw"]
        self.curve = PowerCurve(*(self._group.value(leaf) for leaf in _CURVE))
        self._cap = max(chip.tdp_w, self.least_w) / self._limit

    @property
    def limited(self) -> bool:
        """Whether anything but its own limit holds the board back."""
        return self._cap < 1.0 or self._lock < 1.0

    @property
    def least_w(self) -> float:
        """Power of the hottest kernels at the slowest clock [W]: the least cap that can be kept."""
        return self._limit * _least_share(self.curve)

    @property
    def _lock(self) -> float:
        """Clock of the lock over that of products at the board's own limit."""
        chip = self.chip
        if chip.clock_hz is None or chip.boost_clock_hz is None:
            return 1.0
        usual = self._use(self._group, "sustained_clock") * chip.boost_clock_hz
        return min(1.0, chip.clock_hz / usual)

    def kept(self, draw: float) -> float:
        """Clock that the board's own limit leaves of work that would draw so much at the clock of a
        short burst [W], over that clock.
        """
        for leaf in _CURVE:
            self._use(self._group, leaf)
        return self.curve.clock(self._limit / draw, 1.0)

    def clock(self, load: Load) -> float:
        """Clock of kernels of a kind, in (0, 1]; of a board that waits it says nothing and is 1."""
        if not self.limited or load is Load.WAITING:
            return 1.0
        for leaf in _CURVE:
            self._use(self._group, leaf)
        return min(self._lock, self.curve.clock(self._cap, self._full(load)))

    def rate(self, load: Load) -> float:
        """Share of its rate that a kind of kernel keeps, 1 on a board without cap and lock.

        Notes
        -----
        Products and attention go with the clock. Kernels that memory bounds, and transfers, keep
        their rate until processors ask for less than memory gives (``power_draw.needed_clock``).
        """
        clock = self.clock(load)
        if clock >= 1.0 or load in (Load.PRODUCTS, Load.ATTENTION):
            return clock
        return min(1.0, clock / self._use(self._draws, "needed_clock"))

    def watts(self, load: Load) -> float:
        """Power while this goes on [W]: at least that of an idle board."""
        idle = self.chip.idle_w
        if load is Load.WAITING:
            # clocks stay up while a context is open, so a pause is no idle board; it is never more
            # than transfers take
            awake = idle * self._draws.value("awake")
            return max(idle, min(awake, self.watts(Load.TRANSFERS)))
        share = float(self.curve.power(self.clock(load), self._full(load)))
        return max(idle, self._limit * share)

    def _full(self, load: Load) -> float:
        """Draw at full clock over the board's own limit."""
        return self._use(self._draws, load.value)


def unheld_caps(chips: Iterable[Accelerator]) -> list[str]:
    """A sentence for each cap that its board cannot keep."""
    low = (board for board in map(Board, chips) if board.chip.tdp_w < board.least_w)
    return [
        f"cluster.accelerator.tdp: a cap of {board.chip.tdp_w:g} W counts as {board.least_w:.0f} W,"
        f" which {board.chip.name} draws at its slowest clock"
        for board in low
    ]
