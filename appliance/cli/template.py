"""`appliance template …`: manages an account's templates, also as a folder of files in a repository.

A folder has one directory per alias, with `subject.txt`, `text.txt`, `html.html` and `template.toml`. A pull followed
by a push changes nothing; a push stores a new version only of templates that differ.
"""

import tomllib
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from appliance.cli import database
from appliance.cli.options import CommandGroup, flag
from appliance.cli.output import file_errors, printable, record, show, show_list
from appliance.errors import Refused

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.model.mail import StoredTemplate
    from appliance.store import Store

TEMPLATE_COLUMNS = {"alias": "ALIAS", "version": "VERSION", "subject": "SUBJECT", "updated_at": "SAVED (UTC)"}
OPTIONS_FILE = "template.toml"
TEMPLATE_FILES = ("subject.txt", "text.txt", "html.html", OPTIONS_FILE)
TEMPLATES_AT_A_TIME = 100
FILE_BYTES = 40 * 1024 * 1024  # more than the ten million characters of the largest body


class _Content(NamedTuple):
    subject: str | None
    text: str | None
    html: str | None
    unsubscribe: bool
    stream: str | None

    @property
    def options(self) -> str | None:
        """The text of OPTIONS_FILE; None: no file."""
        lines = ["unsubscribe = true\n"] if self.unsubscribe else []
        if self.stream is not None:
            lines.append(f'stream = "{self.stream}"\n')
        return "".join(lines) or None


template = CommandGroup("template", "Manage templates, also as files in a repository.")


@template.command("list", reads=True)
@database.list_of_only_account
def list_all(name: str) -> None:
    """List the templates of the account."""
    fields = ("alias", "version", "subject", "unsubscribe", "stream", "updated_at")
    rows = [record(template, *fields) for template in database.run_for(name, _all)]
    nothing = "No templates yet. Store a folder: appliance template push DIR"
    show_list(
        {"templates": rows}, TEMPLATE_COLUMNS, nothing, worded=lambda row: row | {"subject": row["subject"] or ""}
    )


@template.command("show", reads=True)
@database.of_only_account_and("ALIAS")
def show_one(name: str, alias: str) -> None:
    """Show the current version of the template ALIAS of the account."""

    async def work(store: "Store", account_id: str) -> "StoredTemplate":
        if (template := await store.templates.current(account_id, alias)) is None:
            raise click.ClickException(f"there is no template {alias!r}: see appliance template list")
        return template

    template = database.run_for(name, work)
    links = ", with unsubscribe links" if template.unsubscribe else ""
    links += f", stream {template.stream}" if template.stream else ""
    subject = "no subject" if template.subject is None else f"subject: {printable(template.subject)}"
    parts = [f"{template.alias}, version {template.version}{links}", subject]
    for title, body in (("text", template.text), ("html", template.html)):
        if body is not None:
            parts.append(f"\n---- {title}\n" + "\n".join(map(printable, body.splitlines())))
    fields = ("alias", "version", "subject", "text", "html", "unsubscribe", "stream", "created_at", "updated_at")
    show(record(template, *fields), "\n".join(parts))


@template.command(action="template.deleted")
@database.of_only_account_and("ALIAS")
def remove(name: str, alias: str) -> None:
    """Delete the template ALIAS of the account with all its versions."""
    database.run_for(name, lambda store, account_id: store.templates.delete(account_id, alias))
    show({"alias": alias, "removed": True}, f"Removed template {alias}.")


@template.command(reads=True)
@database.of_only_account_and("DIR")
def pull(name: str, dir: str) -> None:
    """Write the templates of the account into the folder DIR, one directory per alias.

    Files of these templates are overwritten; all other files in DIR stay. The output lists directories that are not a
    template of the account.

    Examples:
      appliance template pull templates
      appliance template pull --account acme templates
    """
    templates, folder = database.run_for(name, _all), Path(dir)
    rows = [record(template, "alias", "version") for template in templates]
    with file_errors():
        written = sum([_write(folder / template.alias, _stored(template)) for template in templates])
        others = sorted(set(_aliases(folder)) - {row["alias"] for row in rows}) if folder.is_dir() else []
    text = f"Pulled {len(rows)} templates into {folder}: {written} files changed."
    if others:
        text += f"\nNot in this account: {', '.join(map(printable, others))}"
    show({"templates": rows, "files_changed": written, "not_of_account": others}, text)


