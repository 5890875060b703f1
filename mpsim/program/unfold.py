"""Unfolding: every rank of every class by itself.

Folding is a matter of speed, never of result: while all ranks of a class do the same at the same time, one stands for all. Unfolded, each
has rows of its own, and a collective is one row on the streams of all its members.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim.program.csr import Lists, compress, owners
from mpsim.program.program import Program, Span, Stream

__all__ = ["unfold"]


def unfold(program: Program, *, tp: int, cp: int, dp: int) -> Program:
    """Give every rank its own rows.

    Parameters
    ----------
    program : Program
        Expanded: collectives inside templates have no members to meet.
    tp, cp, dp : int
        Degrees that the classes were folded over.

    Returns
    -------
    Program
        With ``tp * cp * dp`` times the rank classes, each of one rank; those of one class follow each other, tp fastest.

    Raises
    ------
    ValueError
        If the program still has templates.
    """
    if program.templates:
        raise ValueError("unfold needs an expanded program: call expand(program) first")
    copies = tp * cp * dp
    member, count = _instances(tp, cp, dp)
    span = program.span.astype(np.int64)
    each = count[span]
    base = np.cumsum(each) - each
    row = np.repeat(np.arange(len(program)), each)
    total = len(row)
    names = [
        f"{name} dp {d} cp {c} tp {t}"
        for name in program.rank_name
        for d in range(dp)
        for c in range(cp)
        for t in range(tp)
    ]
    home = _first_copy(member, span, row, base, total)
    peer = program.peer[row]
    dependencies, slots = _wired(program, base, member, copies, total)
    return Program(
        labels=program.labels,
        class_size=np.ones(program.ranks * copies, dtype=np.int64),
        rank_name=tuple(names),
        rank=(program.rank[row] * copies + home).astype(np.int32),
        stream=program.stream[row],
        kind=program.kind[row],
        stage=program.stage[row],
        chunk=program.chunk[row],
        microbatch=program.microbatch[row],
        peer=np.where(peer < 0, -1, peer * copies + home).astype(np.int32),
        label=program.label[row],
        part=program.part[row],
        span=program.span[row],
        template=program.template[row],
        duration=program.duration[row],
        up_bytes=program.up_bytes[row],
        out_bytes=program.out_bytes[row],
        dep_ptr=dependencies.ptr,
        dep=dependencies.value,
        slot_ptr=slots.ptr,
        slot=slots.value,
    )


def _instances(tp: int, cp: int, dp: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every span: which instance each copy takes part in [8, copies], and how many there are [8]."""
    grid = np.arange(dp * cp * tp).reshape(dp, cp, tp)
    member = np.zeros((8, dp * cp * tp), dtype=np.int64)
    for span in range(8):
        kept = grid
        for axis, flag in enumerate((Span.DP, Span.CP, Span.TP)):
            if span & flag:
                kept = np.broadcast_to(kept.take([0], axis=axis), kept.shape)
        member[span] = np.unique(kept.ravel(), return_inverse=True)[1]
    return member, member.max(axis=1) + 1


def _first_copy(
    member: NDArray[np.int64],
    span: NDArray[np.int64],
    row: NDArray[np.int64],
    base: NDArray[np.int64],
    total: int,
) -> NDArray[np.int64]:
    """Home copy of each new row: the first that takes part in it."""
    copies = member.shape[1]
    first = np.full(member.shape, -1, dtype=np.int64)
    for one in range(len(member)):
        first[one, member[one, ::-1]] = np.arange(copies)[::-1]
    instance = np.arange(total) - base[row]
    result: NDArray[np.int64] = first[span[row], instance]
    return result


def _wired(
    program: Program, base: NDArray[np.int64], member: NDArray[np.int64], copies: int, total: int
) -> tuple[Lists, Lists]:
    """Dependencies and slots of every copy."""
    copy = np.arange(copies)
    span = program.span.astype(np.int64)
    after = owners(program.dep_ptr)
    dependent = (base[after][:, None] + member[span[after]]).ravel()
    before = (base[program.dep][:, None] + member[span[program.dep]]).ravel()
    owner = owners(program.slot_ptr)
    holder = (base[owner][:, None] + member[span[owner]]).ravel()
    rank, stream = np.divmod(program.slot.astype(np.int64), len(Stream))
    slot = ((rank[:, None] * copies + copy) * len(Stream) + stream[:, None]).ravel()
    return compress(dependent, before, total), compress(holder, slot, total)
