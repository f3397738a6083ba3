"""GPUs of a replica: all its nodes, its ranks once, and nothing believed that contradicts itself."""

import pytest

from headrace.models.scaling.shape import replica_gpus


@pytest.mark.parametrize(
    ("said", "per_node", "nodes", "configured", "gpus"),
    [
        (8, None, None, None, 8),
        (None, 8, 1, None, 8),
        (None, 8, 2, None, 16),  # reference-semantics 12, item 16: there 8
        (16, 8, 2, None, 16),
        (16, None, 2, None, 16),
        (None, None, 2, 16, 16),
        (None, None, None, 4, 4),
        (0, None, None, None, None),
        (None, None, None, None, None),
        (None, 8, None, None, None),  # case T34: of how many nodes?
        (None, None, 2, None, None),
    ],
)
def test_a_replica_costs_the_gpus_of_all_its_nodes(said, per_node, nodes, configured, gpus):
    assert replica_gpus(said, per_node, nodes, configured).gpus == gpus


def test_a_node_without_the_number_of_nodes_is_named():
    assert replica_gpus(None, 8, None).why == "8 GPUs per node, and nobody says how many nodes a replica has"


def test_a_contradiction_is_unknown_and_named():  # case T34
    shape = replica_gpus(8, 8, 2)
    assert shape.gpus is None
    assert shape.why == "8 GPUs per replica are not 2 nodes with 8 GPUs each"


@pytest.mark.parametrize(("configured", "said", "gpus"), [(1, 8, 8), (8, 1, 8)])
def test_of_the_configuration_and_the_inventory_the_larger_number_counts(configured, said, gpus):
    shape = replica_gpus(said, None, None, configured)
    assert shape.gpus == gpus
    assert "the larger number counts" in shape.why


def test_a_configuration_settles_an_inventory_that_contradicts_itself():
    shape = replica_gpus(8, 8, 2, 4)
    assert shape.gpus == 16
    assert "contradicts itself" in shape.why


def test_what_agrees_is_not_remarked_upon():
    assert replica_gpus(16, 8, 2, 16).why == ""
