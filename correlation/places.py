"""Which findings speak of one place, and how far a fault at one place reaches. Pure."""

from stethoscope.correlation.relations import explains
from stethoscope.schemas.causes import cause_catalogue
from stethoscope.schemas.findings import Subject


def place_of(subject: Subject) -> str:
    """What recurs: a device whatever ran on it, else a part of a node, or a job.

    >>> place_of(Subject(node="n1", gpu_uuid="GPU-a", job_id="7"))
    'default|n1|GPU-a|None'
    """
    device = subject.gpu_uuid or subject.gpu_pci or subject.ib_device or subject.switch
    if device:
        return f"{subject.cluster}|{subject.node}|{device}|{subject.ib_port}"
    return f"{subject.cluster}|{subject.node}|{subject.mount}|{subject.job_id}"


def is_same(cause: str, root: Subject, other_cause: str, other: Subject) -> bool:
    """Whether one finding says again what the other said."""
    jobs = {root.job_id, other.job_id} - {None}
    return cause == other_cause and len(jobs) < 2 and _same_place(root, other)


def leads_to(cause: str, root: Subject, symptom: str, place: Subject) -> bool:
    """Whether ``cause`` at ``root`` may be why ``symptom`` is seen at ``place``.

    Jobs span nodes; what hardware says of itself does not.
    """
    if not explains(cause, symptom):
        return False
    spans = cause_catalogue()[symptom].plane == "job" or None in (root.node, place.node)
    return spans or root.node == place.node


def is_deeper(cause: str, root: Subject, symptom: str, place: Subject) -> bool:
    """Whether ``cause`` is behind ``symptom``, and not the other way round as well."""
    return leads_to(cause, root, symptom, place) and not leads_to(symptom, place, cause, root)


def _same_place(root: Subject, subject: Subject) -> bool:
    """The same device; else the same node and job, whatever else each of them names."""
    if root.gpu_index is not None and subject.gpu_index is not None:
        return (root.node, root.gpu_index) == (subject.node, subject.gpu_index)
    if root.gpu_pci is not None and subject.gpu_pci is not None:
        return (root.node, root.gpu_pci) == (subject.node, subject.gpu_pci)
    return (root.node, root.job_id, root.switch, root.ib_device, root.ib_port, root.mount) == (
        subject.node,
        subject.job_id,
        subject.switch,
        subject.ib_device,
        subject.ib_port,
        subject.mount,
    )
