"""Modules of the dashboard whose answers can be checked one by one, run where they run: in the browser."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from appliance.message.template import placeholders, render
from appliance.model.mail import StoredTemplate
from tests.e2e.dashboard.browser import Browser

VALUES = {"name": "Ada & <b>'Co'</b> \"x\" {{number}} $& $1", "number": "4711", "a.b-c_d": "deep"}
SOURCES = [
    "Hello {{name}}!",
    "{{ name }}{{number}} {{  a.b-c_d  }}",
    "{{name} {{ }} {{1x}} {{na me}} {{{name}}} {{name}}}",
    "{{\tname}} {{name\n}} {{nämé}} {{x" + "y" * 64 + "}}",
    "<a href='{{name}}'>{{number}}</a>",
]
SECTIONS = [["Messages", "/dashboard/messages"], ["Domains", "/dashboard/domains"]]


@pytest.fixture(scope="module")
def call(_chromium: Browser) -> Any:
    browser = _chromium
    browser.open("/dashboard/login")
    base = browser.script("return document.querySelector('script[type=module]').src.replace('main.js', '')")

    def ask(module: str, function: str, *arguments: Any) -> Any:
        source = """const [url, name, given, done] = arguments;
            import(url).then((module) => done(module[name](...given)), (error) => done(String(error)))"""
        return browser.driver.execute_async_script(source, f"{base}{module}.js", function, list(arguments))

    return ask


@pytest.mark.parametrize("source", SOURCES)
def test_a_preview_is_what_will_be_sent(call: Any, source: str) -> None:
    """The editor finds the same variables as the server, and fills them in alike, in the text as in the HTML."""
    found = call("preview", "variables", source)
    assert found == sorted(placeholders(source))
    sent = render(StoredTemplate("x", 1, source, source, None, 0, 0), {name: VALUES[name] for name in found}, None)
    assert call("preview", "filled", source, VALUES) == sent[1]


@pytest.mark.parametrize(
    ("text", "first"),
    [
        ("msg_198131573da2ed18cb6a371765d30832", "/dashboard/messages/msg_198131573da2ed18cb6a371765d30832"),
        (" Ada <ADA@Example.NET> ", "/dashboard/messages?recipient=ada%40example.net"),
        ("example.net", "/dashboard/messages?recipient=example.net"),
        ("doma", "/dashboard/domains"),
        ("order", "/dashboard/messages?q=order"),
        ("a&b=c", "/dashboard/messages?q=a%26b%3Dc"),
        ("  ", None),
    ],
)
def test_the_command_field_knows_what_is_meant(call: Any, text: str, first: str | None) -> None:
    """An id, an address, a domain, a page's name, or else a tag: the likeliest place comes first."""
    places = call("command", "places", text, SECTIONS)
    assert (places[0][1] if places else None) == first


def test_records_are_written_for_every_console(call: Any) -> None:
    """Lines of a zone file with long texts in parts."""
    record = {"name": "k._domainkey.example.com", "type": "TXT", "value": "p=" + "a" * 300}
    assert call("pages/domain", "zoneLine", record) == (
        f'k._domainkey.example.com. 3600 IN TXT "p={"a" * 253}" "{"a" * 47}"'
    )
    mx = {"name": "b.example.com", "type": "MX", "value": "10 mail.example.com."}
    assert call("pages/domain", "zoneLine", mx) == "b.example.com. 3600 IN MX 10 mail.example.com."


HTML = "<!-- note --><a href=\"https://x.test/{{ id }}\" title='b'>Hi {{name}} &amp; {{ 1 }}</a>\n"


def test_the_source_of_a_template_is_split_into_tokens(call: Any) -> None:
    """Every character stays in its place; placeholders are tokens also within quoted values."""
    read = call("highlight", "tokens", HTML, "html")
    assert "".join(text for _, text in read) == HTML
    kinds: dict[str, list[str]] = {}
    for kind, text in read:
        kinds.setdefault(kind, []).append(text)
    assert kinds["comment"] == ["<!-- note -->"]
    assert kinds["placeholder"] == ["{{ id }}", "{{name}}"]
    assert kinds["tag"] == ["<a", ">", "</a", ">"]
    assert kinds["attribute"] == ["href", "title"]
    assert kinds["string"] == ['"https://x.test/', '"', "'b'"]
    assert kinds["entity"] == ["&amp;"]
    assert call("highlight", "tokens", "<b> {{name}}", "text") == [["", "<b> "], ["placeholder", "{{name}}"]]


@pytest.mark.parametrize(
    ("name", "value"),
    [("name", "Ada"), ("user_email", "ada@example.net"), ("reset_url", "https://example.com/"), ("foo", "foo")],
)
def test_sample_values_are_guessed_by_name(call: Any, name: str, value: str) -> None:
    assert call("samples", "guess", name) == value


def test_problems_of_dns_come_first(call: Any) -> None:
    """A record to correct leads, then a failed lookup, then an optional record; correct ones come last."""
    right = {"problem": False, "status": "ok"}
    optional, unknown = right | {"status": "missing"}, right | {"status": "unknown"}
    problem = {"problem": True, "status": "missing"}
    ranks = [call("pages/domain", "rank", each) for each in (problem, unknown, optional, right)]
    assert ranks == sorted(set(ranks))


