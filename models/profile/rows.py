"""Profiles and benchmark FPMs as the iterations that an `EngineModel` learns from.

Source: reference-semantics 3.8, item 3, with its rounding. Aggregated engines differ: there they are given decode
iterations alone, and so never get a capacity (weak spot 2).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from headrace.schemas.base import AGG, DECODE, PREFILL, Role
from headrace.schemas.fpm import Fpm
from headrace.schemas.profile import DecodeProfile, EngineProfile, PrefillProfile

CHUNKS = (
    4  # prefill lengths beside which each decode load is put: a profile is a start, and live rows must soon outweigh it
)

Row = tuple[
    int, int, int, int, float
]  # prefill requests and tokens, decode requests and KV tokens, wall time in seconds


@dataclass(frozen=True, slots=True)
class Iterations:
    """What iterations did, one per row."""

    rows: tuple[Row, ...] = ()

    @property
    def columns(self) -> tuple[Sequence[int], Sequence[int], Sequence[int], Sequence[int], Sequence[float]]:
        """The five arguments of `EngineModel.learn`."""
        return (
            [row[0] for row in self.rows],
            [row[1] for row in self.rows],
            [row[2] for row in self.rows],
            [row[3] for row in self.rows],
            [row[4] for row in self.rows],
        )


def iterations(profile: EngineProfile, role: Role) -> Iterations:
    """What engines of a role would have done; empty where the profile says nothing about the role.

    Prefill and decode engines learn their own kind. An aggregated engine learns both, and mixed iterations where they
    were measured. None are made up: `models.perf.speed` puts a decode and a prefill line together where the mixed one
    is not ready, and that was nearer to measured mixed iterations than rows made of the same two (docs/profiles.md).
    """
    measured = [row for fpm in (*profile.fpms, *profile.mixed) if (row := fpm_row(fpm)) is not None]
    prefill = [*_prefill(profile.prefill), *(row for row in measured if row[0] and not row[2])]
    decode = [*_decode(profile.decode), *(row for row in measured if row[2] and not row[0])]
    mixed = [row for row in measured if row[0] and row[2]]
    of_role = {PREFILL: prefill, DECODE: decode, AGG: [*prefill, *decode, *mixed]}
    return Iterations(tuple(of_role.get(role, ())))


def fpm_row(fpm: Fpm) -> Row | None:
    """What an FPM says was done, None where it says nothing that a model could learn from."""
    work = fpm.scheduled_requests
    row = (
        work.num_prefill_requests,
        work.sum_prefill_tokens,
        work.num_decode_requests,
        work.sum_decode_kv_tokens,
        fpm.wall_time,
    )
    return row if fpm.wall_time > 0 and (row[0] or row[2]) else None


def _prefill(profile: PrefillProfile | None) -> Iterable[Row]:
    if profile is None:
        return []
    return [(1, int(isl), 0, 0, ttft) for isl, ttft in zip(profile.isl, profile.ttft_s, strict=True)]


def _decode(profile: DecodeProfile | None) -> Iterable[Row]:
    if profile is None:
        return []
    rows = []
    for usage, context, itl in zip(profile.kv_usage, profile.context_length, profile.itl_s, strict=True):
        kv = round(usage * profile.max_kv_tokens)
        rows.append((0, 0, max(1, round(kv / context)), kv, itl))
    return rows
