"""Operations: one declaration registers the method that answers, describes it, and has its caller authenticated."""

from typing import Any

import msgspec
import pytest
from quart import Response

from appliance.errors import Code, Refused
from appliance.model.mail import Role
from appliance.web.app import create_app
from appliance.web.operations import Operation, for_admins, for_customers, operations_of

EDGE = {"appliance": ("req_1", "127.0.0.1", None)}


class Users:
    """An authenticator whose requests all come from a user of one role, or from none."""

    def __init__(self, role: Role | None) -> None:
        self.role = role

    async def user(self, _authorization: object, _address: object) -> tuple[Any, None]:
        """The user, or a refusal."""
        if self.role is None:
            raise Refused(Code.UNAUTHORIZED, "no token")
        return type("LoggedIn", (), {"role": self.role})(), None


class Nothing(msgspec.Struct):
    """An empty answer."""


class Things:
    """Routes that answer with what they were called with."""

    @Operation("GET /open/{id}", (200, Nothing, ""))
    async def open(self, thing_id: str) -> Response:
        """For every client."""
        return Response(thing_id)

    @for_customers("GET /own/{id:rest}", (200, Nothing, ""))
    async def own(self, user: Any, thing_id: str) -> Response:
        """For users."""
        return Response(f"{user.role} {thing_id}")

    @for_admins("POST /all", (200, Nothing, ""))
    async def all(self, admin: Any) -> Response:
        """For administrators."""
        return Response(admin.role)


@pytest.mark.parametrize(
    ("role", "expected"),
    [
        (None, [(200, "a"), (401, ""), (401, "")]),
        (Role.CUSTOMER, [(200, "a"), (200, "customer a/b"), (403, "")]),
        (Role.ADMIN, [(200, "a"), (200, "admin a/b"), (200, "admin")]),
    ],
)
async def test_the_declaration_says_who_may(role: Role | None, expected: list[tuple[int, str]]) -> None:
    """A method for users is called with one who has the role, and not at all for anyone else."""
    users: Any = Users(role)
    client = create_app(users, [Things()]).test_client()
    answers = [
        await client.get("/open/a", scope_base=EDGE),
        await client.get("/own/a/b", scope_base=EDGE),
        await client.post("/all", scope_base=EDGE),
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
    }
