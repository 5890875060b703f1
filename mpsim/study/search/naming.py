"""Names of layouts: their values in a few words, with the usual ones left out."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence

from mpsim.parallel import AXIS_NAMES
from mpsim.scenario.sections import Parallelism
from mpsim.study.search.space import ALWAYS_SAID

__all__ = ["SHORT", "runs", "words_of"]


def runs(counts: Sequence[int]) -> str:
    """Counts in a row, equal neighbours as 14x8."""
    parts = [(value, len(list(same))) for value, same in itertools.groupby(counts)]
    return "-".join(f"{times}x{value}" if times > 1 else str(value) for value, times in parts)


SHORT: Mapping[str, str] = {
    "layers_per_stage": "layers",
    "virtual_stages": "v",
    "micro_batch": "mb",
    "sequence_parallel": "sp",
    "name": "",
}
_USUAL: Mapping[str, object] = {
    **{axis: 1 for axis in AXIS_NAMES if axis not in ALWAYS_SAID},
    "sequence_parallel": False,
    "zero": 0,
    "virtual_stages": None,
    "layers_per_stage": None,
    "recompute": "none",
    "recompute_modules": None,
    "recompute_method": None,
    "recompute_layers": None,
    "order": Parallelism().order,
    "offload": "none",
    "placement": "packed",
    "expert_overlap": "none",
}
"""What goes without saying."""


def words_of(values: Mapping[str, object]) -> Iterator[tuple[str, object]]:
    """Short names and values; switches that are on have no value."""
    for key, value in values.items():
        last = key.rpartition(".")[2]
        if last not in _USUAL or value != _USUAL[last]:
            words = runs(value) if isinstance(value, list | tuple) else value
            if last == "stages" and isinstance(value, list | tuple):
                words = " + ".join(str(part.get("count", 1)) for part in value)
            yield SHORT.get(last, last), "" if value is True else words
