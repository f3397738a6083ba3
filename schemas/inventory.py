"""WorkerInventory: how many workers of each role exist, in which state, and what one of them is and costs."""

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.schemas.base import Count, Name, Record, Role, Seconds


class Capabilities(msgspec.Struct, frozen=True, kw_only=True):
    """The limits of one replica's engine; null = the engine has not said."""

    max_num_batched_tokens: Count | None = None
    max_num_seqs: Count | None = None
    max_kv_tokens: Count | None = None
    context_length: Count | None = None
    dp_size: Count | None = None
    speculative_nextn: Count | None = None


class RoleInventory(msgspec.Struct, frozen=True, kw_only=True):
    ready: Count  # workers that serve
    starting: Count = 0  # asked for, not serving yet
    draining: Count = 0  # still there, taking no new request
    unschedulable: Count = 0  # of the starting ones
    desired: Count | None = None  # what the orchestrator is asked to run, if it says
    gpus_per_replica: Count | None = None  # of all its nodes; null: gpus_per_node x nodes_per_replica, else unknown
    gpus_per_node: Count | None = None  # where the source knows that alone
    nodes_per_replica: Count | None = None  # above 1: a multinode replica
    workers_per_replica: Annotated[int, Meta(ge=1, le=10_000)] = 1  # ids that one replica has, as in Fpm.worker_id
    capabilities: Capabilities | None = None
    workers: list[str] | None = None  # ids of the ready ones, as in Fpm.worker_id


class WorkerInventory(Record, frozen=True, kw_only=True, tag="headrace.inventory.v1"):
    source: Name  # who looked
    observed_at: Seconds  # seconds since 1970, UTC
    roles: dict[Role, RoleInventory]  # a role that is not named is unknown, not empty
