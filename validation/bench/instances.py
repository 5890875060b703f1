"""Instances of served models as rows of measured inference state them: ranks of each, and pools of their own for prompts and decoding."""

from __future__ import annotations

import dataclasses
import re

from mpsim.errors import CalibrationError
from mpsim.formats import Assumed
from mpsim.formats.tables import Cells

__all__ = ["InstanceLayout", "layout_of", "pools_of"]

_POOL = re.compile(
    r"(?P<name>prefill|decode) (?P<replicas>\d+) x \[tp(?P<tp>\d+) pp(?P<pp>\d+) dp(?P<dp>\d+) moe_tp(?P<inside>\d+) ep(?P<ep>\d+)\b[^]]*\]"
)
_POOLS = ["prefill", "decode"]
_SHORT = r"{}\W+(?P<kind>TP|TEP|DEP|EP|DP)[ =]?(?P<ranks>\d+)\b(?: ?x ?(?P<more>\d+))?"
_ATTENTION_DP = re.compile(
    r"\b(attention[-_ ]?dp|dp[-_ ]?attention)\b(?!\W+(off|false|disabled|no\b))", re.IGNORECASE
)
_ON, _OFF = ("true", "yes", "on"), ("", "false", "no", "off")
_NAMED = r"_tp(?P<tp>\d+)_ep(?P<ep>\d+)(?!\d)"  # the layout in the name of a run's file
_LEAST_WIDTH = 128  # of an expert's part: that of a block of scales


@dataclasses.dataclass(frozen=True, slots=True)
class InstanceLayout:
    """How each of equal instances divides the model.

    Parameters
    ----------
    tp, pp, ep, attention_dp : int
        Ranks of a stage, stages, ranks that divide the experts, ranks with requests of their own.
    replicas : int
    """

    tp: int
    pp: int
    ep: int
    attention_dp: int
    replicas: int = 1

    @property
    def accelerators(self) -> int:
        """Accelerators of all replicas."""
        return self.tp * self.pp * self.replicas


def layout_of(cells: Cells, assumed: list[Assumed]) -> InstanceLayout:
    """The instance that a row without pools describes.

    Raises
    ------
    CalibrationError
        If its columns contradict each other, or it needs what is not simulated.
    """
    tp, pp = cells.required("tp"), cells.whole("pp") or 1
    ep = cells.whole("ep") or 1
    if cells.whole("moe_experts") and not cells.whole("ep"):
        assumed.append(Assumed("ep", 1, "no expert parallelism is stated"))
    if (cells.whole("cp") or 1) > 1:
        raise CalibrationError("context parallel decoding is not simulated")
    each = (cells.whole("accel_per_instance") or tp * pp) // pp
    named = re.search(_NAMED, cells.text("source_place"))
    if named and ep > 1 and tp == int(named["tp"]) * ep:
        tp = each = int(named["tp"])
        assumed.append(Assumed("tp", tp, "as its place says: the row has it times ep"))
    attention_dp = _with_own_requests(cells, each)
    if attention_dp == 1 and _ATTENTION_DP.search(cells.text("server_flags")):
        attention_dp = each
        assumed.append(Assumed("attention_dp", each, "its script balances attention's ranks"))
    if attention_dp > 1 or ep > tp:
        tp = max(tp, each)
    if tp % attention_dp or (ep > 1 and (tp % ep and ep % tp)):
        raise CalibrationError(
            f"tp {tp}, ep {ep} and attention_dp {attention_dp} do not divide an instance"
        )
    if each != tp:
        raise CalibrationError(
            f"tp {tp} x pp {pp} are not the {each * pp} accelerators of an instance"
        )
    return InstanceLayout(tp, pp, ep, attention_dp)


def _with_own_requests(cells: Cells, ranks: int) -> int:
    """Ranks of an instance that attend to requests of their own: a number, words around one such as ``DP8``, or a switch for all of them."""
    text = cells.text("attention_dp").lower()
    if text in (*_ON, *_OFF):
        return ranks if text in _ON else 1
    stated = re.sub(r".*\bdp(?![a-z])\D*", "", text)
    return Cells({"attention_dp": stated}).whole("attention_dp") or 1


def _spelt_out(text: str) -> str:
    """Words such as ``2P1D: prefill TP4, decode DEP8`` as the layout of each pool: TP divides all, TEP the experts apart, DEP keeps requests on every rank.

    Examples
    --------
    >>> _spelt_out("2P1D: prefill TP4, decode DEP8").partition(";")[0]
    'prefill 2 x [tp4 pp1 dp1 moe_tp4 ep1]'
    """
    counts = re.search(r"\b(\d+)P ?(\d+)D\b", text, re.IGNORECASE)
    pools: list[str] = []
    for index, name in enumerate(_POOLS):
        found = re.search(_SHORT.format(name), text, re.IGNORECASE) or re.search(
            _SHORT.format(r"\dP ?\d+D"), text, re.IGNORECASE
        )
        if found is None:
            return text
        kind, ranks = found["kind"].upper(), int(found["ranks"])
        replicas = found["more"] or (counts[index + 1] if counts else 1)
        tp, dp = (1, ranks) if kind in ("DEP", "DP") else (ranks, 1)
        inside, ep = (ranks, 1) if kind == "TP" else (1, ranks)
        pools.append(f"{name} {replicas} x [tp{tp} pp1 dp{dp} moe_tp{inside} ep{ep}]")
    return "; ".join(pools)


def pools_of(cells: Cells) -> list[InstanceLayout]:
    """Instances of the pool for prompts, and of the one that decodes.

    Raises
    ------
    CalibrationError
        If the row does not say how many there are and how each is divided, or says what cannot be.
    """
    text = _spelt_out(cells.text("disagg_layout"))
    found = {match["name"]: match for match in _POOL.finditer(text)}
    if list(found) != _POOLS:
        raise CalibrationError(
            "the pools for prefill and decode are not stated: needed disagg_layout with workers and their layout for each"
        )
    pools: list[InstanceLayout] = []
    for name, match in found.items():
        replicas, tp, pp, dp, inside, ep = (
            int(match[key]) for key in ("replicas", "tp", "pp", "dp", "inside", "ep")
        )
        width = cells.whole("moe_ffn_hidden")
        if width is not None and inside > 1 and width // inside < _LEAST_WIDTH:
            inside, ep = 1, inside * ep  # the field is normalised: nobody cuts experts so thin
        if not cells.whole("moe_experts"):
            inside, ep = tp * dp, 1
        if inside * ep != tp * dp:
            raise CalibrationError(
                f"{name}: experts on {inside} x {ep} ranks are not the tp {tp} x dp {dp} of an instance"
            )
        pools.append(InstanceLayout(tp * dp, pp, ep, dp, replicas))
    total = sum(pool.accelerators for pool in pools)
    stated = cells.whole("num_accel")
    if stated is not None and stated != total:
        raise CalibrationError(f"the pools take {total} accelerators, num_accel says {stated}")
    return pools
