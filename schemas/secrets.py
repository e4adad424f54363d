"""Reading what a configuration only points at: secrets and certificates.

The one place under ``schemas/`` that touches the world, and only when called: agents, workers and
sinks all need it, and ``schemas/`` is all that they share.
"""

import os
import ssl
from pathlib import Path

from stethoscope.schemas.config import Secret, Tls
from stethoscope.schemas.errors import ConfigError


def read_secret(secret: Secret) -> str:
    """The secret itself, without a trailing newline.

    Raises:
        ConfigError: neither or both of ``env`` and ``file``, an unset variable, an unreadable file.
    """
    if (secret.env is None) == (secret.file is None):
        msg = "a secret needs exactly one of env and file"
        raise ConfigError(msg)
    if secret.env is not None:
        value = os.environ.get(secret.env)
        if value is None:
            msg = f"environment variable {secret.env} is not set: export it"
            raise ConfigError(msg)
        return value
    try:
        return Path(secret.file or "").read_text(encoding="utf-8").rstrip("\r\n")
    except (OSError, UnicodeDecodeError) as error:
        msg = f"secret file {secret.file} cannot be read: {error}"
        raise ConfigError(msg) from error


def tls_context(tls: Tls) -> ssl.SSLContext:
    """A client's TLS context; certificates and host names are checked unless ``verify`` is off.

    Raises:
        ConfigError: a PEM file that is missing or does not fit.
    """
    password = read_secret(tls.key_password) if tls.key_password else None
    try:
        context = ssl.create_default_context(cafile=tls.ca_file)
        if tls.cert_file is not None:
            context.load_cert_chain(tls.cert_file, tls.key_file, password=password)
    except (OSError, ssl.SSLError) as error:
        named = ", ".join(p for p in (tls.ca_file, tls.cert_file, tls.key_file) if p)
        msg = f"TLS files {named or '(system)'} cannot be used: {error}"
        raise ConfigError(msg) from error
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context
