"""The mesh: which rank is where, and what its groups touch."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from mpsim.cost.layout import places_of
from mpsim.errors import ScenarioError
from mpsim.hardware import system
from mpsim.parallel import AXIS_NAMES, GroupShape, Mesh, spread


def test_the_first_axis_of_the_order_changes_fastest() -> None:
    """tp-cp-ep-dp-pp: tensor peers are neighbours, stages lie farthest apart."""
    mesh = Mesh(tp=2, dp=3, pp=2)
    assert mesh.ranks[:, :, 0, :].tolist() == [[[0, 1], [2, 3], [4, 5]], [[6, 7], [8, 9], [10, 11]]]


def test_another_order_lays_the_axes_differently() -> None:
    """dp first: data-parallel peers are neighbours."""
    mesh = Mesh(tp=2, dp=3, pp=2, order=("dp", "tp", "cp", "ep", "pp"))
    assert mesh.ranks[0, :, 0, 0].tolist() == [0, 1, 2]
    assert mesh.ranks[0, 0, 0, :].tolist() == [0, 3]


@pytest.mark.parametrize("order", list(itertools.permutations(AXIS_NAMES))[::7])
def test_every_rank_has_one_coordinate_in_any_order(order: tuple[str, ...]) -> None:
    """The mesh is a permutation of all ranks, and each stage's groups partition its ranks."""
    mesh = Mesh(tp=2, cp=2, dp=3, pp=2, order=order)
    assert sorted(mesh.ranks.ravel().tolist()) == list(range(mesh.world))
    for axes in (("tp",), ("cp",), ("dp",), ("dp", "cp"), ("tp", "cp", "dp")):
        groups = mesh.groups(axes, 1)
        assert sorted(groups.ravel().tolist()) == sorted(mesh.ranks[1].ravel().tolist())
        assert groups.shape[1] == np.prod([getattr(mesh, axis) for axis in axes])


def test_tensor_groups_of_a_node_stay_inside_it() -> None:
    """tp 8 on eight-GPU nodes: one domain; dp peers: one in each node."""
    cluster = system("dgx-a100-80gb", nodes=4)
    mesh = Mesh(tp=8, dp=4)
    assert mesh.shape(("tp",), 0, cluster) == GroupShape(8, 8, 1)
    assert mesh.shape(("dp",), 0, cluster) == GroupShape(4, 1, 4)


def test_a_tensor_group_wider_than_a_node_crosses() -> None:
    """tp 16 on eight-GPU nodes: two domains of eight."""
    cluster = system("dgx-a100-80gb", nodes=2)
    assert Mesh(tp=16).shape(("tp",), 0, cluster) == GroupShape(16, 8, 2)


def test_an_nvl72_rack_is_one_domain_of_many_nodes() -> None:
    """tp 16 on trays of four GPUs stays inside the rack."""
    cluster = system("gb200-nvl72", nodes=18)
    assert Mesh(tp=16, dp=4).shape(("tp",), 0, cluster) == GroupShape(16, 16, 1)


def test_groups_that_straddle_are_bounded_by_the_worst() -> None:
    """tp 6 on eight-GPU nodes: one group lies inside, one is split 2 and 4."""
    cluster = system("dgx-a100-80gb", nodes=3)
    assert Mesh(tp=6, dp=4).shape(("tp",), 0, cluster) == GroupShape(6, 2, 2)


def test_spread_counts_members_and_domains() -> None:
    """Worked by hand: {0: 3} and {1: 1, 2: 2}."""
    assert spread(np.array([[0, 0, 0], [1, 2, 2]])) == GroupShape(3, 1, 2)


def test_experts_lay_a_mesh_of_their_own() -> None:
    """tp 2, dp 4, ep 4, etp 1: four experts' ranks are neighbours, their copies four apart (Megatron-Core's rank generator)."""
    mesh = Mesh(tp=2, dp=4, ep=4, etp=1)
    assert mesh.edp == 2
    assert mesh.groups(("ep",), 0).tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert mesh.groups(("edp",), 0).tolist() == [[0, 4], [1, 5], [2, 6], [3, 7]]
    assert mesh.groups(("etp",), 0).tolist() == [[one] for one in range(8)]


def test_experts_are_divided_as_other_layers_where_nothing_is_said() -> None:
    """etp is tp: tensor groups of experts are those of the rest."""
    mesh = Mesh(tp=2, dp=4, ep=2, pp=2)
    assert mesh.expert_tp == 2
    assert mesh.groups(("etp",), 1).tolist() == mesh.groups(("tp",), 1).tolist()
    assert mesh.groups(("ep",), 0).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


@pytest.mark.parametrize("order", list(itertools.permutations(AXIS_NAMES))[::7])
def test_experts_groups_partition_a_stage_in_any_order(order: tuple[str, ...]) -> None:
    """Each rank is in one group over any axes; etp x ep x edp = tp x cp x dp."""
    mesh = Mesh(tp=2, cp=2, dp=4, pp=2, ep=4, etp=1, order=order)
    for axes in (("etp",), ("ep",), ("edp",), ("etp", "ep"), ("ep", "edp")):
        groups = mesh.groups(axes, 1)
        assert sorted(groups.ravel().tolist()) == sorted(mesh.ranks[1].ravel().tolist())
    assert mesh.expert_tp * mesh.ep * mesh.edp == 16


def test_expert_groups_of_a_node_stay_inside_it() -> None:
    """ep 8 beside tp 2: eight neighbours; ep 16 takes two nodes."""
    cluster = system("dgx-h100", nodes=4)
    inside = Mesh(tp=2, dp=16, ep=8, etp=1).shape(("ep",), 0, cluster)
    assert inside == GroupShape(8, 8, 1)
    across = Mesh(tp=2, dp=16, ep=16, etp=1).shape(("ep",), 0, cluster)
    assert across == GroupShape(16, 8, 2)


def test_messages_cross_where_any_of_them_does() -> None:
    """tp 4 pp 4 in two nodes: stages 0-1 and 2-3 share a node, 1-2 do not."""
    cluster = system("dgx-a100-80gb", nodes=2)
    mesh = Mesh(tp=4, pp=4)
    places = places_of(cluster)
    assert [places.crosses(mesh, r, r + 1) for r in range(3)] == [False, True, False]


def test_wrong_degrees_and_orders_are_all_reported() -> None:
    """Two mistakes, two problems, each under its key."""
    with pytest.raises(ScenarioError) as caught:
        Mesh(tp=0, order=("tp", "tp", "cp", "dp", "pp"))
    assert [problem.key for problem in caught.value.problems] == [
        "parallelism.tp",
        "parallelism.order",
    ]
