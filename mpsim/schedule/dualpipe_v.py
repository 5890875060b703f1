"""DualPipeV: the phases of DualPipe on a V, so that one copy of the weights is enough.

Rank r holds stage r on the way down and stage 2p - 1 - r on the way up; the phases are those of
`dualpipe` with h = r, H = p and n = m. Every rank holds 2p + 1 chunks. Where a block is one unit
whose two outputs leave at its end, and tF = tB = tW, the bubble is (p - 1)(F&B + B - 3W), with F&B
the time of a block and B that of a full backward.

References
----------
deepseek-ai/DualPipe, README and dualpipev.py, commit 3da1bbea.
PyTorch 2.13, torch.distributed.pipelining.ScheduleDualPipeV.
"""

from __future__ import annotations

from mpsim.errors import ScheduleError
from mpsim.schedule.dualpipe import dualpipe_rank
from mpsim.schedule.facts import Schedule, check_counts, check_two_chunks
from mpsim.schedule.orders import Orders
from mpsim.schedule.stages import v_map
from mpsim.schedule.tape import from_tapes

_NAME = "dualpipe-v"


def dualpipe_v(*, pp: int, microbatches: int, virtual_stages: int = 2) -> Orders:
    """Orders of DualPipeV. `microbatches`: per optimizer step, at least 2 pp. `virtual_stages`: 2.

    Examples
    --------
    >>> dualpipe_v(pp=1, microbatches=2).tokens()
    [['0F0', '1F0', '0F1', '1B0', '(1F1;0B0)OVERLAP_F_B', '1B1', '0I1', '0W1']]
    """
    check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    check_two_chunks(_NAME, virtual_stages)
    if microbatches < 2 * pp:
        raise ScheduleError(
            f"{_NAME}: got microbatches = {microbatches} with pp = {pp}; needed at least 2 pp; set "
            f"microbatches to {2 * pp} or more"
        )
    tapes = [
        dualpipe_rank(rank, 2 * pp - 1 - rank, rank, half=pp, microbatches=microbatches)
        for rank in range(pp)
    ]
    return from_tapes(_NAME, tapes, microbatches=microbatches, stage_rank=v_map(pp))


DUALPIPE_V = Schedule(_NAME, dualpipe_v, chunks=2, fuses=True)
