"""World size: how many accelerators a job has, of its launcher or of the user, and on how many nodes."""

from __future__ import annotations

from mpsim.formats.launch import Launch, Stated
from mpsim.formats.ledger import Ledger
from mpsim.formats.source import Options
from mpsim.hardware import system, system_names


def accelerators_of(cluster: str | None) -> int | None:
    """Accelerators in a node of a system of the catalog."""
    return system(cluster).node.accelerators if cluster in system_names() else None


def put_cluster(ledger: Ledger, launch: Launch, options: Options) -> int | None:
    """Put nodes and accelerators of a launch into the ledger.

    Returns
    -------
    int or None
        Accelerators of the job; None where neither the launcher nor the user says.
    """
    each = accelerators_of(options.cluster)
    ranks = launch.ranks
    nodes, per_node = launch.nodes, launch.per_node
    if nodes is not None and per_node is None and each is not None:
        per_node = Stated(each, "")
        ranks = nodes.value * each
        ledger.note(
            "cluster.accelerators_per_node",
            f"one process an accelerator of {options.cluster}",
            each,
        )
    for stated in (nodes, per_node, launch.world):
        if stated is not None and stated.value < 1:
            ledger.refuse(f"{ledger.place(stated.key)}: got {stated.value}; needed 1 or more")
            return None
    if options.ranks is not None:
        if ranks is not None and ranks != options.ranks:
            ledger.refuse(f"--ranks {options.ranks}: the launcher starts {ranks}; leave one out")
        return put_ranks(ledger, options.ranks, options, "--ranks")
    if ranks is None:
        return None
    numbers = (nodes, per_node, launch.world)
    keys = [stated.key for stated in numbers if stated is not None and stated.key]
    if nodes is not None and per_node is not None and (each is None or per_node.value <= each):
        ledger.put([nodes.key], "cluster.nodes", nodes.value)
        if per_node.key:
            ledger.put([per_node.key], "cluster.accelerators_per_node", per_node.value)
    else:
        put_ranks(ledger, ranks, options, *keys)
    return ranks


def put_ranks(ledger: Ledger, ranks: int, options: Options, *keys: str) -> int:
    """Put so many accelerators into the ledger, on whole nodes of the cluster that the user named."""
    each = accelerators_of(options.cluster)
    stated = [key for key in keys if key in ledger]
    sized: dict[str, int] = {}
    if each is None:
        ledger.ask("cluster.preset")
        ledger.note(
            "cluster",
            f"{ranks} accelerators ({', '.join(keys)}); nodes follow from the cluster",
            ranks,
        )
    elif ranks <= each:
        sized = {"cluster.nodes": 1, "cluster.accelerators_per_node": ranks}
    elif ranks % each:
        ledger.refuse(
            f"{', '.join(keys)}: {ranks} accelerators are no whole nodes of {each}, as {options.cluster} has"
        )
    else:
        sized = {"cluster.nodes": ranks // each}
    for to, value in sized.items():
        if stated:
            ledger.put(stated, to, value)
        else:
            ledger.assume(to, value, f"{', '.join(keys)} over the {each} accelerators of a node")
    return ranks