def _file(path: str) -> str:
    with file_errors():
        try:
            text = _read(Path(path))
        except ValueError as fault:
            raise click.ClickException(f"{path}: {fault}") from None
    if text is None:
        raise click.ClickException(f"there is no file {path}")
    return text


class _Folder(NamedTuple):
    """The valid templates of a folder by alias, and the files that belong to no template."""

    path: Path
    templates: dict[str, _Content]
    unknown: list[str]


def _folder(path: str) -> _Folder:
    with file_errors():
        return _read_folder(Path(path))


@template.command(action="template.saved")
@database.of_only_account_and("DIR", _folder)
@flag("--dry-run", "Show what would be stored without storing it.")
def push(name: str, dir: _Folder, dry_run: bool) -> None:
    """Store the folder DIR as templates of the account, as a new version of each template that differs.

    DIR has one directory per alias: subject.txt (one line), text.txt or html.html or both, and template.toml with
    `unsubscribe = true` for unsubscribe links and `stream = "NAME"` for a stream. Other files are listed and skipped;
    names that start with a dot are skipped silently. Templates that are not in DIR stay. If a template is not valid,
    nothing is stored.

    Examples:
      appliance template push templates --dry-run
      appliance template push --account acme templates
    """
    from appliance.feedback.return_path import UnsubscribeLinks
    from appliance.model.streams import configured_streams

    settings, (folder, templates, unknown) = database.load_settings(), dir
    streams = configured_streams(settings.delivery.streams)
    for alias, content in templates.items():
        if content.stream is not None and content.stream not in streams.by_name:
            reason = f"there is no stream {printable(content.stream)}; expected {' or '.join(streams.by_name)}"
            raise click.ClickException(f"{folder / alias / OPTIONS_FILE}: {reason}; nothing was stored")
    if not UnsubscribeLinks(b"", settings.http.base_url).usable:
        for alias in [alias for alias, content in templates.items() if content.unsubscribe]:
            reason = "unsubscribe links need HTTPS: set http.base_url to an https URL"
            raise click.ClickException(f"{folder / alias / OPTIONS_FILE}: {reason}; nothing was stored")

    rows, text = _stored_templates(name, templates, dry_run, unknown, settings)
    show({"dry_run": dry_run, "templates": rows, "unknown": unknown}, text)


@template.command("import", action="template.saved")
@database.of_only_account_and("FILE", _file)
@click.option(
    "--from",
    "provider",
    type=click.Choice(["mailgun", "postmark", "resend", "sendgrid", "ses"]),
    required=True,
    help="Provider that FILE is from.",
)
@flag("--dry-run", "Show what would be stored without storing it.")
def import_templates(name: str, file: str, provider: str, dry_run: bool) -> None:
    """Store the templates of another provider, as a new version of each template that differs.

    FILE is JSON: a template as the API of the provider returns it, or an array of them. The alias is the name or id
    that applications send. Templates that this server cannot render, such as those with loops or a layout, are listed
    with the reason and skipped.

    Examples:
      appliance template import --from postmark templates.json --dry-run
      appliance template import --account acme --from postmark templates.json
    """
    from appliance.message.template_export import Exporter, read_templates

    try:
        exported, skipped = read_templates(file, Exporter(provider))
    except ValueError:
        raise click.ClickException("the file is not JSON") from None
    templates = {one.alias: _Content(*one[1:], unsubscribe=False, stream=None) for one in exported}
    reasons = [f"{one.name}: {one.error}" for one in skipped]
    rows, text = _stored_templates(name, templates, dry_run, reasons, database.load_settings())
    left_out = [{"template": one.name, "error": one.error} for one in skipped]
    show({"dry_run": dry_run, "templates": rows, "skipped": left_out}, text)


