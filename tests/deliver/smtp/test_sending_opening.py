"""The opening of a session: every reply class to every command, and what each leads to."""

import base64

import pytest

from appliance.deliver.smtp.protocol import (
    Cause,
    RelayCredentials,
    ReplyReader,
    ResultKind,
    Stage,
    UnsafeArgument,
    Verdict,
)
from appliance.deliver.smtp.sending import Opening, OpeningState
from appliance.deliver.smtp.tls import TlsPlan, opportunistic_context

LOGIN = RelayCredentials("user", "hunter2")
EHLO_TLS = b"250-mx\r\n250-PIPELINING\r\n250 STARTTLS\r\n"


def opening(
    *,
    starttls: bool = False,
    required: bool = False,
    implicit: bool = False,
    credentials: RelayCredentials | None = None,
) -> Opening:
    plan = TlsPlan(opportunistic_context(), "mx.example", required=required, implicit=implicit)
    return Opening("me.example", ReplyReader(), lambda: 0.0, plan if starttls or implicit else None, credentials)


def said(session: Opening, answer: bytes) -> bytes:
    session.receive(answer)
    return b"".join(session.output())


def ended(session: Opening, *answers: bytes) -> Verdict:
    for answer in answers:
        session.receive(answer)
    assert session.verdict is not None
    return session.verdict


def encrypted(auth: bytes) -> Opening:
    session = opening(implicit=True, credentials=LOGIN)
    session.secured("TLS")
    session.receive(b"220 mx\r\n")
    session.output()
    session.receive(b"250-mx\r\n250 " + auth + b"\r\n")
    return session


def test_a_plain_session_is_ready_after_ehlo() -> None:
    session = opening()
    stages = [session.awaiting]
    assert session.output() == []
    assert said(session, b"220 mx\r\n") == b"EHLO me.example\r\n"
    stages.append(session.awaiting)
    assert stages == [Stage.GREETING, Stage.EHLO]
    assert said(session, EHLO_TLS) == b""
    assert (session.state, session.awaiting, session.verdict) == (OpeningState.READY, None, None)
    assert session.capabilities.pipelining


@pytest.mark.parametrize("code", [500, 502, 504, 550])
def test_a_server_without_ehlo_is_greeted_with_helo(code: int) -> None:
    session = opening(starttls=True)
    session.receive(b"220 mx\r\n")
    session.output()
    assert said(session, b"%d what\r\n" % code) == b"HELO me.example\r\n"
    session.receive(b"250 mx\r\n")
    assert session.state is OpeningState.READY
    assert session.capabilities.starttls is False


# What leads to each state, so that every reply class can be given there.
PATHS: dict[Stage, list[bytes]] = {
    Stage.GREETING: [],
    Stage.EHLO: [b"220 mx\r\n"],
    Stage.STARTTLS: [b"220 mx\r\n", EHLO_TLS],
}


@pytest.mark.parametrize(
    ("path", "stage", "family", "kind"),
    [
        (Stage.GREETING, Stage.GREETING, 3, ResultKind.LOST),
        (Stage.GREETING, Stage.GREETING, 4, ResultKind.DEFERRED),
        (Stage.GREETING, Stage.GREETING, 5, ResultKind.REJECTED),
        (Stage.EHLO, Stage.EHLO, 3, ResultKind.LOST),
        (Stage.EHLO, Stage.EHLO, 4, ResultKind.DEFERRED),
        (Stage.STARTTLS, Stage.STARTTLS, 3, ResultKind.LOST),
        (Stage.STARTTLS, Stage.STARTTLS, 4, ResultKind.LOST),
        (Stage.STARTTLS, Stage.STARTTLS, 5, ResultKind.LOST),
    ],
)
def test_a_refusal_ends_the_session_at_its_stage(path: Stage, stage: Stage, family: int, kind: ResultKind) -> None:
    """4xx is deferred, 5xx rejected, an answer out of place lost; a refused STARTTLS is never more than temporary."""
    session = opening(starttls=True, required=True)
    verdict = ended(session, *PATHS[path], b"%d50 no\r\n" % family)
    assert (verdict.kind, verdict.stage, session.awaiting) == (kind, stage, None)
    assert verdict.reply is not None


