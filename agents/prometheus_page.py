"""A page of metrics: fetched, and parsed into the samples that a rule reads."""

import ssl
import urllib.error
import urllib.request
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct
from prometheus_client.parser import text_string_to_metric_families

from stethoscope.agents.prometheus_rules import Selector
from stethoscope.schemas.agent_config import Target
from stethoscope.schemas.errors import ConfigError, ServiceError

MAX_PAGE_BYTES = 32 << 20
# What prometheus_client's parser raises on a line that is none.
PARSER_ERRORS = (ValueError, OverflowError, IndexError, KeyError)
ACCEPT = "text/plain;version=0.0.4;q=1"


class Sample(Struct, frozen=True):
    """One value of one series."""

    name: str
    labels: dict[str, str]
    value: float

    def key(self) -> str:
        """The series' identity within its page."""
        pairs = (f"{k}={v}" for k, v in sorted(self.labels.items()))
        return "\x1f".join((self.name, *pairs))


class Page:
    """Samples by name."""

    def __init__(self, samples: Iterable[Sample]) -> None:
        self._by_name: dict[str, list[Sample]] = defaultdict(list)
        for sample in samples:
            self._by_name[sample.name].append(sample)

    def select(self, selectors: Iterable[Selector]) -> list[Sample]:
        """All samples that one of the selectors takes."""
        return [
            sample
            for selector in selectors
            for sample in self._by_name.get(selector.name, ())
            if all(matcher.matches(sample.labels) for matcher in selector.matchers)
        ]

    def named(self, name: str) -> list[Sample]:
        """All samples of one name."""
        return self._by_name.get(name, [])

    def all(self) -> Iterator[Sample]:
        """Every sample."""
        for samples in self._by_name.values():
            yield from samples


def fetch(target: Target) -> str:
    """The page at the target's URL.

    Raises:
        ServiceError: it does not answer in time, or with anything but a page.
        ConfigError: the URL is not http or https, or its token file cannot be read.
    """
    if urlsplit(target.url).scheme not in ("http", "https"):
        msg = f"prometheus.targets: not an http URL: {target.url!r}"
        raise ConfigError(msg)
    request = urllib.request.Request(target.url, headers={"Accept": ACCEPT})  # noqa: S310  # http
    if target.bearer_token_file is not None:
        request.add_header("Authorization", f"Bearer {_token(target.bearer_token_file)}")
    context = ssl.create_default_context(cafile=target.ca_file) if target.ca_file else None
    # Exporters are local: a proxy from the environment would send node metrics elsewhere.
    opener = urllib.request.build_opener(
        urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=context)
    )
    try:
        with opener.open(request, timeout=target.timeout_secs) as response:
            body: bytes = response.read(MAX_PAGE_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        msg = f"{label_of(target)} does not answer: {error}"
        raise ServiceError(msg) from error
    if len(body) > MAX_PAGE_BYTES:
        msg = f"{label_of(target)} sends more than {MAX_PAGE_BYTES} bytes"
        raise ServiceError(msg)
    return body.decode(errors="replace")


def label_of(target: Target) -> str:
    """A name for the target without what may be secret in its URL.

    >>> label_of(Target(url="http://user:pw@127.0.0.1:9400/metrics?token=x"))
    '127.0.0.1:9400'
    """
    if target.name:
        return target.name
    return urlsplit(target.url).netloc.rpartition("@")[2] or "target"


def _token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except OSError as error:
        msg = f"prometheus.targets: bearer_token_file {path}: {error.strerror}"
        raise ConfigError(msg) from error


def parse_page(text: str, names: frozenset[str]) -> tuple[Page, int]:
    r"""The samples of the names given, and how many of their lines could not be read.

    >>> page, bad = parse_page('a{x="1"} 5\nb 6\na{x= 7\n', frozenset("a"))
    >>> [s.value for s in page.all()], bad
    ([5.0], 1)
    """
    wanted = [line for line in text.splitlines() if _name_of(line) in names]
    try:
        return Page(_samples("\n".join(wanted) + "\n")), 0
    except PARSER_ERRORS:
        return _line_by_line(wanted)


def _line_by_line(lines: list[str]) -> tuple[Page, int]:
    """One bad line costs that line."""
    samples: list[Sample] = []
    bad = 0
    for line in lines:
        try:
            samples.extend(_samples(line + "\n"))
        except PARSER_ERRORS:
            bad += 1
    return Page(samples), bad


def _name_of(line: str) -> str:
    if line.startswith("#"):
        return ""
    words = line.split("{", 1)[0].split(None, 1)
    return words[0] if words else ""


def _samples(text: str) -> list[Sample]:
    return [
        Sample(sample.name, dict(sample.labels), float(sample.value))
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
