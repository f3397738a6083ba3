"""The connection to a Kafka cluster: requests to one broker, tried again until they are answered."""

import asyncio
import logging
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from aiokafka import TopicPartition, errors
from aiokafka.client import AIOKafkaClient, ConnectionGroup
from aiokafka.conn import collect_hosts, create_conn
from aiokafka.protocol.metadata import MetadataRequest

from headrace.connectors.bus.kafka.options import KafkaOptions
from headrace.schemas.errors import BusError

log = logging.getLogger(__name__)
T = TypeVar("T")

ANSWER_S = 5.0  # how long one try waits
_PULSE_S = 1.0
_LONGEST_WAIT_S = 0.5
_PRODUCER_FENCED = 90  # aiokafka does not know this code
TRANSACTIONS = 1  # the type of coordinator that hands out producer epochs

_REFUSED = (
    errors.AuthenticationFailedError,
    errors.AuthenticationMethodNotSupported,
    errors.SaslAuthenticationFailed,
    errors.UnsupportedSaslMechanismError,
    errors.IllegalSaslStateError,
)
_FORBIDDEN = (
    errors.TopicAuthorizationFailedError,
    errors.ClusterAuthorizationFailedError,
    errors.GroupAuthorizationFailedError,
    errors.TransactionalIdAuthorizationFailed,
)
_PASSING = (
    errors.KafkaConnectionError,
    errors.NodeNotReadyError,
    errors.StaleMetadata,
    errors.RequestTimedOutError,
    errors.NotControllerError,
    errors.NotEnoughReplicasError,
    errors.NotEnoughReplicasAfterAppendError,
    errors.UnknownTopicOrPartitionError,
)
_COORDINATOR_MOVED = (errors.NotCoordinatorError, errors.CoordinatorNotAvailableError, errors.NodeNotReadyError)


def check(code: int, what: str) -> None:
    """Raise aiokafka's error for a response code. `what` says what was asked."""
    if code == _PRODUCER_FENCED:
        raise errors.InvalidProducerEpoch(what)
    if code:
        raise errors.for_code(code)(what)


