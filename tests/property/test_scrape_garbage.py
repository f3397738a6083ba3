"""Any bytes at all: a page is read, or refused with a RecordError that has a reason; nothing else ever comes out."""

from hypothesis import example, given
from hypothesis import strategies as st
from metrics_support import page

from headrace.connectors.sources.fpm_packer import FpmPacker, Route
from headrace.connectors.sources.frontend_page import Reading, Selector, read_page
from headrace.connectors.sources.frontend_windows import FrontendWindows
from headrace.schemas.codec import decode, encode
from headrace.schemas.errors import RecordError
from headrace.schemas.fpm import TOPIC, FpmEnvelope, encode_envelope

PAGE = page(started=7, completed=5, isl=(5, 500, {100: 2, 500: 5}), hits={"ns": (4, 3.0)}, process="a", uptime=9.0)
REASONS = {"undecodable", "not_a_number", "unknown_model"}

metric_like = st.from_regex(
    r'dynamo_frontend_(requests_started_total|input_sequence_tokens_(sum|count|bucket))(\{[a-z]="[^\n]{0,8}"\}?)?[^\n]{0,20}\n',
    fullmatch=True,
)


def read(body: bytes) -> Reading | RecordError:
    try:
        return read_page(body, Selector(model="tiny"))
    except RecordError as e:
        return e


def read_or_refused(body: bytes) -> bool:
    """Read a page into a window; true when it could be read, false when it was refused with a reason."""
    reading = read(body)
    if isinstance(reading, RecordError):
        assert reading.reason in REASONS
        assert str(reading)
        return False
    windows = FrontendWindows("ml/llama", "f", ["a"])
    windows.round(10.0, {"a": read_page(PAGE, Selector())})
    window = windows.round(15.0, {"a": reading})
    assert window is not None
    assert decode("traffic", encode(window)) == window
    return True


@given(st.binary(max_size=400))
def test_bytes_are_read_or_refused(body: bytes) -> None:
    read_or_refused(body)


@given(st.lists(metric_like, max_size=6).map("".join))
@example("dynamo_frontend_requests_started_total{\n")
@example('dynamo_frontend_requests_started_total{a="b"} \n')
@example('dynamo_frontend_requests_started_total{a="b"} 1 2 3\n')
@example('dynamo_frontend_input_sequence_tokens_bucket{le="x"} 1\ndynamo_frontend_input_sequence_tokens_count 1\n')
def test_lines_that_look_like_metrics_are_read_or_refused(text: str) -> None:
    read_or_refused(text.encode())


@given(st.integers(min_value=0, max_value=len(PAGE) - 1), st.binary(min_size=1, max_size=3))
def test_a_page_with_some_bytes_changed_is_read_or_refused(at: int, changed: bytes) -> None:
    read_or_refused(PAGE[:at] + changed + PAGE[at + len(changed) :])


@given(st.integers(min_value=0, max_value=len(PAGE) - 1))
def test_a_page_that_is_cut_inside_a_line_is_refused(at: int) -> None:
    cut = PAGE[:at]
    if cut.endswith(b"\n"):
        return
    assert not read_or_refused(cut)


def test_the_whole_page_can_be_read() -> None:
    assert read_or_refused(PAGE)


ENVELOPE = encode_envelope(FpmEnvelope(5, 0, 1000, TOPIC, b"\x80" * 40))
SUBJECT = f"namespace.dynamo.component.backend.endpoint.generate.{TOPIC}"


@given(st.lists(st.one_of(st.binary(max_size=200), st.just(ENVELOPE)), max_size=10))
def test_every_message_becomes_an_item_or_a_dead_letter(messages: list[bytes]) -> None:
    packer = FpmPacker([Route("dynamo", "ml/llama")], source="s")
    letters = [letter for data in messages if (letter := packer.add(SUBJECT, data, 1.0)) is not None]
    batches = packer.take()
    assert len(letters) + sum(len(batch.items) for batch in batches) == len(messages)
    for record in (*letters, *batches):
        encode(record)


@given(st.integers(min_value=0, max_value=len(ENVELOPE) - 1), st.binary(min_size=1, max_size=4))
def test_an_envelope_with_some_bytes_changed_gives_records_that_can_be_read(at: int, changed: bytes) -> None:
    packer = FpmPacker([Route("dynamo", "ml/llama")], source="s")
    packer.add(SUBJECT, ENVELOPE[:at] + changed + ENVELOPE[at + len(changed) :], 1.0)
    for batch in packer.take():
        assert decode("fpm", encode(batch)) == batch


@given(st.text(max_size=60))
def test_any_subject_is_counted(subject: str) -> None:
    packer = FpmPacker([Route("dynamo", "ml/llama")], source="s")
    assert packer.add(subject, ENVELOPE, 1.0) is None
    assert packer.counters.received == 1
    assert packer.counters.unmapped == 1
