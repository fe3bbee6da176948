"""TLS contexts of clients: they trust the system's authorities and those of the operator's file."""

import ssl
from pathlib import Path

from appliance.config.settings import Config, ConfigError


def verifying_context(ca_file: Path | None) -> ssl.SSLContext:
    context = ssl.create_default_context()
    # The same under every Python, and as other programs have it: 3.13 refuses an authority without a key usage, as
    # `openssl req -x509` makes it, and older ones refuse a certificate that is trusted itself but not a root.
    context.verify_flags = (context.verify_flags & ~ssl.VERIFY_X509_STRICT) | ssl.VERIFY_X509_PARTIAL_CHAIN
    if ca_file is not None:
        context.load_verify_locations(ca_file)
    return context


def https_context(config: Config, key: str, ca_file: Path | None) -> ssl.SSLContext:
    """The same for HTTPS; raises ConfigError, with the setting `key` of the file, when it cannot be used."""
    try:
        context = verifying_context(ca_file)
    except (OSError, ssl.SSLError) as fault:
        raise ConfigError(str(config.source), key, f"holds no usable certificates: {fault}") from fault
    context.set_alpn_protocols(["http/1.1"])
    return context