@pytest.mark.parametrize(
    ("status", "spf", "broken"),
    [
        ("verified", "ok", False),
        ("verified", "differs", True),
        ("allowed", "missing", True),
        ("pending", "missing", False),
    ],
)
def test_a_usable_domain_with_broken_dns_is_not_green(call: Any, status: str, spf: str, broken: bool) -> None:
    dns = {"spf": spf, "dkim": "ok", "dmarc": "ok", "return_path": None}
    assert call("pages/domain", "isBroken", {"status": status, "dns": dns}) is broken


@pytest.mark.parametrize(
    ("delivered", "pools", "paused", "expected"),
    [
        (5, {}, None, "Yes."),
        (5, {"slowed_until": "2026-11-15T00:00:00.000Z"}, None, "Yes, but slower."),
        (5, {"held_at": "2026-11-15T00:00:00.000Z"}, None, "Not to all providers."),
        (5, {}, {"reason": "moving"}, "No."),
        (0, {"waiting": 1, "oldest_at": "2026-11-15T00:00:00.000Z"}, None, "No."),
        (0, {"deferred": 1, "oldest_at": "2026-11-15T00:00:00.000Z"}, None, "Not yet."),
        (0, {}, None, "Nothing to send."),
    ],
)
def test_the_operator_is_told_whether_mail_goes_out(
    call: Any, delivered: int, pools: dict[str, Any], paused: Any, expected: str
) -> None:
    pool = {"pool": "google", "waiting": 0, "deferred": 0, "oldest_at": None, "held_at": None, "slowed_until": None}
    hours = [
        {"start": "2026-11-19T10:00:00.000Z", "delivered": 0},
        {"start": "2026-11-19T11:00:00.000Z", "delivered": delivered},
    ]
    queue = {"paused": paused, "pools": [pool | pools]}
    assert call("going-out", "verdict", queue, hours)[1] == expected


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("since", "2026-11-15T00:00:00.000Z", "Since: 15 Nov, 05:30"),
        ("since", "7d", "Since: the last 7 days"),
        ("until", "2026-11-15", "Until: 2026-11-15"),
        ("provider", "microsoft365", "Provider: Microsoft 365"),
        ("outcome", "late_bounced", "Status: late bounced"),
        ("from", "xn--mnchen-3ya.example", "From: münchen.example"),
    ],
)
def test_a_filter_is_shown_in_words(call: Any, name: str, value: str, text: str) -> None:
    """Times in the viewer's zone, names as people know them."""
    assert call("message-filters", "worded", name, value) == text


@pytest.mark.parametrize(
    ("milliseconds", "text"),
    [
        *((3, "3 ms"), (1500, "1.5 s"), (59_400, "59 s"), (245_000, "4 min 5 s"), (240_000, "4 min")),
        *((3_700_000, "1 h 1 min"), (3_600_000, "1 h"), (90_000_000, "1 d 1 h"), (None, "–")),
    ],
)
def test_lengths_of_time_are_short(call: Any, milliseconds: int | None, text: str) -> None:
    assert call("time", "span", milliseconds) == text


@pytest.mark.parametrize(
    ("highest", "top"), [(0, 4), (5, 6), (11, 12), (123, 160), (999, 1000), (1_234_567, 1_600_000)]
)
def test_a_scale_ends_at_a_round_number(call: Any, highest: int, top: int) -> None:
    """The scale reaches over the highest bar, not far, and its half is a whole number."""
    assert call("chart", "ceiling", highest) == top


@pytest.mark.parametrize(
    ("highest", "top"),
    [(90, 100), (870, 1000), (3_000, 4_000), (61_000, 120_000), (870_000, 1_200_000), (5 * 3_600_000, 6 * 3_600_000)],
)
def test_a_scale_of_time_ends_at_a_whole_second_minute_or_hour(call: Any, highest: int, top: int) -> None:
    """Its text would cut 1,000 seconds off to 16 minutes."""
    assert call("chart", "timeCeiling", highest) == top


@pytest.mark.parametrize(("days", "first", "count"), [(1, 0, 1), (7, 0, 7), (30, 1, 8), (90, 5, 8)])
def test_days_have_marks_that_can_be_read(call: Any, days: int, first: int, count: int) -> None:
    """At most eight, the last day among them, each below the middle of its bar."""
    begin = datetime(2026, 11, 1, tzinfo=UTC)
    buckets = [{"start": (begin + timedelta(days=at)).isoformat()} for at in range(days)]
    found = call("chart", "marks", buckets)["marks"]
    assert len(found) == count
    assert found[-1][0] == pytest.approx((days - 0.5) / days * 100)
    day = begin + timedelta(days=first)
    assert found[0][1] == f"{day.day} {day:%b}"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("xn--mnchen-3ya.example", "münchen.example"),
        ("ada@xn--e1afmkfd.xn--p1ai", "ada@пример.рф"),
        ("xn--pple-43d.com", "xn--pple-43d.com"),  # mixes Cyrillic with Latin
        ("xn--99999999", "xn--99999999"),
        ("example.com", "example.com"),
    ],
)
def test_international_names_are_shown_in_their_script(call: Any, name: str, shown: str) -> None:
    assert call("idn", "shownName", name) == shown
