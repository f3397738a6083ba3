"""Which kind of iteration answers for which load.

A prefill or decode engine is asked about its own kind alone. An aggregated engine runs all three kinds, and seldom has
shown all of them:
  prefill alone  the prefill kind; else mixed iterations, read at no decode load (reference weak spot 2: else an engine
                 that never prefills alone has no TTFT when it is idle)
  decode alone   the decode kind; else mixed iterations, read at no prefill
  both           mixed; else the decode kind plus what the prefill kind charges for a token (both run in one pass, so
                 the fixed cost is paid once)
"""

from headrace.models.perf.engine import EngineModel, Kind
from headrace.models.perf.line import Line
from headrace.schemas.base import AGG, Role


def line_for(model: EngineModel, role: Role, *, prefill: bool, decode: bool) -> Line | None:
    """The prices of an iteration that does this kind of work on this role's engines; None where nothing can tell."""
    if role != AGG:
        return model.line(Kind.MIXED if prefill and decode else Kind.PREFILL if prefill else Kind.DECODE)
    if prefill and decode:
        return model.line(Kind.MIXED) or _composed(model)
    return model.line(Kind.PREFILL if prefill else Kind.DECODE) or model.line(Kind.MIXED)


def _composed(model: EngineModel) -> Line | None:
    decode, prefill = model.line(Kind.DECODE), model.line(Kind.PREFILL)
    return None if decode is None or prefill is None else decode.with_prefill_of(prefill)
