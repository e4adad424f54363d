"""Findings and jobs by hand, and a correlator that is shown them a second at a time."""

from collections.abc import Mapping

from stethoscope.correlation.correlator import Correlator
from stethoscope.schemas.config import Correlation
from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.findings import NS, Finding, Subject, Suspect, finding_id
from stethoscope.schemas.incidents import Incident, Severity

T0 = 1_800_000_000 * NS


def at(secs: float) -> int:
    """Nanoseconds since 1970 of a second of the test."""
    return T0 + round(secs * NS)


def job(
    job_id: str = "77",
    state: str = "RUNNING",
    secs: float = 0.0,
    *,
    nodes: list[str] | None = None,
    start: float | None = 0.0,
    restart: int = 0,
    gpus: dict[str, list[int | str]] | None = None,
    end: float | None = None,
) -> JobEvent:
    """A ``job`` event of the second ``secs``."""
    return JobEvent(
        time_unix_ns=at(secs),
        job_id=job_id,
        state=state,
        restart=restart,
        name="gpt",
        user="alice",
        nodes=["node01"] if nodes is None else nodes,
        gpus=gpus or {},
        start_unix_ns=None if start is None else at(start),
        end_unix_ns=None if end is None else at(end),
    )


def finding(
    cause: str,
    secs: float,
    *,
    onset: float | None = None,
    moment: bool = False,
    severity: str | None = None,
    mode: str = "page",
    suspects: list[Suspect] | None = None,
    raw_events: int = 1,
    **place: object,
) -> Finding:
    """A finding noticed at ``secs``; on node01 unless ``place`` says otherwise."""
    subject = Subject(**({"node": "node01"} | place))  # type: ignore[arg-type]  # fields of it
    started_ns = at(secs if onset is None else onset)
    return Finding(
        finding_id=finding_id("test", cause, subject, started_ns),
        detector="test",
        cause=cause,
        subject=subject,
        started_unix_ns=started_ns,
        observed_unix_ns=at(secs),
        moment=moment,
        severity=severity,
        mode=mode,
        score=1.0,
        evidence=f"{cause} was seen",
        raw_events=raw_events,
        suspects=suspects or [],
    )


class Desk:
    """A correlator and the newest state of each incident that it told of."""

    def __init__(
        self, config: Correlation | None = None, severity: Mapping[str, Severity] | None = None
    ) -> None:
        self.correlator = Correlator(config or Correlation(), severity or {})
        self.second = -1
        self.told: dict[str, list[Incident]] = {}

    def until(self, secs: int, *said: Finding | JobEvent) -> None:
        """Pass the seconds up to ``secs``; each finding and event is shown in its second."""
        for second in range(self.second + 1, secs + 1):
            due = [s for s in said if self.second < _secs(s) <= second]
            for one in due:
                if isinstance(one, JobEvent):
                    self.correlator.job(one)
            for one in due:
                if isinstance(one, Finding):
                    self.correlator.take(one)
            self.second = second
            for incident in self.correlator.tick(at(second)):
                self.told.setdefault(incident.incident_id, []).append(incident)

    def clear(self, raised: Finding, secs: int, ended: float | None = None) -> None:
        """The level ends: good since ``ended``, said at ``secs``."""
        over = Finding(
            finding_id=raised.finding_id,
            detector=raised.detector,
            cause=raised.cause,
            subject=raised.subject,
            started_unix_ns=raised.started_unix_ns,
            observed_unix_ns=at(secs),
            cleared=True,
            ended_unix_ns=at(secs if ended is None else ended),
            raw_events=0,
        )
        self.until(secs, over)

    @property
    def incidents(self) -> list[Incident]:
        """The newest state of each, by onset."""
        newest = [states[-1] for states in self.told.values()]
        return sorted(newest, key=lambda i: (i.started_unix_ns, i.incident_id))

    @property
    def pages(self) -> list[Incident]:
        """Those of which a person was told."""
        return [i for i in self.incidents if i.paged_unix_ns is not None]

    @property
    def only(self) -> Incident:
        """The one incident that was told of and is not part of another."""
        (one,) = (i for i in self.incidents if i.merged_into is None)
        return one


def _secs(said: Finding | JobEvent) -> float:
    time_ns = said.observed_unix_ns if isinstance(said, Finding) else said.time_unix_ns
    return (time_ns - T0) / NS
