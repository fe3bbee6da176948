"""The commands of the program, run in this process: what the tests of the command line call."""

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import trio
from click.testing import CliRunner, Result

from appliance.cli import main
from appliance.environment import Environment
from appliance.model.accounts import User
from appliance.store import Store, open_store

ROOT = Path(__file__).parents[2]


class Shell:
    """The commands, run in this process on a configuration of their own."""

    def __init__(self, directory: Path) -> None:
        self.data_dir = directory / "data"
        self.config = directory / "settings.toml"
        self.config.write_text(f'[server]\ndata_dir = "{self.data_dir}"\n')

    def run(self, *words: str, stdin: str | bytes = "") -> Result:
        return CliRunner().invoke(main, [*words, "--config", str(self.config)], input=stdin)

    def text(self, *words: str, stdin: str | bytes = "") -> str:
        """The readable output of a command that must succeed."""
        result = self.run(*words, stdin=stdin)
        assert result.exit_code == 0, result.output
        assert result.stderr == ""
        return result.stdout

    def json(self, *words: str, stdin: str | bytes = "") -> Any:
        """The one JSON object of a command that must succeed."""
        output = self.text(*words, "--json", stdin=stdin)
        assert output.count("\n") == 1
        answer = json.loads(output)
        assert isinstance(answer, dict)
        return answer

    def refused(self, *words: str, stdin: str | bytes = "") -> str:
        """The one line of a command that must be refused."""
        result = self.run(*words, stdin=stdin)
        assert result.exit_code == 1, result.output
        assert result.stdout == ""
        assert result.stderr.startswith("Error: ")
        assert result.stderr.count("\n") == 1
        return result.stderr

    def misused(self, *words: str, stdin: str | bytes = "") -> str:
        """What a command says that must be called wrong usage."""
        result = self.run(*words, stdin=stdin)
        assert result.exit_code == 2, result.output
        assert result.stdout == ""
        return result.stderr

    def create(self, name: str, *options: str, password: str | bytes = "a long password\n") -> Any:
        return self.json(*self.creating(name, f"{name}@example.org"), *options, stdin=password)

    def creating(self, name: str = "acme", email: str = "a@example.org") -> tuple[str, ...]:
        return ("account", "create", name, "--email", email, "--password-stdin")

    def stored(self, read: Callable[[Store], Awaitable[Any]]) -> Any:
        async def opened() -> Any:
            async with open_store(self.data_dir, Environment(), inline=True) as store:
                return await read(store)

        return trio.run(opened)


def user_of(shell: Shell, name: str) -> User:
    user = shell.stored(lambda store: store.accounts.user_by_email(f"{name}@example.org"))
    assert isinstance(user, User)
    return user


def fields(answer: Any) -> Any:
    if not isinstance(answer, dict):
        return None
    return {key: fields(value[0]) if value and isinstance(value, list) else None for key, value in answer.items()}
