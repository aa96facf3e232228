"""Reads JSON and YAML files for `rdma-cni validate`: their values, and the line that each part stands on."""

import bisect
import re
from collections.abc import Iterator

from rdma_cni.cni import jsontext

Path = tuple[str | int, ...]
"""Where in a value something is: keys and indices from the top."""

MAX_FILE = 4 << 20
"""Bytes. A cluster's definitions together are some hundred thousand."""
_MAX_NODES = 200_000
_JSON_NAMES = (".json", ".conf", ".conflist")
_YAML_NAMES = (".yaml", ".yml")


class DocumentError(Exception):
    """A file, or what is left of it, cannot be read as a value. `line` is 0 where it is not known."""

    def __init__(self, line: int, found: str, expected: str) -> None:
        super().__init__(f"found {found}, expected {expected}")
        self.line = line
        self.found = found
        self.expected = expected


class Document:
    """One value of a file, with the lines of its parts.

    `duplicates` are the paths of keys that an object has twice: the last one counts, for every reader.
    """

    __slots__ = ("_lines", "duplicates", "file", "value")

    def __init__(self, file: str, value: object, lines: dict[Path, int], duplicates: list[Path]) -> None:
        self.file = file
        self.value = value
        self._lines = lines
        self.duplicates = duplicates

    def line(self, path: Path) -> int:
        """The line of a part, or of what it would be in; counted from 1."""
        while path and path not in self._lines:
            path = path[:-1]
        return self._lines.get(path, 1)

    def parse_string(self, path: Path, *, several: bool = False) -> object:
        """The value of a part that is a string of JSON, a definition's `spec.config`.

        `several`: of values with commas between them, as a list. Its parts then have lines, too, below
        `path`. Raises DocumentError.
        """
        text = at(self.value, path)
        if several:
            text = f"[{text}]"
        start = self._lines.get((*path, _LITERAL), 0)
        first = start or self.line(path)
        try:
            value, lines, duplicates = _json(str(text))
        except DocumentError as error:
            error.line = first + error.line - 1 if start else first
            raise
        for inner, line in lines.items():
            self._lines[path + inner] = first + line - 1 if start else first
        self.duplicates += [path + inner for inner in duplicates]
        return value


_LITERAL = "\0literal"
"""A key that no file can have: where the text of a literal block of YAML begins."""


def at(value: object, path: Path) -> object:
    """The part of `value` that `path` leads to; None when it leads nowhere."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            return None
    return value


def text_of(path: Path) -> str:
    """A path as our errors write it: `plugins[0].ipam.pools[1].subnet`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


def path_of(field: str, value: object) -> Path:
    """The other way round, as far as it leads in `value`: a key may have dots in it, as a node's name has."""
    path: Path = ()
    while field:
        index = re.match(r"\[(\d+)\]", field)
        if index:
            part: str | int = int(index[1])
            field = field[index.end() :]
        else:
            field = field.removeprefix(".")
            keys = [str(key) for key in value] if isinstance(value, dict) else []
            known = [key for key in keys if field == key or field.startswith((f"{key}.", f"{key}["))]
            part = max(known, key=len) if known else re.split(r"[.\[]", field, maxsplit=1)[0]
            field = field[len(part) :]
        path = (*path, part)
        value = at(value, (part,))
    return path


def read(file: str, data: bytes) -> Iterator[Document]:
    """The values of a file, one after the other. Raises DocumentError, after those before the fault."""
    if len(data) > MAX_FILE:
        raise DocumentError(0, f"{len(data)} bytes", f"at most {MAX_FILE}")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise DocumentError(line, f"the byte 0x{data[error.start]:02x}", "text in UTF-8") from None
    if file.endswith(_JSON_NAMES) or (not file.endswith(_YAML_NAMES) and text.lstrip().startswith("{")):
        value, lines, duplicates = _json(text)
        yield Document(file, value, lines, duplicates)
    else:
        yield from _yaml(file, text)


# JSON


def _json(text: str) -> tuple[object, dict[Path, int], list[Path]]:
    """The value as the plugins read it, the line of each part, keys that are there twice."""
    ends = [match.start() for match in re.finditer("\n", text)]
    try:
        value = jsontext.parse(text.encode())
    except ValueError as error:
        problem, position = str(error).removeprefix("not JSON: ").removeprefix("not JSON"), 0
        # The second form is that of `json`, where something else has imported it.
        place = re.search(r"(?:, )?(?:at character (\d+)|: line \d+ column \d+ \(char (\d+)\))$", problem)
        if place:
            problem, position = problem[: place.start()].strip(), int(place[1] or place[2])
        found = _what_is_at(text, position, problem)
        if found.startswith("a comma"):
            position = text.rindex(",", 0, position)
        raise DocumentError(bisect.bisect_left(ends, position) + 1, found, "JSON") from None
    scan = _JsonScan(text, ends)
    scan.value(())
    return value, scan.lines, scan.duplicates


