"""Prometheus exporters by HTTP: dcgm-exporter, node_exporter, npu-exporter, Lustre, your own."""

import re

from msgspec.structs import replace

from stethoscope.agents.prometheus_eval import Evaluator
from stethoscope.agents.prometheus_page import Page, Sample, fetch, label_of, parse_page
from stethoscope.agents.prometheus_rules import Identity, MetricMap, load_mapping
from stethoscope.agents.reader import Context, Counters, Now, Stamp
from stethoscope.schemas.agent_config import Prometheus, Target
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import (
    Device,
    Event,
    GpuEvent,
    IbEvent,
    NodeEvent,
    Port,
    Process,
    Value,
)

# /sys/class/infiniband's words for node_exporter's numbers
IB_STATES = {1: "DOWN", 2: "INIT", 3: "ARMED", 4: "ACTIVE", 5: "ACTIVE_DEFER"}
IB_PHYS_STATES = {
    1: "Sleep",
    2: "Polling",
    3: "Disabled",
    4: "PortConfigurationTraining",
    5: "LinkUp",
    6: "LinkErrorRecovery",
    7: "Phy Test",
}


class PrometheusReader:
    """Scrapes each target: a ``gpu``, an ``ib`` and a ``node`` event of each, where not empty.

    Streams are ``prometheus/TARGET/KIND``. Identity is a device's UUID, never its pod. A target
    that does not answer is counted, and the others are read; when none answers the read fails.
    """

    name = "prometheus"
    hazardous = True  # name resolution has no time limit

    def __init__(self, context: Context, config: Prometheus) -> None:
        self.period_secs = config.period_secs
        self.counters = Counters()
        self._context = context
        self._config = config
        self._mapping: MetricMap | None = None
        self._evaluators: dict[str, Evaluator] = {}

    def probe(self) -> None:
        """Read the mapping.

        Raises:
            ReaderUnsupported: no target is configured.
            ConfigError: a mapping file is wrong.
        """
        if not self._config.targets:
            msg = "no exporter to scrape: set prometheus.targets or --url"
            raise ReaderUnsupported(msg)
        if self._mapping is None:
            self._mapping = load_mapping(self._config.mapping_files)

    def read(self, now: Now) -> list[Event]:
        """Scrape all targets.

        Raises:
            ServiceError: none of them answers.
        """
        mapping = self._mapping or load_mapping(self._config.mapping_files)
        self._mapping = mapping
        events: list[Event] = []
        failures: list[ServiceError] = []
        for target in self._config.targets:
            try:
                text = fetch(target)
            except ServiceError as error:
                self.counters.error(label_of(target))
                failures.append(error)
                continue
            events.extend(self.events(target, text, now))
        if failures and len(failures) == len(self._config.targets):
            raise failures[0]
        return events

    def events(self, target: Target, text: str, now: Now) -> list[Event]:
        """The events of one page."""
        mapping = self._mapping or load_mapping(self._config.mapping_files)
        page, bad_lines = parse_page(text, mapping.names)
        if bad_lines:
            self.counters.skip("bad_line", bad_lines)
        evaluator = self._evaluators.setdefault(target.url, Evaluator(mapping))
        evaluator.begin(page, now.monotonic_ns)
        builder = _Builder(mapping, evaluator, page)
        made = (
            builder.gpu(self._stamp(target, now, "gpu")),
            builder.ib(self._stamp(target, now, "ib")),
            builder.node(self._stamp(target, now, "node")),
        )
        events: list[Event] = [event for event in made if event is not None]
        self.counters.invalid_samples_total = sum(
            e.invalid_total for e in self._evaluators.values()
        )
        return events

    def close(self) -> None:
        """No connection is kept."""

    def _stamp(self, target: Target, now: Now, kind: str) -> Stamp:
        context = replace(self._context, node=target.node or self._context.node)
        return context.stamp(now, self.period_secs, f"prometheus/{label_of(target)}/{kind}")


