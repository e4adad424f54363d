"""One second of nodes, read: each event to what reads it."""

import re
from collections.abc import Sequence

from stethoscope.correlation.placement import Placement
from stethoscope.detectors.fleet import Table
from stethoscope.detectors.ib_port_down import is_active
from stethoscope.detectors.node_context import NodeContext
from stethoscope.schemas.config import Match
from stethoscope.schemas.events import AnyNodeEvent, GpuEvent, IbEvent, LogEvent, NodeEvent
from stethoscope.schemas.findings import NS, Finding, Subject
from stethoscope.schemas.views import View
from stethoscope.streams.matching import accepts
from stethoscope.streams.node_samples import Sample, Samples, batches
from stethoscope.streams.node_views import LogSecond, gpu_views, host_views
from stethoscope.streams.wiring import Detectors, Guarded

_SLURM_OOM = re.compile(r"oom[_-]kill event")


class Second:
    """What one second of all nodes came to."""

    def __init__(self, time_ns: int) -> None:
        self.time_ns = time_ns
        self.findings: list[Finding] = []
        self.views: list[View] = []
        self.gpus: list[Sample] = []
        self.hosts: list[Sample] = []
        self.ports: list[Sample] = []


class NodeReader:
    """Knows the nodes, and asks the detectors about what their events say."""

    def __init__(self, detectors: Detectors, samples: Samples) -> None:
        self.placement = Placement()
        self.nodes: dict[str, NodeContext] = {}
        self.scraped: dict[str, int] = {}
        self._detectors = detectors
        self._samples = samples

    def node(self, cluster: str, name: str) -> NodeContext:
        """The node, made on first sight."""
        return self.nodes.setdefault(name, NodeContext(cluster, name))

    def read(self, name: str, events: Sequence[AnyNodeEvent], second: Second) -> None:
        """Sort one node's events of the second by what reads them."""
        node = self.node(events[0].cluster, name)
        node.heard_ns = max(node.heard_ns, events[-1].time_unix_ns)
        logs = LogSecond()
        scrapes: list[Sample] = []
        for event in events:
            if isinstance(event, GpuEvent):
                scrapes += self._gpus(event, node)
            elif isinstance(event, NodeEvent):
                second.hosts.append(self._samples.host(event, node))
                if event.time_unix_ns > second.time_ns - NS:
                    second.views += host_views(self.placement, event, second.time_ns)
            elif isinstance(event, IbEvent):
                self._ports(event, node, second)
            elif isinstance(event, LogEvent):
                self._line(event, node, logs, second)
        second.gpus += scrapes
        # Late samples count for the node, but are no peers of what is seen now.
        peers = [sample for sample in scrapes if sample[1] > second.time_ns - NS]
        second.views += gpu_views(self.placement, self._samples.gpus, node, peers, second.time_ns)
        second.views += logs.views(name, second.time_ns)

    def judge(self, second: Second) -> None:
        """Ask the sample detectors about the second's batches."""
        tables = self._samples.gpus, self._samples.hosts, self._samples.ports
        scopes = second.gpus, second.hosts, second.ports
        for table, samples in zip(tables, scopes, strict=True):
            second.findings += self._judge(table, samples)

    def tick(self, second: Second, skewed: dict[str, float]) -> None:
        """Ask the detectors of scrapes and clocks about every node; ``skewed``: seconds ahead."""
        for detector in self._detectors.clocks:
            for name, node in sorted(self.nodes.items()):
                ahead_secs = skewed.get(name, 0.0)
                second.findings += self._ask(detector, node, ahead_secs, second.time_ns)
        for detector in (*self._detectors.scrapes, *self._detectors.blindness):
            for name, scraped_ns in sorted(self.scraped.items()):
                second.findings += self._ask(detector, self.nodes[name], scraped_ns, second.time_ns)

    def _gpus(self, event: GpuEvent, node: NodeContext) -> list[Sample]:
        self.scraped[node.node] = event.time_unix_ns
        sample = self._samples.gpu(event, node)
        if sample is None:
            return []
        for detector in self._detectors.blindness:
            detector.run("scrape", node.node, event.time_unix_ns, sample[2])
        return [sample]

    def _ports(self, event: IbEvent, node: NodeContext, second: Second) -> None:
        sample = self._samples.ib(event, node)
        if sample is not None:
            second.ports.append(sample)
        if any(is_active(port) for port in event.ports):
            node.works("ib")
        for detector in self._detectors.ports:
            second.findings += self._ask(detector, event, node)

    def _line(self, event: LogEvent, node: NodeContext, logs: LogSecond, second: Second) -> None:
        of_system = event.source in ("kernel", "system")
        if of_system or _SLURM_OOM.search(event.line):  # slurmstepd writes into the job's output
            for detector in self._detectors.lines:
                second.findings += self._ask(detector, event, node)
        if of_system:
            return
        key = self._job_of(event)
        if key is not None:
            logs.take(event, key)

    def _job_of(self, event: LogEvent) -> str | None:
        """The run whose line it is: as the line says, else the only one on the node."""
        if event.job_id is not None:
            return self.placement.key_of(event.cluster, event.job_id)
        running = self.placement.running_on(event.node)
        return running[0] if len(running) == 1 else None

    def _judge(self, table: Table, samples: list[Sample]) -> list[Finding]:
        findings: list[Finding] = []
        for batch in batches(table, samples):
            for detector in self._detectors.samples:
                if detector.detector.scope == table.scope:
                    findings += self._ask(detector, batch)
        return findings

    def _ask(self, detector: Guarded, *args: object) -> list[Finding]:
        """The detector's findings about those whom its ``match`` means."""
        findings = detector.run("update", *args)
        match = detector.match
        if match is None:
            return findings
        return [f for f in findings if self._is_meant(match, f.subject, f.observed_unix_ns)]

    def _is_meant(self, match: Match, subject: Subject, time_ns: int) -> bool:
        name = subject.node or ""
        node = self.nodes.get(name)
        keys = self.placement.at(name, time_ns, (subject.gpu_index, subject.gpu_uuid))
        jobs = [self.placement.jobs[key] for key in keys]
        return accepts(match, [name], [node.gpu_model] if node else [], jobs)
