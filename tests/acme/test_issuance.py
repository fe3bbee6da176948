"""The way to a certificate, against an authority without sockets: in order, and with everything that can go wrong."""

import json
from typing import Any

import pytest
from cryptography import x509

from appliance.acme.issuance import MAX_POLL_DELAY, NONCE_TRIES, Issuance
from appliance.acme.messages import AcmeResponse, NotIssued, new_key, thumbprint
from tests.acme.authority import DIRECTORY, HOST, Authority, problem

NAMES = ("mail.example.com", "app.example.com")
KEY = new_key()


def issuance(account: str = "", email: str = "") -> Issuance:
    return Issuance(DIRECTORY, KEY, account, email, NAMES)


def known(authority: Authority) -> Authority:
    authority.signer = KEY.public_key()
    return authority


def fault(authority: Authority, begun: Issuance | None = None) -> NotIssued:
    with pytest.raises(NotIssued) as caught:
        authority.play((begun or issuance()).certificate(new_key()))
    return caught.value


def on(path: str, *answers: AcmeResponse) -> Any:
    left = list(answers)

    def spoil(asked: str, payload: Any) -> AcmeResponse | None:
        return left.pop(0) if asked.startswith(path) and left else None

    return spoil


def test_the_whole_way() -> None:
    authority, begun, key = Authority(), issuance(), new_key()
    leaf = x509.load_pem_x509_certificate(authority.play(begun.certificate(key)))
    assert leaf.public_key() == key.public_key()
    assert authority.names == list(NAMES)
    assert authority.shown == {f"token-{name}": f"token-{name}.{thumbprint(KEY)}" for name in NAMES}
    assert (begun.account, begun.terms) == (f"{HOST}/account/1", "https://ca.test/terms")
    assert authority.asked[:4] == ["/directory", "/nonce", "/account", "/order"]
    assert authority.asked.count("/nonce") == 1  # every answer brings the next one


@pytest.mark.parametrize("email", ["", "postmaster@example.com"])
def test_a_new_account_agrees_and_says_whom_to_write_to(email: str) -> None:
    said = []
    authority = Authority(spoil=lambda path, payload: said.append(payload) if path == "/account" else None)
    authority.play(issuance(email=email).certificate(new_key()))
    contact = {"contact": [f"mailto:{email}"]} if email else {}
    assert said == [{"termsOfServiceAgreed": True, **contact}]


def test_an_account_is_used_again() -> None:
    authority, begun = known(Authority()), issuance(account=f"{HOST}/account/1")
    authority.play(begun.certificate(new_key()))
    assert "/account" not in authority.asked
    assert (begun.account, begun.terms) == (f"{HOST}/account/1", "")


def test_an_account_that_the_authority_has_lost_is_made_again() -> None:
    authority = known(Authority(spoil=on("/order", problem("accountDoesNotExist", status=400))))
    begun = issuance(account=f"{HOST}/account/77")
    authority.play(begun.certificate(new_key()))
    assert begun.account == f"{HOST}/account/1"


def test_an_account_that_is_lost_twice_is_told() -> None:
    lost = problem("accountDoesNotExist", status=400)
    assert "does not know the account" in str(fault(Authority(spoil=on("/order", lost, lost))))


def test_the_account_is_known_after_a_failure_too() -> None:
    begun = issuance()
    fault(Authority(spoil=on("/order", problem("serverInternal", status=500))), begun)
    assert begun.account == f"{HOST}/account/1"


def test_a_name_that_is_proven_needs_no_challenge() -> None:
    """Authorities remember proofs for a while (RFC 8555 7.1.3)."""
    authority = Authority(proven=frozenset(NAMES))
    authority.play(issuance().certificate(new_key()))
    assert not authority.shown
    assert not any(path.startswith("/challenge") for path in authority.asked)


def test_bad_nonces_are_tried_again() -> None:
    bad = [problem("badNonce", status=400)] * (NONCE_TRIES - 1)
    authority = Authority(spoil=on("/order", *bad))
    authority.play(issuance().certificate(new_key()))
    assert authority.asked.count("/order") == NONCE_TRIES
    assert authority.asked.count("/nonce") == 1


def test_bad_nonces_are_retried_a_few_times_only() -> None:
    authority = Authority(spoil=on("/order", *[problem("badNonce", "stale", 400)] * 100))
    assert "stale" in str(fault(authority))
    assert authority.asked.count("/order") == NONCE_TRIES


def test_what_takes_long_is_waited_for() -> None:
    authority = Authority(polls=12)
    authority.play(issuance().certificate(new_key()))
    assert authority.waits[:6] == [0.5, 1.0, 2.0, 3.0, 5.0, 5.0]


@pytest.mark.parametrize(("said", "waited"), [(7.0, 7.0), (0.0, 0.5), (86400.0, MAX_POLL_DELAY)])
def test_an_authority_says_how_long_to_wait(said: float, waited: float) -> None:
    authority = Authority(retry_after=said)
    authority.play(issuance().certificate(new_key()))
    assert authority.waits[0] == waited


def test_an_authority_that_never_decides_is_left() -> None:
    authority = Authority(polls=1000)
    assert "did not decide in time" in str(fault(authority))
    assert sum(authority.waits) < 600


def authorization(stands: str, **challenge: Any) -> AcmeResponse:
    challenges = [{"type": "http-01", "url": f"{HOST}/challenge/x", "token": "t", **challenge}] if challenge else []
    value = {"identifier": {"value": NAMES[0]}, "status": stands, "challenges": challenges}
    return AcmeResponse(200, json.dumps(value).encode(), "after-problem")


