"""Strict YAML: text to configuration structs, with errors a person can act on in one line.

Every error reads ``file:line: key.path: what is wrong; remedy``. Duplicate keys, unknown keys and
values of the wrong type are errors. Only ``read_document`` touches the disk.
"""

import difflib
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import TypeAlias, TypeVar

import msgspec
import yaml
from msgspec import inspect

from stethoscope.schemas.errors import ConfigError

T = TypeVar("T")
Key: TypeAlias = str | int
_AT = re.compile(r"^(?P<what>.*?)(?: - at (?:`key` in )?`\$(?P<path>.*)`)?$", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"Object contains unknown field `(.*)`")
_MISSING = re.compile(r"Object missing required field `(.*)`")
_NAME = re.compile(r"\b(object|array|str|int|float|bool)\b")
_WORDS = {
    "object": "a mapping",
    "array": "a list",
    "str": "text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
}
_MOST_WORDS = 30
_SECRETS = ("password", "key_password", "bearer_token")
_EXPECTED = re.compile(r"Expected (.*)")


class Document:
    """A parsed YAML text that remembers its lines.

    Attributes:
        data: plain dicts, lists and scalars.
        file: the name errors begin with.
    """

    def __init__(self, text: str, file: str) -> None:
        """Parse ``text``.

        Raises:
            ConfigError: not YAML, or the same key twice.
        """
        self.file = file
        try:
            self._root = yaml.compose(text, Loader=yaml.SafeLoader)
            self._refuse_doubles(self._root, ())
            self.data: object = yaml.safe_load(text)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            what = f"not YAML: {error.problem}"
            raise self._error(line, (), what, "check the spelling") from error
        except (yaml.YAMLError, ValueError, RecursionError) as error:
            what = " ".join(str(error).split())
            raise self._error(1, (), f"not YAML: {what}", "check the file") from error

    def mapping(self) -> dict[str, object]:
        """The whole as a mapping; an empty text is an empty one.

        Raises:
            ConfigError: something else than a mapping.
        """
        if self.data is None:
            return {}
        if not isinstance(self.data, dict):
            raise self.error((), "not a mapping of keys to values", "see docs/configuration.md")
        return {str(key): value for key, value in self.data.items()}

    def convert(self, kind: type[T], data: object, at: tuple[Key, ...] = ()) -> T:
        """``data``, which stands at key path ``at``, as a ``kind``.

        Raises:
            ConfigError: unknown key, wrong type, value out of range.
        """
        try:
            return msgspec.convert(data, kind)
        except msgspec.ValidationError as error:
            raise self._explained(error, kind, data, at) from error

    def error(self, at: tuple[Key, ...], what: str, remedy: str) -> ConfigError:
        """An error about the value at key path ``at``."""
        return self._error(self.line_of(at), at, what, remedy)

    def line_of(self, at: tuple[Key, ...]) -> int:
        """The line on which the key or list item stands; its nearest parent's, if absent."""
        node, line = self._root, 1
        for key in at:
            step = _child(node, key)
            if step is None:
                break
            line, node = step
        return line

    def _error(self, line: int, at: tuple[Key, ...], what: str, remedy: str) -> ConfigError:
        where = f"{dotted(at)}: " if at else ""
        return ConfigError(f"{self.file}:{line}: {where}{what}; {remedy}")

    def _refuse_doubles(self, node: yaml.Node | None, at: tuple[Key, ...]) -> None:
        if isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                self._refuse_doubles(item, (*at, index))
        elif isinstance(node, yaml.MappingNode):
            seen: set[str] = set()
            for key, value in node.value:
                name = str(key.value)
                if name in seen:
                    line = key.start_mark.line + 1
                    raise self._error(line, (*at, name), "the key stands twice", "keep one")
                seen.add(name)
                self._refuse_doubles(value, (*at, name))

    def _explained(
        self, error: msgspec.ValidationError, kind: object, data: object, at: tuple[Key, ...]
    ) -> ConfigError:
        match = _AT.match(str(error))
        what, path = (match["what"], match["path"] or "") if match else (str(error), "")
        inner = _keys(path)
        known = _type_at(kind, inner)
        if unknown := _UNKNOWN.match(what):
            remedy = did_you_mean(unknown[1], _field_names(known))
            return self.error((*at, *inner, unknown[1]), "unknown key", remedy)
        if missing := _MISSING.match(what):
            name = missing[1]
            return self.error((*at, *inner), f"{name} is missing", f"add {name}")
        value = _shown(_value_at(data, inner), (*at, *inner))
        if what.startswith("Invalid enum value"):
            words = _words(known)
            return self.error((*at, *inner), f"{value} is not known", did_you_mean(value, words))
        if expected := _EXPECTED.match(what):
            wanted = _NAME.sub(_in_words, expected[1].split(", got")[0].replace("`", ""))
            return self.error((*at, *inner), f"{value} does not fit", f"expected {wanted}")
        return self.error((*at, *inner), f"{value}: {what}", "see docs/configuration.md")


