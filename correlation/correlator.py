"""Findings to incidents, a second at a time. Pure; all state in ``CorrelatorState``."""

from collections.abc import Mapping

from msgspec import Struct, field

from stethoscope.correlation.case import Case, absorb, add, open_case, reroot, to_incident
from stethoscope.correlation.placement import Placement
from stethoscope.correlation.places import is_deeper, is_same, leads_to, place_of
from stethoscope.correlation.relations import AT_ONCE, SETTLED_SLOW, TEARDOWN
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.config import Correlation
from stethoscope.schemas.events import JobEvent
from stethoscope.schemas.findings import NS, Finding
from stethoscope.schemas.incidents import SEVERITY_RANK, Incident, Severity
from stethoscope.schemas.job_states import ORDERLY_ENDS, ended_ns, has_ended, state_word
from stethoscope.schemas.labels import page_labels

# A symptom may be dated a little before its cause: clocks and sampling differ by seconds.
SLACK_NS = 5 * NS
# A collective hangs up to NCCL's timeout before it is reported; torch's default is 30 minutes.
LOOK_BACK_NS = 1800 * NS
# What begins a minute after a symptom is not its reason.
REROOT_NS = 60 * NS
# Detectors of one slowness end and begin within seconds of each other.
TAIL_NS = 10 * NS


class CorrelatorState(Struct):
    """Cases by id, and when each (cause, root) was seen before.

    Bound: open cases, those closed within the join time, and 30 days of (cause, root) pairs.
    """

    cases: dict[str, Case] = field(default_factory=dict)
    history: dict[str, list[int]] = field(default_factory=dict)
    seen: dict[str, int] = field(default_factory=dict)


