"""DANE for SMTP (RFC 7672): whether a server's certificates are those its TLSA records name. Pure: no I/O, no state.

Both usages that RFC 7672 3.1 has are supported. DANE-EE(3) names the server's own certificate or key: nothing else
counts, neither names nor dates. DANE-TA(2) names an authority above it: the chain must lead there, within its dates
and under the right name. PKIX-TA(0) and PKIX-EE(1) are unusable, as RFC 7672 3.1.3 has it.
"""

import hashlib
from collections.abc import Callable, Iterable

from appliance.deliver.smtp.tls import CHAIN_LENGTH, TrustStore, Verifier, can_verify
from appliance.dns.wire import Tlsa

_TA, _EE = 2, 3  # usages, RFC 7218 2.1
_CERTIFICATE, _KEY = 0, 1  # selectors, RFC 7218 2.2

# Matching types, RFC 7218 2.3: how the selected bytes stand in the record.
_MATCHING: dict[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: lambda selected: hashlib.sha256(selected).digest(),
    2: lambda selected: hashlib.sha512(selected).digest(),
}


def usable(records: Iterable[Tlsa]) -> tuple[Tlsa, ...]:
    """The records that can verify anything. Of a set with none, only encryption can be demanded (RFC 7672 2.2)."""
    return tuple(
        record
        for record in records
        if record.usage in (_TA, _EE) and record.selector in (_CERTIFICATE, _KEY) and record.matching in _MATCHING
    )


def verifier(records: tuple[Tlsa, ...], further_names: tuple[str, ...] = ()) -> Verifier:
    """Judges the chain a server shows by these records.

    `further_names` may stand in the certificate in place of the host's own, for DANE-TA (RFC 7672 3.2.2): the
    recipient's domain.
    """

    def verify(chain: tuple[bytes, ...], name: str) -> str | None:
        if not chain:
            return "the server showed no certificate"
        if any(matches(record, chain[0]) for record in records if record.usage == _EE):
            return None
        named = [record for record in records if record.usage == _TA]
        # An authority whose whole certificate is in the DNS need not be shown by the server.
        whole = (record.data for record in named if (record.selector, record.matching) == (_CERTIFICATE, 0))
        authorities = [each for each in (*chain[1:], *whole) if any(matches(record, each) for record in named)]
        authorities = [each for each in authorities[:CHAIN_LENGTH] if can_verify(each)]
        fault: str | None = "the server's certificate is none that its TLSA records name"
        for allowed in (name, *further_names) if authorities else ():
            if (fault := TrustStore(authorities).verify(chain, allowed)) is None:
                break
        return fault

    return verify


def matches(record: Tlsa, certificate: bytes) -> bool:
    """Whether a certificate (DER) is the one this record names."""
    try:
        selected = certificate if record.selector == _CERTIFICATE else public_key(certificate)
    except ValueError:
        return False
    return _MATCHING[record.matching](selected) == record.data


# ---- X.509, just enough to find the key


def public_key(certificate: bytes) -> bytes:
    """The SubjectPublicKeyInfo of a certificate, byte for byte as it stands there (RFC 5280 4.1).

    Read by hand: a library gives the key as it would write it, which is not always how it was written.
    """
    _, body, _ = _element(certificate, 0)
    _, position, _ = _element(certificate, body)  # into TBSCertificate
    tag, _, end = _element(certificate, position)
    position = end if tag == 0xA0 else position  # the version, which may be left out
    for _ in ("serialNumber", "signature", "issuer", "validity", "subject"):
        position = _element(certificate, position)[2]
    return certificate[position : _element(certificate, position)[2]]


def _element(data: bytes, start: int) -> tuple[int, int, int]:
    """The tag of the DER element at `start`, where its contents begin, and where it ends."""
    if len(data) < start + 2:
        raise ValueError("a certificate that ends too early")
    length, contents = data[start + 1], start + 2
    if length > 0x80:
        contents += length - 0x80
        length = int.from_bytes(data[start + 2 : contents], "big")
    if length == 0x80 or contents + length > len(data):
        raise ValueError("a certificate that ends too early")
    return data[start], contents, contents + length
