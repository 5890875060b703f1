"""Expansion: operators of one part of the model, both passes, in order of execution."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable

from mpsim import structs
from mpsim.errors import WorkloadError
from mpsim.workload.operators import Operator, Split


@structs.dataclass(frozen=True, slots=True)
class Tokens:
    """The part of a microbatch that one context-parallel rank works on."""

    sequences: int  # sequences of the microbatch
    queries: int  # tokens of each that live on this rank
    keys: int  # tokens of each that its queries attend to: the whole sequence

    @classmethod
    def of(cls, sequences: int, sequence_length: int, context: int) -> Tokens:
        """Divide sequences among `context` ranks; WorkloadError if they do not divide."""
        mistakes = [
            f"{name} is {value!r}; it must be a whole number of at least 1"
            for name, value in (
                ("sequences", sequences),
                ("sequence_length", sequence_length),
                ("context", context),
            )
            if not _positive(value)
        ]
        if not mistakes and sequence_length % context:
            mistakes.append(
                f"sequence_length {sequence_length} does not divide by the context-parallel degree "
                f"{context}; pad the sequence or choose another degree"
            )
        if mistakes:
            raise WorkloadError("\n".join(mistakes))
        return cls(sequences, sequence_length // context, sequence_length)

    @property
    def count(self) -> int:
        """Tokens on this rank."""
        return self.sequences * self.queries


@structs.dataclass(frozen=True, slots=True)
class Step:
    """One forward operator with the backward operators that answer it, in order."""

    forward: Operator
    backward: tuple[Operator, ...]

    def each(self, change: Callable[[Operator], Operator]) -> Step:
        """The step with all of its operators changed."""
        return Step(change(self.forward), tuple(map(change, self.backward)))


@structs.dataclass(frozen=True, slots=True, kw_only=True)
class Expansion:
    """The operators of one layer, of the embedding or of the head."""

    # forward, backward: In order; a weight gradient follows its GEMM's input gradient.
    forward: tuple[Operator, ...]
    backward: tuple[Operator, ...]
    input_bytes: float
    """The input of this part, all that full recomputation keeps of it [B]. It is also in the saved
    bytes of the operator that reads it: add one or the other, never both."""
    input_split: Split
    """How tensor parallelism divides `input_bytes`."""

    @classmethod
    def of(cls, steps: Iterable[Step], *, input_bytes: float, input_split: Split) -> Expansion:
        """Run `steps` forward, and backward in reverse."""
        ordered = tuple(steps)
        return cls(
            forward=tuple(step.forward for step in ordered),
            backward=tuple(gradient for step in reversed(ordered) for gradient in step.backward),
            input_bytes=input_bytes,
            input_split=input_split,
        )

    @property
    def forward_flops(self) -> float:
        """Matrix work of the forward pass, before tensor parallelism [FLOP]."""
        return math.fsum(operator.flops for operator in self.forward)

    @property
    def backward_flops(self) -> float:
        """Matrix work of the backward pass, before tensor parallelism [FLOP]."""
        return math.fsum(operator.flops for operator in self.backward)

    def saved_bytes(
        self, *, tp: int = 1, sequence_parallel: bool = False, selective: bool = False
    ) -> float:
        """Activation bytes that one tensor-parallel rank keeps from forward to backward.

        `tp`: tensor-parallel degree, at least 1. `sequence_parallel`: whether what lies between row
        and column GEMMs is divided too. `selective`: whether the attention core is recomputed
        instead of saved.

        Returns: until the input gradient and until the weight gradient together [B].

        References
        ----------
        Korthikanti et al., Reducing Activation Recomputation in Large Transformer Models (2022),
        equations 1, 2, 4 and 6.
        """
        share = dict.fromkeys(Split, 1.0 / tp)
        share[Split.NONE] = 1.0
        share[Split.SEQUENCE] = 1.0 / tp if sequence_parallel else 1.0
        return math.fsum(
            (operator.saved + operator.saved_for_weight) * share[operator.saved_split]
            for operator in self.forward
            if not (selective and operator.in_attention_core)
        )


def _positive(value: object) -> bool:
    return isinstance(value, int) and value > 0
