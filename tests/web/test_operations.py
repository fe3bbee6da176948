"""Operations: one declaration registers the method that answers, describes it, and has its caller authenticated."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from quart import Response

from appliance.errors import Code, Refused, StorageUnavailable
from appliance.model.accounts import AccountRole, Permission, Role, User
from appliance.web import pages
from appliance.web.app import check_permission, create_app, refused_to, route_classes
from appliance.web.operations import HOLDERS, Operation, for_admins, for_customers, for_people, operations_of

EDGE = {"appliance": ("req_1", "127.0.0.1", None)}


@dataclass(frozen=True)
class Program:
    """A principal who is no person, with these permissions."""

    permissions: frozenset[Permission]
    id: str = "key_1"
    account_id: str = "acc_1"
    role: str = "program"


class Requests:
    """An authenticator whose requests all come from one principal, or from none."""

    def __init__(self, principal: Any) -> None:
        self._principal = principal

    async def principal(self, _authorization: object, _address: object) -> Any:
        if self._principal is None:
            raise Refused(Code.UNAUTHORIZED, "no token")
        return self._principal


def person(role: Role) -> User:
    return User("usr_1", "acc_1", "acme", "owner@example.com", role, "", 0)


class Nothing(msgspec.Struct):
    """An empty answer."""


class Things:
    """Routes that answer with what they were called with."""

    @Operation("GET /open/{id}", (200, Nothing, ""))
    async def open(self, thing_id: str) -> Response:
        return Response(thing_id)

    @for_customers("GET /own/{id:rest}", (200, Nothing, ""))
    async def own(self, user: Any, thing_id: str) -> Response:
        return Response(f"{user.role} {thing_id}")

    @for_admins("POST /all", (200, Nothing, ""))
    async def all(self, admin: Any) -> Response:
        return Response(admin.role)

    @for_people("GET /self", (200, Nothing, ""))
    async def self_(self, user: Any) -> Response:
        return Response(user.role)


@pytest.mark.parametrize(
    ("principal", "expected"),
    [
        (None, [(200, "a"), (401, ""), (401, ""), (401, "")]),
        (person(Role.CUSTOMER), [(200, "a"), (200, "customer a/b"), (403, ""), (200, "customer")]),
        (person(Role.ADMIN), [(200, "a"), (200, "admin a/b"), (200, "admin"), (200, "admin")]),
        (Program(frozenset({Permission.VIEW})), [(200, "a"), (200, "program a/b"), (403, ""), (403, "")]),
        (Program(frozenset(Permission)), [(200, "a"), (200, "program a/b"), (403, ""), (403, "")]),
        (Program(frozenset()), [(200, "a"), (403, ""), (403, ""), (403, "")]),
    ],
)
async def test_the_declaration_says_who_may(principal: Any, expected: list[tuple[int, str]]) -> None:
    requests: Any = Requests(principal)
    client = create_app(requests, [Things()]).test_client()
    answers = [
        await client.get("/open/a", scope_base=EDGE),
        await client.get("/own/a/b", scope_base=EDGE),
        await client.post("/all", scope_base=EDGE),
        await client.get("/self", scope_base=EDGE),
    ]
    for answer, (status, text) in zip(answers, expected, strict=True):
        assert answer.status_code == status
        if status == 200:
            assert await answer.get_data(as_text=True) == text


def test_a_path_is_written_once() -> None:
    """The path of OpenAPI and the rule of the router come from the same text; a converter is only in the rule."""
    found = {name: (each.method, each.path, each.rule) for name, each in operations_of(Things)}
    assert found == {
        "open": ("GET", "/open/{id}", "/open/<default:id>"),
        "own": ("GET", "/own/{id}", "/own/<rest:id>"),
        "all": ("POST", "/all", "/all"),
        "self_": ("GET", "/self", "/self"),
    }


# ---- all operations of the API

EVERY = [(routes, name, operation) for routes in route_classes() for name, operation in operations_of(routes)]
UNDER_LOGIN = [each for each in EVERY if each[2].permission is not None]


def test_operations_that_need_no_permission_are_few() -> None:
    assert {operation.name for *_, operation in EVERY if operation.permission is None} == {
        "POST /v1/auth/login",
        "POST /v1/auth/refresh",
        "POST /v1/auth/invitation",
        "POST /v1/auth/forgotten-password",
        "GET /healthz",
        "GET /readyz",
    }


@pytest.mark.parametrize(("routes", "name", "operation"), UNDER_LOGIN, ids=lambda each: getattr(each, "name", ""))
async def test_every_operation_refuses_a_principal_without_its_permission(
    routes: type, name: str, operation: Operation
) -> None:
    """With every permission but its own it is 403, in words that say who may, and its method is not called."""
    assert operation.permission is not None
    lacking: Any = Requests(Program(frozenset(Permission) - {operation.permission}))
    answer = await called(lacking, routes, operation)
    assert answer["code"] == "forbidden"
    assert answer["error"] == f"{HOLDERS[operation.permission]} may do this."


@pytest.mark.parametrize(
    ("routes", "name", "operation"),
    [each for each in UNDER_LOGIN if "/auth/" in each[2].name or "/admin/" in each[2].name or "/totp" in each[2].name],
    ids=lambda each: getattr(each, "name", ""),
)
async def test_what_is_about_a_person_or_all_accounts_is_refused_to_programs(
    routes: type, name: str, operation: Operation
) -> None:
    """An API key ends no session, changes no password and administers nothing, whatever permissions it has."""
    program: Any = Requests(Program(frozenset(Permission)))
    assert (await called(program, routes, operation))["code"] == "forbidden"


@pytest.mark.parametrize(("routes", "name", "operation"), UNDER_LOGIN, ids=lambda each: getattr(each, "name", ""))
async def test_a_role_has_its_permissions(routes: type, name: str, operation: Operation) -> None:
    """An owner is refused nothing but administration, a developer people too, a viewer all that changes anything."""
    refused = {
        Permission.VIEW: (),
        Permission.DEVELOP: (AccountRole.VIEWER,),
        Permission.OWN: (AccountRole.VIEWER, AccountRole.DEVELOPER),
        Permission.ADMINISTER: tuple(AccountRole),
    }
    assert operation.permission is not None
    for role in refused[operation.permission]:
        user: Any = Requests(replace(person(Role.CUSTOMER), account_role=role))
        assert (await called(user, routes, operation))["code"] == "forbidden"
    for role in AccountRole:
        if role not in refused[operation.permission]:
            check_permission(operation, replace(person(Role.CUSTOMER), account_role=role))
        if operation.permission is Permission.ADMINISTER:  # an administrator is one in any role
            check_permission(operation, replace(person(Role.ADMIN), account_role=role))


def test_a_user_is_told_what_is_refused() -> None:
    """By the ids of operations, exactly those that would be: an administrator who owns an account has none."""
    every = [operation for *_, operation in EVERY]

    def needing(*permissions: Permission) -> set[str]:
        return {each.id for each in every if each.permission in permissions}

    viewer = replace(person(Role.CUSTOMER), account_role=AccountRole.VIEWER)
    assert set(refused_to(every, viewer)) == needing(Permission.DEVELOP, Permission.OWN, Permission.ADMINISTER)
    assert set(refused_to(every, person(Role.CUSTOMER))) == needing(Permission.ADMINISTER)
    assert refused_to(every, person(Role.ADMIN)) == []


def test_pages_ask_for_operations_that_exist() -> None:
    scripts = Path(pages.__file__).with_name("static").rglob("*.js")
    named = {name for each in scripts for name in re.findall(r'(?:needs: |may\()"(\w+)"', each.read_text())}
    every = {operation.id: operation.permission for *_, operation in EVERY}
    assert len(named) > 20
    assert {name for name in named if every.get(name) in (None, Permission.VIEW)} == set()


@pytest.mark.parametrize(("routes", "name", "operation"), UNDER_LOGIN, ids=lambda each: getattr(each, "name", ""))
async def test_a_user_who_must_enrol_can_do_little_else(routes: type, name: str, operation: Operation) -> None:
    user = replace(person(Role.ADMIN), must_enrol=True)
    if operation.path.startswith(("/v1/auth/", "/v1/account/totp", "/v1/account/notifications")):
        check_permission(operation, user)
    else:
        requests: Any = Requests(user)
        assert (await called(requests, routes, operation))["code"] == "forbidden"


async def called(requests: Any, routes: type, operation: Operation) -> dict[str, Any]:
    """The answer to the operation, by routes that would fail if they were called."""
    client = create_app(requests, [object.__new__(routes)]).test_client()
    path = re.sub(r"{\w+}", "a", operation.path)
    send = getattr(client, operation.method.lower())
    answer = await send(path, scope_base=EDGE)
    found: dict[str, Any] = await answer.get_json()
    return found


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error

    @Operation("GET /failing", (200, Nothing, ""))
    async def fail(self) -> Response:
        raise self.error


@pytest.mark.parametrize(
    ("error", "status", "code", "lines"),
    [
        (StorageUnavailable("The storage is busy."), 503, "temporary_failure", []),
        (Refused(Code.CONFLICT, "The name is taken."), 409, "conflict", []),
        (RuntimeError("a bug"), 500, "internal_error", ["request failed"]),
    ],
)
async def test_only_a_bug_writes_a_line_to_the_log(
    caplog: pytest.LogCaptureFixture, error: Exception, status: int, code: str, lines: list[str]
) -> None:
    """A storage outage is a 503 that the client may retry. A line per request would fill the log during the outage."""
    anonymous: Any = Requests(None)
    answer = await create_app(anonymous, [Failing(error)]).test_client().get("/failing", scope_base=EDGE)
    assert (answer.status_code, (await answer.get_json())["code"]) == (status, code)
    assert ("Retry-After" in answer.headers) == (status == 503)
    assert [record.message for record in caplog.records] == lines
