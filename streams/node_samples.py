"""Scrapes of GPUs, hosts and ports as columns: rows that stay, values within their ranges."""

from collections.abc import Mapping, Sequence

import numpy as np

from stethoscope.detectors.fleet import Batch, Floats, Ints, Table
from stethoscope.detectors.node_context import NodeContext, pci_key
from stethoscope.schemas.events import Device, GpuEvent, IbEvent, NodeEvent, Port
from stethoscope.schemas.findings import Subject
from stethoscope.streams.intake import Counts, Reject

NVLINK_WORKS_BYTES_PER_SEC = 1e9  # far above what idle links count, far below any use
Sample = tuple[Ints, int, Floats]


class Samples:
    """Turns scrapes into values: ``float64[devices, metrics]`` in rows that stay.

    What lies outside a metric's range becomes NaN and is counted; unknown names are refused once a
    node and counted after.
    """

    def __init__(self, counts: Counts, rejects: list[Reject]) -> None:
        self.gpus = Table("gpu")
        self.hosts = Table("host")
        self.ports = Table("ib")
        self._counts = counts
        self._rejects = rejects
        self._layouts: dict[tuple[str, tuple[str, ...]], tuple[Ints, Ints]] = {}
        self._nvlink = self.gpus.columns.index["nvlink_tx_bytes_per_sec"]
        self._known: dict[str, tuple[list[Device], Ints, list[str]]] = {}
        self._refused: set[tuple[str, str]] = set()

    def gpu(self, event: GpuEvent, node: NodeContext) -> Sample | None:
        """One scrape as (rows, time, values); ``None`` where it lists no GPU."""
        if not event.devices:
            return None
        rows = self._gpu_rows(event, node)
        node.gpu_model = event.devices[0].model or node.gpu_model
        values = np.full((len(rows), len(self.gpus.columns)), np.nan)
        names = tuple(event.metrics)
        columns, sources = self._layout(self.gpus, event.node, names)
        table = list(event.metrics.values())
        if any(len(column) != len(rows) for column in table):
            names, table = self._whole(event, len(rows))
            columns, sources = self._layout(self.gpus, event.node, names)
        if len(sources):
            whole = np.array([table[s] for s in sources.tolist()], dtype=np.float64)
            values[:, columns] = whole.T
        values = self._in_range(self.gpus, values)
        if (values[:, self._nvlink] > NVLINK_WORKS_BYTES_PER_SEC).any():
            node.works("nvlink")
        return _once(rows, event.time_unix_ns, values)

    def host(self, event: NodeEvent, node: NodeContext) -> Sample:
        """A host's metrics as one row."""
        row = self.hosts.row(event.node, node.subject())
        values = np.full((1, len(self.hosts.columns)), np.nan)
        names = tuple(event.metrics)
        columns, sources = self._layout(self.hosts, event.node, names)
        numbers = list(event.metrics.values())
        for column, source in zip(columns.tolist(), sources.tolist(), strict=True):
            number = numbers[source]
            values[0, column] = np.nan if number is None else number
        return np.array([row]), event.time_unix_ns, self._in_range(self.hosts, values)

    def ib(self, event: IbEvent, node: NodeContext) -> Sample | None:
        """Counters and optics of a node's ports as (rows, time, values).

        Vendors add counters of their own; those that the registry lacks are counted, not refused.
        """
        if not event.ports:
            return None
        rows = np.array([self._port_row(event, port, node) for port in event.ports])
        values = np.full((len(rows), len(self.ports.columns)), np.nan)
        counters: Mapping[str, Sequence[float | None]] = event.counters
        for name, column in (*counters.items(), *event.metrics.items()):
            at = self.ports.columns.index.get(name)
            if at is None or len(column) != len(rows):
                self._counts.unknown_metrics += 1
                continue
            values[:, at] = np.array(column, dtype=np.float64)
        return _once(rows, event.time_unix_ns, self._in_range(self.ports, values))

    def _port_row(self, event: IbEvent, port: Port, node: NodeContext) -> int:
        subject = Subject(
            cluster=event.cluster,
            rack=node.rack,
            node=event.node,
            ib_device=port.device,
            ib_port=port.port,
        )
        return self.ports.row(f"{event.cluster}/{event.node}/{port.device}/{port.port}", subject)

    def _gpu_rows(self, event: GpuEvent, node: NodeContext) -> Ints:
        """Rows of the scrape's devices; a node's list rarely changes, so the last is kept."""
        known = self._known.get(event.node)
        if known is None or known[0] != event.devices:
            rows = np.array([self._gpu_row(event, i, node) for i in range(len(event.devices))])
            keys = [pci_key(d.pci) if d.pci else d.uuid for d in event.devices]
            known = self._known[event.node] = (event.devices, rows, keys)
        for key in known[2]:
            node.devices[key] = event.time_unix_ns
        return known[1]

    def _gpu_row(self, event: GpuEvent, i: int, node: NodeContext) -> int:
        device = event.devices[i]
        key = pci_key(device.pci) if device.pci else device.uuid
        subject = node.gpus.get(key)
        if subject is None or subject.gpu_uuid != device.uuid or subject.gpu_index != device.index:
            subject = Subject(
                cluster=event.cluster,
                rack=node.rack,
                node=event.node,
                gpu_uuid=device.uuid,
                gpu_index=device.index,
                gpu_pci=key,
            )
            node.gpus[key] = subject
        return self.gpus.row(f"{event.cluster}/{event.node}/{device.uuid}", subject)

    def _layout(self, table: Table, node: str, names: tuple[str, ...]) -> tuple[Ints, Ints]:
        """(column, position in the event) of each metric that the registry knows."""
        found = self._layouts.get((table.scope, names))
        if found is None:
            known = [
                (table.columns.index[n], i) for i, n in enumerate(names) if n in table.columns.index
            ]
            pairs = np.array(known, dtype=np.int64).reshape(-1, 2)
            found = self._layouts[table.scope, names] = (pairs[:, 0], pairs[:, 1])
        if len(found[0]) != len(names):
            self._refuse(table, node, names)
        return found

    def _refuse(self, table: Table, node: str, names: tuple[str, ...]) -> None:
        for name in names:
            if name in table.columns.index:
                continue
            self._counts.unknown_metrics += 1
            if (node, name) not in self._refused:
                self._refused.add((node, name))
                self._rejects.append(Reject("unknown_metric", f"{name!r} from {node}"))

    def _whole(
        self, event: GpuEvent, devices: int
    ) -> tuple[tuple[str, ...], list[list[float | None]]]:
        """The metrics that have one value a device; the others are refused."""
        good = {n: v for n, v in event.metrics.items() if len(v) == devices}
        for name, column in event.metrics.items():
            if len(column) != devices:
                detail = f"{name}: {len(column)} values for {devices} devices of {event.node}"
                self._counts.rejected += 1
                self._rejects.append(Reject("wrong_type", detail))
        return tuple(good), list(good.values())

    def _in_range(self, table: Table, values: Floats) -> Floats:
        bad = (values < table.columns.low) | (values > table.columns.high) | np.isinf(values)
        if bad.any():
            self._counts.invalid_samples += int(bad.sum())
            values[bad] = np.nan
        return values


