"""In charge of putting ACME together: which parts there are, and what each is given."""

import trio
from cryptography.hazmat.primitives.asymmetric import ec

from appliance.acme.challenges import Questions
from appliance.acme.client import Client
from appliance.acme.files import Drawer
from appliance.acme.issuance import Conversation
from appliance.acme.renewal import Keeper
from appliance.config.reload import LiveSettings
from appliance.config.settings import Config
from appliance.dns.resolver import DnsResolver
from appliance.outside import Outside
from appliance.tls.certificate_files import acme_directory
from appliance.tls.trust import operators_context


async def serve(
    config: Config,
    outside: Outside,
    live: LiveSettings,
    *,
    task_status: trio.TaskStatus[list[str]] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Answer on port 80 and keep the certificate, for ever; where it is not wanted there is nothing to do."""
    if not config.acme.enabled:
        task_status.started([])
        return
    context = operators_context(config, "acme.ca_file", config.acme.ca_file)
    client = Client(DnsResolver(config.dns.resolvers), context, outside)
    base_url = config.http.base_url
    questions = Questions(base_url if base_url.startswith("https:") else "")

    async def issue(conversation: Conversation, key: ec.EllipticCurvePrivateKey) -> bytes:
        return await client.converse(conversation.certificate(key), questions.shown)

    keeper = Keeper(config.acme, Drawer(acme_directory(config)), issue, outside)
    live.join(lambda _: keeper.try_now)  # who reloads may just have opened port 80
    async with trio.open_nursery() as nursery:
        urls = await nursery.start(questions.serve, config.acme.bind)
        nursery.start_soon(keeper.run)
        task_status.started(urls)
