"""Catalogs that ``mpsim show`` prints and shells complete, and what else it answers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping

__all__ = ["KERNEL_OPTIONS", "OPTIONS", "Catalog", "names_of"]


class Catalog(enum.StrEnum):
    """Catalogs that can be shown."""

    ACCELERATOR = "accelerator"
    LINK = "link"
    SYSTEM = "system"
    MODEL = "model"
    FRAMEWORK = "framework"
    SCHEDULE = "schedule"


KERNEL_OPTIONS: Mapping[str, str] = {
    "--pass": "direction",
    "--attention": "attention_kernel",
    "--kv-heads": "kv_heads",
    "--value-dim": "value_dim",
    "--window": "window",
    "--full": "full",
}
"""Options of a kernel, and the fields of `mpsim.cost.questions.KernelQuestion` they are."""

OPTIONS: Mapping[str, tuple[str, ...]] = {
    "kernel": ("--on", "--precision", "--burst", *KERNEL_OPTIONS),
    "collective": ("--on", "--ranks", "--burst", "--library", "--calibration"),
    "fabric": ("--nodes", "--plot"),
}
"""Options that a question heeds; catalogs heed none."""


def names_of(catalog: Catalog) -> tuple[str, ...]:
    """Entries of a catalog, in its order."""
    from mpsim import framework, hardware, workload
    from mpsim.schedule import schedule_names

    listing: dict[Catalog, Callable[[], tuple[str, ...]]] = {
        Catalog.ACCELERATOR: hardware.accelerator_names,
        Catalog.LINK: hardware.link_names,
        Catalog.SYSTEM: hardware.system_names,
        Catalog.MODEL: workload.model_names,
        Catalog.FRAMEWORK: framework.framework_names,
        Catalog.SCHEDULE: schedule_names,
    }
    return listing[catalog]()
