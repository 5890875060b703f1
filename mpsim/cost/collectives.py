"""Seconds of collectives and point-to-point messages on a cluster.

Size S of a collective: the whole tensor for all-reduce, broadcast and reduce; the *gathered* one
for all-gather and reduce-scatter; a rank's send buffer for all-to-all; the message for send_recv.
"""

from __future__ import annotations

from typing import TypeAlias, TypeVar, cast

import numpy as np

from mpsim import structs
from mpsim.arrays import Floats
from mpsim.cost.constants import Answer, Constant, Ledger, choose_group, constant_groups
from mpsim.cost.curves import CollectiveCurves, machine_curves
from mpsim.cost.libraries import FittedLibrary, make_library
from mpsim.cost.network import COLLECTIVES, floor_seconds
from mpsim.errors import HardwareError, nearest
from mpsim.hardware.cluster import Cluster
from mpsim.memo import Memo, remembered
from mpsim.parallel.crossing import GroupShape

Size = TypeVar("Size", float, Floats)  # bytes or seconds: one number, or one for each of several

_MODELLED = "model"
_ANSWERS = 4096  # remembered: collectives of one size, or of several
_MODELS = 64  # clusters whose collectives are


@structs.dataclass(frozen=True, slots=True)
class CollectiveAnswer:
    """Time of one collective, and what it rests on."""

    seconds: float  # seconds, floor: time, and the least time of any algorithm on these links [s]
    floor: float
    # library, algorithm, protocol: those whose time `seconds` is; ``none`` where nothing runs or
    # protocols are not told apart, ``measured`` where the time was read from a curve
    library: str
    algorithm: str
    protocol: str
    basis: str  # ``model``, or what of a calibration the time was read from


