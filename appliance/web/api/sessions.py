"""In charge of showing a user where they are logged in, and of ending that: /v1/auth/sessions."""

import msgspec
from quart import Blueprint, Response

from appliance.errors import Code, Refused
from appliance.model.dashboard import LoginSession
from appliance.times import rfc3339
from appliance.web.answer import Time
from appliance.web.app import Services, answer, request_id
from appliance.web.operations import for_customers, identifier


class SessionObject(msgspec.Struct):
    """One login that goes on."""

    id: str
    current: bool
    address: str
    user_agent: str
    created_at: Time
    renewed_at: Time
    expires_at: Time


class SessionsAnswer(msgspec.Struct):
    """All sessions of the user, the one renewed last first; `next` is always null, for there are at most 100."""

    sessions: list[SessionObject]
    next: str | None
    request_id: str


class EndedAnswer(msgspec.Struct):
    """How many sessions were ended."""

    ended: int
    request_id: str


def blueprint(services: Services) -> Blueprint:
    """The routes."""
    routes = Blueprint("sessions", __name__)
    sessions = services.store.sessions

    @routes.get("/v1/auth/sessions")
    async def show() -> Response:
        user, claims = await services.user()
        shown = [_object(each, each.id == claims.session_id) for each in sessions.of(user.id)]
        return answer(SessionsAnswer(shown, None, request_id()))

    @routes.delete("/v1/auth/sessions")
    async def end_all() -> Response:
        user = await services.customer()
        ended = await sessions.end_all(user.id)
        services.auth.forget()
        return answer(EndedAnswer(ended, request_id()))

    @routes.delete("/v1/auth/sessions/<session_id>")
    async def end(session_id: str) -> Response:
        user = await services.customer()
        if not await sessions.end(session_id, user.id):
            raise Refused(Code.NOT_FOUND, "There is no such session.")
        services.auth.forget()
        return answer(EndedAnswer(1, request_id()))

    return routes


def _object(session: LoginSession, current: bool) -> SessionObject:
    times = (session.created_at, session.renewed_at, session.expires_at)
    return SessionObject(session.id, current, session.address, session.user_agent, *map(rfc3339, times))


OPERATIONS = (
    for_customers(
        "get",
        "/v1/auth/sessions",
        "List where the user is logged in.",
        (200, SessionsAnswer, "The sessions."),
    ),
    for_customers(
        "delete",
        "/v1/auth/sessions",
        "Log out everywhere, here too.",
        (200, EndedAnswer, "Ended."),
    ),
    for_customers(
        "delete",
        "/v1/auth/sessions/{id}",
        "End one session.",
        (200, EndedAnswer, "Ended."),
        Code.NOT_FOUND,
        parameters=(identifier("The session's id.", "^ses_[0-9a-f]{32}$"),),
    ),
)