class _Builder:
    """Makes a page's events."""

    def __init__(self, mapping: MetricMap, evaluator: Evaluator, page: Page) -> None:
        self._mapping = mapping
        self._evaluator = evaluator
        self._page = page
        self._devices: dict[str, tuple[Identity, Sample]] = {}
        for sample in page.all():
            identity = mapping.identity_of(sample.name, "gpu")
            key = evaluator.device_key(sample, "gpu") if identity else None
            if identity is not None and key is not None:
                self._devices.setdefault(key, (identity, sample))

    def gpu(self, stamp: Stamp) -> GpuEvent | None:
        if not self._devices:
            return None
        keys = sorted(self._devices, key=lambda k: (self._device(k).index, k))
        columns = self._evaluator.columns(self._page, ("gpu",))
        return GpuEvent(
            **stamp,
            devices=[self._device(key) for key in keys],
            metrics={name: [row.get(k) for k in keys] for name, row in sorted(columns.items())},
        )

    def ib(self, stamp: Stamp) -> IbEvent | None:
        counters = self._evaluator.columns(self._page, ("ib",))
        optics = self._evaluator.columns(self._page, ("optics",))
        ports = self._ports()
        for columns in (counters, optics):
            for row in columns.values():
                for key in row:
                    ports.setdefault(key, _port(key))
        if not ports:
            return None
        keys = sorted(ports, key=lambda k: (len(ports[k].device), ports[k].device, ports[k].port))
        return IbEvent(
            **stamp,
            ports=[ports[key] for key in keys],
            counters={n: [_whole(row.get(k)) for k in keys] for n, row in sorted(counters.items())},
            metrics={n: [row.get(k) for k in keys] for n, row in sorted(optics.items())},
        )

    def node(self, stamp: Stamp) -> NodeEvent | None:
        metrics = self._evaluator.host(self._page)
        mounts = self._evaluator.mounts(self._page)
        processes = self._users_of_devices()
        if self._devices and "gpu_count" not in metrics:
            metrics["gpu_count"] = float(len({key.partition("/")[0] for key in self._devices}))
        if not (metrics or mounts or processes):
            return None
        return NodeEvent(
            **stamp,
            metrics=metrics,
            mounts=mounts,
            processes=processes,
        )

    def _device(self, key: str) -> Device:
        identity, sample = self._devices[key]
        index = sample.labels.get(identity.index, "")
        return Device(
            uuid=key,
            index=int(index) if re.fullmatch(r"[0-9]{1,9}", index) else 0,
            pci=sample.labels.get(identity.pci, "").lower(),
            model=sample.labels.get(identity.model, ""),
        )

    def _users_of_devices(self) -> list[Process]:
        """The pod or job that an exporter says holds a device; its pid is unknown, and so 0."""
        found: dict[tuple[str, str], Process] = {}
        for sample in self._page.all():
            identity = self._mapping.identity_of(sample.name, "gpu")
            key = self._evaluator.device_key(sample, "gpu")
            if identity is None or key is None:
                continue
            pod = sample.labels.get(identity.pod) or ""
            job = (sample.labels.get(identity.job) if identity.job else "") or ""
            if not pod and not job:
                continue
            namespace = sample.labels.get(identity.namespace) or ""
            found.setdefault(
                (key, pod or job),
                Process(
                    name=sample.labels.get(identity.container) or pod or job,
                    pid=0,
                    job_id=job or None,
                    gpu_uuid=key,
                    container="/".join(p for p in (namespace, pod) if p) or None,
                ),
            )
        return [process for _, process in sorted(found.items())]

    def _ports(self) -> dict[str, Port]:
        """Ports by the samples that give their state and rate."""
        ports: dict[str, Port] = {}
        for identity in self._mapping.identities:
            if identity.scope != "ib" or not identity.state:
                continue
            states = self._by_port(identity.state)
            phys = self._by_port(identity.phys_state)
            rates = self._by_port(identity.rate_bytes_per_sec)
            for key in states.keys() | phys.keys() | rates.keys():
                rate = rates.get(key)
                ports[key] = _port(
                    key,
                    state=IB_STATES.get(int(states.get(key, 0)), ""),
                    phys_state=IB_PHYS_STATES.get(int(phys.get(key, 0)), ""),
                    rate_gbps=None if rate is None else rate * 8 / 1e9,
                    link_layer=identity.link_layer,
                )
        return ports

    def _by_port(self, name: str) -> dict[str, float]:
        samples = self._page.named(name)
        keyed = ((self._evaluator.device_key(s, "ib"), s.value) for s in samples)
        return {key: value for key, value in keyed if key is not None and 0 <= value < 1e18}


def _port(
    key: str,
    state: str = "",
    phys_state: str = "",
    rate_gbps: float | None = None,
    link_layer: str = "",
) -> Port:
    device, _, number = key.rpartition("/")
    return Port(
        device=device,
        port=int(number) if re.fullmatch(r"[0-9]{1,9}", number) else 1,
        state=state,
        phys_state=phys_state,
        rate_gbps=rate_gbps,
        link_layer=link_layer,
    )


def _whole(value: Value) -> int | None:
    """A counter as the integer it is; the exporter's float loses what is beyond 53 bits."""
    return None if value is None or not 0 <= value < 2**64 else round(value)