def _stored_templates(
    name: str, templates: dict[str, _Content], dry_run: bool, skipped: list[str], settings: "Config"
) -> tuple[list[dict[str, Any]], str]:
    """Store the templates that differ, unless this is a dry run. Return their rows, and a text about them."""

    async def work(store: "Store", account_id: str) -> list[dict[str, Any]]:
        known, rows = {template.alias: template for template in await _all(store, account_id)}, []
        for alias, content in templates.items():
            current = known.get(alias)
            change = "new" if current is None else "unchanged" if _stored(current) == content else "changed"
            if change != "unchanged" and not dry_run:
                *parts, unsubscribe, stream = content
                save = partial(store.templates.save, account_id, alias, *parts)
                current = await save(unsubscribe=unsubscribe, stream=stream)
            rows.append({"alias": alias, "change": change, "version": current.version if current else None})
        return rows

    rows = database.run_for(name, work, settings=settings)
    changed = [row for row in rows if row["change"] != "unchanged"]
    lines = [f"{row['alias']}: {row['change']}" + ("" if dry_run else f", version {row['version']}") for row in changed]
    lines += [f"skipped: {printable(one)}" for one in skipped]
    stored = "would be stored" if dry_run else "stored"
    lines.append(f"{len(changed)} of {len(rows)} templates {stored}; {len(rows) - len(changed)} unchanged.")
    return rows, "\n".join(lines)


async def _all(store: "Store", account_id: str) -> "list[StoredTemplate]":
    templates: list[StoredTemplate] = []
    while True:
        after = templates[-1].alias if templates else ""
        page, more = await store.templates.page(account_id, after, TEMPLATES_AT_A_TIME)
        templates += page
        if not more:
            return templates


def _stored(template: "StoredTemplate") -> _Content:
    return _Content(template.subject, template.text, template.html, template.unsubscribe, template.stream)


# ---- files
def _aliases(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))


def _write(directory: Path, content: _Content) -> int:
    directory.mkdir(parents=True, exist_ok=True)
    subject = None if content.subject is None else f"{content.subject}\n"
    texts = (subject, content.text, content.html, content.options)
    changed = 0
    for name, text in zip(TEMPLATE_FILES, texts, strict=True):
        path, data = directory / name, None if text is None else text.encode()
        existing = path.read_bytes() if path.is_file() else None
        if existing == data or (name == OPTIONS_FILE and _same_options(existing, content)):
            continue
        changed += 1
        if data is None:
            path.unlink()
        else:
            path.write_bytes(data)
    return changed


def _same_options(existing: bytes | None, content: _Content) -> bool:
    """Whether the options file, which may have comments, has the same values."""
    try:
        return existing is not None and _options(existing.decode()) == (content.unsubscribe, content.stream)
    except ValueError:
        return False


def _read_folder(folder: Path) -> _Folder:
    from appliance.message.template import check_template

    templates, unknown = {}, [path.name for path in folder.iterdir() if not path.is_dir()]
    for alias in _aliases(folder):
        directory = folder / alias
        unknown += [f"{alias}/{path.name}" for path in directory.iterdir() if path.name not in TEMPLATE_FILES]
        try:
            subject, text, html, options = (_read(directory / name) for name in TEMPLATE_FILES)
            line = None if subject is None else subject.removesuffix("\n").removesuffix("\r")
            content = _Content(line, text, html, *_options(options or ""))
            check_template(alias, *content[:3])
        except (Refused, ValueError) as fault:
            reason = fault.text if isinstance(fault, Refused) else str(fault)
            raise click.ClickException(f"{directory}: {printable(reason)}; nothing was stored") from None
        templates[alias] = content
    return _Folder(folder, templates, sorted(name for name in unknown if not name.rpartition("/")[2].startswith(".")))


def _read(path: Path) -> str | None:
    if not path.exists():
        return None
    if not path.is_file():
        raise ValueError(f"{path.name} is not a file")
    with path.open("rb") as file:
        data = file.read(FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        raise ValueError(f"{path.name} is larger than the largest message (10 MiB)")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise ValueError(f"{path.name} is not UTF-8 text") from None


def _options(options: str) -> tuple[bool, str | None]:
    """Return `unsubscribe` and `stream` of template.toml; raise ValueError for any other key."""
    table = tomllib.loads(options)
    unsubscribe, stream = table.pop("unsubscribe", False), table.pop("stream", None)
    if table or not isinstance(unsubscribe, bool) or not isinstance(stream, str | None):
        raise ValueError(f'{OPTIONS_FILE} may contain only `unsubscribe = true` (or false) and `stream = "NAME"`')
    return unsubscribe, stream
