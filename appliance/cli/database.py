"""The database during one command: open it, do one thing, and turn every failure into one line.

A command for one account can omit the account's name if there is only one account: it is looked up here.
"""

import os
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from appliance.cli.options import PRINTABLE, common, named_config
from appliance.cli.output import system_text

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.store import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

_SETTINGS = "appliance.settings"  # in ctx.meta, which a command shares with its groups


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a PublicError into one line and exit code 1."""
    from appliance.errors import PublicError

    try:
        yield
    except PublicError as refusal:
        raise click.ClickException(refusal.text) from None


@contextmanager
def explained(settings: "Config") -> Iterator[None]:
    """Turn a failure that an operator can repair into one line and exit code 1."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as error:
        from appliance.cli import failures  # seldom needed, and slow to import

        reason = failures.explain(error, settings)
        if reason is None:
            raise
        raise click.ClickException(reason) from None


@contextmanager
def config_errors() -> Iterator[None]:
    """Turn a ConfigError into one line and exit code 1."""
    from appliance.config.settings import ConfigError

    try:
        yield
    except ConfigError as error:
        raise click.ClickException(str(error)) from None


def load_settings() -> "Config":
    """Load the settings, once per command: if root runs it, before the process becomes another user."""
    from appliance.config.load import load
    from appliance.config.settings import Config

    meta = click.get_current_context().meta
    if not isinstance(meta.get(_SETTINGS), Config):
        with config_errors():
            meta[_SETTINGS] = load(named_config(), os.environ, Path.cwd())
    return cast("Config", meta[_SETTINGS])


def run(
    work: "Callable[[Store], Awaitable[T]]",
    *,
    settings: "Config | None" = None,
    or_nothing: T | None = None,
    create: bool = False,
) -> T:
    """Return the result of `work` on the store.

    Only `create` makes a missing database; otherwise the result is `or_nothing`, so that a list in the wrong directory
    leaves no files behind. A database of an earlier version is upgraded, except by READ_ONLY_COMMANDS.
    """
    import trio

    from appliance.environment import Environment
    from appliance.store import FILE_NAME, NoDatabase, open_store

    settings = settings or load_settings()
    action, target, user = *_audited(), _system_user()
    may_upgrade = command_words() not in READ_ONLY_COMMANDS
    prepare(settings, make=create)

    async def opened() -> T:
        url, check_key = settings.store.url, None
        if url:
            from appliance.keys.installation_key import key_check  # slow to import

            check_key = key_check(settings.server.data_dir)
        async with open_store(
            settings.server.data_dir, Environment(), url=url, check_key=check_key, inline=True, may_upgrade=may_upgrade
        ) as store:
            if not action:
                return await work(store)
            from appliance.model.dashboard import Actor

            async with store.audit.noting(Actor("operator", user), action, "cli", target=target, always=False):
                return await work(store)

    with explained(settings), refusals():
        if create or settings.store.url or os.path.lexists(settings.server.data_dir / FILE_NAME):
            with suppress(NoDatabase):
                return trio.run(opened)
        if settings.embedded:
            raise click.ClickException(_not_installed(settings))
        if or_nothing is not None:
            return or_nothing
        text = f"there is no database in {place(settings)} yet: `appliance account create` makes it"
        raise click.ClickException(text)


def place(settings: "Config") -> str:
    """Where the database is, in an error text."""
    return "the PostgreSQL of store.url" if settings.store.url else str(settings.server.data_dir)


# Commands that only show something. They neither upgrade nor create a database.
READ_ONLY_COMMANDS = frozenset(
    {
        *("account list", "account show", "user list", "domain list", "domain records", "credential list", "key list"),
        *("suppressions list", "suppressions export", "webhook show", "template list", "template show"),
        *("template pull", "queue show", "messages", "explain", "feedback inbox", "audit", "nodes list", "mcp"),
    }
)

# Actions in the audit log. Other commands change nothing, or the whole installation.
AUDITED_COMMANDS = {
    "account create": "account.created",
    "account suspend": "account.suspended",
    "account resume": "account.resumed",
    "account credit": "account.credits_changed",
    "account cap": "account.cap_changed",
    "account role": "account.role_changed",
    "account delete": "account.deleted",
    "account password": "user.password_changed",
    "user invite": "user.invited",
    "user role": "user.role_changed",
    "user remove": "user.removed",
    "user reset-password": "password.reset",
    "user reset-totp": "totp.disabled",
    "domain add": "domain.added",
    "domain remove": "domain.removed",
    "domain rotate": "domain.keys_rotated",
    "credential create": "smtp_credential.created",
    "credential revoke": "smtp_credential.revoked",
    "key create": "api_key.created",
    "key roll": "api_key.rolled",
    "key revoke": "api_key.revoked",
    "suppressions add": "suppression.added",
    "suppressions remove": "suppression.removed",
    "suppressions import": "suppression.imported",
    "webhook set": "webhook.saved",
    "webhook remove": "webhook.deleted",
    "template push": "template.saved",
    "template remove": "template.deleted",
    "queue cancel": "email.cancelled",
    "queue pause": "pool.paused",
    "queue resume": "pool.resumed",
    "pause": "mail.paused",
    "resume": "mail.resumed",
    "nodes drain": "node.drained",
}


