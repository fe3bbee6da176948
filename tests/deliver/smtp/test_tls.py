"""Encryption: good, expired, mismatched and broken certificates, demanded or not, and what is recorded."""

import datetime
import ssl
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import trio
import trustme
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicNumbers
from cryptography.hazmat.primitives.asymmetric.types import CertificatePublicKeyTypes
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID
from trio.testing import MockClock

from appliance.deliver.smtp.connection import DeadlineWatch, SmtpConnection
from appliance.deliver.smtp.protocol import Cause, NotOpened, RelayCredentials, ResultKind, Stage, Verdict
from appliance.deliver.smtp.sending import MailTransaction, prepare
from appliance.deliver.smtp.tls import TlsPlan, TlsRecord, TrustStore, opportunistic_context
from appliance.deliver.tls_policy import verifier
from appliance.dns.wire import Tlsa
from appliance.tls.certificate import generate, verifying_context
from tests.cpu_time import cpu_seconds
from tests.fakes.mx import FakeMx, endless, hang_up

NAME = "mx.mail.example"
AUTHORITY = trustme.CA()
ROOT = x509.load_pem_x509_certificate(AUTHORITY.cert_pem.bytes())
TRUST = TrustStore([ssl.PEM_cert_to_DER_cert(AUTHORITY.cert_pem.bytes().decode())])
LONG_AGO = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)

_good = partial(AUTHORITY.issue_cert, NAME)
_through_another = partial(AUTHORITY.create_child_ca().issue_cert, NAME)
_wildcard = partial(AUTHORITY.issue_cert, "*.mail.example")
_expired = partial(AUTHORITY.issue_cert, NAME, not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(days=90))
_mismatched = partial(AUTHORITY.issue_cert, "other.example")
_of_no_authority = partial(trustme.CA().issue_cert, NAME)
GOOD = [_good, _through_another, _wildcard]


def _self_signed() -> trustme.LeafCert:
    with TemporaryDirectory() as directory:
        file = Path(directory) / "certificate.pem"
        generate(file, file, NAME)
        pem = file.read_bytes()
    return trustme.LeafCert(pem, pem, [])


BAD = [
    (_expired, "valid"),
    (_mismatched, "subjectAltName"),
    (_of_no_authority, "no authority that this machine trusts issued it"),
    (_self_signed, "self-signed certificate"),
]


def server(certificate: trustme.LeafCert) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    certificate.configure_cert(context)
    return context


def opportunistic() -> TlsPlan:
    return TlsPlan(opportunistic_context(), NAME, verify=TRUST.verify)


@cache
def demanding() -> TlsPlan:
    context = verifying_context(None)
    AUTHORITY.configure_trust(context)
    return TlsPlan(context, NAME, required=True)


async def deliver(mx: FakeMx, plan: TlsPlan | None, credentials: RelayCredentials | None = None) -> TlsRecord | None:
    async with mx.listening() as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        connection = await SmtpConnection.open(
            stream, "me.example", watch=DeadlineWatch(), tls=plan, credentials=credentials
        )
        mail = MailTransaction("from@x.example", ("a@x.example",), prepare(b"x" * 70 + b"\r\n"))
        result = await connection.send(mail)
        await connection.quit()
    assert result.verdicts[0].kind is ResultKind.ACCEPTED
    assert len(mx.messages) == 1
    return connection.tls


async def fail(mx: FakeMx, plan: TlsPlan) -> Verdict:
    async with mx.listening() as port:
        stream = await trio.open_tcp_stream("127.0.0.1", port)
        with pytest.raises(NotOpened) as caught:
            await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch(), tls=plan)
    assert not any(command.startswith(("MAIL", "AUTH")) for command in mx.commands)
    assert caught.value.verdict.kind is ResultKind.LOST
    assert caught.value.verdict.stage is Stage.STARTTLS
    return caught.value.verdict


@pytest.mark.parametrize("certificate", GOOD)
async def test_opportunistic_tls_records_a_good_certificate(certificate: Callable[[], trustme.LeafCert]) -> None:
    shown = certificate()
    mx = FakeMx(tls=server(shown))
    record = await deliver(mx, opportunistic())
    assert record is not None
    assert (record.version, record.verified, record.fault) == ("TLSv1.3", True, None)
    assert str(record) == f"TLSv1.3, {record.cipher}, verified by PKIX"
    assert record.certificate == ssl.PEM_cert_to_DER_cert(shown.cert_chain_pems[0].bytes().decode())
    assert mx.sessions == 1
    assert [command.split()[0] for command in mx.commands[:3]] == ["EHLO", "STARTTLS", "EHLO"]


