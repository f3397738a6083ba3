"""AicSpec: which engine AI Configurator is asked about, in the reference's keys."""

from typing import Annotated

import msgspec
from msgspec import Meta

from headrace.schemas.base import PREFILL, Role

Ways = Annotated[int, Meta(ge=1, le=4096)]
Tokens = Annotated[int, Meta(ge=1, le=2**31)]
Steps = Annotated[int, Meta(ge=1, le=1000)]


class Pick(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How one replica is spread over GPUs."""

    tp: Ways = 1
    pp: Ways = 1
    dp: Ways = 1
    moe_tp: Ways = 1
    moe_ep: Ways = 1

    @property
    def gpus(self) -> int:
        """GPUs of one replica: attention and expert parallelism share them (dynamo#8576)."""
        return self.pp * max(self.tp, self.dp, self.moe_tp * self.moe_ep)


class AicSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which engine, on what, and how finely it is swept: the reference's `aic_interpolation`."""

    hf_id: str
    system: str  # h200_sxm, ...
    backend: str  # vllm, sglang, trtllm
    backend_version: str = "current"  # one that the package has tables of, or "current"
    isl: Tokens = 3000  # tokens of an expected prompt; it tells how much prefill an aggregated engine mixes in
    osl: Tokens = 150  # tokens of an expected output
    sweep_max_context_length: Tokens = 16_384  # tokens
    prefill_interpolation_granularity: Steps = 16
    decode_interpolation_granularity: Steps = 6
    prefill_pick: Pick = Pick()
    decode_pick: Pick = Pick()
    max_kv_tokens: Tokens | None = None  # of one rank; null: as the memory of the GPUs allows

    def pick(self, role: Role) -> Pick:
        return self.prefill_pick if role == PREFILL else self.decode_pick