def command_words() -> str:
    """Return the running command, without the program's name."""
    words, context = list[str](), click.get_current_context()
    while context.parent:
        words.insert(0, context.info_name or "")
        context = context.parent
    return " ".join(words)


def _audited() -> tuple[str, str]:
    """Return the running command's audit action, and its object: the last argument, unless that is a secret."""
    context = click.get_current_context()
    parameters = [parameter for parameter in context.command.params if isinstance(parameter, click.Argument)]
    arguments = [context.params.get(parameter.name or "") for parameter in parameters]
    words = [word for value in arguments for word in (value if isinstance(value, tuple) else (value,))]
    last = next((word for word in reversed(words) if isinstance(word, str)), "")
    return AUDITED_COMMANDS.get(command_words(), ""), "" if last.startswith("ma_") else last


def _system_user() -> str:
    """Return who runs the command: the caller of `sudo`, before root becomes the owner of the files."""
    import pwd

    try:
        return os.environ.get("SUDO_USER") or pwd.getpwuid(os.getuid()).pw_name
    except KeyError:
        return str(os.getuid())


def _not_installed(settings: "Config") -> str:
    return (
        "there is no installation here: no ./config.toml, no /etc/appliance/config.toml, no database in "
        f"{settings.server.data_dir}; name the settings with --config FILE, go to the directory where "
        "`appliance serve` was started, or start one here with it"
    )


def run_for(name: str, work: "Callable[[Store, str], Awaitable[T]]", *, settings: "Config | None" = None) -> T:
    """Like `run`, for the account of that name, whose id `work` gets."""

    async def of_account(store: "Store") -> T:
        return await work(store, (await store.accounts.named(name)).id)

    return run(of_account, settings=settings)


async def installation_key(store: "Store", settings: "Config") -> bytes:
    """Return the key that seals the installation's secrets; create it if it does not exist."""
    from appliance.keys.installation_key import shared_key
    from appliance.keys.keyfile import load_or_create

    data_dir = settings.server.data_dir
    return await shared_key(data_dir, store) if settings.store.url else load_or_create(data_dir)


async def server_runs(store: "Store", settings: "Config") -> bool:
    """Whether a server, or any node of a cluster, runs on this database."""
    from appliance.system.data_directory import is_running

    if settings.store.url:
        return bool(await store.engine.hosts())
    return is_running(settings.server.data_dir)


def of_only_account(command: F) -> F:
    """Add the argument [NAME], which defaults to the only account, --config and --json."""

    @wraps(command)
    def called(name: str | None, **rest: Any) -> Any:
        return command(name=only_account(name), **rest)

    return cast(F, click.argument("name", type=PRINTABLE, required=False)(common(called)))


def of_only_account_and(what: str, read: Callable[[str], Any] = str) -> Callable[[F], F]:
    """Like `of_only_account`, with one more argument, which the command gets under its name in lower case.

    `read` converts the argument: a file, for example, which root can still read then.
    """

    def decorated(command: F) -> F:
        @wraps(command)
        def called(words: tuple[str, ...], **rest: Any) -> Any:
            name, last = name_and_last(words)
            value = read(last)
            return command(name=only_account(name), **{what.lower(): value}, **rest)

        return cast(F, words_argument(what)(common(called)))

    return decorated


def words_argument(what: str) -> Callable[[F], F]:
    """Add the arguments [NAME] and one more, as `words`."""
    return click.argument("words", type=PRINTABLE, nargs=-1, required=True, metavar=f"[NAME] {what}")


def name_and_last(words: tuple[str, ...]) -> tuple[str | None, str]:
    """Split the words of `words_argument`; the name is None if it was omitted."""
    if len(words) > 2:
        raise click.UsageError(f"Got unexpected extra argument ({words[2]})")
    return (words[0] if len(words) == 2 else None), words[-1]


def only_account(name: str | None = None) -> str:
    """Return `name`, or by default the name of the only account."""
    if name is not None:
        return name
    accounts = run(lambda store: store.accounts.page("", 2))
    if not accounts:
        raise click.ClickException("there is no account yet: `appliance account create` makes one")
    if len(accounts) > 1:
        raise click.ClickException("there are several accounts: name one of `appliance account list`")
    return accounts[0].name


def prepare(settings: "Config", *, make: bool = False) -> None:
    """Before a command opens the database: become its owner if root, check access, complete an interrupted restore."""
    from appliance.backup.unfinished import settle
    from appliance.system.data_directory import become_owner

    data_dir = settings.server.data_dir
    become_owner(data_dir)
    check_usable(data_dir, make=make)
    with explained(settings):
        settle(data_dir)


def check_usable(data_dir: Path, *, make: bool) -> None:
    """Refuse, in one line, a directory that this user cannot use, or cannot create if `make`."""
    from appliance.cli.data_directory import why_unusable

    try:
        reason = why_unusable(data_dir, make=make)
    except OSError as error:  # a directory above it that may not be searched
        reason = f"{error.filename}: {system_text(error)} (server.data_dir is {data_dir})"
    if reason is not None:
        raise click.ClickException(reason)
