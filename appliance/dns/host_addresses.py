"""Looks up the addresses of a host, of both families, in the order to try them."""

from itertools import chain, zip_longest

import trio

from appliance.dns.resolver import DnsFault, LookupFailed, Resolver
from appliance.net.address_policy import Address

OTHER_FAMILY_TIMEOUT = 1.0  # seconds for the second answer once the first is there: some servers never send it

_Family = tuple[tuple[Address, ...], bool]  # addresses, and whether they are authentic


async def host_addresses(resolver: Resolver, name: str) -> tuple[tuple[Address, ...], bool]:
    """The addresses of a host, IPv6 and IPv4 alternating, and whether all are authentic; one family is enough."""
    answers: dict[int, _Family] = {}
    failures: list[LookupFailed] = []

    async def ask(version: int) -> None:
        try:
            answer = await (resolver.ipv6(name) if version == 6 else resolver.ipv4(name))
            answers[version] = answer.records, answer.authentic
        except LookupFailed as failed:
            failures.append(failed)

    if resolver.remembers_addresses(name):  # two tasks would cost ten times as much
        await ask(6)
        await ask(4)
    else:
        async with trio.open_nursery() as nursery:

            async def ask_with_limit(version: int) -> None:
                await ask(version)
                if version in answers:
                    nursery.cancel_scope.deadline = trio.current_time() + OTHER_FAMILY_TIMEOUT

            for version in (6, 4):
                nursery.start_soon(ask_with_limit, version)
    if not answers:
        raise next((failed for failed in failures if failed.fault is DnsFault.TEMPORARY), failures[0])
    families = [answers[version][0] for version in (6, 4) if version in answers]
    alternating = (address for address in chain.from_iterable(zip_longest(*families)) if address is not None)
    return tuple(alternating), all(authentic for _, authentic in answers.values())
