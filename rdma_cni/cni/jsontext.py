"""JSON text to values and back, for a process whose start is its speed.

The package `json` imports `re` and with it a dozen modules more, which takes as long as starting
the interpreter does. Its parser and its encoder are in the interpreter's own `_json`, and what
that parses and prints is what `json` would: the package adds only the loops around it.
"""

import sys

# Typeshed describes the two constructors only loosely.
from _json import encode_basestring_ascii, make_encoder, make_scanner

_ERRORS = "json.decoder"
"""Where `_json` looks for the class of its errors."""

MAX_DEPTH = 100
"""Arrays and objects within one another; a CNI configuration has a handful."""


class JSONDecodeError(ValueError):
    """Stands in for `json.decoder`'s, which is what `_json` raises."""

    def __init__(self, problem: str, text: str, position: int) -> None:
        super().__init__(f"{problem} at character {position}")


class _Dialect:
    """What `make_scanner` asks its context for."""

    strict = True
    object_hook = None
    object_pairs_hook = None
    parse_int = int
    memo: dict[str, str] = {}  # noqa: RUF012 - keys seen before, shared on purpose

    @staticmethod
    def parse_float(text: str) -> float:
        value = float(text)
        if value in (float("inf"), float("-inf")):
            raise ValueError(f"the number {text[:40]} is out of range")
        return value

    @staticmethod
    def parse_constant(text: str) -> float:
        raise ValueError(f"{text} is no JSON value")


def parse(data: bytes) -> object:
    """The value of a JSON text (RFC 8259), UTF-8 without a byte order mark.

    Raises ValueError, saying what is wrong and where: no UTF-8, no JSON, more than one value, a
    number out of range, or nested deeper than MAX_DEPTH.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"not UTF-8 at byte {error.start}") from None
    start = len(text) - len(text.lstrip(" \t\r\n"))
    if start == len(text):
        raise ValueError("nothing at all")
    stands_in = _ERRORS not in sys.modules
    if stands_in:
        # This module, which has such a class, only for as long as the parser may look for it.
        sys.modules[_ERRORS] = sys.modules[__name__]
    try:
        value, end = make_scanner(_Dialect())(text, start)  # type: ignore[arg-type]
    except StopIteration as stop:
        raise ValueError(f"not JSON at character {stop.value}") from None
    except RecursionError:
        raise ValueError(f"nested deeper than {MAX_DEPTH}") from None
    except ValueError as error:
        raise ValueError(f"not JSON: {error}") from None
    finally:
        if stands_in:
            del sys.modules[_ERRORS]
    if text[end:].strip(" \t\r\n"):
        raise ValueError(f"not JSON: more text after the value, at character {end}")
    if text.count("[") + text.count("{") > MAX_DEPTH and _deeper_than(value, MAX_DEPTH):
        raise ValueError(f"nested deeper than {MAX_DEPTH}")
    return value


def dump(value: object) -> bytes:
    """The JSON text of a value of dicts, lists, strings, numbers, booleans and None, in ASCII."""
    encode = make_encoder(None, _refuse, encode_basestring_ascii, None, ":", ",", False, False, False)
    return "".join(encode(value, 0)).encode("ascii")


def _refuse(value: object) -> object:
    raise TypeError(f"{type(value).__name__} has no JSON form")


def _deeper_than(value: object, depth: int) -> bool:
    level = [value]
    for _ in range(depth):
        below: list[object] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
        level = below
    return any(isinstance(item, (dict, list)) for item in level)
