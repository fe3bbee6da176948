"""Each check finds its fault, and a good message has none."""

import pytest

from appliance.message.checks import CLIPPED_FROM, LinkTarget, check_message, links_of, not_ascii
from appliance.message.reader import MessageView
from tests.cpu_time import cpu_seconds

GOOD = """<html><head><style>p { color: #333 }</style></head><body>
<p>Hello <a href="https://acme.example/start?a=1&amp;b=2">Get <b>started</b></a></p>
<img src="https://acme.example/logo.png" alt="Acme" width="80"></body></html>"""
HEADERS = [("From", "Acme <hello@acme.example>"), ("To", "ada@example.net"), ("Subject", "Welcome")]


def view(
    html: str | None = GOOD, text: str | None = "Hello", headers: list[tuple[str, str]] | None = None
) -> MessageView:
    return MessageView(headers=HEADERS if headers is None else headers, text=text, html=html)


def titles(message: MessageView, size: int = 1000) -> list[str]:
    return [finding.title for finding in check_message(message, size)]


def with_header(name: str, value: str) -> list[tuple[str, str]]:
    return [*[header for header in HEADERS if header[0] != name], (name, value)]


def test_a_good_message_has_no_findings() -> None:
    assert check_message(view(), 1000) == []


@pytest.mark.parametrize(
    ("message", "title"),
    [
        (view(text=None), "No text part"),
        (view(html=None, text=" "), "No content"),
        (view(html=f"<p>{'x' * CLIPPED_FROM}</p>"), "HTML is clipped by Gmail"),
        (view(headers=HEADERS[1:]), "No From"),
        (view(headers=with_header("Reply-To", "boss@other.example")), "From and Reply-To differ"),
        (view(headers=with_header("From", "webmaster@shop.local")), "From is a local domain"),
        (view(headers=with_header("Subject", " ")), "No subject"),
        (view(headers=with_header("Subject", "Hello {{name}}")), "Placeholder in the subject"),
        (view(headers=with_header("Precedence", "bulk")), "No List-Unsubscribe"),
        (view(headers=with_header("List-Unsubscribe", "<https://a.example/u>")), "Unsubscribe is not one-click"),
        (view('<a href="">x</a>'), "Link without a target"),
        (view('<a href="/start">x</a>'), "Relative link"),
        (view('<a href="https://a.example/{{ token }}">x</a>'), "Placeholder in a link"),
        (view('<a href="https://[oops/">x</a>'), "Broken link"),
        (view('<a href="https://a.example/two words">x</a>'), "Broken link"),
        (view('<a href="javascript:x()">x</a>'), "Script in a link"),
        (view('<a href="http://localhost:3000/">x</a>'), "Link to this machine"),
        (view('<a href="http://a.example/">x</a>'), "Link without TLS"),
        (view('<img src="https://a.example/a.png">'), "Image without alt"),
        (view('<img alt="" src="data:image/png;base64,AAAA">'), "Image in a data: URL"),
        (view("<script>x()</script>"), "<script> is dropped"),
        (view('<link rel="stylesheet" href="https://a.example/a.css">'), "<link> is dropped"),
        (view('<p style="display: flex">x</p>'), "Ignored CSS: display: flex"),
        (view("<style>@import url(a.css);</style>"), "Ignored CSS: @import"),
        (view("<style>p { background: #fff url(a.png) }</style>"), "Ignored CSS: background images"),
    ],
)
def test_each_fault_is_found(message: MessageView, title: str) -> None:
    assert title in titles(message)


def test_a_large_message_is_mentioned() -> None:
    assert titles(view(), 6 * 1024 * 1024) == ["Large message"]


@pytest.mark.parametrize(
    "html",
    [
        "<!-- <img src=x> <script> --><p>Comments are for Outlook</p>",
        '<p>display: flex in a text</p><a name="top">no link</a>',
        '<a href="mailto:a@b.example">a</a> <a href="tel:+1">b</a> <a href="#top">c</a>',
        "<img alt src='https://a.example/a.png'>",
    ],
)
def test_what_is_fine_is_not_mentioned(html: str) -> None:
    assert titles(view(html)) == []


def test_a_subdomain_may_answer() -> None:
    assert titles(view(headers=with_header("Reply-To", "help@support.acme.example"))) == []


def test_the_most_serious_comes_first() -> None:
    message = view('<a href="http://a.example/">x</a><a href="">y</a>', text=None)
    assert [finding.level for finding in check_message(message, 1)] == ["error", "warning", "info"]


def test_links_are_listed_with_their_texts() -> None:
    assert links_of(view()) == [LinkTarget("https://acme.example/start?a=1&b=2", "Get started")]


def test_a_header_outside_ascii_is_found() -> None:
    (finding,) = not_ascii("From: a@b.example\r\nSubject: Grüße\r\n\r\nTschüß".encode())
    assert finding.title == "Header is not ASCII"
    assert finding.detail.startswith("Subject: ")
    assert not_ascii("Subject: x\r\n\r\nTschüß".encode()) == []


@pytest.mark.parametrize(
    "html",
    ["<a href=" * 9_000, "<" * 9_000, "<style>" * 9_000, "<!--" * 9_000, "<a '" * 9_000, "<a href=x>" * 9_000],
    ids=lambda html: html[:10],
)
def test_hostile_html_costs_little(html: str) -> None:
    message = view(html + "background:" * 50_000)
    assert cpu_seconds(lambda: check_message(message, 1)) < 1
