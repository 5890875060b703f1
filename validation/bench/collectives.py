"""Collectives: benchmarks such as those of nccl-tests."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from bench.machines import benchmark_cluster
from bench.rows import Row
from bench.tables import lookup, table
from mpsim.cost import CollectiveModel
from mpsim.errors import CalibrationError
from mpsim.formats.tables import Cells
from mpsim.memo import remembered
from mpsim.parallel import GroupShape
from mpsim.result.residuals import Setting, chip_names
from mpsim.validate.records import Record

__all__ = ["MEASURED", "blank", "kind_of", "predict"]

MEASURED = ("time_us", "algbw_GBps", "busbw_GBps")
_MICRO = 1e-6
_PARTITIONS = r"(\d+) NVL partitions"
_SUMMED = "SHARP"  # what rows call switches that sum
_PRINTED = {"all_to_all": "alltoall"}  # names that residuals have, nccl-tests' own


def blank(row: Row) -> list[Record]:
    """The row's record without a prediction."""
    cells = row.configuration
    return [
        Record(
            id=row.id,
            family=_family(cells),
            kind="collective",
            unit="us",
            measured=row.measured.number("time_us"),
            size=cells.number("bytes"),
        )
    ]


def predict(row: Row, blanks: Sequence[Record]) -> list[Record]:
    """Fill in the time on a quiet network.

    Raises
    ------
    CalibrationError, HardwareError
        If the row's hardware or collective is unknown.
    """
    cells = row.configuration
    nodes, gpus = _domains(cells), cells.required("gpus")
    model = _model(cells.text("gpu"), cells.text("link"), cells.text("nic"), nodes, gpus)
    kind = kind_of(cells.text("collective"))
    inside = min(gpus, model.cluster.domain_size)
    if gpus % inside:
        raise CalibrationError(f"{gpus} GPUs do not fill scale-up domains of {inside}")
    group = GroupShape(ranks=gpus, per_domain=inside, domains=gpus // inside)
    seconds = model.seconds(kind, cells.required_number("bytes"), group)
    if _SUMMED in cells.text("nic") and kind == "all_reduce" and group.crosses:
        seconds = model.summed_in_fabric(cells.required_number("bytes"), group)
    setting = _setting(model, cells, nodes)
    return [
        dataclasses.replace(
            blanks[0], predicted=seconds / _MICRO, figure="collective", setting=setting
        )
    ]


def kind_of(text: str) -> str:
    """A collective as `mpsim.cost.COLLECTIVES` has it, of a name as libraries and their tests print it.

    Raises
    ------
    CalibrationError
        If it is none that is known.

    Examples
    --------
    >>> kind_of("ncclAllReduce out-of-place"), kind_of("all_gather_perf (rccl-tests)")
    ('all_reduce', 'all_gather')
    """
    around = table("collectives")["around"]
    name = re.sub(around["before"], "", text, flags=re.IGNORECASE)
    name = re.sub(around["behind"], "", name, flags=re.IGNORECASE)
    return str(lookup("collectives", "collectives", name)["name"])


def _domains(cells: Cells) -> int:
    """Nodes, or the parts of a rack that links join where the system's words count them: trays of one part are one node."""
    parts = re.search(_PARTITIONS, cells.text("system"))
    return int(parts[1]) if parts else cells.required("nodes")


def _setting(model: CollectiveModel, cells: Cells, nodes: int) -> Setting:
    """The setting of a collective, whose size is that of the message."""
    reach = "one node" if nodes == 1 else "several nodes"
    kind = kind_of(cells.text("collective"))
    return Setting(
        {
            "accelerator": chip_names(model.cluster.accelerator),
            "collective": (_PRINTED.get(kind, kind),),
            "reach": (reach,),
        },
        cells.required_number("bytes"),
    )


@remembered(1024)
def _model(gpu: str, link: str, nic: str, nodes: int, gpus: int) -> CollectiveModel:
    """The model of a cluster, made once for all rows measured on it."""
    return CollectiveModel(benchmark_cluster(gpu, link, nic, nodes, gpus), loaded=False)


def _family(cells: Cells) -> str:
    """System and collective; what was forced or mis-tuned stands apart."""
    label = f"{cells.text('system') or cells.text('gpu')} {cells.text('collective')}"
    for entry in table("collectives")["apart"]:
        if all(word in cells.text(column) for column, word in entry["where"].items()):
            return f"{label} ({entry['label']})"
    return label
