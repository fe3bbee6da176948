"""Every statement over a table whose rows belong to nodes has the condition on the owner, or a reason to go without."""

import ast
import importlib
import pkgutil
import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import appliance.store
from appliance.store.engine import HAS_ANY_OWNER, IS_OWNED, OWNED_TABLES, Bulk, any_owner, owned
from appliance.store.postgresql.connection import statement

READ = re.compile(rf"\b(?:FROM|JOIN) (?:{'|'.join(OWNED_TABLES)})\b")
WRITTEN = re.compile(rf"\bUPDATE (?:{'|'.join(OWNED_TABLES)})\b|DELETE FROM (?:pool_states|smtp_sessions)")
CONDITION = re.compile(rf"\b(?:{IS_OWNED}|{HAS_ANY_OWNER})\(")

# Statements that choose rows of any owner, by the reason.
EXCEPTIONS = {
    "shows mail or posts to a person, of all nodes": {
        "mail_log._IS_WAITING",
        "mail_log._LISTED",
        "mail_log._PROBLEMS",
        "mail_log._WITH_OUTCOME",
        "message_records._EXPORTED",
        "message_records._RECIPIENTS",
        "message_records._TEXTS",
        "message_records._WAYS",
        "message_records._WAYS_BY_NODE",
        "pools._IS_WAITING",
        "queue_control._SIMULATED",
        "queue_control._SUMMARY",
        "queue_control._TOTALS",
        "queue_control._WAITING",
        "postgresql.nodes._NODES",
        "webhook_history._ONE",
        "webhook_history._PAGE",
        "webhook_history._POSTS_OF_ACCOUNT",
    },
    "the operator's retry makes recipients due on their own nodes": {
        "queue_control._LANES",
        "queue_control._MAKE_DUE",
        "queue_control._MAKE_MESSAGE_DUE",
    },
    "scheduled recipients are of no node until one queues them": {
        "scheduled._QUEUE",
        "scheduled._QUEUED",
        "scheduled._QUEUE_HERE",
    },
    "finds the nodes that have to cancel a message": {
        "postgresql.engine._DELIVERING",
        "postgresql.connection._OWNERS",
        "postgresql.connection._WORDS",
        "queue_control._WAITING_FROM",
    },
    "what a server or a receiver replied is recorded even if the row has a new owner; the attempt count guards it": {
        "queue._UPDATE_RECIPIENTS",
        "webhooks._RECORD",
    },
    "retention deletes final rows of all nodes, and rows of nodes that have ended": {
        "pools._FORGET_LEFT",
        "received._DELETE_POSTS",
        "received._OLD",
        "retention._ANY",
        "retention._DELETED",
        "retention._DELETE_ATTEMPTS",
        "retention._DELETE_OLD",
        "retention._DELETE_RECIPIENTS",
        "retention._LOGS_OF_DELETED",
    },
}


def modules() -> Iterator[ModuleType]:
    for found in pkgutil.walk_packages(appliance.store.__path__, "appliance.store."):
        yield importlib.import_module(found.name)


def texts(value: object) -> list[str]:
    if isinstance(value, Bulk):
        return [value.before + value.row + value.after]
    if isinstance(value, tuple | list):
        return [text for part in value for text in texts(part)]
    return [value] if isinstance(value, str) else []


def statements() -> dict[str, str]:
    """All module constants that are SQL over the owned tables, by module and name.

    A statement that does not look at `next_attempt_at` cannot choose rows that wait, so it is left out.
    """
    found: dict[str, str] = {}
    for module in modules():
        for name, value in vars(module).items():
            text = " ".join(texts(value)) if not name.startswith("__") else ""
            if references(text) and ("next_attempt_at" in text or "DELETE" in text):
                found[f"{module.__name__.removeprefix('appliance.store.')}.{name}"] = text
    return found


def references(text: str) -> int:
    return len(READ.findall(text)) or bool(WRITTEN.search(text))


def test_every_statement_over_owned_rows_names_the_owner_or_has_a_reason_not_to() -> None:
    lacking = {name for name, text in statements().items() if references(text) > len(CONDITION.findall(text))}
    assert lacking == set[str]().union(*EXCEPTIONS.values())


def test_the_queries_for_work_are_among_the_inspected_statements() -> None:
    assert {"queue._DUE", "queue_control._LANE", "queue_control._STILL_WAITING", "webhooks._DUE"} <= statements().keys()


def test_statements_over_owned_rows_are_module_constants() -> None:
    """Text inside a function would escape the inspection."""
    inside = []
    for module in modules():
        assert module.__file__ is not None
        tree = ast.parse(Path(module.__file__).read_text())
        for function in (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)):
            strings = (node.value for node in ast.walk(function) if isinstance(node, ast.Constant))
            texts_inside = [text for text in strings if isinstance(text, str)]
            inside += [text for text in texts_inside if READ.search(text) or WRITTEN.search(text)]
    assert inside == []


@pytest.mark.parametrize(("condition", "column"), [(owned("r"), "r.owner ="), (any_owner("r"), "r.owner = ANY")])
def test_postgresql_compares_the_owner(condition: str, column: str) -> None:
    text = statement(f"SELECT 1 FROM recipients r WHERE {condition}")
    assert column in text
    assert not CONDITION.search(text)