def _what_is_at(text: str, position: int, problem: str) -> str:
    """What is wrong there, in the words of who wrote it; `problem` is what the parser says."""
    rest = text[position : position + 40].split("\n", 1)[0].strip()
    before = text[:position].rstrip()
    if not text.strip():
        return "nothing at all"
    if text.startswith("\ufeff"):
        return "a byte order mark at its start"
    if rest.startswith(("//", "/*", "#")):
        return f"a comment ({rest!r}), which JSON does not have"
    if before.endswith(",") and rest.startswith(("}", "]")):
        return f"a comma before {rest[0]!r}"
    if rest.startswith("'"):
        return f"single quotes ({rest!r})"
    shown = repr(rest) if rest else "the end of the line or of the text"
    return f"{shown} ({problem})" if problem else shown


_TOKEN = re.compile(r'[ \t\r\n]*(?:"((?:[^"\\]|\\.)*)"|([\[\]{}:,])|[^ \t\r\n\[\]{}:,"]+)')


class _JsonScan:
    """Goes through a text that is known to be JSON, for the lines."""

    def __init__(self, text: str, ends: list[int]) -> None:
        self._text = text
        self._ends = ends
        self._position = 0
        self.lines: dict[Path, int] = {}
        self.duplicates: list[Path] = []

    def _next(self) -> re.Match[str]:
        token = _TOKEN.match(self._text, self._position)
        assert token is not None  # noqa: S101 - it is JSON
        self._position = token.end()
        return token

    def _line(self, token: re.Match[str]) -> int:
        # Strings have no line breaks, so that a token ends on the line it begins on.
        return bisect.bisect_left(self._ends, token.end() - 1) + 1

    def value(self, path: Path, token: "re.Match[str] | None" = None) -> None:
        token = token or self._next()
        self.lines.setdefault(path, self._line(token))
        if token[2] == "{":
            self._object(path)
        elif token[2] == "[":
            number = 0
            while (token := self._next())[2] != "]":
                if token[2] != ",":
                    self.value((*path, number), token)
                    number += 1

    def _object(self, path: Path) -> None:
        while (token := self._next())[2] != "}":
            if token[2] == ",":
                continue
            key = (*path, str(jsontext.parse(f'"{token[1]}"'.encode())) if "\\" in token[1] else token[1])
            if key in self.lines:
                self.duplicates.append(key)
            # The key's line is the one to look at: the value may be a long way down.
            self.lines[key] = self._line(token)
            self._next()
            self.value(key)


# YAML


def _yaml(file: str, text: str) -> Iterator[Document]:
    """Documents as Kubernetes reads them."""
    import yaml

    loader = yaml.SafeLoader("")
    try:
        loader = yaml.SafeLoader(text)
        while loader.check_node():
            node = loader.get_node()
            walk = _YamlWalk(loader)
            value = None if node is None else walk.value(node, ())
            if value is not None:
                yield Document(file, value, walk.lines, walk.duplicates)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        problem = ", ".join(part for part in (error.context, error.problem) if part)
        raise DocumentError(mark.line + 1 if mark else 0, problem, "YAML") from None
    except yaml.YAMLError as error:
        raise DocumentError(0, str(error).splitlines()[0], "YAML") from None
    except RecursionError:
        raise DocumentError(0, "lists and objects too deep within one another", "YAML of a hundred levels") from None
    except ValueError as error:
        # Of a scalar that looks like a number or a date, and is none.
        raise DocumentError(0, str(error), "YAML") from None
    finally:
        loader.dispose()


class _YamlWalk:
    """From the nodes of one document to its value, noting lines."""

    def __init__(self, loader: "object") -> None:
        self._loader = loader
        self._count = 0
        self.lines: dict[Path, int] = {}
        self.duplicates: list[Path] = []

    def value(self, node: "object", path: Path) -> object:
        import yaml

        self._count += 1
        if self._count > _MAX_NODES or len(path) > jsontext.MAX_DEPTH:
            # An alias repeats what it stands for, and that may have aliases.
            raise DocumentError(
                node.start_mark.line + 1,  # type: ignore[attr-defined]
                "a document that aliases or nesting make too large",
                f"at most {_MAX_NODES} values",
            )
        self.lines.setdefault(path, node.start_mark.line + 1)  # type: ignore[attr-defined]
        if isinstance(node, yaml.SequenceNode):
            return [self.value(item, (*path, number)) for number, item in enumerate(node.value)]
        if isinstance(node, yaml.MappingNode):
            self._loader.flatten_mapping(node)  # type: ignore[attr-defined]
            found: dict[object, object] = {}
            for key_node, item in node.value:
                key = key_node.value if isinstance(key_node, yaml.ScalarNode) else str(key_node.tag)
                if key in found:
                    self.duplicates.append((*path, key))
                self.lines[*path, key] = key_node.start_mark.line + 1
                found[key] = self.value(item, (*path, key))
            return found
        if node.style == "|":  # type: ignore[attr-defined]
            self.lines[*path, _LITERAL] = node.start_mark.line + 2  # type: ignore[attr-defined]
        return self._loader.construct_object(node)  # type: ignore[attr-defined]
