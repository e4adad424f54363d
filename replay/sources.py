"""Where a replay's events come from: files, folders and Kafka topics, merged in order."""

import heapq
from collections.abc import Iterator, Sequence
from pathlib import Path

from stethoscope.replay.files import OnBad, OnBytes, event_order, find_files, read_events
from stethoscope.schemas.config import Kafka
from stethoscope.schemas.events import Event

_SCHEME = "kafka://"


class Sources:
    """Paths as the command line names them; ``kafka://`` addresses among them.

    Attributes:
        size_bytes: of all files as stored; topics add nothing.
    """

    def __init__(self, paths: Sequence[str], kafka: Kafka) -> None:
        """Check the paths.

        Raises:
            InputError: a path or an address that cannot be used.
        """
        self._kafka = kafka
        self._topics = [path for path in paths if path.startswith(_SCHEME)]
        self._files = find_files([Path(path) for path in paths if not path.startswith(_SCHEME)])
        self.size_bytes = sum(file.stat().st_size for file in self._files)

    def events(self, on_bad: OnBad, on_bytes: OnBytes) -> Iterator[Event]:
        """All events, in order.

        Raises:
            InputError: no file holds any event, a topic does not exist.
            ServiceError: brokers that cannot be reached.
        """
        streams = [self._topic_events(url, on_bad) for url in self._topics]
        if self._files:
            streams.insert(0, read_events(self._files, on_bad, on_bytes))
        return streams[0] if len(streams) == 1 else heapq.merge(*streams, key=event_order)

    def _topic_events(self, url: str, on_bad: OnBad) -> Iterator[Event]:
        try:
            from stethoscope.replay.topics import read_topics
        except ModuleNotFoundError as error:
            from stethoscope.schemas.errors import InputError

            msg = f"{url}: needs {error.name}; stethoscope doctor says which extra brings it"
            raise InputError(msg) from error
        return read_topics(url, self._kafka, on_bad)