@pytest.mark.parametrize("family", [3, 4, 5])
def test_a_refused_helo_is_a_refused_ehlo(family: int) -> None:
    session = opening()
    verdict = ended(session, b"220 mx\r\n", b"500 what\r\n", b"%d50 no\r\n" % family)
    assert verdict.stage is Stage.EHLO
    assert verdict.kind is {3: ResultKind.LOST, 4: ResultKind.DEFERRED, 5: ResultKind.REJECTED}[family]


@pytest.mark.parametrize("path", list(PATHS))
def test_421_defers_everywhere(path: Stage) -> None:
    """A server that closes says so with 421, whatever it was asked; that is temporary."""
    session = opening(starttls=True)
    verdict = ended(session, *PATHS[path], b"421 4.3.2 shutting down\r\n")
    assert (verdict.kind, verdict.stage, verdict.code) == (ResultKind.DEFERRED, path, 421)


@pytest.mark.parametrize("path", list(PATHS))
@pytest.mark.parametrize(
    ("data", "cause"),
    [
        (b"", Cause.CONNECTION_LOST),
        (b"SSH-2.0\r\n", Cause.PROTOCOL_FAULT),
        (b"220-a\r\n250 b\r\n", Cause.PROTOCOL_FAULT),
    ],
)
def test_no_usable_answer_is_lost_everywhere(path: Stage, data: bytes, cause: Cause) -> None:
    session = opening(starttls=True)
    verdict = ended(session, *PATHS[path], data)
    assert (verdict.kind, verdict.cause, verdict.stage) == (ResultKind.LOST, cause, path)


def test_starttls_forgets_what_was_offered_and_asks_again() -> None:
    session = opening(starttls=True)
    session.receive(b"220 mx\r\n")
    session.output()
    assert said(session, EHLO_TLS) == b"STARTTLS\r\n"
    session.receive(b"220 go\r\n")
    assert (session.state, session.awaiting) == (OpeningState.HANDSHAKE, None)
    session.secured("TLSv1.3")
    assert b"".join(session.output()) == b"EHLO me.example\r\n"
    session.receive(b"250 mx\r\n")
    assert session.state is OpeningState.READY
    assert session.capabilities.pipelining is False


@pytest.mark.parametrize("rest", [b"250 mx\r\n", b"2", b"\r\n", b"250-mx\r\n"])
def test_nothing_may_follow_the_go_ahead_for_tls(rest: bytes) -> None:
    """Whatever comes in the clear behind the 220 would be taken for a protected answer: the session ends."""
    session = opening(starttls=True)
    verdict = ended(session, b"220 mx\r\n", EHLO_TLS, b"220 go\r\n" + rest)
    assert (verdict.cause, verdict.stage) == (Cause.PROTOCOL_FAULT, Stage.STARTTLS)


def test_a_refused_starttls_is_passed_over_unless_required() -> None:
    session = opening(starttls=True)
    session.receive(b"220 mx\r\n")
    session.receive(EHLO_TLS)
    session.receive(b"454 4.7.0 not now\r\n")
    assert session.state is OpeningState.READY


def test_required_tls_that_is_not_offered_ends_the_session() -> None:
    """No word of the mail is said to a server that cannot encrypt."""
    session = opening(starttls=True, required=True)
    verdict = ended(session, b"220 mx\r\n", b"250 mx\r\n")
    assert (verdict.kind, verdict.cause) == (ResultKind.LOST, Cause.TLS_NOT_OFFERED)


