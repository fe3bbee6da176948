"""TLS of an SMTP connection: the handshake, and a record of its encryption and of the server's verification.

Opportunistic TLS (RFC 7435) accepts any certificate, but the record says whether it would verify. The standard library
either ends such a handshake or does not verify. So an opportunistic handshake verifies nothing, and `cryptography`
verifies the server's chain afterwards, against the same roots. If MTA-STS or a relay demands verification, the context
verifies and OpenSSL ends the handshake. DANE has its own verifier.

Rejected: a verifying handshake, and a second connection if it fails (many servers have a certificate for another name);
pyOpenSSL (a dependency for one callback).
"""

import ipaddress
import ssl
import sys
import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import trio
from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.x509 import verification
from cryptography.x509.oid import ExtendedKeyUsageOID
from msgspec import Struct

from appliance.deliver.smtp.protocol import Cause

CHAIN_LENGTH = 6  # certificates read; real chains have two to four
KEY_BITS, EXPONENT_BITS = 8_192, 32  # of an authority's RSA key; verification with a larger one takes long

PKIX, MTA_STS, DANE = "PKIX", "MTA-STS", "DANE"  # ways to verify a certificate; PKIX: by authorities alone

# Verifies the chain (DER, the server's own certificate first) of a named server; returns the fault, or None.
Verifier = Callable[[tuple[bytes, ...], str], str | None]


class TlsPlan(Struct, frozen=True):
    context: ssl.SSLContext
    server_name: str  # for SNI, and required in the certificate
    required: bool = False  # never in the clear
    verify: Verifier | None = None  # for a context that verifies nothing itself
    must_verify: bool = False  # by `verify`
    implicit: bool = False  # from the first byte (RFC 8314), not by STARTTLS
    by: str = PKIX  # the way that the certificate is verified

    @property
    def demanded(self) -> bool:
        """Whether mail must be encrypted: a demand for a certificate demands encryption."""
        return self.required or self.must_verify or self.context.verify_mode is not ssl.CERT_NONE


@dataclass(frozen=True, slots=True)
class TlsRecord:
    version: str
    cipher: str
    verified: bool
    fault: str | None  # why it is not verified
    certificate: bytes = field(repr=False)  # the server's own, DER
    by: str = PKIX  # the way that it is verified

    def __str__(self) -> str:
        verification = f"verified by {self.by}" if self.verified else f"not verified: {self.fault}"
        return f"{self.version}, {self.cipher}, {verification}"


class TlsFault(Exception):
    """No encryption that meets the plan."""

    def __init__(self, cause: Cause, text: str) -> None:
        super().__init__(text)
        self.cause, self.text = cause, text


async def encrypt(stream: trio.abc.Stream, plan: TlsPlan) -> tuple[trio.SSLStream[trio.abc.Stream], TlsRecord]:
    try:
        # https_compatible: SMTP peers do not wait for each other's close_notify.
        secure = trio.SSLStream(stream, plan.context, server_hostname=plan.server_name, https_compatible=True)
        await secure.do_handshake()
    except (trio.BrokenResourceError, trio.ClosedResourceError, ssl.SSLError, ValueError) as error:
        cause = error if isinstance(error, ssl.SSLError | ValueError) else error.__cause__
        if isinstance(cause, ssl.SSLCertVerificationError):
            text = f"the certificate is not verified by {plan.by}: {cause.verify_message}"
            raise TlsFault(Cause.TLS_NOT_VERIFIED, text) from error
        reason = getattr(cause, "reason", None) or str(cause or "the connection was lost")
        raise TlsFault(Cause.TLS_FAILED, f"the TLS handshake failed: {reason}") from error
    chain, fault = _chain(secure), None
    if plan.context.verify_mode is ssl.CERT_NONE:
        fault = plan.verify(chain, plan.server_name) if plan.verify else "not looked at"
    if plan.must_verify and fault is not None:
        raise TlsFault(Cause.TLS_NOT_VERIFIED, f"the certificate is not verified by {plan.by}: {fault}")
    shown = chain[0] if chain else b""
    return secure, TlsRecord(secure.version(), secure.cipher()[0], fault is None, fault, shown, plan.by)


