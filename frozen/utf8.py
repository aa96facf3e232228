"""The package `encodings` of the frozen program: UTF-8 at once, other codecs when they are asked for.

The interpreter imports this package before anything else. The standard library's, which is in the
bundle as `encodings.standard` (`build.spec`), brings two dozen classes and a table of hundreds of names: a tenth of
a start, for what no plugin uses.
"""

import _codecs
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any


class _IncrementalEncoder:
    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors

    def encode(self, text: str, final: bool = False) -> bytes:
        return _codecs.utf_8_encode(text, self.errors)[0]

    def reset(self) -> None:
        """Nothing is kept between two calls."""

    def getstate(self) -> int:
        return 0

    def setstate(self, state: object) -> None:
        """As `reset`."""


class _IncrementalDecoder:
    def __init__(self, errors: str = "strict") -> None:
        self.errors = errors
        self._rest = b""

    def decode(self, data: bytes, final: bool = False) -> str:
        data = self._rest + data
        text, taken = _codecs.utf_8_decode(data, self.errors, final)
        self._rest = data[taken:]
        return text

    def reset(self) -> None:
        self._rest = b""

    def getstate(self) -> tuple[bytes, int]:
        return self._rest, 0

    def setstate(self, state: tuple[bytes, int]) -> None:
        self._rest = state[0]


class _Utf8(tuple):  # type: ignore[type-arg]
    """What `codecs.CodecInfo` says of it."""

    __slots__ = ()
    _is_text_encoding = True
    name = "utf-8"
    encode = staticmethod(_codecs.utf_8_encode)
    incrementalencoder = _IncrementalEncoder
    incrementaldecoder = _IncrementalDecoder

    @staticmethod
    def decode(data: bytes, errors: str = "strict") -> tuple[str, int]:
        return _codecs.utf_8_decode(data, errors, True)

    @staticmethod
    def streamreader(stream: "Any", errors: str = "strict") -> "Any":
        from encodings.utf_8 import StreamReader

        return StreamReader(stream, errors)

    @staticmethod
    def streamwriter(stream: "Any", errors: str = "strict") -> "Any":
        from encodings.utf_8 import StreamWriter

        return StreamWriter(stream, errors)


_UTF_8 = _Utf8((_Utf8.encode, _Utf8.decode, _Utf8.streamreader, _Utf8.streamwriter))


def search_function(encoding: str) -> "Any":
    """The codec of a name as `codecs.lookup` has normalized it; None when the bundle has none."""
    if encoding in ("utf-8", "utf8", "utf_8"):
        return _UTF_8
    return _standard().search_function(encoding)


_codecs.register(search_function)


def __getattr__(name: str) -> object:
    # What is asked for while that module is being made is not there yet, itself least of all.
    if name.startswith("__") or name == "standard":
        raise AttributeError(name)
    return getattr(_standard(), name)


def _standard() -> "Any":
    name = "encodings.standard"
    __import__(name)
    return sys.modules[name]