class Cluster:
    """An aiokafka client that waits for a cluster which is away, and says whether it is there."""

    def __init__(self, options: KafkaOptions) -> None:
        self.options = options
        self._security = options.security()
        self._client: Any = None
        self._keeper: asyncio.Task[None] | None = None
        self._coordinators: dict[str, int] = {}
        self._alive = False

    @property
    def connected(self) -> bool:
        return self._client is not None and self._alive

    @property
    def arguments(self) -> dict[str, Any]:
        """What another aiokafka client needs to come in as we do."""
        return {"bootstrap_servers": list(self.options.servers), "client_id": self.options.name, **self._security}

    async def open(self) -> None:
        """Connect for the first time. Raises BusError after the patience, at once when the cluster refuses us."""
        if self._client is not None:
            return
        loop = asyncio.get_running_loop()
        give_up, wait_s = loop.time() + self.options.patience_s, 0.05
        client = AIOKafkaClient(**self.arguments, request_timeout_ms=int(ANSWER_S * 1000), retry_backoff_ms=50)
        while True:
            try:
                await self._knock()
                await client.bootstrap()
                break
            except _REFUSED as e:
                raise BusError(
                    f"Kafka at {self.options.address} refuses us: {e}. Check user, password and SASL mechanism"
                ) from e
            except (errors.KafkaError, OSError, TimeoutError) as e:
                if loop.time() + wait_s > give_up:
                    await client.close()
                    raise self._unreachable(e) from e
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)
        self._client, self._alive = client, True
        self._keeper = asyncio.create_task(self._keep(), name="kafka pulse")

    async def close(self) -> None:
        client, self._client = self._client, None
        self._alive = False
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if client is not None:
            await client.close()

    async def insist(self, what: str, attempt: Callable[[], Awaitable[T]], give_up_at: float | None = None) -> T:
        """Try until it works. Raises BusError after the patience or when we may not, KafkaError when it is lasting."""
        loop = asyncio.get_running_loop()
        give_up = loop.time() + self.options.patience_s if give_up_at is None else give_up_at
        wait_s = 0.01
        while True:
            self.check_open()
            try:
                return await attempt()
            except _FORBIDDEN as e:
                raise self.forbidden(what, e) from e
            except (errors.KafkaError, OSError, TimeoutError) as e:
                if not passing(e):
                    raise
                problem = e
            if loop.time() + wait_s > give_up:
                raise BusError(f"{what}: {self._unreachable(problem)}") from problem
            if getattr(problem, "invalid_metadata", False) or isinstance(problem, errors.NodeNotReadyError):
                await self.refresh()
            await asyncio.sleep(wait_s * random.uniform(0.5, 1.0))
            wait_s = min(2 * wait_s, _LONGEST_WAIT_S)

    async def ask_any(self, request: Any) -> Any:
        """One try at one broker after the other; the answer of the first that gives one."""
        client = self.check_open()
        nodes = [broker.nodeId for broker in client.cluster.brokers()]
        random.shuffle(nodes)
        problem: Exception = errors.NodeNotReadyError("no broker is known")
        for node in nodes:
            try:
                return await client.send(node, request)
            except (errors.KafkaError, OSError, TimeoutError) as e:
                problem = e
        raise problem

    async def ask(self, node: int, request: Any) -> Any:
        """One try at one broker."""
        return await self.check_open().send(node, request)

    async def ask_leader(self, place: TopicPartition, request: Any) -> Any:
        """One try at the broker that leads a partition."""
        return await self.ask(await self.leader(place), request)

    async def leader(self, place: TopicPartition) -> int:
        """The broker that leads a partition. Raises LeaderNotAvailableError when there is none now."""
        client = self.check_open()
        await client.add_topic(place.topic)
        leader = client.cluster.leader_for_partition(place)
        if leader is None or leader < 0:
            raise errors.LeaderNotAvailableError(f"{place.topic}-{place.partition} has no leader")
        return int(leader)

    async def ask_coordinator(self, transactional_id: str, request: Any) -> Any:
        """One try at the broker that keeps the epochs of a transactional id."""
        client = self.check_open()
        node = self._coordinators.get(transactional_id)
        try:
            if node is None:
                node = await client.coordinator_lookup(TRANSACTIONS, transactional_id)
                self._coordinators[transactional_id] = node
            return await client.send(node, request, group=ConnectionGroup.COORDINATION)
        except (errors.KafkaError, OSError, TimeoutError):
            self._coordinators.pop(transactional_id, None)
            raise

    def coordinator_moved(self, transactional_id: str, error: Exception) -> None:
        """Look for the coordinator anew when an answer says that it is another."""
        if isinstance(error, _COORDINATOR_MOVED):
            self._coordinators.pop(transactional_id, None)

    async def refresh(self) -> None:
        """Learn who leads what."""
        try:
            async with asyncio.timeout(ANSWER_S):
                await self.check_open().force_metadata_update()
        except TimeoutError:
            log.debug("Kafka at %s does not say who leads what", self.options.address)

    def check_open(self) -> Any:
        if self._client is None:
            raise BusError(f"the bus to Kafka at {self.options.address} is not open: await open() first")
        return self._client

    def forbidden(self, what: str, e: Exception) -> BusError:
        return BusError(
            f"{what}: this user of Kafka ({self.options.user or 'anonymous'}) may not: {e}. Allow it with an ACL"
        )

    async def _knock(self) -> None:
        """Connect to one broker and say what is wrong; aiokafka's bootstrap only logs it."""
        problem: Exception = errors.KafkaConnectionError("no broker")
        for host, port, _ in collect_hosts(list(self.options.servers)):
            try:
                connection = await create_conn(
                    host, port, client_id=self.options.name, request_timeout_ms=int(ANSWER_S * 1000), **self._security
                )
                connection.close()
                return
            except _REFUSED:
                raise
            except (errors.KafkaError, OSError, TimeoutError) as e:
                problem = e
        raise problem

    async def _keep(self) -> None:
        """Ask something small each second, so that `connected` is true; find the cluster again after an outage."""
        while True:
            await asyncio.sleep(_PULSE_S)
            try:
                await self.ask_any(MetadataRequest([], False))
                problem = None
            except (errors.KafkaError, OSError, TimeoutError) as e:
                problem = e
            if problem is None and not self._alive:
                log.warning("connected to Kafka at %s again", self.options.address)
            elif problem is not None and self._alive:
                log.warning("lost Kafka at %s: %s", self.options.address, problem or type(problem).__name__)
            self._alive = problem is None
            if problem is not None:
                try:
                    await self.check_open().bootstrap()  # the brokers may have new addresses
                except (errors.KafkaError, OSError, TimeoutError) as e:
                    log.debug("Kafka at %s cannot be reached yet: %s", self.options.address, e)

    def _unreachable(self, e: Exception) -> BusError:
        tls = "" if self.options.encrypted else " Does it ask for TLS (?tls=true)?"
        return BusError(
            f"Kafka at {self.options.address} could not be reached within {self.options.patience_s:g} s "
            f"({e!r}): is the broker running, and is the address right?{tls}"
        )


def passing(e: BaseException) -> bool:
    """Worth another try: no leader yet, starting up, not enough replicas, a lost connection."""
    return not isinstance(e, errors.KafkaError) or bool(getattr(e, "retriable", False)) or isinstance(e, _PASSING)
