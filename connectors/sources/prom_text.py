"""A `/metrics` page as numbers: only the families that are asked for, and nothing that is doubtful."""

import re
from collections.abc import Iterable
from functools import lru_cache

from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as _openmetrics
from prometheus_client.parser import text_string_to_metric_families as _plain

from headrace.schemas.errors import RecordError

Labels = tuple[tuple[str, str], ...]  # sorted by name
Page = dict[str, dict[Labels, float]]  # sample name -> its series; a value may be NaN or infinite

ACCEPT = "text/plain;version=0.0.4;q=1,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.1"


def parse(body: bytes, families: Iterable[str]) -> Page:
    """The samples of `families` (names without `_total`, `_bucket`, `_sum`, `_count`) on a page, plain or OpenMetrics.

    Lines of other families are not looked at: a page of 80 kB has some 800, a scraper wants a tenth of them. Raises
    RecordError `undecodable` for what is no such page: not UTF-8, cut off in the middle of a line, values that are no
    numbers, a series that occurs twice.
    """
    text = _text(body)
    openmetrics = text.rstrip().endswith("\n# EOF")
    lines = [found.group() for found in _wanted(tuple(families)).finditer(text)]
    if openmetrics:  # its parser needs to know the types; the plain one would only trip over repeated ones
        lines.append("# EOF")
    else:
        lines = [line for line in lines if not line.startswith("#")]
    try:
        return _page((_openmetrics if openmetrics else _plain)("\n".join(lines) + "\n"))
    except (ValueError, KeyError, IndexError) as e:  # the parser's ways to say that a line is malformed
        raise RecordError(f"metrics page of {len(body)} bytes: {e}", reason="undecodable") from e


def mentions(body: bytes, prefix: str) -> bool:
    """Is there any sample whose name begins with `prefix`?"""
    return body.startswith(prefix.encode()) or b"\n" + prefix.encode() in body


def _text(body: bytes) -> str:
    try:
        text = body.decode()
    except UnicodeDecodeError as e:
        raise RecordError(f"metrics page of {len(body)} bytes is not UTF-8: {e}", reason="undecodable") from e
    if text and not text.endswith("\n"):  # "131" that was cut to "13" would look like a restart
        raise RecordError(
            f"metrics page of {len(body)} bytes is cut off: its last line has no end", reason="undecodable"
        )
    return text.replace("\r\n", "\n")


@lru_cache(maxsize=16)
def _wanted(families: tuple[str, ...]) -> re.Pattern[str]:
    names = "|".join(re.escape(name) for name in sorted(families))
    return re.compile(
        rf"^(?:# TYPE )?(?:{names})(?:_total|_bucket|_sum|_count|_created)?(?=[{{ \t]|$).*$",
        re.MULTILINE,
    )


def _page(metrics: Iterable[Metric]) -> Page:
    page: Page = {}
    for metric in metrics:
        for sample in metric.samples:
            labels = tuple(sorted(sample.labels.items()))
            series = page.setdefault(sample.name, {})
            if labels in series:
                raise ValueError(f"{sample.name}{dict(labels)} occurs twice")
            series[labels] = float(sample.value)
    return page
