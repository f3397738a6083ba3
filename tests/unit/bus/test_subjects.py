"""DGD names as NATS subjects and back."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.bus.nats.subjects import Subjects, key_of
from headrace.schemas.errors import BusError, ConfigError

SUBJECTS = Subjects("headrace")

# Any text with a namespace and a name, without lone surrogates, which are no Unicode.
parts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40)
keys = st.builds("{}/{}".format, parts.filter(lambda part: "/" not in part), parts)


@given(key=keys)
def test_every_key_comes_back_from_its_subject(key: str) -> None:
    assert key_of(SUBJECTS.subject("decisions", key)) == key


@given(key=keys)
def test_a_subject_is_four_plain_tokens(key: str) -> None:
    assert re.fullmatch(r"headrace\.decisions\.[A-Za-z0-9_~%-]+\.[A-Za-z0-9_~%-]+", SUBJECTS.subject("decisions", key))


@given(one=keys, other=keys)
def test_different_keys_have_different_subjects(one: str, other: str) -> None:
    assert (SUBJECTS.subject("acks", one) == SUBJECTS.subject("acks", other)) == (one == other)


@pytest.mark.parametrize(
    ("key", "subject"),
    [
        ("ml/llama-70b", "headrace.decisions.ml.llama-70b"),
        ("ml/llama-3.1", "headrace.decisions.ml.llama-3%2E1"),
        ("a b/c*>", "headrace.decisions.a%20b.c%2A%3E"),
        ("a/b/c", "headrace.decisions.a.b%2Fc"),
        ("ns/100%", "headrace.decisions.ns.100%25"),
    ],
)
def test_subjects_are_these(key: str, subject: str) -> None:
    assert SUBJECTS.subject("decisions", key) == subject


def test_a_key_that_is_too_long_for_a_subject_is_refused() -> None:
    SUBJECTS.subject("decisions", f"ml/{'x' * 2000}")
    with pytest.raises(BusError, match=r"takes \d+ bytes in a NATS subject, above 2048"):
        SUBJECTS.subject("decisions", f"ml/{'x' * 2100}")


def test_a_key_that_is_no_unicode_is_refused() -> None:
    with pytest.raises(BusError, match="no valid Unicode"):
        SUBJECTS.subject("decisions", "ml/\ud800")


def test_stream_names_carry_the_prefix() -> None:
    assert SUBJECTS.stream_name("decisions") == "HEADRACE_DECISIONS"
    assert Subjects("team-a.headrace").stream_name("fpm") == "TEAM-A_HEADRACE_FPM"
    assert Subjects("team-a.headrace").all_of("fpm") == "team-a.headrace.fpm.*.*"


@pytest.mark.parametrize("prefix", ["", ".", "a.", ".a", "a..b", "a b", "a.*", ">", "ä"])
def test_a_prefix_that_is_no_subject_is_refused(prefix: str) -> None:
    with pytest.raises(ConfigError, match="bus prefix"):
        Subjects(prefix)
