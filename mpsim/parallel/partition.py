"""Which layers each pipeline stage holds."""

from __future__ import annotations

from collections.abc import Sequence

from mpsim import structs
from mpsim.errors import Problem, ScenarioError
from mpsim.shipped import say


@structs.dataclass(frozen=True, slots=True)
class Stage:
    """One (virtual) pipeline stage."""

    index: int  # stage s feeds stage s + 1
    # first_layer, layers: its layers are ``first_layer .. first_layer + layers - 1``
    first_layer: int
    layers: int
    # embedding, head: whether it holds the token embedding, the output head with its loss
    embedding: bool
    head: bool
    rank: int = 0  # pipeline rank that runs it


def partition_layers(
    layers: int,
    stages: int,
    *,
    given: Sequence[int] | None = None,
    embedding_counts: bool = False,
    loss_counts: bool = False,
) -> tuple[Stage, ...]:
    """Divide the layers of a model among pipeline stages.

    `layers`: of the model. `stages`: pipeline ranks times virtual stages. `given`: layers of each
    stage in model order; evenly divided when absent. `embedding_counts` and `loss_counts`: whether
    embedding and loss each take one layer's place in an even division. ScenarioError if the layers
    do not divide, or the given ones do not fit.
    """
    counts = (
        _given(layers, stages, given)
        if given is not None
        else _even(layers, stages, embedding_counts=embedding_counts, loss_counts=loss_counts)
    )
    first = 0
    result = []
    for index, count in enumerate(counts):
        result.append(
            Stage(
                index=index,
                first_layer=first,
                layers=count,
                embedding=index == 0,
                head=index == stages - 1,
            )
        )
        first += count
    return tuple(result)


def placed_stages(
    parts: Sequence[Stage], model_stage: Sequence[int], stage_rank: Sequence[int]
) -> tuple[Stage, ...]:
    """Stages of a schedule: which part of the model each holds, on which pipeline rank.

    `parts`: the model in order, see `partition_layers`. `model_stage`: part of each stage; two
    stages hold the same one where pipelines run in both directions. `stage_rank`: pipeline rank of
    each stage.
    """
    return tuple(
        # not structs.replace, which takes five times as long: there may be hundreds of stages
        Stage(index, part.first_layer, part.layers, part.embedding, part.head, rank)
        for index, (part, rank) in enumerate(
            zip((parts[number] for number in model_stage), stage_rank, strict=True)
        )
    )


def _given(layers: int, stages: int, given: Sequence[int]) -> list[int]:
    faults = {
        f"got {len(given)} stages; needed {stages} (pp x virtual_stages)": len(given) != stages,
        f"got {sum(given)} layers in all; needed the model's {layers}": sum(given) != layers,
        "got a negative count; needed 0 or more": min(given, default=0) < 0,
    }
    problems = [
        Problem(message, key="parallelism.layers_per_stage")
        for message, is_wrong in faults.items()
        if is_wrong
    ]
    if problems:
        raise ScenarioError(problems)
    return list(given)


def _even(layers: int, stages: int, *, embedding_counts: bool, loss_counts: bool) -> list[int]:
    total = layers + embedding_counts + loss_counts
    each, left = divmod(total, stages)
    if left or each < 1 or (stages == 1 and each <= embedding_counts + loss_counts):
        counted = ["embedding"] * embedding_counts + ["loss"] * loss_counts
        extra = f" and {' and '.join(counted)}" if counted else ""
        message = say("parallel.uneven_stages", layers=layers, extra=extra, stages=stages)
        raise ScenarioError([Problem(message, key="parallelism.pp")])
    counts = [each] * stages
    counts[0] -= embedding_counts
    counts[-1] -= loss_counts
    return counts
