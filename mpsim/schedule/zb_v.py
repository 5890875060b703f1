"""ZB-V: a split backward on a V, without a bubble inside a rank's own step when tF = tB = tW.

Rank r holds stage r on the way down (a) and stage 2p - 1 - r on the way up (b), so the last stage
lies on rank 0 beside the first. For m >= 2p - 1 and tW <= tF <= tB the makespan without
communication is 2mS + (p - 1) max(tB, 2(tB - tW)), S = tF + tB + tW of one chunk; a rank's own span
is 2mS + 2(p - 1)(tB - tW). Every rank holds 2p chunks, as 1F1B on rank 0.

With fewer microbatches the order is that of 2p - 1 with the actions of the others left out, as in
PyTorch. It is then neither free of bubbles nor evenly filled.

References
----------
Qi et al., Pipeline Parallelism with Controllable Memory, 2024, section 4 (ZB-V).
PyTorch 2.13, torch.distributed.pipelining.ScheduleZBVZeroBubble (order of the phases).
"""

from __future__ import annotations

from mpsim.schedule.orders import Orders
from mpsim.schedule.registry import Schedule, check_counts, check_two_chunks
from mpsim.schedule.stages import v_map
from mpsim.schedule.tape import Tape, from_tapes


def zb_v(*, pp: int, microbatches: int, virtual_stages: int = 2) -> Orders:
    """Orders of ZB-V. `microbatches`: per optimizer step, at least 1; the pipeline is full from 2
    pp - 1 on. `virtual_stages`: 2.

    Examples
    --------
    >>> zb_v(pp=1, microbatches=2).tokens()
    [['0F0', '1F0', '1I0', '1W0', '0F1', '0I0', '0W0', '1F1', '1I1', '1W1', '0I1', '0W1']]
    """
    check_counts("zb-v", pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_two_chunks("zb-v", virtual_stages)
    built = max(microbatches, 2 * pp - 1)
    tapes = [_rank(pp, rank, built) for rank in range(pp)]
    return from_tapes("zb-v", tapes, microbatches=microbatches, stage_rank=v_map(pp))


def _rank(pp: int, rank: int, microbatches: int) -> Tape:
    """Fill, steady state and drain of one rank."""
    a, b = rank, 2 * pp - 1 - rank
    above = pp - rank  # ranks from this one to the turn of the V
    tape = Tape()
    tape.run(a, "F" * (2 * above - 1))
    for _ in range(rank):
        tape.run(b, "F")
        tape.run(a, "F")
    for _ in range(above):
        tape.run(b, "FIW")
    while tape.forwards(b) < microbatches:
        tape.run(a, "FIW" if tape.forwards(a) < microbatches else "IW")
        tape.run(b, "FIW")
    for _ in range(rank):
        tape.run(a, "I")
        tape.run(b, "I")
    tape.run(a, "IW" * above)
    tape.run(b, "W" * tape.waiting(b))
    tape.run(a, "W" * tape.waiting(a))
    return tape


ZB_V = Schedule("zb-v", zb_v, chunks=2, splits=True)
