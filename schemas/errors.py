"""Every error that Stethoscope raises on purpose.

StethoscopeError
├── UsageError            the command line or its input is wrong            exit 2
│   ├── ConfigError       a configuration file: names file, key, remedy
│   └── InputError        a file of events: missing, empty, unreadable
├── BadEvent              one event that cannot be read (goes to the dead-letter topic)
├── ServiceError          Kafka, Alertmanager or another peer refused
│   ├── ServiceRefused    it understood and said no: the same request will fail again
│   ├── EventRefused      Kafka will never take this message
│   └── ServiceUnavailable  it cannot answer now: the same request may succeed later
└── ReaderUnsupported     this node has nothing for that reader to read
"""


class StethoscopeError(Exception):
    """Base of the tree. Its message is one line for a person: the thing, then the remedy."""


class UsageError(StethoscopeError):
    """What the user asked for cannot be done as asked."""


class ConfigError(UsageError):
    """A configuration that cannot be used."""


class InputError(UsageError):
    """A path that holds no readable events."""


class ServiceError(StethoscopeError):
    """A service we depend on refused or failed."""


class ServiceRefused(ServiceError):
    """A service said no (HTTP 4xx): asking again in the same way is useless.

    Attributes:
        status: the HTTP status.
        body: the service's own words, cut.
    """

    def __init__(self, message: str, status: int, body: str = "") -> None:
        super().__init__(message)
        self.status = status
        self.body = body


class EventRefused(ServiceError):
    """Kafka will never take this message: it is too large, or not valid in the broker's eyes."""


class ServiceUnavailable(ServiceError):
    """A service cannot answer now (no connection, timeout, HTTP 429 or 5xx).

    Attributes:
        retry_after_secs: how long it asked us to wait; ``None``: it did not say.
    """

    def __init__(self, message: str, retry_after_secs: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_secs = retry_after_secs


class ReaderUnsupported(StethoscopeError):
    """A reader whose source does not exist on this node."""


class BadEvent(StethoscopeError):
    """One event that cannot be read.

    Attributes:
        reason: a short constant word for counting: ``truncated``, ``not_json``, ``wrong_type``,
            ``unknown_kind``, ``unknown_metric``, ``too_large``, ``id_conflict``.
    """

    def __init__(self, reason: str, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail
