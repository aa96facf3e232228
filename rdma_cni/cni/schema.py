"""Writes what pydantic models check as a module that pydantic's compiled core can run alone.

A model's core schema is data, but for the classes it makes and the functions it calls. Here
classes become `validate.Record`, and functions are imported by name. Run when the bundle is built
(`build.spec`); from a source tree `validate.py` makes the same on the fly.
"""

from typing import Any

from pydantic import BaseModel

from rdma_cni.cni.validate import Record

_DROPPED = {"metadata", "custom_init", "root_model", "ref", "computed_fields", "function"}


def portable(model: type[BaseModel]) -> dict[str, Any]:
    """The core schema of `model`, making Records with the attributes of the model's instances."""
    schema: Any = model.__pydantic_core_schema__
    definitions: dict[str, Any] = {}
    if schema["type"] == "definitions":
        definitions = {definition["ref"]: definition for definition in schema["definitions"]}
        schema = schema["schema"]
    return _portable(schema, definitions)  # type: ignore[no-any-return]


def _portable(node: Any, definitions: dict[str, Any]) -> Any:
    if isinstance(node, list):
        return [_portable(item, definitions) for item in node]
    if not isinstance(node, dict):
        return node
    if node.get("type") == "definition-ref":
        return _portable(definitions[node["schema_ref"]], definitions)
    if node.get("type") == "model":
        # The title is what an error is headed with, and nobody reads that.
        return {
            "type": "model",
            "cls": Record,
            "schema": _portable(node["schema"], definitions),
            "config": {key: value for key, value in node["config"].items() if key != "title"},
        }
    copy = {key: _portable(value, definitions) for key, value in node.items() if key not in _DROPPED}
    if node.get("type") in ("list", "dict"):
        # A configuration may have half a million bad entries in one, and each is an error of a kilobyte.
        copy["fail_fast"] = True
    if "function" in node:
        function = node["function"]
        copy["function"] = function if callable(function) else dict(function)
    return copy


def source(models: dict[str, type[BaseModel]]) -> str:
    """The text of a module with one constant for each of `models`, by name."""
    modules: set[str] = set()
    lines = [f"{name} = {_literal(portable(model), modules)}" for name, model in models.items()]
    head = ['"""Made from the pydantic models when the bundle was built; see rdma_cni/cni/schema.py."""']
    imports = [f"import {module}" for module in sorted(modules)]
    return "\n".join([*head, *imports, *lines, ""])


def _literal(node: Any, modules: set[str]) -> str:
    if isinstance(node, dict):
        return "{" + ", ".join(f"{key!r}: {_literal(value, modules)}" for key, value in node.items()) + "}"
    if isinstance(node, (list, tuple)):
        return "[" + ", ".join(_literal(item, modules) for item in node) + "]"
    if isinstance(node, (str, int, float)) or node is None:
        return repr(node)
    if callable(node):
        modules.add(node.__module__)
        return f"{node.__module__}.{node.__qualname__}"
    raise TypeError(f"a core schema with a {type(node).__name__} cannot be written down")
