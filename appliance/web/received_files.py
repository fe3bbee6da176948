"""Serves the links to received messages and their files, `/inbound/TOKEN`, without a login."""

from functools import partial
from typing import Final

from quart import Blueprint, Response

from appliance.errors import Code, Refused
from appliance.intake.limits import RequestRate
from appliance.keys.received_links import RAW, RECEIVED_PATH
from appliance.net.address_policy import client_network
from appliance.web.api.message_body import OCTETS, RAW_MESSAGE, encoded_attachment
from appliance.web.app import ApiServices, client_address

FILES_PER_SECOND: Final = 50  # per client network


def blueprint(services: ApiServices) -> Blueprint:
    routes = Blueprint("received_files", __name__)
    store, env = services.store, services.env
    refusal = "Too many requests from your network. Retry in a few seconds."
    rate = RequestRate(FILES_PER_SECOND, env, refusal=refusal, nodes=store.engine.live_nodes)

    @routes.get(f"{RECEIVED_PATH}/<token>")
    async def received_file(token: str) -> Response:
        rate.take(client_network(client_address()))
        linked = services.received_links.read(token, env.now())
        if linked is None:
            raise Refused(Code.NOT_FOUND, "This link is not valid, or has expired. Links are valid for an hour.")
        message = await store.received.find(linked.account_id, linked.message_id)
        if message is None:
            raise Refused(Code.NOT_FOUND, "This message is no longer stored.")
        load = partial(store.received.mime, linked.account_id, linked.message_id)
        whose = linked.account_id, linked.message_id, message.size
        if linked.number == RAW:
            return await services.bodies.answer(*whose, bytes, RAW_MESSAGE, f"{linked.message_id}.eml", load=load)
        # Always a download: a stranger chose its type and name.
        read, name = partial(encoded_attachment, linked.number - 1), f"{linked.message_id}-{linked.number}"
        return await services.bodies.answer(*whose, read, OCTETS, name, load=load)

    return routes