class Correlator:
    """Folds, attaches, re-roots, mutes and pages. One per cluster."""

    def __init__(self, config: Correlation, severity: Mapping[str, Severity]) -> None:
        self._config = config
        self._severity = severity
        self.placement = Placement()
        self.state = CorrelatorState()
        self._changed: dict[str, Case] = {}

    def job(self, event: JobEvent) -> None:
        """Take over placement; an ending job resolves what was only about it."""
        self.placement.apply(event)

    def take(self, finding: Finding) -> None:
        """Put one finding where it belongs."""
        if finding.mode != "page":
            return
        if finding.cleared:
            self._clear(finding)
            return
        if finding.finding_id in self.state.seen:
            return
        self.state.seen[finding.finding_id] = finding.observed_unix_ns
        keys = self._job_keys(finding)
        severity = self._severity_of(finding)
        case = self._home(finding, keys)
        if case is None:
            case = open_case(finding, severity, self._recurrence(finding))
            self.state.cases[case.incident_id] = case
        add(case, finding, severity, finding.moment)
        self._name_jobs(case, finding, keys)
        self._gather(case, finding)
        self._changed[case.incident_id] = case

    def tick(self, now_ns: int) -> list[Incident]:
        """Resolve, mute, page and forget; incidents that changed, in order of onset."""
        for case in list(self.state.cases.values()):
            self._settle(case, now_ns)
        changed = sorted(self._changed.values(), key=lambda c: (c.started_ns, c.incident_id))
        self._changed = {}
        self._forget(now_ns)
        return [to_incident(case) for case in changed]

    def open_incidents(self) -> list[Incident]:
        """What is open now, for a sender that starts anew."""
        return [to_incident(c) for c in self.state.cases.values() if c.is_open()]

    def _severity_of(self, finding: Finding) -> Severity:
        configured = self._severity.get(finding.cause)
        own = finding.severity
        if configured is not None and own != "info":
            return configured
        if own in SEVERITY_RANK:
            return own  # type: ignore[return-value]  # its keys are the severities
        return cause_catalogue()[finding.cause].severity

    def _job_keys(self, finding: Finding) -> list[str]:
        subject = finding.subject
        if subject.job_id is not None:
            return [self.placement.key_of(subject.cluster, subject.job_id)]
        if subject.node is None:
            return []
        gpu = (subject.gpu_index, subject.gpu_uuid)
        times_ns = finding.started_unix_ns, finding.observed_unix_ns  # the fault may end its job
        found = [self.placement.at(subject.node, time_ns, gpu) for time_ns in times_ns]
        return list(dict.fromkeys([*found[0], *found[1]]))

    def _home(self, finding: Finding, keys: list[str]) -> Case | None:
        """The case that the finding is the same as, a symptom of, or the reason for."""
        cases = sorted(self.state.cases.values(), key=lambda c: (c.started_ns, c.incident_id))
        near = [c for c in cases if self._is_near(c, finding, keys)]
        near_ids = {case.incident_id for case in near}
        said = finding.cause, finding.subject
        for case in cases:
            known = case.incident_id in near_ids or case.is_open()
            if known and is_same(case.cause, case.root, *said):
                return case
        for case in near:
            fresh = finding.started_unix_ns <= case.seen_ns + LOOK_BACK_NS or _is_of_job(case)
            if case.severity != "info" and fresh and leads_to(case.cause, case.root, *said):
                return case
        for case in near:
            patience_ns = TAIL_NS if case.cause in SETTLED_SLOW else REROOT_NS
            late = finding.started_unix_ns > case.started_ns + patience_ns
            if not late and is_deeper(*said, case.cause, case.root):
                reroot(case, finding)
                return case
        return None

    def _is_near(self, case: Case, finding: Finding, keys: list[str]) -> bool:
        if case.merged_into is not None:
            return False
        shares = set(case.job_keys) & set(keys) or (
            not keys and not case.job_keys and case.root.node == finding.subject.node
        )
        if not shares:
            return False
        if finding.started_unix_ns < case.started_ns - LOOK_BACK_NS:
            return False
        if case.is_open():
            return True
        ended = case.ended_ns or case.seen_ns
        if finding.started_unix_ns <= ended + TAIL_NS and not finding.moment:
            return finding.cause != case.cause or finding.started_unix_ns <= ended
        over = all(self._is_over(key) for key in case.job_keys) and bool(case.job_keys)
        return over and finding.observed_unix_ns <= ended + self._config.join_ended_job_secs * NS

    def _is_over(self, key: str) -> bool:
        event = self.placement.jobs.get(key)
        return event is not None and has_ended(event)

    def _gather(self, case: Case, finding: Finding) -> None:
        """Other cases that the new root explains end in it."""
        if case.cause != finding.cause:
            return
        for other in self.state.cases.values():
            if other is case or not other.is_open() or other.merged_into:
                continue
            shares = set(other.job_keys) & set(case.job_keys)
            late = other.started_ns >= case.started_ns - SLACK_NS
            deeper = is_deeper(case.cause, case.root, other.cause, other.root)
            if shares and late and deeper and other.severity != "info":
                absorb(case, other)
                self._changed[other.incident_id] = other

    def _name_jobs(self, case: Case, finding: Finding, keys: list[str]) -> None:
        for key in keys:
            event = self.placement.jobs.get(key)
            job_id = event.job_id if event else finding.subject.job_id
            if job_id is not None and job_id not in case.jobs:
                case.jobs.append(job_id)
            if key not in case.job_keys:
                case.job_keys.append(key)
            if event is not None and case.job_name is None:
                case.job_name, case.user = event.name, event.user

    def _clear(self, finding: Finding) -> None:
        for case in self.state.cases.values():
            if finding.finding_id not in case.levels:
                continue
            case.levels.remove(finding.finding_id)
            ended = finding.ended_unix_ns or finding.observed_unix_ns
            case.seen_ns = max(case.seen_ns, ended)
            if not case.levels and not case.has_moments:
                self._resolve(case, ended)

    def _resolve(self, case: Case, at_ns: int) -> None:
        if case.is_open():
            case.state, case.ended_ns = "resolved", max(at_ns, case.started_ns)
            self._changed[case.incident_id] = case

    def _settle(self, case: Case, now_ns: int) -> None:
        if case.is_open() and not case.levels and case.has_moments:
            self._end_moments(case, now_ns)
        if case.paged_ns is None and not case.merged_into:
            self._mute(case)
            self._page(case, now_ns)

    def _end_moments(self, case: Case, now_ns: int) -> None:
        """A moment ends with its job, else 15 minutes after its last repeat."""
        plane = cause_catalogue()[case.cause].plane
        events = [self.placement.jobs.get(key) for key in case.job_keys]
        ends = [ended_ns(e) if e else None for e in events]
        if plane == "job" and ends and all(end is not None for end in ends):
            self._resolve(case, max([end for end in ends if end is not None]))
        elif now_ns - case.seen_ns >= self._config.moment_ttl_secs * NS:
            self._resolve(case, case.seen_ns)

    def _mute(self, case: Case) -> None:
        """An orderly end explains what its teardown looks like."""
        if case.muted or case.cause not in TEARDOWN or not case.job_keys:
            return
        events = [self.placement.jobs.get(key) for key in case.job_keys]
        if all(e is not None and self._torn_down(e, case) for e in events):
            case.muted = True
            self._changed[case.incident_id] = case

    def _torn_down(self, event: JobEvent, case: Case) -> bool:
        end_ns = ended_ns(event)
        if end_ns is None or state_word(event) not in ORDERLY_ENDS:
            return False
        return case.detected_ns >= end_ns - int(self._config.lift_wait_secs * NS)

    def _page(self, case: Case, now_ns: int) -> None:
        if case.muted or SEVERITY_RANK[case.severity] < SEVERITY_RANK["warning"]:
            return
        plane = cause_catalogue()[case.cause].plane
        wait_secs = self._config.attach_wait_secs
        if plane in ("fabric", "node"):
            wait_secs = self._config.lift_wait_secs
        elif case.cause in AT_ONCE or (plane == "gpu" and case.severity == "critical"):
            wait_secs = 0.0
        if now_ns - case.detected_ns < wait_secs * NS:
            return
        case.paged_ns = now_ns
        case.page_labels = page_labels(to_incident(case), case.job_name, case.user)
        self._changed[case.incident_id] = case

    def _recurrence(self, finding: Finding) -> int:
        key = f"{finding.cause}|{place_of(finding.subject)}"
        oldest_ns = finding.observed_unix_ns - int(self._config.recurrence_days * 86400 * NS)
        times = [t for t in self.state.history.get(key, []) if t >= oldest_ns]
        self.state.history[key] = [*times[-99:], finding.observed_unix_ns]
        return len(times)

    def _forget(self, now_ns: int) -> None:
        keep_ns = int(max(self._config.join_ended_job_secs, 600.0) * NS)
        for identity, case in list(self.state.cases.items()):
            if not case.is_open() and now_ns - (case.ended_ns or case.seen_ns) > keep_ns:
                del self.state.cases[identity]
        if len(self.state.seen) > 10_000:
            old = [k for k, t in self.state.seen.items() if now_ns - t > LOOK_BACK_NS]
            for key in old:
                del self.state.seen[key]
        if now_ns // NS % 3600 == 0:
            self._forget_history(now_ns)
        self.placement.prune(now_ns)

    def _forget_history(self, now_ns: int) -> None:
        oldest_ns = now_ns - int(self._config.recurrence_days * 86400 * NS)
        old = [key for key, times in self.state.history.items() if times[-1] < oldest_ns]
        for key in old:
            del self.state.history[key]


def _is_of_job(case: Case) -> bool:
    """Whether the cause lasts as long as its job; one of hardware explains what comes soon."""
    return cause_catalogue()[case.cause].plane == "job"
