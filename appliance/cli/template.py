"""`appliance template …`: an account's templates, also as a folder of files for a repository.

A folder has a directory for each alias, with `subject.txt`, `text.txt`, `html.html` and `template.toml`. Pulling and
then pushing it changes nothing; pushing stores a new version only of what differs.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from appliance.cli import database
from appliance.cli.options import config_option
from appliance.cli.output import printable, record, show, show_list, system_text

if TYPE_CHECKING:
    from appliance.model.mail import StoredTemplate
    from appliance.store import Store

TEMPLATE_COLUMNS = {"alias": "ALIAS", "version": "VERSION", "subject": "SUBJECT", "updated_at": "SAVED (UTC)"}
SUBJECT_FILE, TEXT_FILE, HTML_FILE, OPTIONS_FILE = TEMPLATE_FILES = (
    "subject.txt",
    "text.txt",
    "html.html",
    "template.toml",
)
TEMPLATES_AT_A_TIME = 100
FILE_BYTES = 40 * 1024 * 1024  # more than the ten million characters that a body may have
UNSUBSCRIBE_LINE = "unsubscribe = true\n"


class _Content(NamedTuple):
    """What a template consists of, in the database and in files."""

    subject: str | None
    text: str | None
    html: str | None
    unsubscribe: bool


@click.group()
@config_option
def template() -> None:
    """Templates: what messages are made of, also as files in a repository."""


@template.command("list")
@database.of_only_account
def list_all(name: str, as_json: bool) -> None:
    """List the templates of the account NAME.

    \b
    Examples:
      appliance template list
      appliance template list acme --json
    """
    found = database.run_for(name, _all)
    rows = [record(each, "alias", "version", "subject", "unsubscribe", "updated_at") for each in found]
    shown = rows if as_json else [row | {"subject": printable(row["subject"] or "")} for row in rows]
    nothing = "No templates yet. Store a folder of them: appliance template push DIR"
    show_list(as_json, "templates", shown, TEMPLATE_COLUMNS, nothing)


@template.command("show")
@database.of_only_account_and("ALIAS")
def show_one(name: str, alias: str, as_json: bool) -> None:
    """Show the current version of the template ALIAS of the account NAME.

    \b
    Examples:
      appliance template show welcome
      appliance template show acme welcome --json
    """

    async def work(store: "Store", account_id: str) -> "StoredTemplate":
        if (found := await store.templates.current(account_id, alias)) is None:
            raise click.ClickException(f"there is no template {alias!r}")
        return found

    found = database.run_for(name, work)
    head = f"{found.alias}, version {found.version}" + (", with links to unsubscribe" if found.unsubscribe else "")
    parts = [head, f"subject: {printable(found.subject)}" if found.subject is not None else "without a subject"]
    for title, body in (("text", found.text), ("html", found.html)):
        if body is not None:
            parts.append(f"\n---- {title}\n" + "\n".join(map(printable, body.splitlines())))
    fields = ("alias", "version", "subject", "text", "html", "unsubscribe", "created_at", "updated_at")
    show(as_json, record(found, *fields), "\n".join(parts))


@template.command()
@database.of_only_account_and("ALIAS")
def remove(name: str, alias: str, as_json: bool) -> None:
    """Delete the template ALIAS of the account NAME with all its versions.

    \b
    Example:
      appliance template remove acme welcome
    """
    database.run_for(name, lambda store, account_id: store.templates.delete(account_id, alias))
    show(as_json, {"alias": alias, "removed": True}, f"Removed template {alias}.")


@template.command()
@database.of_only_account_and("DIR")
def pull(name: str, dir: str, as_json: bool) -> None:
    """Write the templates of the account NAME into the folder DIR, a directory for each alias.

    What of these is there already is overwritten; everything else in DIR stays, and directories that are no template of
    the account are named.

    \b
    Examples:
      appliance template pull templates
      appliance template pull acme templates
    """
    found, folder = database.run_for(name, _all), Path(dir)
    try:
        written = sum([_write(folder / each.alias, _stored(each)) for each in found])
        others = sorted(set(_aliases(folder)) - {each.alias for each in found}) if folder.is_dir() else []
    except OSError as error:
        raise _cannot(error) from None
    rows = [record(each, "alias", "version") for each in found]
    text = f"Pulled {len(found)} templates into {folder}: {written} files changed."
    if others:
        text += f"\nNot of this account: {', '.join(map(printable, others))}"
    show(as_json, {"templates": rows, "files_changed": written, "not_of_account": others}, text)


class _Folder(NamedTuple):
    """The templates of a folder by alias, each as it may be stored; and the files that are none of theirs."""

    path: Path
    wanted: dict[str, _Content]
    unknown: list[str]


def _folder(path: str) -> _Folder:
    try:
        return _Folder(Path(path), *_read_folder(Path(path)))
    except OSError as error:
        raise _cannot(error) from None


@template.command()
@database.of_only_account_and("DIR", _folder)
@click.option("--dry-run", is_flag=True, help="Tell what would be stored; store nothing.")
def push(name: str, dir: _Folder, dry_run: bool, as_json: bool) -> None:
    """Store the folder DIR as templates of the account NAME: a new version of each that differs, and no other.

    DIR has a directory for each alias: subject.txt (one line), text.txt and html.html, at least one of these two, and
    template.toml with `unsubscribe = true` for links to unsubscribe. Files of other names are named and passed over,
    those that begin with a dot silently. Templates that DIR does not have stay. If one cannot be read, none is stored.

    \b
    Examples:
      appliance template push templates --dry-run
      appliance template push acme templates
    """
    from appliance.feedback.unsubscribe import UnsubscribeLinks

    settings, (folder, wanted, unknown) = database.load_settings(), dir
    if not UnsubscribeLinks(b"", settings.http.base_url).usable:
        for alias in [alias for alias, content in wanted.items() if content.unsubscribe]:
            reason = "links to unsubscribe need a server that is reached over https: set http.base_url"
            raise click.ClickException(f"{folder / alias / OPTIONS_FILE}: {reason}; nothing was stored")

    async def work(store: "Store", account_id: str) -> list[dict[str, Any]]:
        known, rows = {each.alias: each for each in await _all(store, account_id)}, []
        for alias, content in wanted.items():
            current = known.get(alias)
            change = "new" if current is None else "unchanged" if _stored(current) == content else "changed"
            if change != "unchanged" and not dry_run:
                *parts, unsubscribe = content
                current = await store.templates.save(account_id, alias, *parts, unsubscribe=unsubscribe)
            rows.append({"alias": alias, "change": change, "version": current.version if current else None})
        return rows

    rows = database.run_for(name, work, settings=settings)
    changed = [row for row in rows if row["change"] != "unchanged"]
    lines = [f"{row['alias']}: {row['change']}" + ("" if dry_run else f", version {row['version']}") for row in changed]
    lines += [f"passed over: {printable(each)}" for each in unknown]
    stored = "would be stored" if dry_run else "stored"
    lines.append(f"{len(changed)} of {len(rows)} templates {stored}; the others are unchanged.")
    show(as_json, {"dry_run": dry_run, "templates": rows, "unknown": unknown}, "\n".join(lines))


async def _all(store: "Store", account_id: str) -> "list[StoredTemplate]":
    found: list[StoredTemplate] = []
    while True:
        page, more = await store.templates.page(account_id, found[-1].alias if found else "", TEMPLATES_AT_A_TIME)
        found += page
        if not more:
            return found


def _stored(found: "StoredTemplate") -> _Content:
    return _Content(found.subject, found.text, found.html, found.unsubscribe)


# ---- files


def _cannot(error: OSError) -> click.ClickException:
    return click.ClickException(f"{error.filename}: {system_text(error)}")


def _aliases(folder: Path) -> list[str]:
    return sorted(each.name for each in folder.iterdir() if each.is_dir() and not each.name.startswith("."))


def _write(directory: Path, content: _Content) -> int:
    """Make the files of one template what it is; how many of them were not."""
    directory.mkdir(parents=True, exist_ok=True)
    subject = None if content.subject is None else f"{content.subject}\n"
    wanted = (subject, content.text, content.html, UNSUBSCRIBE_LINE if content.unsubscribe else None)
    changed = 0
    for name, text in zip(TEMPLATE_FILES, wanted, strict=True):
        path, data = directory / name, None if text is None else text.encode()
        there = path.read_bytes() if path.is_file() else None
        if there == data or (name == OPTIONS_FILE and _same_options(there, content)):
            continue
        changed += 1
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
    return changed


def _same_options(there: bytes | None, content: _Content) -> bool:
    """Whether a file with options, which may also hold comments, says the same."""
    try:
        return there is not None and _unsubscribe(there.decode()) == content.unsubscribe
    except ValueError:
        return False


def _read_folder(folder: Path) -> tuple[dict[str, _Content], list[str]]:
    from appliance.errors import Refused
    from appliance.message.template import check_template

    wanted, unknown = {}, [each.name for each in folder.iterdir() if not each.is_dir()]
    for alias in _aliases(folder):
        directory = folder / alias
        unknown += [f"{alias}/{each.name}" for each in directory.iterdir() if each.name not in TEMPLATE_FILES]
        try:
            subject, text, html, options = (_read(directory / name) for name in TEMPLATE_FILES)
            line = None if subject is None else subject.removesuffix("\n").removesuffix("\r")
            content = _Content(line, text, html, options is not None and _unsubscribe(options))
            check_template(alias, *content[:3])
        except (Refused, ValueError) as fault:
            reason = fault.text if isinstance(fault, Refused) else str(fault)
            raise click.ClickException(f"{directory}: {printable(reason)}; nothing was stored") from None
        wanted[alias] = content
    return wanted, sorted(each for each in unknown if not each.rpartition("/")[2].startswith("."))


def _read(path: Path) -> str | None:
    if not path.exists():
        return None
    if not path.is_file():
        raise ValueError(f"{path.name} is no file")
    with path.open("rb") as file:
        data = file.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise ValueError(f"{path.name} is larger than a message may be (10 MiB)")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text") from None


def _unsubscribe(options: str) -> bool:
    """What template.toml says; ValueError unless that is all it says."""
    import tomllib

    found = tomllib.loads(options)
    unsubscribe = found.pop("unsubscribe", False)
    if found or not isinstance(unsubscribe, bool):
        raise ValueError(f"{OPTIONS_FILE} may hold `unsubscribe = true` or `unsubscribe = false`, and nothing else")
    return unsubscribe
