"""Kernels: the inside of rows, from templates, without a row for each.

Shapes: N rows, Q kernels of a template, M templates, X kernels of all rows, K duration vectors.

A row with a template starts when everything before it on its compute stream has ended, on every
stream. So its inside depends on nothing but its own kernels: it is shifted, never stretched, and
one number says how long it takes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from mpsim import structs
from mpsim.arrays import Floats, Ints
from mpsim.engine.timeline import Timeline
from mpsim.program.program import Template


@structs.dataclass(frozen=True, slots=True, eq=False)
class KernelTimes:
    """When every kernel of a step ran."""

    # row, kernel: int64[X], int32[X], row of the program, and the kernel's number in the row's
    # template; 0 where a row has none, and is one kernel itself. Rows follow each other, and their
    # kernels within: the rows of ``expand(program)``
    row: Ints
    kernel: NDArray[np.int32]
    start: Floats  # start, end: float64[X], ticks since the step began
    end: Floats


def kernel_times(timeline: Timeline) -> KernelTimes:
    """Refine a timeline to kernels.

    Returns
    -------
    KernelTimes
        Equal, bit for bit, to what an engine gives the expanded program.
    """
    program = timeline.program
    size = [len(template.stream) for template in program.templates]
    base = np.cumsum([0, *size])
    plain = len(program.templates)
    template = np.where(program.template < 0, plain, program.template)
    count = np.array([*size, 1])[template]
    row = np.repeat(np.arange(len(program)), count)
    # where each kernel stands among those of all templates; the last place is for rows without one
    place = np.arange(len(row)) + np.repeat(base[template] - (np.cumsum(count) - count), count)
    zero = np.zeros(1)
    begins = np.concatenate([*(template.start for template in program.templates), zero])
    takes = np.concatenate([*(template.duration for template in program.templates), zero])
    kernel = np.concatenate([*(np.arange(q) for q in size), [0]]).astype(np.int32)
    start = timeline.start[row]
    start += begins[place]
    end = start + takes[place]
    single = np.cumsum(count)[template == plain] - 1
    end[single] = timeline.end[template == plain]
    return KernelTimes(row=row, kernel=kernel[place], start=start, end=end)


def reduce_template(template: Template, durations: Floats) -> tuple[Floats, Floats]:
    """Run the inside of a row alone, for many durations at once. `durations` (float64[K, Q]): of
    its kernels, not negative.

    Returns
    -------
    start : float64[K, Q]
        Of each kernel, since the start of the row.
    span : float64[K]
        Duration of the row: all its kernels have ended.
    """
    took = np.ascontiguousarray(durations.T)
    start, end = np.zeros_like(took), np.zeros_like(took)
    queue: dict[int, int] = {}
    pointer, before = template.before_ptr.tolist(), template.before.tolist()
    for kernel, stream in enumerate(template.stream.tolist()):
        awaited = {*before[pointer[kernel] : pointer[kernel + 1]]}
        awaited |= {queue[stream]} if stream in queue else set()
        for earlier in awaited:
            np.maximum(start[kernel], end[earlier], out=start[kernel])
        np.add(start[kernel], took[kernel], out=end[kernel])
        queue[stream] = kernel
    return start.T, end.max(axis=0, initial=0.0)
