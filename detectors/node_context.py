"""What the node stage knows of one node: its GPUs by PCI address, for detectors that read lines."""

import re

from msgspec import Struct, field

from stethoscope.schemas.findings import Subject

_PCI = re.compile(r"(?:([0-9a-f]+):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.[0-9a-f])?", re.IGNORECASE)


def pci_key(address: str) -> str:
    """``domain:bus:device`` in lower case, four digits of domain, without the function.

    >>> pci_key("00000000:00:06.0") == pci_key("PCI:0000:00:06") == "0000:00:06"
    True
    """
    match = _PCI.search(address.removeprefix("PCI:"))
    if match is None:
        return address.lower()
    return f"{int(match[1] or '0', 16):04x}:{match[2]}:{match[3]}".lower()


class NodeContext(Struct):
    """One node as its events describe it. Bound: one entry a GPU or port ever seen.

    ``devices``: when each GPU was last in a scrape, nanoseconds since 1970.
    """

    cluster: str
    node: str
    rack: str | None = None
    heard_ns: int = 0
    gpu_model: str = ""
    fabrics: list[str] = field(default_factory=list)
    gpus: dict[str, Subject] = field(default_factory=dict)
    devices: dict[str, int] = field(default_factory=dict)

    def works(self, fabric: str) -> None:
        """Remember that ``nvlink`` or ``ib`` was seen to work here."""
        if fabric not in self.fabrics:
            self.fabrics.append(fabric)
            self.fabrics.sort()

    def subject(self) -> Subject:
        """The node itself."""
        return Subject(cluster=self.cluster, rack=self.rack, node=self.node)

    def gpu(self, pci: str) -> Subject:
        """The GPU at that address; one never scraped is named by its address alone."""
        key = pci_key(pci)
        known = self.gpus.get(key)
        if known is not None:
            return known
        return Subject(cluster=self.cluster, rack=self.rack, node=self.node, gpu_pci=key)
