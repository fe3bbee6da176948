"""dkimpy as the receiver who checks the signatures of a message."""

from collections.abc import Mapping

from tests.message.dkimpy import dkim


def signatures(message: bytes) -> int:
    return (b"\r\n" + message.partition(b"\r\n\r\n")[0]).count(b"\r\nDKIM-Signature:")


def verifies(message: bytes, number: int, records: Mapping[bytes, bytes]) -> bool:
    """Whether the signature of this number, counted from the top, is good by these TXT records."""
    return bool(dkim.DKIM(message).verify(idx=number, dnsfunc=lambda name, **_: records.get(name)))
