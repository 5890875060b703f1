"""DualPipe: two pipelines in opposite directions, or a V, forwards beside the other's backwards.

Rank r holds stage r of one direction and stage p - 1 - r of the other, so there are two copies of
the weights; half of the microbatches run each way. A forward and a backward of different
microbatches run as one block, in which the communication of one hides behind the computation of the
other. Rank by rank, with h = min(r, p - 1 - r), H = p/2, n microbatches a direction, 0 the rank's
near direction and 1 the other:

1. 2(H - h - 1) times F0;
2. h + 1 times F0 F1;
3. H - h - 1 times I1 W1 F1;
4. n - 2H + h + 1 times (F0 with B1) (F1 with B0), the first pair apart on the two middle ranks;
5. H - h - 1 times B1 (F1 with B0);
6. h + 1 times B1 B0, the second half of them as I;
7. H - h - 1 times W I0;
8. h + 1 times W.

Weight gradients run in the order of their input gradients. Every rank holds p + 1 stages'
activations. Where a block is one unit whose two outputs leave at its end, and tF = tB = tW, the
bubble is (p/2 - 1)(F&B + B - 3W), with F&B the time of a block and B that of a full backward.

Microbatches 0 to m/2 - 1 go down the ranks and the others up.

References
----------
DeepSeek-AI, DeepSeek-V3 Technical Report, 2024, section 3.2.1, Figure 5.
deepseek-ai/DualPipe, README, dualpipe.py (order of the phases) and dualpipev.py, commit 3da1bbea.
PyTorch 2.13, torch.distributed.pipelining.ScheduleDualPipeV.
"""

from __future__ import annotations

from mpsim.errors import ScheduleError
from mpsim.schedule import registry
from mpsim.schedule.orders import Orders
from mpsim.schedule.stages import TwoWay, v_map
from mpsim.schedule.tape import Tape, from_tapes

_NAME = "dualpipe"


def dualpipe(*, pp: int, microbatches: int, virtual_stages: int = 1) -> Orders:
    """Orders of DualPipe.

    `pp`: ranks, even. `microbatches`: per optimizer step over both directions, even and at least 2
    pp. `virtual_stages`: 1: one part of the model a rank and direction.

    Examples
    --------
    >>> dualpipe(pp=2, microbatches=4).tokens()[0][:5]
    ['0F0', '3F2', '0F1', '3B2', '(3F3;0B0)OVERLAP_F_B']
    """
    registry.check_counts(_NAME, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    registry.check_one_chunk(_NAME, virtual_stages, instead="dualpipe-v")
    registry.check_even(_NAME, "pp", pp, why="the two directions meet between two ranks")
    registry.check_even(_NAME, "microbatches", microbatches, why="half of them run each way")
    _check_full(_NAME, pp, microbatches)
    ways = TwoWay(pp=pp, microbatches=microbatches)
    tapes = []
    for rank in range(pp):
        near, far = ways.stages_of(rank)
        if rank >= pp // 2:
            near, far = far, near
        place = min(rank, pp - 1 - rank)
        tapes.append(_phases(near, far, place, half=pp // 2, microbatches=microbatches // 2))
    return from_tapes(
        _NAME,
        tapes,
        microbatches=microbatches,
        stage_rank=ways.stage_rank,
        model_stage=ways.model_stage,
        first_microbatch_S=ways.first_microbatch,
    )


def dualpipe_v(*, pp: int, microbatches: int, virtual_stages: int = 2) -> Orders:
    """Orders of DualPipeV: DualPipe's phases on a V, so that one copy of the weights is enough.

    `microbatches`: per optimizer step, at least 2 pp. `virtual_stages`: 2.

    Rank r holds stage r on the way down and stage 2p - 1 - r on the way up; the phases are those
    above with h = r, H = p and n = m. Every rank holds 2p + 1 chunks. With blocks and times as
    above the bubble is (p - 1)(F&B + B - 3W).

    Examples
    --------
    >>> dualpipe_v(pp=1, microbatches=2).tokens()
    [['0F0', '1F0', '0F1', '1B0', '(1F1;0B0)OVERLAP_F_B', '1B1', '0I1', '0W1']]
    """
    name = "dualpipe-v"
    registry.check_counts(name, pp=pp, microbatches=microbatches, virtual_stages=virtual_stages)
    registry.check_two_chunks(name, virtual_stages)
    _check_full(name, pp, microbatches)
    tapes = [
        _phases(rank, 2 * pp - 1 - rank, rank, half=pp, microbatches=microbatches)
        for rank in range(pp)
    ]
    return from_tapes(name, tapes, microbatches=microbatches, stage_rank=v_map(pp))


def _check_full(name: str, pp: int, microbatches: int) -> None:
    if microbatches < 2 * pp:
        raise ScheduleError(
            f"{name}: got microbatches = {microbatches} with pp = {pp}; needed at least 2 pp; set "
            f"microbatches to {2 * pp} or more"
        )


def _phases(near: int, far: int, place: int, *, half: int, microbatches: int) -> Tape:
    """The eight phases of one rank, see above.

    `near` and `far`: the rank's stages: 0 and 1 of the phases. `place`: h, ranks between this one
    and its end of the pipeline. `half`: h, ranks from an end to where the directions meet.
    `microbatches`: n, of each stage.
    """
    rest = half - place - 1
    tape = Tape()
    tape.run(near, "F" * (2 * rest))
    for _ in range(place + 1):
        tape.run(near, "F")
        tape.run(far, "F")
    for _ in range(rest):
        tape.run(far, "IWF")
    for turn in range(microbatches - 2 * half + place + 1):
        if turn == 0 and rest == 0:  # the block would wait longer than it hides
            tape.run(near, "F")
            tape.run(far, "B")
        else:
            tape.overlap(near, far)
        tape.overlap(far, near)
    for _ in range(rest):
        tape.run(far, "B")
        tape.overlap(far, near)
    for turn in range(2 * (place + 1)):
        tape.run(near if turn % 2 else far, "B" if turn < place + 1 else "I")
    for _ in range(rest):
        tape.weight()
        tape.run(near, "I")
    for _ in range(place + 1):
        tape.weight()
    return tape


DUALPIPE = registry.Schedule(_NAME, dualpipe, directions=2, fuses=True)
DUALPIPE_V = registry.Schedule("dualpipe-v", dualpipe_v, chunks=2, fuses=True)
