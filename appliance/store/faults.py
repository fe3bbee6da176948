"""Storage faults of both engines: some end the process, others become a 503."""

from collections.abc import Callable

from appliance.errors import StorageUnavailable


class StorageFault(Exception):
    """The state on disk is unknown, so the process must end."""


class CommitUnknown(StorageFault):
    """A commit failed on disk. The rows may or may not be there, so the process must end."""


class NewerDatabase(Exception):
    """The database was written by a later version of the appliance; opening it would lose what we do not know of."""

    def __init__(self, schema: int, newest: int) -> None:
        super().__init__(
            f"the database is at schema {schema}, this version knows only {newest}: run the newer appliance"
        )


class OlderDatabase(Exception):
    """The database is of an earlier version, and was opened by a command that must not change it."""

    def __init__(self, schema: int, newest: int) -> None:
        super().__init__(
            f"the database is of an earlier version (schema {schema}, and this version needs {newest}): "
            "start the service, or run `appliance upgrade`"
        )


class NoDatabase(Exception):
    """The database is empty, and the command that opened it must not create tables."""


class DatabaseRefused(Exception):
    """The database server cannot be used, and nothing was written; the text says why and what to do."""


UNFINISHED_COPY = "unfinished_copy"  # a table that is there while a copy into the database is unfinished


class UnfinishedCopy(Exception):
    """A copy into this database is incomplete; only the copy may continue."""

    def __init__(self) -> None:
        super().__init__(
            "`appliance store copy` into it has not been finished: run that again, with the settings of the old "
            "database, or continue with the old database"
        )


OnFault = Callable[[StorageFault], None]


def busy() -> StorageUnavailable:
    text = "The storage cannot take writes right now. Retry with the same key."
    return StorageUnavailable(text)
