"""One GPU or MIG instance: asks what it supports at each value's pace, and holds the rest."""

import ctypes
from collections.abc import Callable
from time import sleep

from stethoscope.agents.gpu_nvml_fields import (
    CALLS,
    FIELDS,
    GPM,
    VALUE_MEMBERS,
    Call,
    Cleaner,
    Field,
    Handle,
    Nvml,
    Pace,
)
from stethoscope.schemas.events import Device, Value

# nvml.h: NVML_ERROR_*
INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 2, 3, 4, 13
GPU_IS_LOST, NO_DATA, VERSION_MISMATCH = 15, 21, 25
# What asking again a second later will not change.
_UNSUPPORTED = {
    INVALID_ARGUMENT,
    NOT_SUPPORTED,
    NO_PERMISSION,
    FUNCTION_NOT_FOUND,
    VERSION_MISMATCH,
}
_GPM_SETTLE_SECS = 0.1  # nvml.h asks for samples 100 ms apart
Failed = Callable[[str], None]


class LostError(Exception):
    """The GPU does not answer any more (fell off the bus)."""


class DeviceReader:
    """Reads one device.

    Args:
        nvml: the library.
        handle: NVML's handle of the GPU or MIG instance.
        device: its identity on events.
        parent: for a MIG instance, the GPU's handle and the GPU instance id, for GPM.
        stagger: 0 to 1, spreads the slow calls of several devices over time.
        clean: drops invalid values.
        failed: told the name of a call that failed for another reason than lack of support.
    """

    def __init__(
        self,
        nvml: Nvml,
        handle: Handle,
        device: Device,
        parent: tuple[Handle, int] | None,
        stagger: float,
        clean: Cleaner,
        failed: Failed,
    ) -> None:
        self.device = device
        self.handle = handle
        self.is_mig = parent is not None
        self.is_divided = False
        self._nvml = nvml
        self._parent = parent
        self._clean = clean
        self._failed = failed
        self._stagger = stagger
        self._calls = list(CALLS)
        self._fields: dict[str, int] = {f.metric: 0 for f in FIELDS}
        self._due_ns: dict[Pace, int] = {}
        self._values: dict[str, Value] = {}
        self._gpm = _Gpm(nvml, handle, parent)

    def read(self, monotonic_ns: int, gpm: bool) -> dict[str, Value]:
        """All supported metrics; what failed this time is ``None``.

        Raises:
            LostError: the GPU is gone.
        """
        paces = self._due(monotonic_ns)
        for call in list(self._calls):
            if call.pace in paces:
                self._call(call)
        self._read_fields([f for f in FIELDS if f.pace in paces and f.metric in self._fields])
        if gpm:
            self._read_gpm()
        return self._values

    def pids(self) -> list[int] | None:
        """Processes that compute on the device, ``None`` where NVML does not say."""
        try:
            found = self._nvml.nvmlDeviceGetComputeRunningProcesses(self.handle)
        except self._nvml.NVMLError as error:
            self._unless_unsupported("nvmlDeviceGetComputeRunningProcesses", error)
            return None
        return [int(process.pid) for process in found]

    def close(self) -> None:
        """Free the GPM samples."""
        self._gpm.close()

    def _due(self, monotonic_ns: int) -> set[Pace]:
        """The paces whose time has come; at first all, then each device in its own turn."""
        due = {Pace.EACH_READ}
        for pace in (Pace.SLOW, Pace.RARE):
            period_ns = pace * 1_000_000_000
            if pace not in self._due_ns:
                self._due_ns[pace] = monotonic_ns + int(period_ns * (0.5 + self._stagger / 2))
                due.add(pace)
            elif monotonic_ns >= self._due_ns[pace]:
                self._due_ns[pace] = monotonic_ns + period_ns
                due.add(pace)
        return due

    def _call(self, call: Call) -> None:
        try:
            values = call.read(self._nvml, self.handle)
        except self._nvml.NVMLError as error:
            if self._unless_unsupported(call.name, error):
                self._values.update(dict.fromkeys(call.metrics))
            else:
                self._calls.remove(call)
            return
        for metric, value in zip(call.metrics, values, strict=True):
            self._values[metric] = self._clean(metric, value)

    def _unless_unsupported(self, name: str, error: Exception) -> bool:
        """Whether to ask again next time; counts the failure."""
        code = getattr(error, "value", None)
        if code == GPU_IS_LOST:
            raise LostError(self.device.uuid) from error
        if code in _UNSUPPORTED:
            return False
        self._failed(name)
        return True

    def _read_fields(self, fields: list[Field]) -> None:
        """One bulk call for all fields; a field whose source is refused tries its next one."""
        asked = [(f, f.sources[self._fields[f.metric]]) for f in fields]
        ids = [(getattr(self._nvml, s.field, None), scope) for _, s in asked for scope in s.scopes]
        known = [(i, scope) for i, scope in ids if i is not None]
        if not known:
            return
        try:
            answers = iter(self._nvml.nvmlDeviceGetFieldValues(self.handle, known))
        except self._nvml.NVMLError as error:
            if self._unless_unsupported("nvmlDeviceGetFieldValues", error):
                self._values.update(dict.fromkeys(f.metric for f in fields))
            else:
                self._fields.clear()
            return
        refused: list[Field] = []
        for one, source in asked:
            if getattr(self._nvml, source.field, None) is None:
                refused.append(one)
                continue
            got = [next(answers) for _ in source.scopes]
            if not self._take(one.metric, got, source.divide):
                refused.append(one)
        retry = [f for f in refused if self._next_source(f)]
        if retry:
            self._read_fields(retry)

    def _take(self, metric: str, answers: list[ctypes.Structure], divide: float) -> bool:
        """Sum the scopes that answered; ``False`` where the device refuses all of them."""
        good = [a for a in answers if a.nvmlReturn == 0]
        if not good:
            if all(a.nvmlReturn in _UNSUPPORTED for a in answers):
                return False
            self._failed("nvmlDeviceGetFieldValues")
            self._values[metric] = None
            return True
        total = sum(getattr(a.value, VALUE_MEMBERS[a.valueType]) for a in good)
        self._values[metric] = self._clean(metric, total / divide)
        return True

    def _next_source(self, field: Field) -> bool:
        nxt = self._fields[field.metric] + 1
        if nxt < len(field.sources):
            self._fields[field.metric] = nxt
            return True
        del self._fields[field.metric]
        return False

    def _read_gpm(self) -> None:
        try:
            values = self._gpm.read()
        except self._nvml.NVMLError as error:
            if self._unless_unsupported("nvmlGpmMetricsGet", error):
                self._values.update(dict.fromkeys(metric for _, metric, _ in GPM))
            else:
                self._gpm.supported = False
            return
        for metric, value in values.items():
            self._values[metric] = self._clean(metric, value)


