"""Periods: what the actions of a Program do again and again.

Between warm-up and flush a schedule repeats itself every so many microbatches: the same actions follow each other on every rank. A *turn* is what rows of one
microbatch do, so a period is a number of turns.

Shapes: N rows.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpsim.program.program import Program

__all__ = ["Periods", "periods_of"]


class Periods(NamedTuple):
    """Turns of the rows of a program, and how many of them are a period.

    Parameters
    ----------
    turn : int64[N]
        Turn of each row, ascending on each rank; -1 for what belongs to none.
    turns : int
        Turns of the whole program.
    length : int
        Turns of a period.
    """

    turn: NDArray[np.int64]
    turns: int
    length: int


def periods_of(program: Program) -> Periods | None:
    """The periods of a program, at least as long as there are ranks; None where its actions do not repeat themselves."""
    microbatch = program.microbatch
    acts = np.flatnonzero((microbatch >= 0) & program.vocabulary.is_action(program.kind))
    if not len(acts):
        return None
    # the rank with most actions shows the period; its middle third has to come again a period later
    ranks = np.bincount(program.rank[acts], minlength=1)
    mine = acts[program.rank[acts] == ranks.argmax()]
    code = (program.stage[mine] * len(program.vocabulary.kinds) + program.kind[mine]) * (
        len(program.templates) + 1
    ) + program.template[mine]
    own, middle = microbatch[mine], len(mine) // 2
    wide = slice(middle - len(mine) // 6, middle + len(mine) // 6)
    for later in middle + 1 + np.flatnonzero(code[middle + 1 : len(mine) * 3 // 4] == code[middle]):
        after = slice(wide.start + later - middle, wide.stop + later - middle)
        passed = int(own[later] - own[middle])
        alike = code[after] == code[wide]
        if passed > 0 and (alike & (own[after] - own[wide] == passed)).all():
            length = passed * -(-program.ranks // passed)
            return Periods(microbatch.astype(np.int64), int(microbatch.max()) + 1, length)
    return None
