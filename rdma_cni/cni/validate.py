"""Checks a parsed JSON value against a model's schema, without pydantic where it is right.

The schema is pydantic's own, as data. What is plainly right by it is accepted here, in a few
lines. Whatever is not goes to pydantic's compiled core, which has the last word and knows why:
to load that takes a fifth of what the interpreter takes to start, and most configurations are right.
The package around it, which takes several times as long as everything else that the plugin does, is
never loaded.
"""

import _signal  # type: ignore[import-not-found]
import sys

from rdma_cni.cni import jsontext
from rdma_cni.cni.errors import INVALID_CONFIG, CniError
from rdma_cni.cni.typecast import cast

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import ModuleType
    from typing import Any

    from pydantic_core import CoreSchema, ErrorDetails, SchemaValidator


_MANY = 1000
"""Problems that are looked at."""
_TOLD = 10
"""Problems that an error tells of, the first in its message and the others in its details."""


class Record:
    """A validated object: the attributes of the model whose schema it was checked by."""

    # What the core sets on an instance, besides its attributes.
    __slots__ = ("__dict__", "__pydantic_extra__", "__pydantic_fields_set__", "__pydantic_private__")


def check(schema: str, value: "Mapping[str, object]", *, prefix: str = "", code: int = INVALID_CONFIG) -> Record:
    """`value` as a Record of the schema called `schema` ("NETCONF", "RESULT", ...).

    Raises CniError with `code`, naming the first field that is wrong (after `prefix`), what was
    found there and what was expected.
    """
    try:
        return cast("Record", accept(_schema(schema), value))
    except NotPlainError:
        pass
    core = _core()
    try:
        return _validator(schema).validate_python(value)  # type: ignore[no-any-return]
    except core.ValidationError as error:
        if error.error_count() > _MANY:
            # Of the keys that are not known each would be an object of a kilobyte.
            return check(schema, _thinned(value), prefix=prefix, code=code)
        problems = error.errors(include_url=False)
    # A key that is not known explains one that is missing.
    problems.sort(key=lambda problem: problem["type"] != "extra_forbidden")
    texts = [prefix + describe(problem, schema) for problem in problems[:_TOLD]]
    if len(problems) > _TOLD:
        texts.append(f"and {len(problems) - _TOLD} more")
    raise CniError(code, texts[0], "; ".join(texts[1:]))


def check_leniently(schema: str, value: dict[str, object], problems: list[str]) -> Record:
    """As `check`, but a field that is wrong is left out, and `problems` is told of it."""
    try:
        return cast("Record", accept(_schema(schema), value))
    except NotPlainError:
        pass
    core = _core()
    value = dict(value)
    while True:
        try:
            return _validator(schema).validate_python(value)  # type: ignore[no-any-return]
        except core.ValidationError as error:
            for problem in error.errors(include_url=False):
                problems.append(describe(problem, schema))
                # A field with a default; one that is needed was checked before.
                value.pop(str(problem["loc"][0]), None)


def problems(schema: str, value: "Mapping[str, object]") -> "list[tuple[tuple[int | str, ...], str]]":
    """Every problem of `value`: where it is, and the text that `check` would have for it."""
    try:
        _validator(schema).validate_python(value)
    except _core().ValidationError as error:
        return [(problem["loc"], describe(problem, schema)) for problem in error.errors(include_url=False)]
    return []


def keys(schema: str, path: "tuple[int | str, ...]" = ()) -> list[str]:
    """The keys that the object at `path` may have; none for one that may have any."""
    try:
        return _keys(_schema(schema), path)
    except KeyError:
        return []


class NotPlainError(Exception):
    """Not plainly right, which is not to say that it is wrong."""


def accept(node: "Mapping[str, Any]", value: object) -> object:
    """What pydantic's core makes of a value that is plainly right by the core schema `node`.

    Raises NotPlainError for all else: what is wrong, what needs a closer look (a string that is not
    ASCII, which may be no valid Unicode), a kind of schema that is not known here.
    """
    kind = node["type"]
    if kind == "default":
        kind = (node := node["schema"])["type"]
    if kind == "nullable":
        if value is None:
            return None
        kind = (node := node["schema"])["type"]
    if kind == "function-after":
        try:
            return node["function"]["function"](accept(node["schema"], value))
        except ValueError:
            raise NotPlainError from None
    if kind == "str":
        if type(value) is str and value.isascii() and node.keys() <= _OF_STRING:
            return value
    elif kind == "model":
        if type(value) is dict:
            return _accept_fields(node, value)
    elif kind == "list":
        if type(value) is list and node.keys() <= _OF_LIST:
            inner = node["items_schema"]
            return [accept(inner, entry) for entry in value]
    elif kind == "dict":
        if type(value) is dict and node.keys() <= _OF_DICT:
            keys, values = node["keys_schema"], node["values_schema"]
            return {accept(keys, key): accept(values, entry) for key, entry in value.items()}
    elif kind == "int":
        if (
            type(value) is int
            and node.keys() <= _OF_INTEGER
            and node.get("ge", value) <= value <= node.get("le", value)
        ):
            return value
    elif (
        kind == "any"
        or (kind == "bool" and type(value) is bool)
        or (kind == "literal" and type(value) is str and value in node["expected"])
    ):
        return value
    raise NotPlainError


