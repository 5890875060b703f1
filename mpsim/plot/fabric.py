"""A fabric drawn: tiers as rows of boxes, tori and graphs as points and lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from mpsim.hardware import Cluster, FabricKind
from mpsim.plot.display import Display
from mpsim.plot.palette import EVENTS
from mpsim.units import Dimension, format_quantity

if TYPE_CHECKING:
    from matplotlib.axes import Axes

__all__ = ["FabricDisplay"]

_MOST = 40  # boxes in a row; of more, so many stand for all
_COLOURS = (EVENTS["other"], EVENTS["forward"], EVENTS["backward"], EVENTS["weight_gradient"])


class FabricDisplay(Display):
    """The fabric of a cluster: what joins its nodes.

    Parameters
    ----------
    cluster : Cluster
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster

    def _size(self) -> tuple[float, float]:
        tiered = len(self.cluster.tiers) > 0
        return (10.0, 1.4 + 1.1 * (len(self.cluster.tiers) + 1)) if tiered else (7.0, 7.0)

    def _draw(self, ax: Axes) -> None:
        if self.cluster.tiers:
            self._draw_tiers(ax)
        else:
            self._draw_graph(ax)
        ax.set_xticks([])
        ax.grid(visible=False)
        for side in ("top", "right", "bottom", "left"):
            ax.spines[side].set_visible(False)
        ax.tick_params(length=0)

    def _draw_tiers(self, ax: Axes) -> None:
        cluster = self.cluster
        counts = [cluster.nodes, *(tier.units for tier in cluster.tiers)]
        reach = [1, *(tier.nodes for tier in cluster.tiers)]
        places = [
            _middles(count, size, cluster.nodes) for count, size in zip(counts, reach, strict=True)
        ]
        for level in range(len(counts) - 1):
            shown = _shown(counts[level])
            above = np.minimum(shown * reach[level] // reach[level + 1], counts[level + 1] - 1)
            x = np.stack([places[level][shown], places[level + 1][above]])
            thin = level > 0 and cluster.tiers[level - 1].oversubscription > 1
            ax.plot(x, np.add(np.full_like(x, level), [[0.0], [1.0]]), color=EVENTS["other"],
                    linewidth=0.6, linestyle="--" if thin else "-", zorder=1)  # fmt: skip
        for level, (count, place) in enumerate(zip(counts, places, strict=True)):
            shown = _shown(count)
            colour = _COLOURS[min(level, len(_COLOURS) - 1)]
            ax.scatter(
                place[shown], np.full(len(shown), level), marker="s", s=90, color=colour, zorder=2
            )
        ax.set_yticks(range(len(counts)), [*self._labels()])
        ax.set_ylim(-0.5, len(counts) - 0.5)

    def _labels(self) -> Iterable[str]:
        cluster = self.cluster
        rate = format_quantity(cluster.node.nic.bandwidth, Dimension.BANDWIDTH)
        yield f"{cluster.nodes} nodes{_drawn(cluster.nodes)}\n{cluster.node.nics} NICs, {rate} each"
        for tier in cluster.tiers:
            kind = "" if tier.name == "switch" else f"{tier.name} "
            many = f"{kind}switch{'es' * (tier.switches > 1)}"
            of = f"{tier.switches} {many}" if tier.switches else tier.name
            up = format_quantity(tier.up_bandwidth, Dimension.BANDWIDTH)
            more = f"\nunit: {up} up, {tier.oversubscription:.3g}:1" if tier.up_bandwidth else ""
            yield f"{of} in {tier.units} unit{'s' * (tier.units > 1)}{_drawn(tier.units)}{more}"

    def _draw_graph(self, ax: Axes) -> None:
        from mpsim.hardware.graph import cluster_graph

        graph = cluster_graph(self.cluster, scale_up=False)
        vertices: list[Any] = list(graph)
        where = self._positions(vertices, graph)
        for start, end in {tuple(sorted(edge, key=str)) for edge in graph.edges}:
            (x0, y0), (x1, y1) = where[vertices.index(start)], where[vertices.index(end)]
            ax.plot([x0, x1], [y0, y1], color=EVENTS["ep"], linewidth=0.7, zorder=1)
        colours = [_COLOURS[vertex[0] != "node"] for vertex in vertices]
        ax.scatter(where[:, 0], where[:, 1], s=30, c=colours, zorder=2)
        ax.set_yticks([])
        if self.cluster.fabric.kind is FabricKind.TORUS:
            shape = "x".join(map(str, self.cluster.fabric.lengths(self.cluster.nodes)))
            ax.set_xlabel(f"torus of {shape} nodes")

    def _positions(self, vertices: list[Any], graph: Any) -> NDArray[np.float64]:
        if self.cluster.fabric.kind is not FabricKind.TORUS:
            import networkx as nx

            laid = nx.kamada_kawai_layout(graph.to_undirected())
            return np.array([laid[vertex] for vertex in vertices], dtype=np.float64)
        shape = self.cluster.fabric.lengths(self.cluster.nodes)
        place = np.stack(np.unravel_index(np.arange(self.cluster.nodes), shape), axis=1)
        angle = np.linspace(0.0, np.pi / 2, len(shape)) + 0.12
        steps = np.stack([np.cos(angle), np.sin(angle)], axis=1)
        steps[1:-1] *= 0.35  # the middle axes go into the picture
        return np.asarray(place @ steps, dtype=np.float64)


def _middles(count: int, reach: int, nodes: int) -> NDArray[np.float64]:
    """Middles of the nodes of each unit."""
    first = np.arange(count) * reach
    return np.asarray((first + np.minimum(first + reach, nodes) - 1) / 2, dtype=np.float64)


def _shown(count: int) -> NDArray[np.int64]:
    return np.arange(0, count, _stride(count))


def _drawn(count: int) -> str:
    """Words added where not every box is drawn."""
    stride = _stride(count)
    return f", one in {stride} drawn" if stride > 1 else ""


def _stride(count: int) -> int:
    """Number of boxes of which one is drawn."""
    return -(-count // _MOST)