def read_document(path: Path) -> Document:
    """The YAML file.

    Raises:
        ConfigError: missing, unreadable, not text, not YAML.
    """
    try:
        return Document(path.read_text(encoding="utf-8"), str(path))
    except FileNotFoundError as error:
        msg = f"{path}: no such file; check the path"
        raise ConfigError(msg) from error
    except UnicodeDecodeError as error:
        msg = f"{path}: not text; expected a YAML file in UTF-8"
        raise ConfigError(msg) from error
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}; check path and rights"
        raise ConfigError(msg) from error


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """A remedy: the nearest known word, else all of them.

    >>> did_you_mean("brokrs", ["brokers", "group"])
    'did you mean brokers?'
    """
    words = list(known)
    near = difflib.get_close_matches(str(word), words, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]}?"
    more = ", .." if len(words) > _MOST_WORDS else ""
    return f"known are {', '.join(words[:_MOST_WORDS])}{more}"


def dotted(at: tuple[Key, ...]) -> str:
    """A key path for a person.

    >>> dotted(("detectors", 0, "for_secs"))
    'detectors[0].for_secs'
    """
    text = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at)
    return text.removeprefix(".")


def _in_words(name: re.Match[str]) -> str:
    return _WORDS[name[0]]


def _shown(value: object, at: tuple[Key, ...]) -> str:
    """The value for a person; a secret that somebody wrote out is not repeated."""
    return "what stands here" if at and at[-1] in _SECRETS else reprlib.repr(value)


def _child(node: yaml.Node | None, key: Key) -> tuple[int, yaml.Node] | None:
    if isinstance(node, yaml.MappingNode):
        for name, value in node.value:
            if name.value == str(key):
                return name.start_mark.line + 1, value
    elif isinstance(node, yaml.SequenceNode) and isinstance(key, int) and key < len(node.value):
        item = node.value[key]
        return item.start_mark.line + 1, item
    return None


def _keys(path: str) -> tuple[Key, ...]:
    """The key path of a msgspec error; a dict's key, which msgspec leaves out, ends the path."""
    keys: list[Key] = []
    for name, index in _STEP.findall(path):
        if index == "...":
            break
        keys.append(int(index) if index else name)
    return tuple(keys)


def _value_at(data: object, at: tuple[Key, ...]) -> object:
    for key in at:
        if isinstance(data, dict):
            data = data.get(key)
        elif isinstance(data, list) and isinstance(key, int):
            data = data[key]
    return data


def _type_at(kind: object, at: tuple[Key, ...]) -> inspect.Type:
    here = inspect.type_info(kind)
    for key in at:
        here = _plain(here)
        if isinstance(here, inspect.StructType):
            here = next((f.type for f in here.fields if f.encode_name == key), inspect.AnyType())
        elif isinstance(here, inspect.ListType):
            here = here.item_type
        elif isinstance(here, inspect.DictType):
            here = here.value_type
    return _plain(here)


def _plain(kind: inspect.Type) -> inspect.Type:
    """The type without "or null" and annotations."""
    if isinstance(kind, inspect.Metadata):
        return _plain(kind.type)
    if isinstance(kind, inspect.UnionType):
        kinds = [one for one in kind.types if not isinstance(one, inspect.NoneType)]
        return _plain(kinds[0]) if len(kinds) == 1 else kind
    return kind


def _field_names(kind: inspect.Type) -> list[str]:
    return [f.encode_name for f in kind.fields] if isinstance(kind, inspect.StructType) else []


def _words(kind: inspect.Type) -> list[str]:
    return [str(value) for value in kind.values] if isinstance(kind, inspect.LiteralType) else []
