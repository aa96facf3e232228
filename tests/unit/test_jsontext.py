"""The JSON reader and writer against the standard library's."""

import json
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rdma_cni.cni import jsontext

# How long an example takes says nothing on a machine that others share.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(VALUES)
def test_what_is_dumped_parses_to_the_same_here_and_in_the_standard_library(value: object) -> None:
    assert jsontext.parse(jsontext.dump(value)) == value
    assert json.loads(jsontext.dump(value)) == value


@given(VALUES, st.sampled_from([None, 1, "\t"]))
def test_the_standard_librarys_text_is_read(value: object, indent: int | str | None) -> None:
    assert jsontext.parse(json.dumps(value, indent=indent, ensure_ascii=False).encode(errors="replace")) == (
        json.loads(json.dumps(value, ensure_ascii=False).encode(errors="replace"))
    )


@given(st.binary(max_size=200))
def test_any_bytes_are_a_value_or_a_value_error(data: bytes) -> None:
    try:
        jsontext.parse(data)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - it may also succeed


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (b"", "nothing at all"),
        (b" \n\t", "nothing at all"),
        (b"{", "not JSON"),
        (b"{} {}", "more text after the value"),
        (b"{'a': 1}", "not JSON"),
        (b'{"a": NaN}', "NaN"),
        (b'{"a": -Infinity}', "Infinity"),
        (b'{"a": 1e999}', "out of range"),
        (b'"\xff"', "not UTF-8 at byte 1"),
        (b"\xef\xbb\xbf{}", "not JSON"),
        (b'{"a": "\x01"}', "not JSON"),
        (b"[" * 101 + b"]" * 101, "nested deeper than 100"),
        (b"[" * 100_000 + b"]" * 100_000, "nested deeper than 100"),
        (b'{"a":' * 3000 + b"1" + b"}" * 3000, "nested deeper than 100"),
        (b"1" * 5000, "not JSON"),
    ],
)
def test_what_is_no_json_is_told_in_words(text: bytes, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        jsontext.parse(text)


def test_a_hundred_levels_are_not_too_deep() -> None:
    assert jsontext.parse(b"[" * 100 + b"]" * 100)


@pytest.mark.parametrize("value", [object(), {1: 2, "a": {3}}, math.inf])
def test_what_has_no_json_form_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        jsontext.dump(value)