_OF_STRING = {"type", "strict"}
_OF_INTEGER = {"type", "strict", "ge", "le"}
_OF_LIST = {"type", "items_schema", "fail_fast"}
_OF_DICT = {"type", "keys_schema", "values_schema", "fail_fast"}


def _accept_fields(node: "Mapping[str, Any]", value: dict[str, object]) -> Record:
    fields = node["schema"]["fields"]
    if node["config"].get("extra_fields_behavior") != "ignore" and not value.keys() <= fields.keys():
        raise NotPlainError
    record = Record()
    attributes = record.__dict__
    for name, field in fields.items():
        inner = field["schema"]
        if name in value:
            attributes[name] = accept(inner, value[name])
        elif inner["type"] == "default" and inner["default"] is None:
            attributes[name] = None
        else:
            raise NotPlainError
    return record


def describe(problem: "ErrorDetails", schema: str) -> str:
    """One problem in the form of all of our errors: field, found, expected."""
    field = ""
    for part in problem["loc"]:
        if isinstance(part, int):
            field += f"[{part}]"
        else:
            shown = part if len(part) <= 80 else part[:77] + "..."
            field += f".{shown}" if field else shown
    if problem["type"] == "missing":
        return f"{field}: found nothing, expected a value"
    if problem["type"] == "extra_forbidden":
        from difflib import get_close_matches

        known = _keys(_schema(schema), problem["loc"][:-1])
        near = get_close_matches(str(problem["loc"][-1]), known, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(known))}"
        return f"{field}: found a key that is not known; {hint}"
    found = jsontext.dump(problem["input"]).decode()
    if len(found) > 80:
        found = found[:77] + "..."
    message = _EXPECTED.get(problem["type"]) or problem["msg"]
    for useless in ("Value error, ", "Input should be "):
        message = message.removeprefix(useless)
    return f"{field}: found {found}, expected {message}"


def _thinned(value: "Mapping[str, object]") -> dict[str, object]:
    """`value`, of whose sections none has more than a hundred keys: what is not known in them stays so."""
    few = list(value.items())[:100]
    return {key: _thinned_entry(entry) for key, entry in few}


def _thinned_entry(entry: object) -> object:
    if isinstance(entry, dict):
        return _thinned(entry)
    return [_thinned_entry(one) for one in entry] if isinstance(entry, list) else entry


# In JSON's words, not in Python's.
_EXPECTED = {
    "bool_type": "true or false",
    "dict_type": "an object",
    "float_type": "a number",
    "int_type": "an integer",
    "list_type": "a list",
    "model_type": "an object",
    "string_type": "a string",
    "string_unicode": "a string of valid Unicode",
}


def _keys(node: object, path: "tuple[int | str, ...]") -> list[str]:
    """The keys of the object that `path` leads to, in a core schema."""
    while isinstance(node, dict) and node.get("type") != "model-fields":
        if node.get("type") == "list":
            path = path[1:]
        node = node.get("schema") or node.get("items_schema")
    fields = node["fields"] if isinstance(node, dict) else {}
    return _keys(fields[path[0]]["schema"], path[1:]) if path else list(fields)


_validators: "dict[str, SchemaValidator]" = {}


def _validator(name: str) -> "SchemaValidator":
    if name not in _validators:
        _validators[name] = _core().SchemaValidator(_schema(name))
    return _validators[name]


def _schema(name: str) -> "CoreSchema":
    try:
        import rdma_cni_schema  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        # A source tree: the models themselves are at hand.
        from rdma_cni.cni.schema import portable
        from rdma_cni.schema import MODELS

        return cast("CoreSchema", portable(MODELS[name]))
    return cast("CoreSchema", getattr(rdma_cni_schema, name))


def _core() -> "ModuleType":
    """The module `pydantic_core._pydantic_core`, without running the package's `__init__`."""
    name = "pydantic_core._pydantic_core"
    module = sys.modules.get(name)
    if module is None:
        # A Rust module panics when a signal's handler raises in the middle of its import.
        mask = _signal.pthread_sigmask(_signal.SIG_BLOCK, (_signal.SIGTERM, _signal.SIGINT))
        try:
            _import_core(name)
        finally:
            _signal.pthread_sigmask(_signal.SIG_SETMASK, mask)
        module = sys.modules[name]
    return module


def _import_core(name: str) -> None:
    if not getattr(sys, "frozen", False) or "pydantic_core" in sys.modules:
        __import__(name)
        return
    # An empty stand-in for the package, only for as long as the import takes.
    package = type(sys)("pydantic_core")
    package.__path__ = [f"{sys.prefix}/pydantic_core"]
    sys.modules["pydantic_core"] = package
    try:
        __import__(name)
    finally:
        del sys.modules["pydantic_core"]
