"""Words that a shell may complete: names of catalogs, templates."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple, Protocol

import typer

if TYPE_CHECKING:
    from mpsim.nouns import Description


def templates(incomplete: str) -> list[tuple[str, str]]:
    """Templates of ``mpsim new`` with their titles."""
    from mpsim.scenario.examples import template_names, template_title

    return [
        (name, template_title(name)) for name in template_names() if name.startswith(incomplete)
    ]


def catalogs(incomplete: str) -> list[str]:
    """Catalogs and questions of ``mpsim show``."""
    known = [*map(str, Catalog), *HEEDED, "engine", "formats"]
    return sorted(name for name in known if name.startswith(incomplete))


def entries(context: typer.Context, incomplete: str) -> list[str]:
    """Entries of the catalog that the command line names."""
    word = str(context.params.get("catalog") or "").removesuffix("s")
    if word not in list(Catalog):
        return []
    return [name for name in shelf(Catalog(word)).names() if name.startswith(incomplete)]


class Catalog(enum.StrEnum):
    """Catalogs that can be shown."""

    ACCELERATOR = "accelerator"
    LINK = "link"
    SYSTEM = "system"
    MODEL = "model"
    FRAMEWORK = "framework"
    OPTIMIZER = "optimizer"
    SCHEDULE = "schedule"


KERNEL = ("direction", "attention_kernel", "kv_heads", "value_dim", "window", "full")
"""Options of a kernel, which are fields of `mpsim.cost.questions.KernelQuestion`."""
HEEDED: Mapping[str, tuple[str, ...]] = {
    "kernel": ("on", "precision", "burst", *KERNEL),
    "collective": ("on", "ranks", "burst", "library", "calibration"),
    "fabric": ("nodes", "plot"),
}
"""Questions, and the options that each heeds; catalogs heed none."""


class Noun(Protocol):
    """Whatever says of itself what there is to show."""

    def describe(self) -> Description:
        """Its figures."""


class Shelf(NamedTuple):
    """One catalog: the names in its order, and what a name stands for."""

    names: Callable[[], tuple[str, ...]]
    noun: Callable[[str], Noun]


def shelf(catalog: Catalog) -> Shelf:
    """A catalog, opened."""
    from mpsim import framework, hardware, workload
    from mpsim.schedule import schedule, schedule_names

    return {
        Catalog.ACCELERATOR: Shelf(hardware.accelerator_names, hardware.accelerator),
        Catalog.LINK: Shelf(hardware.link_names, hardware.link),
        Catalog.SYSTEM: Shelf(hardware.system_names, hardware.system),
        Catalog.MODEL: Shelf(workload.model_names, workload.model),
        Catalog.FRAMEWORK: Shelf(framework.framework_names, framework.framework),
        Catalog.OPTIMIZER: Shelf(framework.optimizer_names, framework.optimizer),
        Catalog.SCHEDULE: Shelf(schedule_names, schedule),
    }[catalog]
