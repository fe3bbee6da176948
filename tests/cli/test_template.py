"""`appliance template …`: a folder of files and the templates of an account, made equal either way."""

import json
from pathlib import Path

import pytest

from tests.cli.shell import Shell, fields
from tests.docs.test_cli import documented

FILES = {
    "welcome/subject.txt": b"Welcome, {{name}}\n",
    "welcome/text.txt": "Hello {{name}} – ü\r\nno line end".encode(),
    "welcome/html.html": b"<p>Hello {{name}}</p>\n",
    "plain/text.txt": b"",
}


@pytest.fixture
def folder(acme: Shell) -> Path:
    made = acme.config.parent / "templates"
    for name, data in FILES.items():
        (made / name).parent.mkdir(parents=True, exist_ok=True)
        (made / name).write_bytes(data)
    return made


def content(folder: Path) -> dict[str, bytes]:
    return {str(each.relative_to(folder)): each.read_bytes() for each in folder.rglob("*") if each.is_file()}


def changes(answer: dict[str, list[dict[str, object]]]) -> dict[object, tuple[object, object]]:
    return {each["alias"]: (each["change"], each["version"]) for each in answer["templates"]}


def test_a_folder_is_pushed_once(acme: Shell, folder: Path) -> None:
    """A dry run stores nothing; the second push makes no new version; one file changed is one new version."""
    dry = acme.json("template", "push", str(folder), "--dry-run")
    assert changes(dry) == {"plain": ("new", None), "welcome": ("new", None)}
    assert acme.json("template", "list")["templates"] == []
    answer = acme.json("template", "push", "acme", str(folder))
    assert fields(answer) == fields(documented("template push"))
    assert changes(answer) == {"plain": ("new", 1), "welcome": ("new", 1)}
    assert changes(acme.json("template", "push", str(folder))) == {
        "plain": ("unchanged", 1),
        "welcome": ("unchanged", 1),
    }
    (folder / "welcome/html.html").write_text("<p>Hi</p>")
    assert "0 of 2" not in acme.text("template", "push", str(folder), "--dry-run")
    text = acme.text("template", "push", str(folder))
    assert text == "welcome: changed, version 2\n1 of 2 templates stored; 1 unchanged.\n"


def test_pull_and_push_change_nothing(acme: Shell, folder: Path, tmp_path: Path) -> None:
    """Byte for byte, into a new folder or over an old one; what is no template stays, and is named."""
    acme.json("template", "push", str(folder))
    fresh = tmp_path / "made" / "anew"
    answer = acme.json("template", "pull", str(fresh))
    assert fields(answer) == fields(documented("template pull"))
    assert (answer["files_changed"], content(fresh)) == (4, FILES)
    assert acme.json("template", "pull", str(folder))["files_changed"] == 0
    (folder / "welcome/text.txt").write_text("another")
    (folder / "plain/subject.txt").write_text("too much")
    (folder / "later").mkdir()
    (folder / "README.md").write_text("kept")
    answer = acme.json("template", "pull", "acme", str(folder))
    assert (answer["files_changed"], answer["not_of_account"]) == (2, ["later"])
    assert content(folder) == FILES | {"README.md": b"kept"}
    assert {each[0] for each in changes(acme.json("template", "push", str(fresh))).values()} == {"unchanged"}


def test_files_of_other_names_are_named(acme: Shell, folder: Path) -> None:
    (folder / "README.md").touch()
    (folder / "welcome/body.htm").touch()
    (folder / "welcome/.swp").touch()
    (folder / ".git").mkdir()
    assert acme.json("template", "push", str(folder))["unknown"] == ["README.md", "welcome/body.htm"]
    assert "skipped: welcome/body.htm\n" in acme.text("template", "push", str(folder))