@pytest.mark.parametrize(("certificate", "fault"), BAD)
async def test_opportunistic_tls_takes_and_records_a_bad_certificate(
    certificate: Callable[[], trustme.LeafCert], fault: str
) -> None:
    record = await deliver(FakeMx(tls=server(certificate())), opportunistic())
    assert record is not None
    assert record.verified is False
    assert fault in str(record.fault)
    assert "not verified" in str(record)


@pytest.mark.parametrize("certificate", GOOD)
async def test_demanded_verification_passes_a_good_certificate(certificate: Callable[[], trustme.LeafCert]) -> None:
    record = await deliver(FakeMx(tls=server(certificate())), demanding())
    assert record is not None
    assert record.verified


@pytest.mark.parametrize("certificate", [bad for bad, _ in BAD])
async def test_demanded_verification_breaks_off(certificate: Callable[[], trustme.LeafCert]) -> None:
    assert (await fail(FakeMx(tls=server(certificate())), demanding())).cause is Cause.TLS_NOT_VERIFIED


async def test_a_verifier_of_ones_own_decides_when_it_must() -> None:
    """As DANE will: the verifier sees the chain and the name, and its no ends the connection."""
    seen: list[tuple[tuple[bytes, ...], str]] = []

    def judge(answer: str | None) -> Callable[[tuple[bytes, ...], str], str | None]:
        def verify(chain: tuple[bytes, ...], name: str) -> str | None:
            seen.append((chain, name))
            return answer

        return verify

    certificate = _through_another()
    no = TlsPlan(opportunistic_context(), NAME, required=True, verify=judge("no TLSA record fits"), must_verify=True)
    yes = TlsPlan(opportunistic_context(), NAME, required=True, verify=judge(None), must_verify=True)
    verdict = await fail(FakeMx(tls=server(certificate)), no)
    assert verdict.cause is Cause.TLS_NOT_VERIFIED
    assert "no TLSA record fits" in verdict.text
    record = await deliver(FakeMx(tls=server(certificate)), yes)
    assert record is not None
    assert record.verified
    assert [(len(chain), name) for chain, name in seen] == [(2, NAME)] * 2


async def test_without_a_verifier_nothing_is_called_verified() -> None:
    record = await deliver(FakeMx(tls=server(_good())), TlsPlan(opportunistic_context(), NAME))
    assert record is not None
    assert not record.verified


async def test_must_verify_without_a_verifier_never_passes() -> None:
    plan = TlsPlan(opportunistic_context(), NAME, must_verify=True)
    assert (await fail(FakeMx(tls=server(_good())), plan)).cause is Cause.TLS_NOT_VERIFIED


async def test_an_injected_reply_before_tls_is_a_fault() -> None:
    """`220 …` and a further reply in one packet: the connection ends, nothing of it is believed."""
    mx = FakeMx(tls=server(_good()), answers={"STARTTLS": b"220 go\r\n250-mx\r\n250 AUTH PLAIN\r\n"})
    assert (await fail(mx, opportunistic())).cause is Cause.PROTOCOL_FAULT


@pytest.mark.parametrize(
    "broken",
    [b"220 go\r\n", hang_up, endless(b"\x15\x03\x03\x00\x02\x02\x28" * 100)],
    ids=["refused by the server", "hung up", "garbage"],
)
async def test_a_broken_handshake_is_temporary(broken: bytes) -> None:
    """A server that offers TLS and cannot do it fails with a cause that allows the caller to dial without."""
    unusable = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)  # has no certificate
    mx = FakeMx(tls=unusable, answers={"STARTTLS": broken})
    verdict = await fail(mx, opportunistic())
    assert verdict.cause in (Cause.TLS_FAILED, Cause.CONNECTION_LOST, Cause.PROTOCOL_FAULT)


