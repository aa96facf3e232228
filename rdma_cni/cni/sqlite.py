"""`_sqlite3`, without the third of its import that is `functools` and what that imports.

All it wants of that module is `lru_cache`, for a connection's prepared statements, and that is in C
as well. A stand-in is there only for as long as the import takes.
"""

import sys
from _functools import _lru_cache_wrapper  # type: ignore[import-not-found]

__all__ = ["ERRORS", "DatabaseError", "connect"]

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable


def _lru_cache(maxsize: int) -> "Callable[[Callable[..., object]], object]":
    # The last argument is for `cache_info()`, which nobody asks.
    return lambda function: _lru_cache_wrapper(function, maxsize, False, None)


_stands_in = "functools" not in sys.modules
if _stands_in:
    _functools = type(sys)("functools")
    _functools.lru_cache = _lru_cache  # type: ignore[attr-defined]
    sys.modules["functools"] = _functools
try:
    from _sqlite3 import DatabaseError, connect
finally:
    if _stands_in:
        del sys.modules["functools"]

ERRORS = (DatabaseError, UnicodeDecodeError)
"""What SQLite's errors come as: the second where the text of one quotes a damaged file, and is no UTF-8."""
