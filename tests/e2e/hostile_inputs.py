"""Inputs made to cost the server more than they cost their sender, by name: each sends one, and reads the answer.

For the test that none of them stalls the event loop, and for the benchmark of honest clients beside them. Each gets a
number that is new every time, so that nothing is answered from a cache.
"""

import base64
import json
import string
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from itertools import islice, product
from typing import Any

import httpx

from tests.e2e.contract.service import eventually
from tests.e2e.raw import Answer, Client, request
from tests.e2e.submission.client import Raw
from tests.engines import rows
from tests.running_appliance import Running

HEAD = 15_000  # bytes of a head that is nearly as large as it may be
LONG_FIELD = 15_800  # bytes of a field that is nearly all of a head
V1_BODY = 64 * 1024
LOOP_BODY = 47_000  # bytes of a body that is nearly as large as one that is read on the event loop
BODY = 262_000
MIB = 1024 * 1024
CYRILLIC, ARABIC = "\u0436", "\u0627"


@dataclass
class Target:
    """A running appliance, and what its attacker knows."""

    running: Running

    @cached_property
    def token(self) -> str:
        return f"Authorization: {self.running.login()['Authorization']}"

    def send(self, data: bytes, *, source: str = "", timeout: float = 30) -> Answer | None:
        """Some bytes on a connection of their own; None when it is closed without an answer."""
        with Client(self.running.url, timeout=timeout, source=source) as client:
            client.offer(data)
            try:
                return client.answer()
            except (ConnectionError, TimeoutError):
                return None

    def get(self, path: str, *headers: str) -> Answer | None:
        return self.send(request("GET", path, *headers))

    def v1(self, method: str, path: str, body: bytes) -> Answer | None:
        return self.send(request(method, path, self.token, "Content-Type: application/json", body=body))

    def login(self, body: bytes) -> Answer | None:
        return self.send(request("POST", "/v1/auth/login", "Content-Type: application/json", body=body))

    def post(self, number: int, body: bytes, *headers: str, path: str = "/emails") -> Answer | None:
        key = f"Authorization: Bearer {self.running.account.test_key}"
        given = (key, f"Idempotency-Key: {number}", "Content-Type: application/json", *headers)
        return self.send(request("POST", path, *given, body=body))

    def email(self, number: int, **fields: Any) -> Answer | None:
        return self.post(number, _email(**fields))

    def submit(self, number: int, *pieces: bytes) -> list[bytes]:
        """Bytes on an SMTP session that is logged in, all at once; every reply until it is closed."""
        with Raw(self.running, "smtps", timeout=60) as client:
            client.log_in()
            client.send(b"".join(pieces) + b"QUIT\r\n")
            return client.rest()

    def data(self, number: int, message: bytes) -> bytes:
        with Raw(self.running, "smtps", timeout=60) as client:
            return client.log_in().transact(message)

    @cached_property
    def hundred_stored(self) -> bool:
        """A hundred messages with subjects, tags and addresses that are nearly as long as they may be."""
        to = [f"{'a' * 60}{index}@{'b' * 60}.example.net" for index in range(3)]
        tags = [f"{index}".rjust(60, "x") for index in range(20)]
        for each in range(100):
            assert self.email(10**12 + each, to=to, subject=CYRILLIC * 450, tags=tags) is not None
        return True

    @cached_property
    def keys(self) -> list[str]:
        answers = [self.v1("POST", "/v1/api-keys", b'{"name": "one of eight", "test": true}') for _ in range(8)]
        return [str(answer.json()["key"]) for answer in answers if answer is not None]

    @cached_property
    def delivered(self) -> str:
        """The id of a message to 50 recipients, all delivered or queued."""
        answer = self.email(10**12 + 500, to=[f"user{index}@example.net" for index in range(50)])
        assert answer is not None
        return str(answer.json()["id"])

    def template(self, alias: str, **fields: str) -> None:
        with httpx.Client(base_url=self.running.url, trust_env=False, timeout=30) as client:
            name, value = self.token.split(": ")
            if client.get(f"/v1/templates/{alias}", headers={name: value}).status_code == 404:
                client.put(f"/v1/templates/{alias}", headers={name: value}, json=fields).raise_for_status()