async def test_garbage_for_a_handshake_is_a_failed_handshake() -> None:
    async def garbage(stream: trio.abc.Stream) -> None:
        await stream.send_all(b"220 go\r\n")
        await stream.receive_some()
        await stream.send_all(b"500 what is this\r\n")
        await trio.sleep_forever()

    verdict = await fail(FakeMx(tls=server(_good()), answers={"STARTTLS": garbage}), opportunistic())
    assert verdict.cause is Cause.TLS_FAILED


async def stuck(stream: trio.abc.Stream) -> None:
    await stream.send_all(b"220 go\r\n")
    await trio.sleep_forever()


async def test_a_handshake_has_its_time(autojump_clock: MockClock) -> None:
    begin = trio.current_time()
    async with FakeMx(tls=server(_good()), answers={"STARTTLS": stuck}).memory() as stream:
        with pytest.raises(NotOpened) as caught:
            await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch(), tls=opportunistic())
    assert caught.value.verdict.cause is Cause.TIMEOUT
    assert trio.current_time() - begin == pytest.approx(60)


@pytest.mark.parametrize("name", ["", ".", "a" * 64 + ".example", "mx..example", "*.example", "mx.example."])
async def test_a_name_tls_cannot_use_is_a_failed_handshake_at_worst(name: str) -> None:
    plan = TlsPlan(opportunistic_context(), name, verify=TRUST.verify)
    causes = []
    async with FakeMx(tls=server(_good())).memory() as stream:
        try:
            connection = await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch(), tls=plan)
        except NotOpened as failure:
            causes.append(failure.verdict.cause)
        else:
            await connection.quit()
    assert causes in ([], [Cause.TLS_FAILED])


async def test_opportunistic_tls_does_without() -> None:
    """Not offered or refused: the mail goes in the clear on the same connection."""
    assert await deliver(FakeMx(), opportunistic()) is None
    mx = FakeMx(tls=server(_good()), answers={"STARTTLS": b"454 4.7.0 not now\r\n"})
    assert await deliver(mx, opportunistic()) is None
    assert mx.sessions == 1


@pytest.mark.parametrize("answers", [{}, {"STARTTLS": b"454 not now\r\n"}, {"EHLO": b"502 what\r\n"}])
async def test_demanded_tls_does_not_do_without(answers: dict[str, bytes]) -> None:
    """Not offered, refused, or only HELO: no mail."""
    mx = FakeMx(tls=server(_good()) if "STARTTLS" in answers else None, answers=dict(answers))
    assert (await fail(mx, demanding())).cause is Cause.TLS_NOT_OFFERED


async def test_who_insists_on_a_certificate_insists_on_tls() -> None:
    """A plan that must verify, or whose context does, never goes on in the clear, `required` or not."""
    by_hand = TlsPlan(opportunistic_context(), NAME, verify=TRUST.verify, must_verify=True)
    by_context = TlsPlan(demanding().context, NAME)
    for plan in (by_hand, by_context):
        assert (await fail(FakeMx(), plan)).cause is Cause.TLS_NOT_OFFERED


@pytest.mark.parametrize("implicit", [True, False])
async def test_a_relay_is_logged_in_to_under_tls(implicit: bool) -> None:
    mx = FakeMx(tls=server(_good()), implicit_tls=implicit, logins={"user": "hunter2"})
    context = demanding().context
    plan = TlsPlan(context, NAME, required=True, implicit=implicit)
    record = await deliver(mx, plan, RelayCredentials("user", "hunter2"))
    assert record is not None
    assert record.verified
    assert any(command.startswith("AUTH PLAIN") for command in mx.commands)


async def test_implicit_tls_to_a_plain_server_fails() -> None:
    plan = TlsPlan(demanding().context, NAME, required=True, implicit=True)
    assert (await fail(FakeMx(), plan)).cause is Cause.TLS_FAILED


async def test_cancellation_in_the_handshake_closes_the_stream(autojump_clock: MockClock) -> None:
    async with FakeMx(tls=server(_good()), answers={"STARTTLS": stuck}).memory() as stream:
        with trio.move_on_after(1) as scope:
            await SmtpConnection.open(stream, "me.example", watch=DeadlineWatch(), tls=opportunistic())
        assert scope.cancelled_caught
        with pytest.raises(trio.ClosedResourceError):
            await stream.send_all(b"x")


# ---- the trust store