@pytest.mark.parametrize(
    ("name", "data", "reason"),
    [
        ("Wrong/text.txt", b"x", "alias: "),
        ("empty/subject.txt", b"x", "at least one of text and html"),
        ("welcome/subject.txt", b"two\nlines\n", "subject: "),
        ("welcome/text.txt", b"\xff", "text.txt is not UTF-8"),
        ("welcome/text.txt", b"a\0b", "text: "),
        ("welcome/template.toml", b"unsubscribe = 1", "template.toml may contain only"),
        ("welcome/template.toml", b"other = true", "template.toml may contain only"),
        ("welcome/template.toml", b"not toml", "Expected"),
        ("welcome/template.toml", b"unsubscribe = true", "http.base_url"),
    ],
)
def test_a_folder_that_cannot_be_stored_stores_nothing(
    acme: Shell, folder: Path, name: str, data: bytes, reason: str
) -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_bytes(data)
    said = acme.refused("template", "push", str(folder))
    assert reason in said
    assert str((folder / name).parent) in said
    assert "nothing was stored" in said
    assert acme.json("template", "list")["templates"] == []


def test_links_to_unsubscribe_are_kept_in_a_file(acme: Shell, folder: Path, tmp_path: Path) -> None:
    acme.config.write_text(acme.config.read_text() + '[http]\nbase_url = "https://mail.example.com"\n')
    (folder / "welcome/template.toml").write_text("# news\nunsubscribe = true\n")
    acme.json("template", "push", str(folder))
    assert acme.json("template", "show", "welcome")["unsubscribe"] is True
    assert acme.json("template", "pull", str(folder))["files_changed"] == 0
    acme.json("template", "pull", str(tmp_path / "fresh"))
    assert content(tmp_path / "fresh")["welcome/template.toml"] == b"unsubscribe = true\n"
    assert "plain/template.toml" not in content(tmp_path / "fresh")


def test_templates_are_listed_shown_and_removed(acme: Shell, folder: Path) -> None:
    assert "appliance template push DIR" in acme.text("template", "list")
    acme.json("template", "push", str(folder))
    listed = acme.json("template", "list", "acme")
    assert fields(listed) == fields(documented("template list"))
    assert [each["alias"] for each in listed["templates"]] == ["plain", "welcome"]
    assert "Welcome, {{name}}" in acme.text("template", "list")
    shown = acme.json("template", "show", "acme", "welcome")
    assert fields(shown) == fields(documented("template show"))
    assert shown["text"] == FILES["welcome/text.txt"].decode()
    assert "---- html\n<p>Hello {{name}}</p>" in acme.text("template", "show", "welcome")
    assert fields(acme.json("template", "remove", "plain")) == fields(documented("template remove"))
    assert "No template" in acme.refused("template", "remove", "plain")
    assert "no template" in acme.refused("template", "show", "plain")


def test_a_folder_that_is_not_there_is_one_line(acme: Shell, tmp_path: Path) -> None:
    assert "no such file" in acme.refused("template", "push", str(tmp_path / "missing"))
    (tmp_path / "file").touch()
    assert "not a directory" in acme.refused("template", "push", str(tmp_path / "file"))


def test_templates_of_another_provider_are_imported(acme: Shell, tmp_path: Path) -> None:
    """Those that can be rendered here; the others are skipped with the reason."""
    welcome = {"Alias": "welcome", "Subject": "Hi {{name}}", "HtmlBody": "<p>{{ name }}</p>", "TextBody": ""}
    file = tmp_path / "templates.json"
    file.write_text(json.dumps([welcome, welcome | {"Alias": "raw", "HtmlBody": "{{{name}}}"}]))
    words = ("template", "import", "--from", "postmark", str(file))
    assert changes(acme.json(*words, "--dry-run")) == {"welcome": ("new", None)}
    answer = acme.json(*words)
    assert fields(answer) == fields(documented("template import"))
    assert [one["template"] for one in answer["skipped"]] == ["raw"]
    shown = acme.json("template", "show", "welcome")
    assert (shown["subject"], shown["html"], shown["text"]) == ("Hi {{name}}", "<p>{{ name }}</p>", None)
    file.write_text(json.dumps(welcome))
    assert changes(acme.json(*words)) == {"welcome": ("unchanged", 1)}
    file.write_text("{")
    assert "is not JSON" in acme.refused(*words)
