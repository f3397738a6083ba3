"""What `headrace profile show` prints: the points, curves between them, and the best load within an ITL."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click
import msgspec

from headrace.connectors.profiles.files import read_profile
from headrace.models.profile.decode import decode_table
from headrace.models.profile.prefill import prefill_table
from headrace.models.profile.tables import DecodeTable, PrefillTable, Scheme
from headrace.schemas.errors import ConfigError
from headrace.schemas.profile import DecodeProfile, EngineProfile
from headrace.streams.cli import output
from headrace.streams.cli.chart import Axis, draw
from headrace.streams.cli.output import Column, Row

T = TypeVar("T")

SAMPLES = 112  # places at which a curve is drawn
CONTEXTS = 3  # context lengths whose curves are drawn


@dataclass(frozen=True, slots=True)
class Show:
    """What was asked for. `picture` is a file to write, `itl_ms` a target."""

    directory: str
    itl_ms: float | None
    scheme: Scheme
    picture: str | None
    as_json: bool


@dataclass(frozen=True, slots=True)
class Curves:
    """The profile, and what interpolates its halves; None where a half is missing or cannot be interpolated."""

    profile: EngineProfile
    prefill: PrefillTable | None
    decode: DecodeTable | None


def show_profile(show: Show) -> None:
    """Print the profile. Raises ConfigError where it cannot be read, or its picture cannot be drawn."""
    profile = read_profile(show.directory)
    curves = interpolate(profile, show.scheme)
    best = [] if show.itl_ms is None else best_loads(curves, show.itl_ms)
    if show.as_json:
        found = {"prefill": profile.prefill, "decode": profile.decode, "best": best}
        output.write(output.to_json(msgspec.to_builtins(found), pretty=output.on_terminal()))
    else:
        _print(curves, best)
    if show.picture is not None:
        from headrace.streams.cli.profile_plot import write_picture

        write_picture(curves, show.picture)
        click.echo(f"written: {show.picture}", err=True)


def interpolate(profile: EngineProfile, scheme: Scheme) -> Curves:
    """Curves where they are possible; stderr says why they are not."""
    p, d = profile.prefill, profile.decode
    return Curves(
        profile,
        None if p is None else _curve(lambda: prefill_table(p, scheme)),
        None if d is None else _curve(lambda: decode_table(d, scheme)),
    )


def _curve(make: Callable[[], T]) -> T | None:
    try:
        return make()
    except ConfigError as e:
        click.echo(f"no curves: {e}", err=True)
        return None


def best_loads(curves: Curves, itl_ms: float) -> list[dict[str, Any]]:
    """The best load of each measured context length within the ITL."""
    decode = curves.profile.decode
    if decode is None or curves.decode is None:
        return []
    rows = []
    for context in sorted(set(decode.context_length)):
        best = curves.decode.find_best_throughput_per_gpu(itl_ms / 1000, context)
        rows.append(
            {
                "context_length": context,
                "requests": best.kv_usage * decode.max_kv_tokens / context,
                "kv_usage": best.kv_usage,
                "itl_ms": 1000 * best.itl_s,
                "throughput_per_gpu": best.throughput_per_gpu,
                "meets": best.meets_sla,
            }
        )
    return rows


def _cell(title: str, key: str, form: str) -> Column:
    return Column(title, lambda row: "-" if row[key] is None else format(row[key], form), right=True)


POINTS = (
    Column("work", lambda row: row["work"]),
    _cell("tokens", "tokens", ".0f"),
    _cell("requests", "requests", ".1f"),
    _cell("KV use", "kv_usage", ".3f"),
    _cell("ms", "ms", ".2f"),
    _cell("tokens/s/GPU", "throughput_per_gpu", ".0f"),
)
BEST = (
    _cell("context", "context_length", ".0f"),
    _cell("requests", "requests", ".1f"),
    _cell("KV use", "kv_usage", ".3f"),
    _cell("ITL ms", "itl_ms", ".2f"),
    _cell("tokens/s/GPU", "throughput_per_gpu", ".0f"),
    Column("meets ITL", lambda row: "yes" if row["meets"] else "no"),
)


def points(profile: EngineProfile) -> list[Row]:
    """Every measured point: for prefill `tokens` is the prompt and `ms` TTFT, for decode the context and ITL."""
    rows: list[Row] = []
    p, d = profile.prefill, profile.decode
    if p is not None:
        for isl, ttft, throughput in zip(p.isl, p.ttft_s, p.throughput_per_gpu, strict=True):
            rows.append(_point("prefill", isl, None, None, ttft, throughput))
    if d is not None:
        for usage, context, itl, throughput in zip(
            d.kv_usage, d.context_length, d.itl_s, d.throughput_per_gpu, strict=True
        ):
            rows.append(_point("decode", context, usage * d.max_kv_tokens / context, usage, itl, throughput))
    return rows


def _point(
    work: str, tokens: float, requests: float | None, usage: float | None, seconds: float, throughput: float
) -> Row:
    return {
        "work": work,
        "tokens": tokens,
        "requests": requests,
        "kv_usage": usage,
        "ms": 1000 * seconds,
        "throughput_per_gpu": throughput,
    }


def _print(curves: Curves, best: list[dict[str, Any]]) -> None:
    """In a pipe the best loads where they were asked for, else the points; on a terminal all, with curves."""
    if not output.on_terminal():
        output.show(best or points(curves.profile), BEST if best else POINTS, as_json=False)
        return
    output.show(points(curves.profile), POINTS, as_json=False)
    for line in (*prefill_chart(curves), *decode_chart(curves)):
        output.write(line)
    if best:
        output.write("")
        output.show(best, BEST, as_json=False)


def prefill_chart(curves: Curves) -> list[str]:
    """TTFT by prompt length, as lines of text."""
    profile, table = curves.profile.prefill, curves.prefill
    if profile is None or table is None:
        return []
    low, high = min(profile.isl), max(profile.isl)
    places = [low + (high - low) * i / (SAMPLES - 1) for i in range(SAMPLES)]
    found = [(isl, 1000 * table.ttft_s(isl)) for isl in places]
    lines = draw(found, Axis.of("tokens", profile.isl), Axis.of("ms", [y for _, y in found], from_zero=True))
    return ["", "TTFT by prompt length", *lines]


def decode_chart(curves: Curves) -> list[str]:
    """ITL by KV usage for a short, a middle and a long context, as lines of text."""
    profile, table = curves.profile.decode, curves.decode
    if profile is None or table is None:
        return []
    y = Axis.of("ms", [1000 * itl for itl in profile.itl_s], from_zero=True)
    lines: list[str] = []
    for context in some_contexts(profile):
        places = [i / (SAMPLES - 1) for i in range(SAMPLES)]
        found = [(u, 1000 * table.itl_s(u * profile.max_kv_tokens / context, context)) for u in places]
        lines += ["", f"ITL by KV usage, context of {context:.0f} tokens", *draw(found, Axis("KV use", 0.0, 1.0), y)]
    return lines


def some_contexts(profile: DecodeProfile, most: int = CONTEXTS) -> list[float]:
    """At most so many of the measured context lengths, from the shortest to the longest."""
    lengths = sorted(set(profile.context_length))
    if len(lengths) <= most:
        return lengths
    return [lengths[round(i * (len(lengths) - 1) / (most - 1))] for i in range(most)]
