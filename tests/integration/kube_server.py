"""A real Kubernetes API server on loopback; it has no kubelet, so tests write what one would."""

import json
import os
import shutil
import socket
import ssl
import subprocess
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
Body = dict[str, Any]  # a Kubernetes object as JSON


def why_not() -> str | None:
    """Why no API server can be started here; ``None`` where it can."""
    missing = [tool for tool in ("etcd", "openssl", "curl") if shutil.which(tool) is None]
    if missing:
        return f"{', '.join(missing)} is not installed (Debian: etcd-server, openssl, curl)"
    if list((ROOT / ".cache" / "kube").glob("kube-apiserver-v*")):
        return None
    if shutil.which("go") is None:
        return "Go is not installed, from whose modules the API server is built"
    if os.environ.get("STETHOSCOPE_BUILD_KUBE") != "1":
        return "the API server is not built yet: scripts/kube-build.sh, or STETHOSCOPE_BUILD_KUBE=1"
    return None


class KubeServer:
    """Started by ``start`` in a folder, ended by ``stop``; may be stopped and started again."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = _free_ports()
        self.url = f"https://127.0.0.1:{self.port}"

    @property
    def ca_file(self) -> Path:
        return self.folder / "certs" / "apiserver.crt"

    def token_file(self, user: str = "admin") -> Path:
        return self.folder / f"{user}.token"

    def start(self) -> None:
        command = [str(ROOT / "scripts/kube-start.sh"), str(self.folder), str(self.port)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr

    def stop(self) -> None:
        script = str(ROOT / "scripts/kube-stop.sh")
        subprocess.run([script, str(self.folder)], check=True, timeout=60)

    def call(self, method: str, path: str, body: Body | None = None) -> Body:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        request = urllib.request.Request(  # noqa: S310 - our own https URL
            self.url + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={
                "Content-Type": kind,
                "Authorization": f"Bearer {self.token_file().read_text()}",
            },
        )
        tls = ssl.create_default_context(cafile=str(self.ca_file))
        try:
            with urllib.request.urlopen(request, context=tls, timeout=30) as response:  # noqa: S310
                answer: Body = json.load(response)
                return answer
        except urllib.error.HTTPError as error:
            with error:
                raise AssertionError(f"{method} {path}: {error.read().decode()}") from error

    def create_pod(
        self, name: str, labels: dict[str, str], *, gpus: int = 8, owner: Body | None = None
    ) -> None:
        self.call("POST", "/api/v1/namespaces/default/pods", _pod(name, labels, gpus, owner))

    def bind(self, name: str, node: str) -> None:
        """What the scheduler does."""
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"metadata": {"name": name}, "target": target}
        self.call("POST", f"/api/v1/namespaces/default/pods/{name}/binding", body)

    def set_status(self, name: str, status: Body) -> None:
        """What the kubelet does."""
        path = f"/api/v1/namespaces/default/pods/{name}/status"
        self.call("PATCH", path, {"status": status})

    def run_pod(self, name: str, node: str, *, started: str, restarts: int = 0) -> None:
        """Bind it and let its container run."""
        self.bind(name, node)
        self.set_status(name, running(started, restarts))

    def delete_pod(self, name: str) -> None:
        path = f"/api/v1/namespaces/default/pods/{name}"
        self.call("DELETE", path, {"gracePeriodSeconds": 0})

    def create_node(self, name: str, gpus: int) -> None:
        node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
        self.call("POST", "/api/v1/nodes", node)
        self.set_node(name, ready=True, gpus=gpus)

    def set_node(self, name: str, *, ready: bool, gpus: int = 8) -> None:
        condition = {
            "type": "Ready",
            "status": "True" if ready else "Unknown",
            "reason": "KubeletReady" if ready else "NodeStatusUnknown",
            "message": "" if ready else "Kubelet stopped posting node status.",
        }
        status = {
            "conditions": [condition],
            "capacity": {"nvidia.com/gpu": str(gpus)},
            "addresses": [{"type": "InternalIP", "address": "192.0.2.7"}],
        }
        self.call("PATCH", f"/api/v1/nodes/{name}/status", {"status": status})


def running(started: str, restarts: int = 0) -> Body:
    """A pod's status while its one container runs."""
    container = {
        "name": "train",
        "restartCount": restarts,
        "ready": True,
        "image": "i",
        "imageID": "",
        "state": {"running": {"startedAt": started}},
    }
    return {"phase": "Running", "startTime": started, "containerStatuses": [container]}


def ended(phase: str, started: str, finished: str, reason: str, code: int) -> Body:
    """A pod's status after its one container ended."""
    over = {"startedAt": started, "finishedAt": finished, "reason": reason, "exitCode": code}
    container = {
        "name": "train",
        "restartCount": 0,
        "ready": False,
        "image": "i",
        "imageID": "",
        "state": {"terminated": over, "running": None},
    }
    return {"phase": phase, "containerStatuses": [container]}


def _pod(name: str, labels: dict[str, str], gpus: int, owner: Body | None) -> Body:
    container: Body = {"name": "train", "image": "i"}
    if gpus:
        container["resources"] = {"limits": {"nvidia.com/gpu": str(gpus)}}
    metadata: Body = {"name": name, "labels": labels}
    if owner is not None:
        metadata["ownerReferences"] = [owner]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def _free_ports() -> int:
    """The first of three free ports in a row."""
    for first in range(21_000 + os.getpid() % 5000, 32_000, 3):
        if all(_is_free(first + index) for index in range(3)):
            return first
    raise AssertionError("no free ports")


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True