@pytest.mark.parametrize(
    ("kind", "words", "advice"),
    [
        ("connection", "the authority cannot reach port 80 of mail.example.com: refused", "firewall"),
        ("dns", "no address of mail.example.com in DNS", "A or AAAA record"),
        ("unauthorized", "another server answers on port 80 of mail.example.com", "acme.bind"),
        ("caa", "CAA record in DNS forbids", "CAA record of mail.example.com"),
        ("somethingNew", "the authority rejects the request: refused", ""),
    ],
)
def test_a_name_that_is_not_proven(kind: str, words: str, advice: str) -> None:
    error = {"type": f"urn:ietf:params:acme:error:{kind}", "detail": "refused"}
    failed = fault(Authority(spoil=on(f"/authz/{NAMES[0]}", authorization("invalid", status="invalid", error=error))))
    assert words in str(failed)
    assert advice in failed.advice


def test_a_name_that_is_not_proven_after_its_challenge() -> None:
    error = {"type": "urn:ietf:params:acme:error:connection", "detail": "Timeout"}
    answers = authorization("pending", status="pending"), authorization("invalid", status="invalid", error=error)
    failed = fault(Authority(spoil=on(f"/authz/{NAMES[0]}", *answers)))
    assert "the authority cannot reach port 80 of mail.example.com: Timeout" in str(failed)


@pytest.mark.parametrize(
    ("path", "answer", "words"),
    [
        ("/directory", AcmeResponse(200, b"<html>"), "invalid response"),
        ("/directory", AcmeResponse(200, b"\xff"), "invalid response"),
        ("/directory", AcmeResponse(200, b"[" * 100_000), "invalid response"),
        ("/directory", AcmeResponse(200, b'{"newNonce": 1}'), "invalid response"),
        ("/directory", AcmeResponse(404, b"not here"), "HTTP status 404"),
        ("/directory", AcmeResponse(301), "HTTP status 301"),
        ("/nonce", AcmeResponse(503, b'{"type": "about:blank"}'), "HTTP status 503"),
        ("/account", AcmeResponse(201, b"{}", "after-problem"), "without returning its URL"),
        ("/account", problem("invalidContact", "bad address"), "acme.email: bad address"),
        ("/account", problem("externalAccountRequired"), "requires an existing account"),
        ("/account", problem("userActionRequired", instance="https://ca.test/terms2"), "https://ca.test/terms2"),
        ("/order", AcmeResponse(201, b"{}", "after-problem"), "without returning its URL"),
        ("/order", problem("rejectedIdentifier", "policy forbids"), "does not issue for mail.example.com, app."),
        ("/order", problem("unauthorized", "deactivated"), "rejects the account: deactivated"),
        ("/authz", authorization("pending"), "no http-01 challenge for mail.example.com"),
        ("/authz", authorization("expired"), "did not authorize mail.example.com (expired)"),
        ("/finalize", problem("badCSR", "weak key", 400), "weak key"),
        ("/certificate", AcmeResponse(200, b"no certificate", "after-problem"), "not a certificate"),
    ],
)
def test_what_else_can_go_wrong(path: str, answer: AcmeResponse, words: str) -> None:
    assert words in str(fault(Authority(spoil=on(path, answer))))


def test_an_authority_that_wants_to_be_left_alone_is_heard() -> None:
    limited = AcmeResponse(429, problem("rateLimited", "too many").body, "n", "", 3600.0)
    failed = fault(Authority(spoil=on("/order", limited)))
    assert failed.retry_after == 3600.0
    assert "too many requests: too many" in str(failed)


def test_one_name_of_several_is_named() -> None:
    """RFC 8555 6.7.1: the problem of one name is inside that of the order."""
    inner = {
        "type": "urn:ietf:params:acme:error:rejectedIdentifier",
        "detail": "bad",
        "identifier": {"value": NAMES[1]},
    }
    failed = fault(Authority(spoil=on("/order", problem("malformed", subproblems=[inner]))))
    assert str(failed) == "the authority does not issue for app.example.com: bad"


def test_an_order_that_the_authority_gives_up() -> None:
    for error, words in [
        ({"type": "urn:ietf:params:acme:error:caa", "detail": "x"}, "CAA"),
        (None, "cancelled the order"),
    ]:
        order = {"status": "invalid", "finalize": f"{HOST}/finalize/1", "error": error}
        answer = AcmeResponse(200, json.dumps(order).encode(), "after-problem")
        assert words in str(fault(Authority(spoil=on("/finalize", answer))))


def test_a_certificate_for_another_key_or_name_is_not_taken() -> None:
    class Careless(Authority):
        """Gives out what it made before."""

        def issue(self, der: bytes) -> bytes:
            return other

    first = Authority()
    other = first.play(issuance().certificate(new_key()))
    assert "for another key" in str(fault(Careless()))
    key = new_key()
    other = Authority().play(Issuance(DIRECTORY, KEY, "", "", NAMES[:1]).certificate(key))
    with pytest.raises(NotIssued, match=r"not for app\.example\.com"):
        Careless().play(issuance().certificate(key))


def test_an_authority_that_wants_customers_of_its_own_is_not_asked() -> None:
    authority = Authority(meta={"externalAccountRequired": True})
    assert "existing account" in str(fault(authority))
    assert authority.asked == ["/directory"]
