"""From a page to canonical values: host formulas, columns of devices and ports, mounts."""

import math
from collections import defaultdict

from stethoscope.agents.prometheus_page import Page, Sample
from stethoscope.agents.prometheus_rules import Convert, MetricMap, MountRule, Rule, parse_selector
from stethoscope.schemas.events import Mount, Value
from stethoscope.schemas.metrics import clean, is_blank

_NO_LIGHT_DBM = -40.0


class Evaluator:
    """Applies a mapping to one target's pages; keeps the last value of each series it rates.

    ``invalid_total`` counts blank, not finite and out-of-range values.
    """

    def __init__(self, mapping: MetricMap) -> None:
        self._mapping = mapping
        self._last: dict[str, float] = {}
        self._last_ns: int | None = None
        self._rises: dict[str, float] = {}
        self._secs: float | None = None
        self.invalid_total = 0

    def begin(self, page: Page, monotonic_ns: int) -> None:
        """A new page: find out by how much each counter rose; a reset gives no rise."""
        now = {sample.key(): sample.value for sample in page.all()}
        self._rises = {
            key: value - self._last[key]
            for key, value in now.items()
            if key in self._last and value >= self._last[key]
        }
        self._secs = (monotonic_ns - self._last_ns) / 1e9 if self._last_ns is not None else None
        self._last, self._last_ns = now, monotonic_ns

    def host(self, page: Page) -> dict[str, Value]:
        """Host metrics; those whose samples are not on the page are left out."""
        values: dict[str, Value] = {}
        for rule in self._mapping.rules:
            name = rule.config.target
            if rule.metric.scope != "host" or name in values:
                continue
            value = self._formula(rule, page)
            if value is not None:
                values[name] = self._clean(rule, value)
        return values

    def columns(self, page: Page, scopes: tuple[str, ...]) -> dict[str, dict[str, Value]]:
        """``{metric: {device key: value}}``; the first rule that fills a cell keeps it."""
        cells: dict[str, dict[str, Value]] = defaultdict(dict)
        for rule in self._mapping.rules:
            if rule.metric.scope not in scopes:
                continue
            grouped: dict[str, list[float]] = defaultdict(list)
            for sample in page.select(rule.plus):
                if (key := self.device_key(sample, rule.metric.scope)) is not None:
                    grouped[key].append(sample.value)
            row = cells[rule.config.target] if grouped else {}
            for key, raw in grouped.items():
                if row.get(key) is None:
                    row[key] = self._cell(rule, raw)
        return cells

    def device_key(self, sample: Sample, scope: str) -> str | None:
        """What tells devices (or ports) of one page apart: never a pod, never an instance."""
        identity = self._mapping.identity_of(sample.name, "gpu" if scope == "gpu" else "ib")
        if identity is None:
            return None
        labels = sample.labels
        if identity.scope == "gpu":
            uuid = labels.get(identity.uuid) or ""
            index = labels.get(identity.index) or ""
            if not uuid and not index:
                return None
            instance = labels.get(identity.instance, "") if identity.instance else ""
            base = uuid or f"{identity.name or 'gpu'}-{index}"
            return f"{base}/{instance}" if instance else base
        device = labels.get(identity.device) or ""
        return f"{identity.name}{device}/{labels.get(identity.port) or '1'}" if device else None

    def mounts(self, page: Page) -> list[Mount]:
        """File systems: share used, and mean latency since the last page."""
        found: dict[str, Mount] = {}
        for rule in self._mapping.mounts:
            used = self._used(page, rule)
            waits = self._waits(page, rule.time, rule.count, rule.path)
            types = self._types(page, rule.size or rule.count, rule.path, rule.fstype)
            for path in used.keys() | waits.keys():
                found[path] = Mount(
                    path=path,
                    fstype=types.get(path) or rule.fstype_is,
                    used_ratio=used.get(path),
                    await_secs=waits.get(path),
                )
        return [mount for _, mount in sorted(found.items())]

    def _cell(self, rule: Rule, raw: list[float]) -> Value:
        good = [v for v in raw if math.isfinite(v) and not is_blank(v)]
        if not good:
            self.invalid_total += 1
            return None
        pick = min if rule.config.aggregate == "min" else max
        # Without a wish, the first: a device shared by pods repeats its own value.
        value = pick(good) if rule.config.aggregate in ("min", "max") else good[0]
        return self._clean(rule, scaled(converted(value, rule.config.convert), rule.config.scale))

    def _clean(self, rule: Rule, value: float) -> Value:
        if value == 0 and rule.metric.name == "memory_temp_celsius":
            return None  # boards without the sensor report a memory of 0 C
        cleaned = clean(rule.metric, value)
        self.invalid_total += cleaned is None
        return cleaned

    def _formula(self, rule: Rule, page: Page) -> float | None:
        config = rule.config
        plus = page.select(rule.plus)
        if not plus:
            return None
        if config.aggregate == "count":
            return float(len(plus))
        if config.aggregate == "count_nonzero":
            return float(sum(sample.value != 0 for sample in plus))
        minus, per = page.select(rule.minus), page.select(rule.per)
        groups = {s.labels.get(config.by, "") for s in plus} if config.by else {None}
        values = [
            value
            for group in sorted(groups, key=str)
            if (
                value := self._one(
                    rule,
                    _in(plus, config.by, group),
                    _in(minus, config.by, group),
                    _in(per, config.by, group),
                )
            )
            is not None
        ]
        if not values:
            return None
        return {"max": max, "min": min}.get(config.aggregate, sum)(values) * config.scale

    def _one(
        self, rule: Rule, plus: list[Sample], minus: list[Sample], per: list[Sample]
    ) -> float | None:
        """One group's value; ``None`` where a part is missing or a rate has no past yet."""
        config = rule.config
        total = self._sum(plus, config.rate)
        if total is None:
            return None
        if rule.minus:
            less = self._sum(minus, config.rate)
            if less is None:
                return None
            total -= less
        if rule.per:
            whole = self._sum(per, config.rate)
            if not whole or whole < 0:
                return None
            total /= whole
        elif config.rate:
            if not self._secs:
                return None
            total /= self._secs
        return max(0.0, 1 - total) if config.complement else total

    def _sum(self, samples: list[Sample], rate: bool) -> float | None:
        values = (
            [self._rises[k] for s in samples if (k := s.key()) in self._rises]
            if rate
            else [s.value for s in samples]
        )
        finite = [v for v in values if math.isfinite(v)]
        return sum(finite) if finite else None

    def _used(self, page: Page, rule: MountRule) -> dict[str, float]:
        if not rule.size or not rule.available:
            return {}
        sizes, free, available = (
            _by_label(page.select([parse_selector(text)]), rule.path) if text else {}
            for text in (rule.size, rule.free, rule.available)
        )
        used: dict[str, float] = {}
        for path in sizes.keys() & available.keys():
            taken = sizes[path] - free.get(path, available[path])
            whole = taken + available[path]
            if whole > 0 and 0 <= taken <= whole:
                used[path] = taken / whole
        return used

    def _waits(self, page: Page, time: str, count: str, path: str) -> dict[str, float]:
        if not time or not count:
            return {}
        took = self._rise_by_label(page.select([parse_selector(time)]), path)
        done = self._rise_by_label(page.select([parse_selector(count)]), path)
        return {p: took[p] / n for p, n in done.items() if n > 0 and p in took}

    def _rise_by_label(self, samples: list[Sample], label: str) -> dict[str, float]:
        total: dict[str, float] = defaultdict(float)
        for sample in samples:
            if (rise := self._rises.get(sample.key())) is not None:
                total[sample.labels.get(label, "")] += rise
        return total

    def _types(self, page: Page, size: str, path: str, fstype: str) -> dict[str, str]:
        if not size or not fstype:
            return {}
        samples = page.select([parse_selector(size)])
        return {s.labels.get(path, ""): s.labels.get(fstype, "") for s in samples}


def converted(value: float, convert: Convert) -> float:
    """Milliwatts as decibels over one milliwatt; no light is the floor.

    >>> converted(1.0, "milliwatts_to_dbm"), converted(0.0, "milliwatts_to_dbm")
    (0.0, -40.0)
    """
    if convert == "milliwatts_to_dbm":
        return max(_NO_LIGHT_DBM, round(10 * math.log10(value), 3)) if value > 0 else _NO_LIGHT_DBM
    return value


def scaled(value: float, scale: float) -> float:
    """The product; by division where that is exact, so that 97 percent are 0.97.

    >>> scaled(97, 0.01), scaled(3, 1024)
    (0.97, 3072)
    """
    divisor = round(1 / scale) if 0 < scale < 1 else 0
    return value / divisor if divisor and abs(divisor * scale - 1) < 1e-12 else value * scale


def _in(samples: list[Sample], by: str | None, group: str | None) -> list[Sample]:
    return samples if by is None else [s for s in samples if s.labels.get(by, "") == group]


def _by_label(samples: list[Sample], label: str) -> dict[str, float]:
    return {s.labels.get(label, ""): s.value for s in samples if s.labels.get(label)}
