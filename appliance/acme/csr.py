"""In charge of the request for a certificate, and of whether what came back is what was asked for. PURE."""

from collections.abc import Sequence

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec


class WrongCertificate(Exception):
    """What the authority sent cannot be used, with the reason in words."""


def request(key: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> bytes:
    """A signing request (DER) for these names, all of them alternative names: a subject is not read any more."""
    alternative = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    builder = x509.CertificateSigningRequestBuilder().subject_name(x509.Name([]))
    made = builder.add_extension(alternative, critical=False).sign(key, hashes.SHA256())
    return made.public_bytes(serialization.Encoding.DER)


def check(chain: bytes, key: ec.EllipticCurvePrivateKey, names: Sequence[str]) -> bytes:
    """The chain (PEM) as it is to be kept: certificates and nothing else. Raises `WrongCertificate`."""
    try:
        certificates = x509.load_pem_x509_certificates(chain)
        given = names_of(certificates[0])
        fits = certificates[0].public_key() == key.public_key()
    except ValueError as error:
        raise WrongCertificate(f"no certificate came: {error}") from error
    if not fits:
        raise WrongCertificate("the certificate is for another key")
    if missing := [name for name in names if name not in given]:
        raise WrongCertificate(f"the certificate is not for {', '.join(missing)}")
    return b"".join(each.public_bytes(serialization.Encoding.PEM) for each in certificates)


def names_of(certificate: x509.Certificate) -> frozenset[str]:
    """The host names a certificate is for."""
    try:
        alternative = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    return frozenset(name.lower() for name in alternative.get_values_for_type(x509.DNSName))
