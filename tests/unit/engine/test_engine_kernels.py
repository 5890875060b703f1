"""Kernels inside rows: reduced to one number, for many durations at once."""

from __future__ import annotations

import dataclasses

import numpy as np

from mpsim.engine import run
from mpsim.engine.kernels import reduce_template
from mpsim.engine.structure import Structure
from mpsim.program import Program
from mpsim.program.expand import expand
from mpsim.training.build import build_program
from tests.plans import small_plan


def _program() -> Program:
    return build_program(small_plan(preset="megatron-core", recompute="selective"))


def test_a_template_with_its_own_durations_runs_as_it_was_evaluated() -> None:
    """Starts of its kernels and its span are those that it carries."""
    for one in _program().templates:
        start, span = reduce_template(one, one.duration[None, :])
        assert np.array_equal(start[0], one.start)
        assert span[0] == one.parts.sum()


def test_kernels_of_other_durations_give_the_step_of_the_program_expanded_with_them() -> None:
    """Jittered kernels, reduced to rows and replayed, against the expanded program with the same kernels."""
    program = _program()
    structure = Structure.of(program)
    draw = np.random.default_rng(1)
    jittered = [
        np.rint(one.duration * draw.lognormal(0, 0.3, (3, len(one.duration))))
        for one in program.templates
    ]
    pairs = zip(program.templates, jittered, strict=True)
    spans = np.stack([reduce_template(one, took)[1] for one, took in pairs], axis=1)
    plain = np.where(program.template < 0, program.duration, 0.0)
    rows = np.where(program.template < 0, plain, spans[:, program.template])
    fine = expand(program)
    for k in range(3):
        changed = dataclasses.replace(
            program,
            templates=tuple(
                dataclasses.replace(one, duration=took[k])
                for one, took in zip(program.templates, jittered, strict=True)
            ),
        )
        expected = run(dataclasses.replace(fine, duration=expand(changed).duration), "simpy")
        assert structure.makespans(rows)[k] == expected.makespan
