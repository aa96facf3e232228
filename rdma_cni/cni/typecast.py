"""`typing.cast` for modules that cannot afford to import `typing`, a dozen milliseconds of a start."""

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import cast as cast  # noqa: PLC0414 - re-exported
else:

    def cast(kind, value):
        """`value`; `kind` is for the type checker alone."""
        return value
