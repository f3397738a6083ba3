"""The timeline of a simulation: one row per interval, kept while it runs, completed with goodput at its end."""

import msgspec

from headrace.connectors.simulator.cluster import Cluster
from headrace.connectors.simulator.report import RoleState, TimelineRow
from headrace.schemas.traffic import Distribution


class Timeline:
    """Looks at the frontend's counters on its own, so that a policy's traffic windows are not disturbed."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._before = cluster.frontend.look(0.0)
        self._rows: list[TimelineRow] = []

    def record(self) -> None:
        """Close the interval that ends now. Nothing has passed: nothing is written."""
        cluster, before = self._cluster, self._before
        seconds = cluster.now - before.at
        if seconds <= 0.0:
            return
        frontend = cluster.frontend
        row = TimelineRow(
            at_s=cluster.now,
            requests_per_s=(frontend.started - before.started) / seconds,
            isl=frontend.isl.since(before.isl).mean,
            osl=frontend.osl.since(before.osl).mean,
            ttft_ms=_ms(frontend.ttft.since(before.ttft)),
            itl_ms=_ms(frontend.itl.since(before.itl)),
            goodput=None,
            queued=frontend.queued,
            inflight=frontend.inflight,
            roles={
                role: RoleState(ready=c.ready, starting=c.starting, draining=c.draining, target=c.target)
                for role, c in cluster.counts().items()
            },
        )
        self._rows.append(row)
        self._before = frontend.look(cluster.now)

    def rows(self) -> list[TimelineRow]:
        """All rows, each with the goodput of the requests that arrived in it (null = none arrived)."""
        sla, requests = self._cluster.config.sla, self._cluster.requests
        done, i = [], 0
        for row in self._rows:
            first, good = i, 0
            while i < len(requests) and requests[i].arrived_at <= row.at_s:
                good += requests[i].meets(sla.ttft_s, sla.itl_s)
                i += 1
            done.append(msgspec.structs.replace(row, goodput=good / (i - first) if i > first else None))
        return done


def _ms(d: Distribution) -> float | None:
    return None if d.mean is None else 1000.0 * d.mean