def batches(table: Table, samples: list[Sample]) -> list[Batch]:
    """Samples of one second as batches with at most one sample a row, in the order of time."""
    if not samples:
        return []
    layers = [samples] if _all_differ(samples) else _layers(samples)
    return [_join(table, layer) for layer in layers]


def _all_differ(samples: list[Sample]) -> bool:
    rows = np.concatenate([sample[0] for sample in samples])
    return len(np.unique(rows)) == len(rows)


def _layers(samples: list[Sample]) -> list[list[Sample]]:
    layers: list[list[Sample]] = []
    depth: dict[int, int] = {}
    for sample in samples:
        rows = sample[0].tolist()
        level = max(depth.get(row, 0) for row in rows)
        depth.update(dict.fromkeys(rows, level + 1))
        if level == len(layers):
            layers.append([])
        layers[level].append(sample)
    return layers


def _once(rows: Ints, time_ns: int, values: Floats) -> Sample:
    """A sample in which no row stands twice: MIG instances go by the UUID of their GPU."""
    _, first = np.unique(rows, return_index=True)
    if len(first) == len(rows):
        return rows, time_ns, values
    first.sort()
    return rows[first], time_ns, values[first]


def _join(table: Table, layer: list[Sample]) -> Batch:
    rows = np.concatenate([s[0] for s in layer])
    times = np.concatenate([np.full(len(s[0]), s[1], dtype=np.int64) for s in layer])
    return Batch(table, rows, times, np.concatenate([s[2] for s in layer]))