class CollectiveModel:
    """Time and traffic of collectives on one cluster, alone on its links.

    `loaded`: True for training, where other traffic of the job shares the network (constants fitted
    on training runs); False for a benchmark on a quiet network. `library`: communication library
    (`mpsim.cost.libraries.library_names`); None for the one that the accelerators' vendor ships.
    `curves`: measured curves, which count instead of the model wherever they reach; left out, those
    of a calibrated cluster. `shared`: whether it shares answers with equal models; not so where
    constants of its library are changed by hand. HardwareError if the library does not exist or
    does not run on this cluster; CalibrationError if the curves were measured with another library
    or on another accelerator.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        loaded: bool = True,
        library: str | None = None,
        curves: CollectiveCurves | None = None,
        shared: bool = True,
    ) -> None:
        self.cluster = cluster
        self.ledger = Ledger()
        for link in (cluster.node.scale_up, cluster.node.nic):
            self.ledger.note_link(link)
        self.library = make_library(library, cluster, self.ledger, loaded=loaded)
        self.curves = curves or machine_curves(cluster.calibration, self.library.name)
        # by whether a group leaves its domain: those that do not share theirs whatever the NICs are
        self._known: list[_Answers] = [Memo(_ANSWERS), Memo(_ANSWERS)]
        if shared and curves is None:
            alike = (loaded, self.library.name)
            self._known = [_answers(part, *alike) for part in (cluster.inside, cluster)]
        if curves is not None:
            curves.check_made_for(self.library.name, cluster.accelerator.kind)

    def seconds(self, kind: str, size_bytes: Size, group: GroupShape) -> Size:
        """Time of one collective, never below `floor`. `kind`: one of `COLLECTIVES`. `size_bytes`:
        S as the module's docstring defines it [B]. Returns: time [s]; 0 for a group of one.
        """
        # steps ask for the same few again and again: to price a row, and what runs beside it
        size = np.asarray(size_bytes, dtype=np.float64)
        key, known = (kind, size.shape, size.tobytes(), group), self._known[group.crosses]
        if (answer := known.get(key)) is None:
            with self.ledger.apart() as used:
                answer = Answer(self._seconds(kind, size, group), used)
            known[key] = answer
        self.ledger.note_all(answer.used)
        return _like(size_bytes, answer.value)

    def _seconds(self, kind: str, sizes: Floats, group: GroupShape) -> Floats:
        _check_kind(kind)
        if group.ranks <= 1:
            return np.zeros_like(sizes)
        size = np.asarray(0.0) if kind == "barrier" else sizes
        result = self._measured(kind, size, group)
        if result is None:
            result = self._modelled(kind, size, group)
        result = np.maximum(result, floor_seconds(kind, size, group, self.cluster))
        return np.broadcast_to(result, sizes.shape)

    def summed_in_fabric(self, size_bytes: float, group: GroupShape) -> float:
        """Time of an all-reduce that switches of the network sum (SHARP) [s]. `size_bytes`: of
        every rank's tensor [B]. `group`: of ranks in several domains.

        Notes
        -----
        ``latency + S / (share NICs rate)``: the latency is that of a small all-reduce, the rate
        what a NIC sustains on a quiet network.
        """
        node, ledger = self.cluster.node, self.ledger
        share = ledger.use(constant_groups("collectives")["fabric.sums"], "summed_share")
        link = node.nic
        quiet = choose_group("collectives", "quiet", link.name, "network")
        rate = node.nics * link.bandwidth * ledger.use(quiet, "nic_fraction")
        return self.seconds("all_reduce", 8.0, group) + size_bytes / (share * rate)

    def answer(self, kind: str, size_bytes: float, group: GroupShape) -> CollectiveAnswer:
        """Time of one collective with what runs and what the time rests on. `kind`: one of
        `COLLECTIVES`. `size_bytes`: S as the module's docstring defines it [B].
        """
        algorithm, protocol = self._priced(kind, size_bytes, group)
        return CollectiveAnswer(
            self.seconds(kind, size_bytes, group),
            self.floor(kind, size_bytes, group),
            self.library.name,
            algorithm,
            protocol,
            self._basis(kind, size_bytes, group),
        )

    def floor(self, kind: str, size_bytes: Size, group: GroupShape) -> Size:
        """Least time of any algorithm on these links [s]: `mpsim.cost.network.floor_seconds`."""
        _check_kind(kind)
        return _like(size_bytes, floor_seconds(kind, size_bytes, group, self.cluster))

    def wire_bytes(self, kind: str, size_bytes: Size, group: GroupShape) -> tuple[Size, Size]:
        """Bytes a rank sends on average over its scale-up link and over its NIC share [B]."""
        _check_kind(kind)
        if group.ranks <= 1 or kind == "barrier":
            zero = _like(size_bytes, np.zeros(np.shape(size_bytes)))
            return zero, zero
        inside, outside = self.library.sent_bytes(kind, np.asarray(size_bytes, float), group)
        return _like(size_bytes, inside), _like(size_bytes, outside)

    def send(
        self, size_bytes: Size, *, crosses: bool, share: int = 1, slowdown: float | None = None
    ) -> Size:
        """Time of one message between two accelerators: ``alpha + share S / B``.

        `size_bytes`: message [B]. `crosses`: whether it leaves the scale-up domain; then B is the
        sender's share of its node's NICs, else the pair's rate. `share`: messages that use the same
        link (or NIC share) at once. `slowdown`: by how much links of the fabric make it longer
        (`mpsim.parallel.crossing`); left out, it crosses the whole cluster.

        Returns: time [s].
        """
        if share < 1:
            raise HardwareError(f"share is {share}, needed 1 message or more")
        sizes = np.asarray(size_bytes, float)
        return _like(
            size_bytes, self.library.send(sizes, crosses=crosses, share=share, slowdown=slowdown)
        )

    def send_wire_bytes(self, size_bytes: Size, *, crosses: bool) -> tuple[Size, Size]:
        """Bytes a message puts on the sender's scale-up link and on its NIC share [B]."""
        zero = _like(size_bytes, np.zeros(np.shape(size_bytes)))
        return (zero, size_bytes) if crosses else (size_bytes, zero)

    def provenance(self) -> tuple[Constant, ...]:
        """Every constant that was used so far, by name."""
        return self.ledger.constants()

    def _modelled(self, kind: str, size: Floats, group: GroupShape) -> Floats:
        if kind == "send_recv":
            return self.library.send(
                size, crosses=group.crosses, share=1, slowdown=group.ring_slowdown
            )
        return self.library.seconds(kind, size, group)

    def _measured(self, kind: str, size: Floats, group: GroupShape) -> Floats | None:
        """Time from the calibration; None where it has nothing to say."""
        reading = self.curves.reading(kind, group) if self.curves else None
        if reading is None:
            return None
        self.ledger.note(reading.constant)
        return reading.seconds(size)

    def _priced(self, kind: str, size: float, group: GroupShape) -> tuple[str, str]:
        if group.ranks <= 1:
            return "none", "none"
        if self.curves and self.curves.reading(kind, group):
            return "measured", "none"
        return self.library.priced(kind, size, group)

    def _basis(self, kind: str, size: float, group: GroupShape) -> str:
        reading = self.curves.reading(kind, group) if self.curves else None
        if reading and group.ranks > 1:
            return reading.basis(size)
        if isinstance(self.library, FittedLibrary) and group.ranks > 1:
            return ", ".join(filter(None, (_MODELLED, self.library.reach(kind, group))))
        return _MODELLED


_Answers: TypeAlias = Memo[tuple[object, ...], Answer[Floats]]


@remembered(_MODELS)
def _answers(*content: object) -> _Answers:
    """Times of collectives that models of equal content have found [s]."""
    del content
    return Memo(_ANSWERS)


def _check_kind(kind: str) -> None:
    if kind not in COLLECTIVES:
        raise HardwareError(f"no collective {kind!r}; {nearest(kind, COLLECTIVES)}")


def _like(given: Size, result: Floats) -> Size:
    """A float for a float, an array for an array."""
    either: object = given
    return cast(Size, np.array(result) if isinstance(either, np.ndarray) else float(result))
