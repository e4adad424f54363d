"""Read each reader once, for a person or a test: no loop, no Kafka, no positions kept."""

from collections.abc import Iterator

from msgspec import Struct

from stethoscope.agents.calls import Call, ReaderState, build, perform
from stethoscope.agents.clock import Clock
from stethoscope.agents.reader import Context, Reader
from stethoscope.schemas.agent_config import AgentConfig
from stethoscope.schemas.events import Event

# These tell rates, which take two reads.
RATES = frozenset({"gpu_nvml", "prometheus", "host"})
BETWEEN_READS_SECS = 1.0


class Reading(Struct, frozen=True):
    """What one reader said. ``detail`` explains a state other than ``ok``."""

    reader: str
    state: ReaderState
    detail: str
    events: list[Event]


def read_once(
    names: list[str], context: Context, config: AgentConfig, clock: Clock
) -> Iterator[Reading]:
    """Probe and read the readers, in the order given; those that tell rates, twice."""
    built = {name: build(name, context, config) for name in names}
    readers = {name: reader for name, reader in built.items() if not isinstance(reader, str)}
    missing = {name: why for name, why in built.items() if isinstance(why, str)}
    try:
        said = {name: Reading(name, "failing", why, []) for name, why in missing.items()}
        said |= {name: _read(name, reader, clock) for name, reader in readers.items()}
        again = [n for n in names if n in RATES and said[n].state == "ok"]
        if again:
            clock.sleep(BETWEEN_READS_SECS)
            said |= {name: _read(name, readers[name], clock) for name in again}
        yield from (said[name] for name in names)
    finally:
        for reader in readers.values():
            reader.close()


def _read(name: str, reader: Reader, clock: Clock) -> Reading:
    result = perform(reader, Call(name, "read", clock.now()), fresh=True)
    return Reading(name, result.state, result.detail, result.events)
