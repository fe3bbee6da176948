"""The text part of mail sent as HTML alone: what its reader would read, and never at a price."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.message.characters import fault_in_body
from appliance.message.text_from_html import HTML_LENGTH, MARKS, cost_of_html, text_from_html
from tests.cpu_time import cpu_seconds

N = MARKS * 9 // 10


@pytest.mark.parametrize(
    ("markup", "text"),
    [
        ("Hello", "Hello"),
        ("<p>Hello,\n   <b>Ada</b>!</p>", "Hello, Ada!"),
        ("<p>One</p><p>Two</p>", "One\n\nTwo"),
        ("<div>One</div><div>Two</div>", "One\nTwo"),
        ("a<br>b<br/>c<BR />d", "a\nb\nc\nd"),
        ("<h1>Title</h1>Text", "Title\n\nText"),
        ("a<span> b</span>c", "a bc"),
        ("<ul><li>a<li>b</ul>c", "- a\n- b\n\nc"),
        ("<ol><li>a</li><li>b</li></ol>", "1. a\n2. b"),
        ("<ul><li>a<ul><li>b</ul></ul>", "- a\n  - b"),
        ("<table><tr><td>Sum</td><td>5</td></tr><tr><td>Tax</td><td>1</td></tr></table>", "Sum 5\nTax 1"),
        ("<pre>a\n  b</pre>", "a\n  b"),
        ("a<hr>b", "a\n\n--------------------\n\nb"),
        ('<a href="https://x.example/?a=1&amp;b=2">Open</a>.', "Open (https://x.example/?a=1&b=2)."),
        ("<a href='https://x.example'>https://x.example/</a>", "https://x.example/"),
        ("<a href=https://x.example>x.example</a>", "x.example"),
        ("<a HREF = 'mailto:ada@example.net'>ada@example.net</a>", "ada@example.net"),
        ("<a href='javascript:alert(1)'>x</a>", "x"),
        ("<a href='#top'>x</a>", "x"),
        ('<a href="https://x.example"><img alt="Logo" src="l.png"></a>', "Logo (https://x.example)"),
        ('<a href="https://x.example"><img src="l.png"></a>', "https://x.example"),
        ('<a title="a > b" href="https://x.example">y</a>', "y (https://x.example)"),
        ("<p><a href='https://x.example'>Go</a></p>then", "Go (https://x.example)\n\nthen"),
        ("&lt;b&gt; &amp;amp; &euro;&nbsp;5 &#169; &#xa9; &copy", "<b> &amp; € 5 © © ©"),
        ("&unknown; & &; &#; R&D", "&unknown; & &; &#; R&D"),
        ("a&#0;b&#x1b;c&#xd800;d&#x110000;e&#133;f", "abcdef"),
        ("<style>p { color: red }</style>a<script>if (1<2) b()</script>c<!-- d --><title>e</title>", "ac"),
        ("<!DOCTYPE html><?xml x?><html><head><meta charset=utf-8></head><body>a</body></html>", "a"),
        ("3 < 4 and 5 <6", "3 < 4 and 5 <6"),
        ("a<!-- never closed", "a"),
        ("a<script>never closed", "a"),
        ('a<a href="never closed>b', "ab"),
        ("Grüße, 日本", "Grüße, 日本"),
    ],
)
def test_what_is_made_of_it(markup: str, text: str) -> None:
    assert text_from_html(markup) == text


@pytest.mark.parametrize("markup", ["", " \n", "<p></p>", "<img src=x>", "<style>a</style>", "&nbsp;"])
def test_nothing_to_read_makes_no_text(markup: str) -> None:
    assert text_from_html(markup) is None


def test_what_is_too_much_makes_no_text() -> None:
    assert text_from_html("a" * HTML_LENGTH) is not None
    assert text_from_html("a" * (HTML_LENGTH + 1)) is None
    assert text_from_html("<b>" * (MARKS - 1) + "a") == "a"
    assert text_from_html("<b>" * MARKS + "a&amp;") is None
    assert cost_of_html("<b>a&amp;") == 8


@given(st.lists(st.sampled_from(
    ["<", ">", "</", "<p>", "<a href=", "<a href='https://x.example/", '"', "'", "<!--", "-->", "&", "&amp;", "&#1;",
     "&#x2028;", "<pre>", "</pre>", "<li>", "</ul>", "<ul>", "<script>", "</script>", " ", "\n", "x", "é", "<br>", "="]
)).map("".join))  # fmt: skip
def test_whatever_comes_in_text_comes_out(markup: str) -> None:
    text = text_from_html(markup)
    assert text is None or (text and fault_in_body(text) is None)


HOSTILE = {
    "opened tags": "<a " * N,
    "tags": "<b>" * N,
    "less-than signs": "<" * N,
    "comments": "<!--" * N,
    "quotes": '<a "' * N,
    "both quotes": "<a '\"" * N,
    "quotes and tags": "<a \"><a '>" * (N // 2),
    "ampersands": "&" * N,
    "long entities": ("&" + "a" * 60) * N,
    "long numbers": ("&#" + "9" * 60) * N,
    "one long number": "&#" + "9" * 900_000,
    "scripts": "<script>" * N,
    "closing tags": "</" * N,
    "links": "<a href=https://x.example/>x" * N,
    "a link around everything": "<a href=https://x.example/>" + "<b>x" * (N - 1),
    "hrefs": "<a " + "href " * 200_000 + ">x",
    "spaces in a tag": "<a href" + " " * 900_000 + ">x",
    "lists": "<ul><li>x" * (N // 2),
    "preformatted": "<pre>x\n" * N,
    "words": "a " * 500_000,
    "line breaks": "\n" * 1_000_000 + "a",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_making_it_takes_time_by_length_and_no_more(name: str) -> None:
    def seconds(markup: str) -> float:
        return cpu_seconds(lambda: text_from_html(markup), tries=3)

    whole = HOSTILE[name][:HTML_LENGTH]
    assert seconds(whole) < 8 * max(seconds(whole[: len(whole) // 4]), 0.01)
    assert seconds(whole) < 1.0
