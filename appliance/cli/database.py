"""The database during one command: open it, do one thing, and turn every failure into one line.

A command for one account takes --account, which may be omitted if there is only one.
"""

import os
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

from appliance.cli.options import PRINTABLE, Command, common, listing, named_config, text_option, wide_option
from appliance.cli.output import system_text
from appliance.environment import Environment
from appliance.errors import PublicError
from appliance.system.data_directory import become_owner, is_running, read_note, system_user

if TYPE_CHECKING:
    from appliance.config.settings import Config
    from appliance.store import Store

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

COMPLETED = 100  # names that a shell offers
_SETTINGS = "appliance.settings"  # in ctx.meta, which a command shares with its groups


@contextmanager
def refusals() -> Iterator[None]:
    """Turn a PublicError or a ConfigError into one line and exit code 1."""
    from appliance.config.settings import ConfigError

    try:
        yield
    except (PublicError, ConfigError) as refusal:
        raise click.ClickException(refusal.text if isinstance(refusal, PublicError) else str(refusal)) from None


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


def load_settings() -> "Config":
    """Load the settings, once per command: if root runs it, before the process becomes another user."""
    from appliance.config.load import EMBEDDED_VARIABLES as VARIABLES
    from appliance.config.load import embedded, load
    from appliance.config.settings import Config

    meta = click.get_current_context().meta
    if not isinstance(meta.get(_SETTINGS), Config):
        with refusals():
            settings = load(named_config(), os.environ, Path.cwd())
            # A server that was started with --port or a variable noted its ports.
            note = read_note(settings.server.data_dir) if settings.embedded else {}
            ports = {name: str(port) for name, port in note.items() if name in VARIABLES}
            meta[_SETTINGS] = embedded(Path.cwd(), os.environ | ports) if ports else settings
    return cast("Config", meta[_SETTINGS])


def run(
    work: "Callable[[Store], Awaitable[T]]",
    *,
    settings: "Config | None" = None,
    or_nothing: "Callable[[], T] | None" = None,
    create: bool = False,
) -> T:
    """Return the result of `work` on the store.

    Only `create` makes a missing database; else the result is `or_nothing()`, so that a list in the wrong directory
    leaves no files behind. A database of an earlier version is upgraded, except by a command that only reads.
    """
    import trio

    from appliance.store import FILE_NAME, NoDatabase, open_store

    settings = settings or load_settings()
    context = click.get_current_context()
    command = context.command if isinstance(context.command, Command) else Command(None)
    user = os.environ.get("SUDO_USER") or system_user(os.getuid())  # before root becomes the owner of the files
    prepare(settings, make=create)

    async def opened() -> T:
        url, check_key = settings.store.url, None
        if url:
            from appliance.keys.installation_key import key_check  # slow to import

            check_key = key_check(settings.server.data_dir)
        async with open_store(
            settings.server.data_dir,
            Environment(),
            url=url,
            check_key=check_key,
            inline=True,
            may_upgrade=not command.reads,
        ) as store:
            if not command.action:
                return await work(store)
            from appliance.model.dashboard import Actor

            actor, target = Actor("operator", user), _target(context)
            async with store.audit.noting(actor, command.action, "cli", target=target, always=False):
                return await work(store)

    with explained(settings), refusals():
        if create or settings.store.url or os.path.lexists(settings.server.data_dir / FILE_NAME):
            with suppress(NoDatabase):
                return trio.run(opened)
        if settings.embedded:
            text = "there is no installation here: no ./config.toml, no /etc/appliance/config.toml, no database in "
            text += f"{settings.server.data_dir}; name the settings with --config FILE, go to the directory where "
            raise click.ClickException(f"{text}`appliance serve` was started, or start one here with it")
        if or_nothing is not None:
            return or_nothing()
        text = f"there is no database in {place(settings)} yet: `appliance account create` makes it"
        raise click.ClickException(text)


def place(settings: "Config") -> str:
    return "the PostgreSQL of store.url" if settings.store.url else str(settings.server.data_dir)


def _target(context: click.Context) -> str:
    """Return the object of the running command: its last argument, unless that is a secret."""
    parameters = [parameter for parameter in context.command.params if isinstance(parameter, click.Argument)]
    arguments = [context.params.get(parameter.name or "") for parameter in parameters]
    words = [word for value in arguments for word in (value if isinstance(value, tuple) else (value,))]
    last = next((word for word in reversed(words) if isinstance(word, str)), context.params.get("account") or "")
    return "" if last.startswith("ma_") else last


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
    if settings.store.url:
        return any(not node.ended for node in await store.engine.nodes())
    return is_running(settings.server.data_dir)