def test_an_authority_in_the_middle_must_be_one() -> None:
    """A leaf certificate cannot sign another."""
    leaf = AUTHORITY.issue_cert(NAME)
    chain = tuple(ssl.PEM_cert_to_DER_cert(pem.bytes().decode()) for pem in leaf.cert_chain_pems)
    assert TRUST.verify(chain, NAME) is None
    forger = trustme.CA()
    forged = forger.issue_cert(NAME)
    signed = tuple(ssl.PEM_cert_to_DER_cert(pem.bytes().decode()) for pem in forged.cert_chain_pems)
    assert TRUST.verify(signed + chain, NAME) is not None


@pytest.mark.parametrize("chain", [(), (b"",), (b"\x30\x00",), (b"x" * 100_000,)])
def test_an_unreadable_chain_is_not_verified(chain: tuple[bytes, ...]) -> None:
    """Nonsense in place of a certificate is a reason, never an exception."""
    assert TRUST.verify(chain, NAME)


def test_an_address_is_verified_as_an_address() -> None:
    chain = (ssl.PEM_cert_to_DER_cert(AUTHORITY.issue_cert("127.0.0.1").cert_chain_pems[0].bytes().decode()),)
    assert TRUST.verify(chain, "127.0.0.1") is None
    assert TRUST.verify(chain, "127.0.0.2") is not None


def test_the_system_s_roots_can_be_read() -> None:
    chain = (ssl.PEM_cert_to_DER_cert(_good().cert_chain_pems[0].bytes().decode()),)
    roots = ssl.create_default_context().get_ca_certs(binary_form=True)
    assert TrustStore(roots).verify(chain, NAME) is not None


# ---- chains made to take long

KEY = ec.generate_private_key(ec.SECP521R1())  # the slowest to verify by


def shown(subject: str, issuer: str, key: CertificatePublicKeyTypes, *, authority: bool = True) -> bytes:
    made = x509.CertificateBuilder(
        subject_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, subject)]),
        issuer_name=x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, issuer)]),
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=LONG_AGO,
        not_valid_after=datetime.datetime(2126, 1, 1, tzinfo=datetime.UTC),
    )
    made = made.add_extension(x509.BasicConstraints(ca=authority, path_length=None), critical=True)
    if not authority:
        made = made.add_extension(x509.SubjectAlternativeName([x509.DNSName(subject)]), critical=False)
    return made.sign(KEY, hashes.SHA256()).public_bytes(Encoding.DER)


@pytest.mark.parametrize("pairs", [["aa", "aa"], ["ab", "ba"], ["ab", "bc", "ca"], ["aa", "ab", "ba", "bb", "aa"]])
def test_a_chain_that_leads_back_to_itself_is_soon_refused(pairs: list[str]) -> None:
    """The library would go round until it has verified a hundred signatures: 80 ms of the event loop."""
    further = [shown(pair[0], pair[1], KEY.public_key()) for pair in pairs]
    chain = (shown(NAME, "a", KEY.public_key(), authority=False), *further)
    assert TRUST.verify(chain, NAME) is not None
    assert cpu_seconds(lambda: TRUST.verify(chain, NAME)) < 0.005
    named = verifier((Tlsa(2, 0, 0, shown("root", "root", KEY.public_key())),), ("further.test",))
    assert named(chain, NAME) is not None
    assert cpu_seconds(lambda: named(chain, NAME)) < 0.005


@pytest.mark.parametrize(
    "numbers", [RSAPublicNumbers(65_537, (1 << 16_383) + 1), RSAPublicNumbers((1 << 63) + 1, (1 << 4_095) + 1)]
)
def test_no_certificate_is_verified_by_a_key_that_takes_long(numbers: RSAPublicNumbers) -> None:
    authority = shown("a", "root", numbers.public_key())
    chain = (shown(NAME, "a", KEY.public_key(), authority=False), authority)
    assert "too large" in str(TRUST.verify(chain, NAME))
    assert "none that its TLSA records name" in str(verifier((Tlsa(2, 0, 0, authority),))(chain, NAME))


def test_an_authority_is_found_in_any_order_and_beside_its_root() -> None:
    root = shown("root", "root", KEY.public_key())
    chain = (
        shown(NAME, "a", KEY.public_key(), authority=False),
        root,
        shown("b", "root", KEY.public_key()),
        shown("a", "b", KEY.public_key()),
    )
    assert TrustStore([root]).verify(chain, NAME) is None
