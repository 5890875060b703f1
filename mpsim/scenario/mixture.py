"""Mixed clusters: what the nodes of each pipeline rank or replica are, where they differ."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TypeVar

from mpsim.errors import ScenarioError
from mpsim.hardware import Accelerator, Cluster, Link
from mpsim.scenario.cluster import ClusterChoice, PartChoice
from mpsim.scenario.network import Folder

__all__ = ["alike", "clusters_of"]

Part = TypeVar("Part", Accelerator, Link)


def clusters_of(choice: ClusterChoice, key: str, folder: Folder) -> tuple[Cluster, ...] | None:
    """The cluster as every pipeline rank or replica has it.

    Parameters
    ----------
    key : str
        ``stages`` or ``replicas``.
    folder : callable
        Where the file lies in which a dotted key was written.

    Returns
    -------
    tuple of Cluster, or None
        One for each; those that are alike are the same object. None where the section does not say.

    Raises
    ------
    ScenarioError
        If a name is unknown, at the place of the part.
    """
    parts: Sequence[PartChoice] | None = getattr(choice, key)
    if parts is None:
        return None
    known: list[Cluster] = []
    result: list[Cluster] = []
    for number, part in enumerate(parts):
        cluster = _resolved(choice, part, f"cluster.{key}.{number}", folder)
        same = next((earlier for earlier in known if alike(earlier, cluster)), None)
        if same is None:
            known.append(cluster)
        result += [same or cluster] * part.count
    return tuple(result)


def _resolved(choice: ClusterChoice, part: PartChoice, key: str, folder: Folder) -> Cluster:
    given = {name: getattr(part, name) for name in PartChoice.model_fields if name != "count"}
    changed = {name: value for name, value in given.items() if value is not None}
    if part.accelerator is not None:
        # another chip has its own link and price; the cluster's are those of the cluster's chip
        changed |= {name: given[name] for name in ("scale_up", "node_power", "price_per_hour")}
    merged = choice.model_copy(update={**changed, "stages": None, "replicas": None})
    try:
        return merged.resolve(lambda part_key: folder(_moved(part_key, key)))
    except ScenarioError as error:
        moved = [
            dataclasses.replace(problem, key=_moved(problem.key, key)) for problem in error.problems
        ]
        raise ScenarioError(moved) from error


def _moved(key: str, part: str) -> str:
    """The key of a part in place of that of the whole cluster."""
    return part + key.removeprefix("cluster")


def alike(cluster: Cluster, other: Cluster) -> bool:
    """Whether two clusters differ in nothing that a simulation sees."""
    return _bare(cluster) == _bare(other)


def _bare(cluster: Cluster) -> Cluster:
    node = cluster.node
    bare = dataclasses.replace(
        node,
        accelerator=_untold(node.accelerator),
        scale_up=_untold(node.scale_up),
        nic=_untold(node.nic),
    )
    return dataclasses.replace(cluster, node=bare, sources={}, note="", max_nodes=None)


def _untold(part: Part) -> Part:
    """A part without where its figures come from."""
    return dataclasses.replace(part, sources={}, note="", title="")
