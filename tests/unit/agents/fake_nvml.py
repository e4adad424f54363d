"""A stand-in for the pynvml module: real constants and structs, made-up GPUs."""

from types import SimpleNamespace
from typing import Any

import pynvml


class FakeGpu:
    def __init__(self, index: int, mig: int = 0) -> None:
        self.index = index
        self.uuid = f"GPU-{index:08d}"
        self.lost = False
        self.unsupported: set[str] = {"nvmlDeviceGetFanSpeed"}
        self.failing: dict[str, int] = {}
        self.fields: dict[str, float] = {"NVML_FI_DEV_MEMORY_TEMP": 40 + index}
        self.pids: list[int] = []
        self.calls: list[str] = []
        self.gpm_reads = 0
        self.migs = [FakeMig(self, slot) for slot in range(mig)]


class FakeMig(FakeGpu):
    def __init__(self, parent: FakeGpu, slot: int) -> None:
        super().__init__(parent.index)
        self.uuid = f"MIG-{parent.index}-{slot}"
        self.gpu_instance = slot + 1


class FakeNvml:
    """Numbers that a call without an entry in ``answers`` gives are 1."""

    NVMLError = pynvml.NVMLError

    def __init__(self, gpus: list[FakeGpu]) -> None:
        self.gpus = gpus
        self.open = 0
        self.driver = True
        self.events: list[tuple[int, FakeGpu, int]] = []
        self.answers: dict[str, float] = {
            "nvmlDeviceGetPowerUsage": 123764,
            "nvmlDeviceGetEnforcedPowerLimit": 700000,
        }
        self.gpm_percent = 50.0

    def __getattr__(self, name: str) -> Any:
        if name.startswith("nvmlDeviceGet"):
            return lambda gpu, *_: self._answer(name, gpu)
        return getattr(pynvml, name)  # constants and structs

    def _enter(self, name: str, gpu: FakeGpu) -> None:
        gpu.calls.append(name)
        if gpu.lost:
            raise pynvml.NVMLError(15)
        if name in gpu.unsupported:
            raise pynvml.NVMLError(3)
        if name in gpu.failing:
            raise pynvml.NVMLError(gpu.failing[name])

    def _answer(self, name: str, gpu: FakeGpu) -> float:
        self._enter(name, gpu)
        return self.answers.get(name, 1)

    def nvmlInit(self) -> None:  # noqa: N802  # pynvml's names, here and below
        if not self.driver:
            raise pynvml.NVMLError(9)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetCudaDriverVersion(self) -> int:  # noqa: N802
        return 13000

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "580.159.04"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> FakeGpu:  # noqa: N802
        self._enter("nvmlDeviceGetHandleByIndex", self.gpus[index])
        return self.gpus[index]

    def nvmlDeviceGetUUID(self, gpu: FakeGpu) -> str:  # noqa: N802
        self._enter("nvmlDeviceGetUUID", gpu)
        return gpu.uuid

    def nvmlDeviceGetName(self, gpu: FakeGpu) -> str:  # noqa: N802
        return "NVIDIA H200"

    def nvmlDeviceGetPciInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(busId=f"00000000:0{gpu.index}:00.0")

    def nvmlDeviceGetMigMode(self, gpu: FakeGpu) -> tuple[int, int]:  # noqa: N802
        return int(bool(gpu.migs)), int(bool(gpu.migs))

    def nvmlDeviceGetMaxMigDeviceCount(self, gpu: FakeGpu) -> int:  # noqa: N802
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: FakeGpu, slot: int) -> FakeGpu:  # noqa: N802
        if slot >= len(gpu.migs):
            raise pynvml.NVMLError(6)
        return gpu.migs[slot]

    def nvmlDeviceGetGpuInstanceId(self, mig: FakeMig) -> int:  # noqa: N802
        return mig.gpu_instance

    def nvmlDeviceGetUtilizationRates(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetUtilizationRates", gpu)
        return SimpleNamespace(gpu=self.answers.get("util", 97), memory=30)

    def nvmlDeviceGetMemoryInfo(self, gpu: FakeGpu, version: int) -> SimpleNamespace:  # noqa: N802
        self._enter("nvmlDeviceGetMemoryInfo", gpu)
        return SimpleNamespace(used=5 << 30, total=141 << 30, free=136 << 30, reserved=1 << 20)

    def nvmlDeviceGetEncoderUtilization(self, gpu: FakeGpu) -> list[int]:  # noqa: N802
        return [0, 100000]

    nvmlDeviceGetDecoderUtilization = nvmlDeviceGetEncoderUtilization  # noqa: N815

    def nvmlDeviceGetBAR1MemoryInfo(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(bar1Used=1703936)

    def nvmlDeviceGetRowRemapperHistogram(self, gpu: FakeGpu) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(none=0)

    def nvmlDeviceGetGpuFabricInfoV(self, gpu: FakeGpu, into: Any) -> None:  # noqa: N802
        self._enter("nvmlDeviceGetGpuFabricInfoV", gpu)

    def nvmlDeviceGetFieldValues(self, gpu: FakeGpu, ids: list[Any]) -> Any:  # noqa: N802
        self._enter("nvmlDeviceGetFieldValues", gpu)
        by_id = {getattr(pynvml, name): value for name, value in gpu.fields.items()}
        answers = (pynvml.c_nvmlFieldValue_t * len(ids))()
        for answer, (field, _scope) in zip(answers, ids, strict=True):
            if field in by_id:
                answer.valueType = 3
                answer.value.ullVal = int(by_id[field])
            else:
                answer.nvmlReturn = 3
        return answers

    def nvmlDeviceGetComputeRunningProcesses(self, gpu: FakeGpu) -> list[Any]:  # noqa: N802
        self._enter("nvmlDeviceGetComputeRunningProcesses", gpu)
        return [SimpleNamespace(pid=pid, usedGpuMemory=1 << 30) for pid in gpu.pids]

    def nvmlEventSetCreate(self) -> list[FakeGpu]:  # noqa: N802
        return []

    def nvmlEventSetFree(self, event_set: list[FakeGpu]) -> None:  # noqa: N802
        event_set.clear()

    def nvmlDeviceGetSupportedEventTypes(self, gpu: FakeGpu) -> int:  # noqa: N802
        return 65439

    def nvmlDeviceRegisterEvents(self, gpu: FakeGpu, kinds: int, into: list[FakeGpu]) -> None:  # noqa: N802
        into.append(gpu)

    def nvmlEventSetWait(self, event_set: list[FakeGpu], timeout_ms: int) -> SimpleNamespace:  # noqa: N802
        if not self.events:
            raise pynvml.NVMLError(10)
        kind, gpu, data = self.events.pop(0)
        return SimpleNamespace(eventType=kind, device=gpu, eventData=data)

    def nvmlGpmSampleAlloc(self) -> Any:  # noqa: N802
        return pynvml.c_nvmlGpmSample_t()

    def nvmlGpmSampleFree(self, sample: Any) -> None:  # noqa: N802
        return

    def nvmlGpmSampleGet(self, gpu: FakeGpu, sample: Any) -> None:  # noqa: N802
        self._enter("nvmlGpmSampleGet", gpu)
        gpu.gpm_reads += 1

    def nvmlGpmMigSampleGet(self, gpu: FakeGpu, instance: int, sample: Any) -> None:  # noqa: N802
        gpu.migs[instance - 1].gpm_reads += 1

    def nvmlGpmMetricsGet(self, request: Any) -> None:  # noqa: N802
        for place in range(request.numMetrics):
            request.metrics[place].nvmlReturn = 0
            request.metrics[place].value = self.gpm_percent
