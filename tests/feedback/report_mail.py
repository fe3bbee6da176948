"""Messages that carry a report as a file, in the ways providers send them."""

import base64
import gzip
import io
import zipfile

HEAD = b"From: reports@provider.example\r\nTo: dmarc@bounces.example.com\r\nSubject: Report Domain: example.com\r\n"


def as_mail(content: bytes, kind: str, filename: str = "report") -> bytes:
    return (
        HEAD
        + b'MIME-Version: 1.0\r\nContent-Type: multipart/mixed; boundary="b"\r\n\r\n'
        + b"--b\r\nContent-Type: text/plain\r\n\r\nThis is a report.\r\n"
        + f"--b\r\nContent-Type: {kind}; name={filename}\r\nContent-Disposition: attachment".encode()
        + b"\r\nContent-Transfer-Encoding: base64\r\n\r\n"
        + base64.encodebytes(content).replace(b"\n", b"\r\n")
        + b"--b--\r\n"
    )


def alone(content: bytes, kind: str) -> bytes:
    head = f"Content-Type: {kind}; name=report\r\nContent-Transfer-Encoding: base64\r\n\r\n"
    return HEAD + head.encode() + base64.encodebytes(content).replace(b"\n", b"\r\n")


def zipped(content: bytes, files: int = 1, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", method) as opened:
        for number in range(files):
            opened.writestr(zipfile.ZipInfo(f"report{number}.xml"), content, method)  # of 1980
    return archive.getvalue()


def gzipped(content: bytes) -> bytes:
    return gzip.compress(content, mtime=0)