def test_a_failed_handshake_ends_the_session_at_starttls() -> None:
    session = opening(starttls=True)
    session.receive(b"220 mx\r\n")
    session.receive(EHLO_TLS)
    session.receive(b"220 go\r\n")
    session.not_secured(Cause.TLS_FAILED, "the TLS handshake failed: X")
    verdict = ended(session)
    assert (verdict.cause, verdict.stage) == (Cause.TLS_FAILED, Stage.STARTTLS)


def test_implicit_tls_begins_with_the_handshake() -> None:
    session = opening(implicit=True)
    assert (session.state, session.awaiting) == (OpeningState.HANDSHAKE, None)
    session.secured("TLSv1.3")
    assert session.awaiting is Stage.GREETING


def test_auth_plain_is_one_command() -> None:
    session = encrypted(b"AUTH LOGIN PLAIN")
    secret = base64.b64encode(b"\0user\0hunter2")
    assert b"".join(session.output()) == b"AUTH PLAIN " + secret + b"\r\n"
    session.receive(b"235 2.7.0 welcome\r\n")
    assert session.state is OpeningState.READY


def test_auth_plain_is_repeated_for_a_server_that_asks() -> None:
    session = encrypted(b"AUTH PLAIN")
    session.output()
    assert said(session, b"334\r\n") == base64.b64encode(b"\0user\0hunter2") + b"\r\n"
    session.receive(b"235 welcome\r\n")
    assert session.state is OpeningState.READY


def test_auth_login_answers_twice() -> None:
    session = encrypted(b"AUTH LOGIN")
    assert b"".join(session.output()) == b"AUTH LOGIN\r\n"
    assert said(session, b"334 VXNlcm5hbWU6\r\n") == base64.b64encode(b"user") + b"\r\n"
    assert said(session, b"334 UGFzc3dvcmQ6\r\n") == base64.b64encode(b"hunter2") + b"\r\n"
    session.receive(b"235 welcome\r\n")
    assert session.state is OpeningState.READY


@pytest.mark.parametrize("auth", [b"AUTH PLAIN", b"AUTH LOGIN"])
@pytest.mark.parametrize(
    ("code", "kind"), [(454, ResultKind.DEFERRED), (535, ResultKind.REJECTED), (421, ResultKind.DEFERRED)]
)
@pytest.mark.parametrize("asked", [0, 1, 2])
def test_a_refused_login_ends_the_session(auth: bytes, code: int, kind: ResultKind, asked: int) -> None:
    asks = min(asked, 1) if auth == b"AUTH PLAIN" else asked
    verdict = ended(encrypted(auth), *[b"334 \r\n"] * asks, b"%d no\r\n" % code)
    assert (verdict.kind, verdict.stage) == (kind, Stage.AUTH)


def test_a_server_without_our_mechanisms_is_temporary() -> None:
    session = encrypted(b"AUTH GSSAPI")
    verdict = ended(session)
    assert (verdict.kind, verdict.cause) == (ResultKind.LOST, Cause.AUTH_NOT_OFFERED)


def test_credentials_never_go_out_in_the_clear() -> None:
    session = opening(credentials=LOGIN)
    session.receive(b"220 mx\r\n")
    session.output()
    assert said(session, b"250-mx\r\n250 AUTH PLAIN\r\n") == b""
    verdict = ended(session)
    assert verdict.cause is Cause.TLS_NOT_OFFERED


@pytest.mark.parametrize("auth", [b"AUTH PLAIN", b"AUTH LOGIN"])
def test_no_secret_is_in_the_transcript(auth: bytes) -> None:
    session = encrypted(auth)
    session.receive(b"334 \r\n")
    session.receive(b"334 \r\n")
    shown = " ".join(line.text for line in session.transcript.lines())
    for secret in (b"hunter2", b"\0user\0hunter2"):
        assert secret.decode() not in shown
        assert base64.b64encode(secret).decode() not in shown
    assert "[secret]" in shown


def test_a_name_that_cannot_be_said_is_refused_at_once() -> None:
    with pytest.raises(UnsafeArgument):
        Opening("me\r\nRSET", ReplyReader(), lambda: 0.0)