def completed(kind: str) -> dict[str, Any]:
    """Return the keywords of a parameter that a shell completes with names of the settings or of the database."""

    def names(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        listed, comma, last = incomplete.rpartition(",")
        try:
            with ctx:
                candidates = _names(kind, load_settings())
        except (Exception, SystemExit):  # an error would be printed into the line that the user is typing
            return []
        chosen = {name for name in candidates if name.startswith(last)}.difference(listed.split(","))
        return sorted(f"{listed}{comma}{name}" for name in chosen)[:COMPLETED]

    return {"shell_complete": names}


def _names(kind: str, settings: "Config") -> Iterable[str]:
    import trio

    from appliance.model.streams import configured_streams
    from appliance.store import FILE_NAME, open_store

    if kind == "stream":
        return configured_streams(settings.delivery.streams).by_name
    if kind == "source":
        return settings.delivery.sources
    data_dir, url = settings.server.data_dir, settings.store.url

    async def read() -> list[str]:
        async with open_store(data_dir, Environment(), url=url, inline=True, may_upgrade=False) as store:
            if kind == "pool":
                return await store.pools.names()
            if kind == "node":
                return [node.name for node in await store.engine.nodes()]
            accounts = await store.accounts.all()
            if kind == "domain":
                return [one.name for account in accounts for one in await store.access.domains(account.id)]
            if kind == "template":
                pages = [await store.templates.page(account.id, "", COMPLETED) for account in accounts]
                return [template.alias for page, _ in pages for template in page]
            if kind == "receiver":
                received = [await store.receiving.page(account.id, "", COMPLETED) for account in accounts]
                return [one.address for page in received for one in page]
            return [account.name for account in accounts]

    if not url and not os.path.lexists(data_dir / FILE_NAME):
        return []
    become_owner(data_dir)
    return trio.run(read)


# Where earlier versions took the name of the account; the help does not show it.
old_name_argument = click.argument("name", type=PRINTABLE, required=False, metavar="", **completed("account"))
account_option = text_option("--account", "NAME", "Account (default: the only one).", **completed("account"))


def account_argument(command: F) -> F:
    """Add the argument NAME, --config and --json."""
    return click.argument("name", type=PRINTABLE, **completed("account"))(common(command))


def of_only_account(command: F) -> F:
    """Add --account, which defaults to the only account, --config and --json. An argument also names the account."""

    @wraps(command)
    def called(name: str | None, account: str | None, **rest: Any) -> Any:
        return command(name=only_account(one_account(account, name)), **rest)

    return cast(F, old_name_argument(account_option(common(called))))


def list_of_only_account(command: F) -> F:
    """Like `of_only_account`, with --wide."""
    return wide_option(of_only_account(command))


def list_of_accounts(command: F) -> F:
    """Add --account, which defaults to all accounts, --wide, --config and --json."""

    @wraps(command)
    def called(name: str | None, account: str | None, **rest: Any) -> Any:
        return command(name=one_account(account, name), **rest)

    option = text_option("--account", "NAME", "Only of this account.", **completed("account"))
    return cast(F, old_name_argument(option(listing(called))))


def of_only_account_and(
    what: str, read: Callable[[str], Any] = str, names: Mapping[str, Any] | None = None
) -> Callable[[F], F]:
    """Like `of_only_account`, with one more argument, which the command gets under its name in lower case.

    `read` converts the argument: a file, for example, which root can still read then. `names` completes it.
    """

    def decorated(command: F) -> F:
        @wraps(command)
        def called(words: tuple[str, ...], account: str | None, **rest: Any) -> Any:
            name, last = name_and_last(words, account)
            value = read(last)
            return command(name=only_account(name), **{what.lower(): value}, **rest)

        return cast(F, words_argument(what, names)(common(called)))

    return decorated


def words_argument(what: str, names: Mapping[str, Any] | None = None) -> Callable[[F], F]:
    """Add --account and one argument, as `words`: before it, the account's name also works."""
    kind = {"DOMAIN": "domain", "ALIAS": "template"}.get(what)
    names = names or (completed(kind) if kind else {})
    words = click.argument("words", type=PRINTABLE, nargs=-1, required=True, metavar=what, **names)
    return lambda command: words(account_option(command))


def name_and_last(words: tuple[str, ...], account: str | None) -> tuple[str | None, str]:
    """Split the words of `words_argument`; the name is None if it was omitted."""
    if len(words) > 2:
        raise click.UsageError(f"Got unexpected extra argument ({words[2]})")
    return one_account(account, words[0] if len(words) == 2 else None), words[-1]


def one_account(option: str | None, argument: str | None) -> str | None:
    if option and argument:
        raise click.UsageError(f"Got unexpected extra argument ({argument}): --account names the account.")
    return option or argument


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

    data_dir = settings.server.data_dir
    become_owner(data_dir)
    check_usable(data_dir, make=make)
    with explained(settings):
        settle(data_dir)


def check_usable(data_dir: Path, *, make: bool) -> None:
    """Refuse, in one line, a directory that this user cannot use, or cannot create if `make`."""
    from appliance.cli.failures import why_unusable

    try:
        reason = why_unusable(data_dir, make=make)
    except OSError as error:  # a directory above it that may not be searched
        reason = f"{error.filename}: {system_text(error)} (server.data_dir is {data_dir})"
    if reason is not None:
        raise click.ClickException(reason)
