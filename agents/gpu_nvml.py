"""GPUs by NVML: every metric it gives, the processes on each GPU, Xid events as hints."""

from stethoscope.agents.gpu_nvml_device import DeviceReader, LostError
from stethoscope.agents.gpu_nvml_fields import Cleaner, Handle, Nvml
from stethoscope.agents.host_processes import ProcessTable
from stethoscope.agents.reader import Context, Counters, Now
from stethoscope.schemas.agent_config import GpuNvml
from stethoscope.schemas.errors import ReaderUnsupported, ServiceError
from stethoscope.schemas.events import Device, Event, GpuEvent, NodeEvent, Process, Value

TIMEOUT = 10
RETRY_LOST_SECS = 60
MAX_EVENTS_A_READ = 1000
# GPM takes 2 ms a GPU: so it stays below 0.3 % of a core on any number of them.
GPM_SECS = 3.0
GPM_SECS_A_GPU = 0.75


def load_nvml() -> Nvml:
    """The pynvml module.

    Raises:
        ReaderUnsupported: nvidia-ml-py is not installed.
    """
    try:
        import pynvml
    except ImportError as error:
        msg = "nvidia-ml-py is missing: install stethoscope[agent]"
        raise ReaderUnsupported(msg) from error
    return pynvml


class GpuNvmlReader:
    """All GPUs of a node and their MIG instances, as one ``gpu`` and one ``node`` event a read.

    The ``node`` event (stream ``gpu_nvml``) holds ``gpu_count`` (GPUs that answer, MIG instances
    not counted) and the processes on each GPU. ``xid_last`` is the code of the newest Xid since
    the last read, 0 when there was none: a hint, the kernel log is the authority.
    """

    name = "gpu_nvml"
    hazardous = True

    def __init__(self, context: Context, config: GpuNvml, nvml: Nvml | None = None) -> None:
        self.period_secs = config.period_secs
        self.counters = Counters()
        self._context = context
        self._config = config
        self._nvml: Nvml = nvml
        self._processes = ProcessTable(config.proc_root)
        self._clean = Cleaner()
        self._devices: list[DeviceReader] = []
        self._event_set: Handle = None
        self._is_open = False
        self._gpm_due_ns = 0
        self._reopen_ns: int | None = None
        self._most = 0
        self._versions: dict[str, str | None] = {}

    def probe(self) -> None:
        """Load NVML and find the GPUs.

        Raises:
            ReaderUnsupported: no library, no driver, or no GPU.
        """
        if self._nvml is None:
            self._nvml = load_nvml()
        try:
            self._open()
        except self._nvml.NVMLError as error:
            msg = f"no NVIDIA driver answers: {error}"
            raise ReaderUnsupported(msg) from error
        if not self._devices:
            msg = "the NVIDIA driver sees no GPU"
            raise ReaderUnsupported(msg)

    def read(self, now: Now) -> list[Event]:
        """One scrape of all devices.

        Raises:
            ServiceError: the driver as a whole does not answer.
        """
        try:
            self._reopen_when_due(now)
            xids = self._poll_xids()
            columns, processes = self._read_devices(now, xids)
        except self._nvml.NVMLError as error:
            self.close()
            msg = f"NVML failed: {error}"
            raise ServiceError(msg) from error
        self.counters.invalid_samples_total = self._clean.invalid_total
        return [self._gpu_event(now, columns), self._node_event(now, processes)]

    def close(self) -> None:
        """Shut NVML down."""
        for reader in self._devices:
            _quietly(self._nvml, reader.close)
        self._devices = []
        if self._is_open:
            self._is_open = False
            if self._event_set is not None:
                _quietly(self._nvml, self._nvml.nvmlEventSetFree, self._event_set)
                self._event_set = None
            _quietly(self._nvml, self._nvml.nvmlShutdown)

    def _open(self) -> None:
        if self._is_open:
            return
        self._nvml.nvmlInit()
        self._is_open = True
        self._reopen_ns = None
        self._versions = _versions(self._nvml)
        count = self._nvml.nvmlDeviceGetCount()
        for index in range(count):
            try:
                handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
                self._add(handle, index, index / count)
            except self._nvml.NVMLError:  # this GPU is gone; the others still count
                self.counters.error("nvmlDeviceGetHandleByIndex")
        self._event_set = self._register_events()

    def _add(self, handle: Handle, index: int, stagger: float) -> None:
        nvml = self._nvml
        gpu = Device(
            uuid=nvml.nvmlDeviceGetUUID(handle),
            index=index,
            pci=nvml.nvmlDeviceGetPciInfo(handle).busId.lower(),
            model=nvml.nvmlDeviceGetName(handle),
        )
        own = self._reader(handle, gpu, None, stagger)
        self._devices.append(own)
        for mig in _mig_handles(nvml, handle):
            own.is_divided = True
            instance = Device(
                uuid=nvml.nvmlDeviceGetUUID(mig),
                index=index,
                pci=gpu.pci,
                model=nvml.nvmlDeviceGetName(mig),
            )
            parent = (handle, nvml.nvmlDeviceGetGpuInstanceId(mig))
            self._devices.append(self._reader(mig, instance, parent, stagger))

    def _reader(
        self, handle: Handle, device: Device, parent: tuple[Handle, int] | None, stagger: float
    ) -> DeviceReader:
        return DeviceReader(
            self._nvml, handle, device, parent, stagger, self._clean, self.counters.error
        )

    def _register_events(self) -> Handle:
        nvml = self._nvml
        wanted = (
            nvml.nvmlEventTypeXidCriticalError
            | nvml.nvmlEventTypeDoubleBitEccError
            | nvml.nvmlEventTypeSingleBitEccError
        )
        event_set = nvml.nvmlEventSetCreate()
        for reader in self._devices:
            if reader.is_mig:
                continue
            try:
                supported = nvml.nvmlDeviceGetSupportedEventTypes(reader.handle)
                nvml.nvmlDeviceRegisterEvents(reader.handle, supported & wanted, event_set)
            except nvml.NVMLError:
                self.counters.error("nvmlDeviceRegisterEvents")
        return event_set

    def _poll_xids(self) -> dict[str, float]:
        """The newest Xid of each GPU since the last read, without waiting."""
        xids: dict[str, float] = {}
        for _ in range(MAX_EVENTS_A_READ):
            try:
                event = self._nvml.nvmlEventSetWait(self._event_set, 0)
            except self._nvml.NVMLError as error:
                if getattr(error, "value", None) != TIMEOUT:
                    self.counters.error("nvmlEventSetWait")
                break
            if event.eventType == self._nvml.nvmlEventTypeXidCriticalError:
                xids[self._uuid(event.device)] = float(event.eventData)
        return xids

    def _uuid(self, handle: Handle) -> str:
        """The GPU's UUID; empty for one that is gone and does not even tell that."""
        try:
            return str(self._nvml.nvmlDeviceGetUUID(handle))
        except self._nvml.NVMLError:
            self.counters.error("nvmlDeviceGetUUID")
            return ""

    def _read_devices(
        self, now: Now, xids: dict[str, float]
    ) -> tuple[list[dict[str, Value]], list[Process]]:
        gpm = self._gpm_is_due(now)
        rows: list[dict[str, Value]] = []
        processes: list[Process] = []
        for reader in list(self._devices):
            try:
                row = dict(reader.read(now.monotonic_ns, gpm))
                pids = reader.pids()
            except LostError:
                self._devices.remove(reader)
                _quietly(self._nvml, reader.close)
                self.counters.error("gpu_lost")
                continue
            row["xid_last"] = xids.get(reader.device.uuid, 0.0)
            if pids is not None:
                row["processes_count"] = float(len(pids))
                # The processes of a divided GPU are listed by the instance they run on.
                named = [] if reader.is_divided else pids
                processes.extend(self._process(pid, reader.device) for pid in named)
            rows.append(row)
        self._processes.forget_all_but({p.pid for p in processes})
        return rows, processes

    def _gpm_is_due(self, now: Now) -> bool:
        if now.monotonic_ns < self._gpm_due_ns:
            return False
        period_secs = self._config.gpm_period_secs
        if period_secs is None:
            period_secs = max(GPM_SECS, GPM_SECS_A_GPU * len(self._devices))
        # A tenth early counts as due, so that jitter does not skip a turn.
        self._gpm_due_ns = now.monotonic_ns + int(0.9 * period_secs * 1e9)
        return True

    def _reopen_when_due(self, now: Now) -> None:
        """Look for GPUs that are missing: only a new session of NVML sees one come back."""
        if self._reopen_ns is not None and now.monotonic_ns >= self._reopen_ns:
            self.close()
        self._open()
        self._most = max(self._most, self._gpu_count())
        if self._gpu_count() < self._most and self._reopen_ns is None:
            self._reopen_ns = now.monotonic_ns + RETRY_LOST_SECS * 1_000_000_000

    def _gpu_count(self) -> int:
        return sum(not reader.is_mig for reader in self._devices)

    def _process(self, pid: int, device: Device) -> Process:
        facts = self._processes.facts(pid)
        if facts is None:  # another pid namespace, or just ended
            return Process(name="", pid=pid, gpu_uuid=device.uuid)
        return Process(
            name=facts.name,
            pid=pid,
            user=facts.user,
            job_id=facts.job_id,
            rank=facts.rank,
            gpu_uuid=device.uuid,
            alive=facts.state != "Z",
            container=facts.container,
        )

    def _gpu_event(self, now: Now, rows: list[dict[str, Value]]) -> GpuEvent:
        names = sorted({name for row in rows for name in row})
        return GpuEvent(
            **self._context.stamp(now, self.period_secs),
            devices=[reader.device for reader in self._devices],
            metrics={name: [row.get(name) for row in rows] for name in names},
        )

    def _node_event(self, now: Now, processes: list[Process]) -> NodeEvent:
        return NodeEvent(
            **self._context.stamp(now, self.period_secs, self.name),
            metrics={"gpu_count": float(self._gpu_count())},
            processes=processes,
            versions=self._versions,
        )


def _mig_handles(nvml: Nvml, handle: Handle) -> list[Handle]:
    """The GPU's MIG instances; none where MIG is off or unknown."""
    try:
        current, _ = nvml.nvmlDeviceGetMigMode(handle)
        if current != nvml.NVML_DEVICE_MIG_ENABLE:
            return []
        slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.NVMLError:
        return []
    found: list[Handle] = []
    for slot in range(slots):
        try:
            found.append(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot))
        except nvml.NVMLError:  # NOT_FOUND: an empty slot
            continue
    return found


def _versions(nvml: Nvml) -> dict[str, str | None]:
    cuda = nvml.nvmlSystemGetCudaDriverVersion()
    return {
        "driver": nvml.nvmlSystemGetDriverVersion(),
        "cuda": f"{cuda // 1000}.{cuda % 1000 // 10}",
    }


def _quietly(nvml: Nvml, function: object, *arguments: object) -> None:
    """Call while closing, when a dead driver's complaints change nothing."""
    try:
        function(*arguments)  # type: ignore[operator]  # pynvml has no types
    except nvml.NVMLError:
        return