class _Gpm:
    """Activity between two GPM samples; keeps the previous one. Hopper and newer."""

    def __init__(self, nvml: Nvml, handle: Handle, parent: tuple[Handle, int] | None) -> None:
        self.supported = True
        self._nvml = nvml
        self._handle = handle
        self._parent = parent
        self._samples: list[Handle] = []
        self._request = nvml.c_nvmlGpmMetricsGet_t()
        self._request.version = nvml.NVML_GPM_METRICS_GET_VERSION
        self._request.numMetrics = len(GPM)
        for place, (metric_id, _, _) in enumerate(GPM):
            self._request.metrics[place].metricId = metric_id

    def read(self) -> dict[str, Value]:
        """The mean of each metric since the last read; empty where there is no GPM."""
        if not self.supported:
            return {}
        if not self._samples:
            self._start()
        previous, current = self._samples
        self._sample(current)
        self._samples = [current, previous]
        self._request.sample1, self._request.sample2 = previous, current
        self._nvml.nvmlGpmMetricsGet(self._request)
        values: dict[str, Value] = {}
        for place, (_, metric, divide) in enumerate(GPM):
            answer = self._request.metrics[place]
            if answer.nvmlReturn == 0:
                values[metric] = answer.value / divide
            elif answer.nvmlReturn not in _UNSUPPORTED:
                values[metric] = None
        return values

    def close(self) -> None:
        for sample in self._samples:
            self._nvml.nvmlGpmSampleFree(sample)
        self._samples = []

    def _start(self) -> None:
        self._samples = [self._nvml.nvmlGpmSampleAlloc(), self._nvml.nvmlGpmSampleAlloc()]
        self._sample(self._samples[0])
        sleep(_GPM_SETTLE_SECS)

    def _sample(self, into: Handle) -> None:
        if self._parent is None:
            self._nvml.nvmlGpmSampleGet(self._handle, into)
        else:
            self._nvml.nvmlGpmMigSampleGet(*self._parent, into)