Input = Callable[[Target, int], object]


def _email(**fields: Any) -> bytes:
    given = {"from": "a@example.com", "to": "b@example.net", "subject": "s", "text": "t", **fields}
    return json.dumps({name: value for name, value in given.items() if value is not None}, ensure_ascii=False).encode()


def _addresses(count: int, number: int, make: Callable[[int], str]) -> list[str]:
    return [make(number * 1_000 + index) for index in range(count)]


def _idn(number: int) -> str:
    return f"a@{CYRILLIC * 20}{number}.{ARABIC * 40}.{ARABIC * 40}.example"


def _both_idn(number: int) -> str:
    return f"{CYRILLIC * 10}{number}@{CYRILLIC * 10}{number}.{CYRILLIC * 10}.example"


def _named(number: int) -> str:
    escaped = "\\\u00e9" * 250
    return f'"{escaped}" <a{number}@example.net>'


def _many(body: bytes, piece: bytes, size: int, end: bytes = b"") -> bytes:
    return body + piece * ((size - len(body) - len(end)) // len(piece)) + end


def _filled(target: Target, number: int) -> Answer | None:
    """1 KB that becomes 10 MiB."""
    target.template("swell", html="{{a}}" * 3_000)
    return target.email(number, text=None, template="swell", variables={"a": ("<" * 70 + "\n") * 12})


def _filled_too_large(target: Target, number: int) -> Answer | None:
    target.template("burst", text="{{a}}" * 6_000, html="{{a}}" * 6_000)
    return target.email(number, text=None, template="burst", variables={"a": "x" * 40_000})


def _many_placeholders(target: Target, number: int) -> Answer | None:
    target.template("many", text="{{a}}" * 6_000, html="{{a}}" * 6_000)
    return target.email(number, text=None, template="many", variables={"a": "x"})


def _put_template(target: Target, number: int) -> Answer | None:
    return target.v1("PUT", f"/v1/templates/t{number}", json.dumps({"html": "{{a}}" * 13_000}).encode())


def _list_templates(target: Target, number: int) -> Answer | None:
    for index in range(20):
        target.template(f"list{index}", html="{{a}}" * 12_500)
    return target.get("/v1/templates?limit=100", target.token)


def _distinct(count: int) -> str:
    letters = string.ascii_letters
    return "".join(f"{{{{{''.join(name)}}}}}" for name in islice(product(letters, repeat=3), count))


def _get_distinct(target: Target, _: int) -> Answer | None:
    target.template("distinct", text=_distinct(9_000))
    return target.get("/v1/templates/distinct", target.token)


def _list_distinct(target: Target, _: int) -> Answer | None:
    for index in range(6):
        target.template(f"distinct{index}", text=_distinct(1_100))
    return target.get("/v1/templates?after=distin", target.token)


def _put_distinct(target: Target, number: int) -> Answer | None:
    return target.v1("PUT", f"/v1/templates/put{number}", json.dumps({"text": _distinct(9_000)}).encode())


def _rcpts(number: int, make: Callable[[int], str], count: int = 1_000) -> bytes:
    lines = [f"RCPT TO:<{address}>\r\n" for address in _addresses(count, number, make)]
    return b"MAIL FROM:<a@example.com> SMTPUTF8\r\n" + "".join(lines).encode()


def _transactions(number: int) -> bytes:
    one = _rcpts(number, lambda each: f"a{each}@example.net", 130) + b"RSET\r\n"
    return one * 60


def _headed(fields: bytes) -> bytes:
    return b"From: a@example.com\r\nIdempotency-Key: k\r\n" + fields + b"\r\nHello.\r\n"


def _login(body: bytes) -> Input:
    return lambda target, _: target.login(body)


def _post(body: bytes) -> Input:
    return lambda target, number: target.post(number, body)


def _batch(*emails: bytes) -> Input:
    body = b'{"on_error":"skip","emails":[%s]}' % b",".join(emails)
    return lambda target, number: target.post(number, body, path="/emails/batch")


def _get(path: str, *headers: str) -> Input:
    return lambda target, _: target.get(path, *headers)


def _refresh(cookies: str) -> Input:
    return lambda target, _: target.send(request("POST", "/v1/auth/refresh", f"Cookie: {cookies}"))


def _data(message: bytes) -> Input:
    return lambda target, number: target.data(
        number, message.replace(b"Idempotency-Key: k", b"Idempotency-Key: %d" % number)
    )


def _attempts(target: Target, number: int) -> Answer | None:
    """The timeline of 50 recipients that were each tried 12 times."""
    sent = target.email(number, to=[f"fail{each}@example.net" for each in range(50)])
    assert sent is not None
    message = sent.json()["id"]
    eventually(lambda: _status(target, message), lambda status: status == "failed")
    return target.get(f"/v1/emails/{message}", target.token)


def _status(target: Target, message: str) -> str:
    answer = target.get(f"/emails/{message}", f"Authorization: Bearer {target.running.account.test_key}")
    assert answer is not None
    return str(answer.json()["status"])


def _listed(target: Target, number: int) -> Answer | None:
    """A hundred messages of 50 recipients each."""
    found = target.get("/v1/emails?limit=100&tag=many", target.token)
    assert found is not None
    for each in range(len(found.json()["emails"]), 100):
        target.email(number * 1_000 + each, to=[f"a{index}@example.net" for index in range(50)], tags="many")
    return target.get("/v1/emails?limit=100&tag=many", target.token)


def _feedback(target: Target, _: int) -> Answer | None:
    """What came back within 90 days, of twelve providers and in seven ways each day."""
    today, account_id = int(time.time()) // 86_400, target.running.account.account_id
    kinds = [("delivered", ""), ("failed", "temporary"), *(("bounced", f"class{each}") for each in range(5))]
    for day in range(today - 89, today + 1):
        found = [(account_id, day, *kind, f"provider{each}", 5) for kind in kinds for each in range(12)]
        places = ", ".join(["(?, ?, ?, ?, ?, ?)"] * len(found))
        add = f"""INSERT INTO daily_feedback (account_id, day, kind, class, provider, recipients) VALUES {places}
            ON CONFLICT DO NOTHING"""
        rows(target.running.data_dir, add, *(value for row in found for value in row))
    return target.get("/v1/feedback?days=90", target.token)


def _newest(target: Target, _: int) -> Answer | None:
    """The newest hundred messages, without a filter: a look-up by index."""
    assert target.hundred_stored
    return target.get("/v1/emails?limit=100", target.token)


REPEATED = b'"email":"a",'
TO = b'"to":"a",'

# Heads that no parser should see.
HEADS: dict[str, Input] = {
    "64 KB of tiny header lines": lambda target, _: target.send(
        b"GET / HTTP/1.1\r\nHost: a\r\n" + b"a:\r\n" * 16_000 + b"\r\n"
    ),
    "64 KB of bare LF": lambda target, _: target.send(b"GET / HTTP/1.1\nHost: a\n" + b"a:\n" * 21_000 + b"\n"),
    "64 KB of folded lines": lambda target, _: target.send(
        b"GET / HTTP/1.1\r\nHost: a\r\nA: b\r\n" + b" c\r\n" * 16_000 + b"\r\n"
    ),
}

# By clients that have not logged in.
STRANGERS: dict[str, Input] = {
    "login: a JSON fault behind many keys": _login(_many(b"{", REPEATED, V1_BODY)),
    "login: bad UTF-8 behind many keys": _login(_many(b"{", REPEATED, V1_BODY, b'"email":"\xff"}')),
    "login: half a surrogate pair behind many": _login(_many(b'{"email":"', b"\\ud83d\\ude00", V1_BODY, b'\\ud83d"}')),
    "login: a key twice": _login(_many(b"{", REPEATED, V1_BODY, b'"password":"a"}')),
    "login: only brackets": _login(b"[" * V1_BODY),
    "login: only commas": _login(b'{"email":' + b"," * (V1_BODY - 9)),
    "login: one long string": _login(_many(b'{"email":"', b"a", V1_BODY)),
    "login: one string of escapes": _login(_many(b'{"email":"', b'\\"', V1_BODY)),
    "login: an unknown key as long as the body": _login(_many(b'{"', b"a", V1_BODY, b'":1}')),
    "a long path": _get("/" + "a" * HEAD),
    "a long path of slashes": _get("/v1" + "/a" * (HEAD // 2)),
    "a long path of escapes": _get("/v1/" + "%41" * (HEAD // 3)),
    "a long query": _get("/v1/emails?" + "a=1&" * (HEAD // 4)),
    "a long query of escapes": _get("/v1/emails?" + "%41=%42&" * (HEAD // 8)),
    "many cookies": _get("/v1/auth/refresh", "Cookie: " + "a=1; " * (HEAD // 5)),
    "a long cookie": _get("/", "Cookie: session=" + "a" * HEAD),
    "cookies in quotes": _get("/", "Cookie: " + 'a="\\141\\"' * (HEAD // 9)),
    "a long Basic credential": _get(
        "/emails/msg_1", "Authorization: Basic " + base64.b64encode(b"a" * 10_000).decode()
    ),
    "a long token": _get("/emails/msg_1", "Authorization: Bearer " + "a." * (HEAD // 2)),
    "a token with a long header": _get(
        "/v1/account", "Authorization: Bearer " + base64.urlsafe_b64encode(b"[" * 10_000).decode() + ".e30.AAAA"
    ),
    "many forwarding addresses": _get("/healthz", "X-Forwarded-For: " + "1," * (HEAD // 2)),
    "a long Host": _get("/", "X: 1", "Host: " + "a." * (HEAD // 2)),
    "a long Accept": _get("/", "Accept: " + "a/b;q=0.1," * (HEAD // 10), "Accept-Language: " + "a;q=0," * 100),
    "long conditions": _get("/openapi.json", "If-None-Match: " + '"a",' * (HEAD // 4)),
    "a long range": _get("/", "Range: bytes=" + "0-1," * (HEAD // 4)),
    "the description": _get("/openapi.json"),
}

# Header fields and queries that Quart would take apart on the event loop, by clients that have logged in or not.
FIELDS: dict[str, Input] = {
    **{
        f"{name} of {part} for {path}": _get(path, f"{name}: {part * (LONG_FIELD // len(part))}")
        for path, name, parts in (
            ("/dashboard", "Accept-Encoding", ('a;b="",', '"",', "a;q=x,")),
            ("/dashboard", "If-None-Match", (",", '"a",', 'W/"a",')),
            ("/healthz", "If-None-Match", (",",)),
            ("/dashboard", "Accept", ('a/b;c="",',)),
            ("/dashboard", "Range", ("0-1,",)),
            ("/dashboard", "Content-Type", ('a;b="",',)),
            ("/dashboard", "Forwarded", ('for="a",',)),
        )
        for part in parts
    },
    **{
        f"cookies of {part} for a session": _refresh(part * (LONG_FIELD // len(part)))
        for part in ("a;", 'a="\\141";', "appliance_session=a;", " ", "; ")
    },
    "a session's cookie of escapes": _refresh('appliance_session="' + "\\141" * (LONG_FIELD // 4 - 10) + '"'),
    **{
        f"a query of {part}": lambda target, _, part=part: target.get(  # type: ignore[misc]  # bound here
            "/v1/emails?" + part * (HEAD // len(part)), target.token
        )
        for part in ("a&", "a=b&", "%ff", "%", "%41=&")
    },
    "a query with as much as it may have": lambda target, _: target.get(
        "/v1/emails?" + ("a=" + "%" * 30 + "b" * 270 + "&") * 49, target.token
    ),
}

# By customers, over HTTP.
SENDERS: dict[str, Input] = {
    "60 IDN addresses": lambda target, number: target.email(number, to=_addresses(60, number, _idn)),
    "4 IDN addresses": lambda target, number: target.email(number, to=_addresses(4, number, _both_idn)),
    "600 IDN addresses": lambda target, number: target.email(
        number, **{name: _addresses(200, number * 3 + at, _idn) for at, name in enumerate(("to", "cc", "bcc"))}
    ),
    "50 addresses with IDN on both sides": lambda target, number: target.email(
        number, to=_addresses(50, number, _both_idn)
    ),
    "50 addresses with escaped names": lambda target, number: target.email(number, to=_addresses(50, number, _named)),
    "200 addresses with escaped names": lambda target, number: target.email(
        number, to=_addresses(50, number, _named) * 4
    ),
    "addresses of brackets": lambda target, number: target.email(number, to=["<" * 1_000 + f"{number}>"] * 200),
    "100 headers of one long word": lambda target, number: target.email(
        number, headers={f"X-{each}": "a" * 998 for each in range(100)}
    ),
    "45 headers of one long word": lambda target, number: target.email(
        number, headers={f"X-{each}": "a" * 998 for each in range(45)}
    ),
    "100 headers outside ASCII": lambda target, number: target.email(
        number, headers={f"X-{each}": "\u00e9" * 230 for each in range(100)}
    ),
    "100 headers of word beginnings": lambda target, number: target.email(
        number, headers={f"X-{each}": "=?" * 230 + "?q??=" for each in range(100)}
    ),
    "a template that becomes 10 MiB": _filled,
    "a template that would become 500 MB": _filled_too_large,
    "a template of 12,000 placeholders": _many_placeholders,
    "262 KB of JSON with a fault": _post(_many(b"{", TO, BODY)),
    "47 KB of JSON with a fault": _post(_many(b"{", TO, LOOP_BODY)),
    "47 KB of JSON with bad UTF-8": _post(_many(b"{", TO, LOOP_BODY, b'"to":"\xff"}')),
    "47 KB of JSON with half a surrogate pair": _post(_many(b'{"text":"', b"\\ud83d\\ude00", LOOP_BODY, b'\\ud83d"}')),
    "262 KB of JSON with a key twice": _post(_many(b'{"from":"a",', TO, BODY, b'"to":"a"}')),
    "262 KB of tiny values": _post(_many(b'{"to":["a"', b',"a"', BODY)),
    "47 KB of keys in headers": _post(_many(b'{"from":"a","to":"b","headers":{', b'"":"",', LOOP_BODY, b'"a":1}}')),
    "47 KB of keys in variables": _post(
        b'{"from":"a","to":"b","variables":{' + b",".join(b'"%d":1' % each for each in range(5_000)) + b',"x":[]}}'
    ),
    "47 KB of escaped colons": _post(
        _many(b'{"from":"a@example.com","to":"b@example.net","subject":"s","text":"', b"\\u003a", LOOP_BODY, b'"}')
    ),
    "47 KB of newlines": lambda target, number: target.email(number, text="\n" * (LOOP_BODY // 2 - 100)),
    "47 KB outside ASCII": lambda target, number: target.email(number, text="\u00e9 \n" * (LOOP_BODY // 5)),
    "47 KB of HTML": lambda target, number: target.email(number, html="<" * (LOOP_BODY - 200)),
    "16 MB of JSON with a fault": _post(_many(b"{", TO, 16_000_000)),
    "16 MB of escapes": _post(
        _many(b'{"from":"a@example.com","to":"b@example.net","subject":"s","text":"', b"\\u0041", 16_000_000, b'"}')
    ),
    "a 7 MB attachment": lambda target, number: target.email(
        number, attachments=[{"filename": "a", "content": base64.b64encode(b"a" * 7_000_000).decode()}]
    ),
    "an attachment in lines": lambda target, number: target.email(
        number, attachments=[{"filename": "a", "content": "QUJD\r\n" * 1_000_000}]
    ),
    "20 attachments with long names": lambda target, number: target.email(
        number, attachments=[{"filename": "\u00e9" * 120 + str(each), "content": "AAAA"} for each in range(20)]
    ),
    "a batch of 100 small messages": _batch(*[_email()] * 100),
    "a batch of 100 messages to 50 recipients": _batch(*[_email(to=_addresses(50, 1, _both_idn))] * 100),
    "a batch of 100 messages with a key twice": _batch(*[_many(b'{"from":"a",', TO, 5_000, b'"to":"a"}')] * 100),
    "a batch of 16 MB": _batch(*[_email(html="<p>" * 50_000)] * 100),
    "a batch of a million values": _batch(*[b"1"] * 10**6),
    "the timeline of 600 attempts": _attempts,
    "a list of 100 messages of 50 recipients": _listed,
    "a list of the newest 100 messages": _newest,
    "a list of what came back": _feedback,
    "a list of 9,000 variables of a template": _get_distinct,
    "a list of templates with 6,600 variables": _list_distinct,
    "a list of 9,000 variables, stored": _put_distinct,
    "storing a template of placeholders": _put_template,
    "listing templates of placeholders": _list_templates,
    "a search of many words": lambda target, _: target.get("/v1/emails?q=" + "a+" * (HEAD // 4), target.token),
    "filters as long as a head": lambda target, _: target.get("/v1/emails?tag=" + "a" * HEAD, target.token),
    "an IDN domain": lambda target, number: target.v1(
        "POST", "/v1/domains", json.dumps({"domain": f"{ARABIC * 40}{number}.{ARABIC * 40}.example"}).encode()
    ),
    "a webhook on an IDN host": lambda target, number: target.v1(
        "PUT", "/v1/webhook", json.dumps({"url": f"https://{ARABIC * 40}{number}.{ARABIC * 40}.example/"}).encode()
    ),
    "a webhook with a long URL": lambda target, _: target.v1(
        "PUT", "/v1/webhook", json.dumps({"url": "https://a.example/" + "%41" * 20_000}).encode()
    ),
    "suppressing an IDN address": lambda target, number: target.v1(
        "POST", "/v1/suppressions", json.dumps({"address": _idn(number)}).encode()
    ),
}

# By customers, over SMTP.
SUBMITTERS: dict[str, Input] = {
    "1,000 pipelined RCPT with IDN": lambda target, number: target.submit(number, _rcpts(number, _idn)),
    "1,000 pipelined RCPT": lambda target, number: target.submit(
        number, _rcpts(number, lambda each: f"a{each}@example.net")
    ),
    "8,000 pipelined commands": lambda target, number: target.submit(number, _transactions(number)),
    "100 pipelined MAIL with IDN": lambda target, number: target.submit(
        number,
        *(f"MAIL FROM:<{CYRILLIC * 20}{number}{each}@example.com> SMTPUTF8\r\nRSET\r\n".encode() for each in range(99)),
    ),
    "a line without an end": lambda target, number: target.submit(number, b"NOOP " + b"a" * 200_000),
    "a long AUTH": lambda target, number: target.submit(number, b"AUTH PLAIN " + b"A" * 12_000 + b"\r\n"),
    "a long STARTTLS injection": lambda target, number: target.submit(number, b"STARTTLS\r\n" + b"NOOP\r\n" * 10_000),
    "10 MiB of dots": _data(_headed(b"") + b"..\r\n" * (10 * MIB // 4 - 1_000)),
    "10 MiB of lines": _data(_headed(b"") + b"\r\n" * (5 * MIB - 1_000)),
    "10 MiB of boundaries": _data(
        _headed(b'Content-Type: multipart/mixed; boundary="a"\r\n') + b"--a\r\n" * (2 * MIB - 1_000)
    ),
    "10 MiB by BDAT": lambda target, number: target.submit(
        number,
        b"MAIL FROM:<a@example.com>\r\nRCPT TO:<b@example.net>\r\n",
        b"BDAT %d LAST\r\n" % (10 * MIB - 1_000),
        (_headed(b"") + b"a" * 900).ljust(10 * MIB - 1_002, b"\n").replace(b"\n", b"-")[: 10 * MIB - 1_002] + b"\r\n",
    ),
    "1,000 header fields": _data(_headed(b"x: y\r\n" * 990)),
    "5,000 header lines and a fault": _data(_headed(b"x: y\r\n" * 4_900 + b"bad\r\n")),
    "47 KB of header outside ASCII": _data(_headed((b"x: " + "\u00e9".encode() * 400 + b"\r\n") * 58)),
    "250 KB of header": _data(_headed((b"x: " + b"a" * 900 + b"\r\n") * 270)),
    "a subject of encoded words": _data(_headed(b"Subject: " + b"\r\n ".join([b"=?utf-8?q?=41?="] * 520) + b"\r\n")),
}
