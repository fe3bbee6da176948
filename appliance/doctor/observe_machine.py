"""Observes the machine itself: clock, disk, certificates, listeners, file modes."""

import ctypes
import errno
import os
import shutil
import ssl
from dataclasses import replace
from datetime import UTC, datetime
from ipaddress import ip_address
from pathlib import Path

import trio
from cryptography import x509
from cryptography.x509.oid import ExtensionOID, NameOID

from appliance.acme.files import AcmeFiles
from appliance.config.settings import Config
from appliance.config.values import Endpoint
from appliance.doctor.facts import AcmeFacts, CertificateFacts, DiskFacts, ListenerFacts
from appliance.errors import error_text
from appliance.keys.keyfile import KEY_FILE
from appliance.net.local_addresses import bind_error
from appliance.store import FILE_NAME as DATABASE
from appliance.tls.certificate import tls_context
from appliance.tls.certificate_files import acme_directory

LISTENER_TIMEOUT = 3.0  # seconds for a listener on this machine to accept a connection
TIMEX = 512  # bytes, more than adjtimex(2) writes
UNSYNCHRONISED = 5  # TIME_ERROR


def synchronised() -> bool | None:
    """Whether the kernel's clock is being kept right; None where it does not say."""
    c_library = ctypes.CDLL(None, use_errno=True)
    if not hasattr(c_library, "adjtimex"):
        return None
    state = c_library.adjtimex(ctypes.create_string_buffer(TIMEX))  # zeroed: it only reads
    return None if state < 0 else state != UNSYNCHRONISED


def disk(config: Config) -> DiskFacts:
    """The file system of the data directory, or of the nearest directory above that exists."""
    directory = config.server.data_dir
    there = next(each for each in (directory, *directory.parents) if each.exists())
    usage, limits = shutil.disk_usage(there), config.limits
    below = max(limits.min_free_disk, usage.total * limits.min_free_disk_percent // 100) if limits.min_free_disk else 0
    return DiskFacts(directory, usage.free, usage.total, below)


def open_to_others(data_dir: Path) -> tuple[Path, ...]:
    """Files of the installation that other users could read."""
    files = (data_dir, data_dir / DATABASE, data_dir / KEY_FILE)
    return tuple(each for each in files if each.exists() and each.stat().st_mode & 0o077)


# ---- certificates


def certificate(section: str, chain: Path | None, key: Path | None) -> CertificateFacts:
    """What a certificate file says, and whether its key matches."""
    if chain is None or key is None:
        return CertificateFacts(section, None)
    try:
        leaf = x509.load_pem_x509_certificates(chain.read_bytes())[0]
        tls_context(chain, key)
        mode = key.stat().st_mode & 0o777
    except (OSError, ValueError) as error:
        return CertificateFacts(section, chain, trouble=f"cannot be used with its key {key}: {_reason(error)}")
    return CertificateFacts(section, chain, _names(leaf), leaf.not_valid_before_utc, leaf.not_valid_after_utc, mode)


def _reason(error: OSError | ValueError) -> str:
    """In plain words: the libraries name their own source lines."""
    if isinstance(error, OSError) and not isinstance(error, ssl.SSLError):
        return error_text(error)
    return "they do not fit together, are not PEM, or the key is encrypted"


def _names(leaf: x509.Certificate) -> tuple[str, ...]:
    try:
        extension = leaf.extensions.get_extension_for_oid(ExtensionOID.SUBJECT_ALTERNATIVE_NAME).value
    except x509.ExtensionNotFound:
        return tuple(str(each.value) for each in leaf.subject.get_attributes_for_oid(NameOID.COMMON_NAME))
    if not isinstance(extension, x509.SubjectAlternativeName):
        return ()
    addresses = extension.get_values_for_type(x509.IPAddress)
    return (*extension.get_values_for_type(x509.DNSName), *map(str, addresses))


def by_acme(config: Config) -> AcmeFacts:
    """The certificate that ACME renews, and the state stored beside it."""
    files = AcmeFiles(acme_directory(config))
    facts = AcmeFacts(files.certificate, config.acme.names, config.acme.renew_before)
    try:
        files.certificate.open("rb").close()
    except FileNotFoundError:
        pass
    except OSError as error:
        return replace(facts, trouble=error_text(error))
    state, held = files.state(), files.held()
    told = replace(
        facts,
        failures=state.failures,
        error=state.error,
        advice=state.advice,
        next_try=max(state.next_try, state.not_before),
    )
    if held is None or held.self_signed:
        return told
    begins, ends = (datetime.fromtimestamp(moment, UTC) for moment in (held.not_before, held.not_after))
    return replace(told, names=held.names, not_before=begins, not_after=ends)


# ---- listeners


async def listener(key: str, address: Endpoint, *, running: bool) -> ListenerFacts:
    """Whether it answers while the server runs; else whether it could be bound."""
    exposed = is_exposed(address)
    if not running:
        return ListenerFacts(key, str(address), answers=False, trouble=_bind_trouble(address), exposed=exposed)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(address.host, address.host)  # noqa: S104 - dialled, not bound
    try:
        with trio.fail_after(LISTENER_TIMEOUT):
            await (await trio.open_tcp_stream(host, address.port)).aclose()
    except trio.TooSlowError:
        trouble = f"no answer within {LISTENER_TIMEOUT:.0f} s"
        return ListenerFacts(key, str(address), answers=False, trouble=trouble, exposed=exposed)
    except OSError as error:
        return ListenerFacts(key, str(address), answers=False, trouble=error_text(error), exposed=exposed)
    return ListenerFacts(key, str(address), answers=True, exposed=exposed)


def is_exposed(address: Endpoint) -> bool:
    """Whether it is bound to all addresses or a public one, so that it can be reached from anywhere."""
    try:
        host = ip_address(address.host)
    except ValueError:
        return False  # a name, such as localhost
    return host.is_unspecified or host.is_global


def _bind_trouble(address: Endpoint) -> str:
    code = bind_error(address)
    # The server may be allowed to listen there where this user is not.
    return "" if code in (None, errno.EACCES) else os.strerror(code).lower()
