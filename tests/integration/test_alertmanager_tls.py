"""The client towards an Alertmanager that demands a client certificate and a password."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stethoscope.schemas.config import Alertmanager, BasicAuth, Secret, Tls
from stethoscope.schemas.errors import ServiceRefused, ServiceUnavailable
from stethoscope.sinks.alertmanager import AlertmanagerClient

if TYPE_CHECKING:
    from conftest import RunningAlertmanager

pytestmark = pytest.mark.integration

WEB_CONFIG = """
tls_server_config:
  cert_file: {folder}/cert.pem
  key_file: {folder}/key.pem
  client_ca_file: {folder}/cert.pem
  client_auth_type: RequireAndVerifyClientCert
basic_auth_users:
  ada: {bcrypt}
"""
PASSWORD = "open sesame"  # noqa: S105 - of this test's own server
BCRYPT = "$2b$04$abcdefghijklmnopqrstuu/LVz6MZlItEy42I2juLihZ66HnQx/cy"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Certificate, key and password files; the one certificate is CA, server and client."""
    folder = tmp_path_factory.mktemp("tls")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", folder / "key.pem", "-out", folder / "cert.pem"),
        ],
        check=True,
        capture_output=True,
    )
    (folder / "password").write_text(PASSWORD + "\n", encoding="utf-8")
    (folder / "wrong").write_text("wrong\n", encoding="utf-8")
    config = WEB_CONFIG.format(folder=folder, bcrypt=BCRYPT)
    (folder / "web.yml").write_text(config, encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def guarded(
    folder: Path, make_alertmanager: "type[RunningAlertmanager]"
) -> Iterator["RunningAlertmanager"]:
    running = make_alertmanager(folder, folder / "web.yml")
    try:
        running.start()
        yield running
    finally:
        running.close()


def ask(url: str, tls: Tls, password_file: Path) -> list[str]:
    """Names of the server's receivers."""
    auth = BasicAuth(username="ada", password=Secret(file=str(password_file)))

    async def receivers() -> list[str]:
        async with AlertmanagerClient(url, Alertmanager(tls=tls, basic_auth=auth)) as client:
            return [receiver.name for receiver in await client.receivers()]

    return asyncio.run(receivers())


def test_certificate_and_password_open_the_door(
    guarded: "RunningAlertmanager", folder: Path
) -> None:
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    tls = Tls(ca_file=cert, cert_file=cert, key_file=key)
    assert ask(guarded.url, tls, folder / "password") == ["test"]
    with pytest.raises(ServiceRefused, match="401") as refusal:
        ask(guarded.url, tls, folder / "wrong")
    assert "wrong" not in str(refusal.value)


def test_an_unknown_server_is_not_trusted_unless_told(
    guarded: "RunningAlertmanager", folder: Path
) -> None:
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    with pytest.raises(ServiceUnavailable, match="CERTIFICATE_VERIFY_FAILED"):
        ask(guarded.url, Tls(cert_file=cert, key_file=key), folder / "password")
    tls = Tls(cert_file=cert, key_file=key, verify=False)
    assert ask(guarded.url, tls, folder / "password") == ["test"]


def test_without_a_client_certificate_nothing_is_said(
    guarded: "RunningAlertmanager", folder: Path
) -> None:
    with pytest.raises(ServiceUnavailable):
        ask(guarded.url, Tls(ca_file=str(folder / "cert.pem")), folder / "password")
