"""The partition of a DGD is the same everywhere: here, on a NATS server, and in the documentation's own words."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats_support import nats_server

from headrace.connectors.bus.nats import NatsBus
from headrace.connectors.bus.nats.subjects import Subjects
from headrace.connectors.bus.partitions import PARTITIONS, fnv1a_32, partition_of
from headrace.schemas.errors import BusError

NAMES = ["ml/llama-70b", "default/main", "a.b/c.d", "ml/qwen%", "équipe/modèle", *(f"fleet/d{i}" for i in range(40))]


@pytest.mark.parametrize(
    ("data", "expected"), [(b"", 0x811C9DC5), (b"a", 0xE40C292C), (b"foobar", 0xBF9CF968)]
)  # from the FNV authors' test vectors
def test_the_hash_is_fnv_1a(data: bytes, expected: int) -> None:
    assert fnv1a_32(data) == expected


def test_known_partitions_stay_what_they_are() -> None:
    assert [partition_of(dgd) for dgd in NAMES[:5]] == [47, 23, 59, 15, 59]


@given(st.text(min_size=1), st.text(min_size=1), st.integers(1, 4096))
def test_every_dgd_has_a_partition_of_those_that_there_are(namespace: str, name: str, partitions: int) -> None:
    try:
        found = partition_of(f"{namespace}/{name}", partitions)
    except BusError:
        return  # an empty part
    assert 0 <= found < partitions


def test_a_key_that_is_no_dgd_has_none() -> None:
    with pytest.raises(BusError, match="namespace/name"):
        partition_of("llama")


def test_dgds_spread_over_the_partitions() -> None:
    counts = [0] * PARTITIONS
    for i in range(6400):
        counts[partition_of(f"team-{i % 7}/model-{i}")] += 1
    assert min(counts) >= 60
    assert max(counts) <= 140


async def test_a_nats_server_computes_the_same(tmp_path: Path) -> None:
    with nats_server(tmp_path) as server:
        bus = NatsBus(server.url)
        await bus.open()
        transform = {"src": "in.*.*", "dest": "out.{{partition(64,1,2)}}.{{wildcard(1)}}.{{wildcard(2)}}"}
        config = {"name": "P", "subjects": ["in.*.*"], "subject_transform": transform, "max_bytes": 1_000_000}
        api, connection = bus._link.api, bus._link.connection
        await api.request("STREAM.CREATE.P", config)
        session = await connection.session()
        subjects = Subjects("x")
        for dgd in NAMES:
            await session.replies.ask(subjects.subject("y", dgd).replace("x.y", "in"), b"", None, 5.0)
        stored = (await api.request("STREAM.INFO.P", {"subjects_filter": ">"}))["state"]["subjects"]
        await bus.close()
    theirs = {subject.split(".", 2)[2]: int(subject.split(".")[1]) for subject in stored}
    assert theirs == {subjects.subject("y", dgd).split(".", 2)[2]: partition_of(dgd) for dgd in NAMES}
