"""What one replica costs in GPUs, all its nodes together."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Shape:
    """GPUs of one replica; None = unknown. `why` says what is odd about what was said."""

    gpus: int | None
    why: str = ""


def replica_gpus(said: int | None, per_node: int | None, nodes: int | None, configured: int | None = None) -> Shape:
    """The GPUs of a replica from what is said: the whole, a node's and the number of nodes, and the configuration.

    Data-parallel ranks of attention share a replica's GPUs, so their number says nothing here (dynamo#8576). A node's
    GPUs without the number of nodes are not a replica's; the reference counts one node (reference-semantics 12, 16).
    Where an inventory contradicts itself nothing is believed; where it contradicts the configuration, the larger number
    counts, for a ceiling is a ceiling.
    """
    said, per_node, nodes, configured = said or None, per_node or None, nodes or None, configured or None
    product = per_node * nodes if per_node is not None and nodes is not None else None
    if said is not None and product is not None and said != product:
        if configured is None:
            return Shape(None, f"{said} GPUs per replica are not {nodes} nodes with {per_node} GPUs each")
        return Shape(max(configured, said, product), "the inventory contradicts itself about GPUs per replica")
    seen = said if product is None else product
    if seen is None:
        if configured is None and per_node is not None:
            return Shape(None, f"{per_node} GPUs per node, and nobody says how many nodes a replica has")
        return Shape(configured)
    if configured is not None and configured != seen:
        return Shape(
            max(configured, seen),
            f"{configured} GPUs per replica are configured, and the inventory says {seen}: the larger number counts",
        )
    return Shape(seen)