def _chain(stream: trio.SSLStream[trio.abc.Stream]) -> tuple[bytes, ...]:
    """The server's chain. Trio forwards no call for it, but any method that it forwards leads to the SSLObject."""
    tls: Any = stream.getpeercert.__self__
    if sys.version_info >= (3, 13):
        return tuple(tls.get_unverified_chain()[:CHAIN_LENGTH])
    # Public only since 3.13; 3.11 and 3.12 have it under this name.
    chain = tls._sslobj.get_unverified_chain()[:CHAIN_LENGTH]
    return tuple(ssl.PEM_cert_to_DER_cert(shown.public_bytes()) for shown in chain)


def opportunistic_context() -> ssl.SSLContext:
    """Accepts any certificate and any cipher that encrypts: the alternative is no encryption (RFC 7435 3)."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_ciphers("DEFAULT:!aNULL:!eNULL:@SECLEVEL=0")
    return context


class TrustStore:
    """Roots that verify a chain after a handshake that did not."""

    def __init__(self, roots: Iterable[bytes]) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # old roots have serial numbers that are no longer allowed
            certificates = [x509.load_der_x509_certificate(root) for root in roots]
        self._store = verification.Store(certificates) if certificates else None  # a minimal system has no roots
        self._names = frozenset(certificate.subject for certificate in certificates)

    def verify(self, chain: tuple[bytes, ...], name: str) -> str | None:
        """A Verifier. It checks extensions like OpenSSL: the strict web profile refuses most private CAs."""
        if self._store is None:
            return "this machine knows no authorities (Debian: apt-get install ca-certificates)"
        try:
            own, *further = [x509.load_der_x509_certificate(shown) for shown in chain]
            policy = verification.PolicyBuilder().store(self._store)
            policy = policy.extension_policies(ca_policy=_AUTHORITY, ee_policy=_SERVER)
            try:
                subject: x509.DNSName | x509.IPAddress = x509.IPAddress(ipaddress.ip_address(name))
            except ValueError:
                subject = x509.DNSName(name)
            above = _above(own, further)
            if self._names.isdisjoint(shown.issuer for shown in (own, *above)):
                untrusted = "no authority that this machine trusts issued it"
                return "self-signed certificate" if own.issuer == own.subject else untrusted
            policy.build_server_verifier(subject).verify(own, above)
        except Exception as error:  # the certificate is unusual; delivery continues without verification
            return str(error).removeprefix("validation failed: ").partition(" (encountered")[0] or "unreadable"
        return None


def _above(own: x509.Certificate, further: list[x509.Certificate]) -> list[x509.Certificate]:
    """The issuers above a certificate. With certificates in a circle the library would verify a hundred signatures."""
    by_name = {shown.subject: shown for shown in reversed(further)}
    passed, issuers = {own.subject}, list[x509.Certificate]()
    while (issuer := by_name.get((issuers[-1] if issuers else own).issuer)) is not None:
        passed.add(issuer.subject)
        if issuer.issuer in passed:
            break
        if not _is_quick(issuer):
            raise ValueError("an authority with a key that is too large")
        issuers.append(issuer)
    return issuers


def can_verify(authority: bytes) -> bool:
    try:
        return _is_quick(x509.load_der_x509_certificate(authority))
    except (ValueError, UnsupportedAlgorithm):
        return False


def _is_quick(authority: x509.Certificate) -> bool:
    key = authority.public_key()
    return not isinstance(key, RSAPublicKey) or (
        key.key_size <= KEY_BITS and key.public_numbers().e.bit_length() <= EXPONENT_BITS
    )


_SERVER_USAGES = frozenset({ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.ANY_EXTENDED_KEY_USAGE})


def _signs_certificates(_: object, __: object, usage: x509.KeyUsage | None) -> None:
    if usage is not None and not usage.key_cert_sign:
        raise ValueError("an authority that may not sign certificates")


def _serves(_: object, __: object, usage: x509.ExtendedKeyUsage | None) -> None:
    if usage is not None and _SERVER_USAGES.isdisjoint(usage):
        raise ValueError("a certificate not meant for a server")


_ANY = verification.Criticality.AGNOSTIC
_AUTHORITY = (
    verification.ExtensionPolicy.permit_all()
    .require_present(x509.BasicConstraints, _ANY, None)  # cA itself is checked by the library
    .may_be_present(x509.KeyUsage, _ANY, _signs_certificates)
)
_SERVER = (
    verification.ExtensionPolicy.permit_all()
    .require_present(x509.SubjectAlternativeName, _ANY, None)
    .may_be_present(x509.ExtendedKeyUsage, _ANY, _serves)
)
