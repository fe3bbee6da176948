"""The account's suppressions as the lists of other providers: bounces, complaints, unsubscribes."""

from appliance.errors import Code, Refused
from appliance.message.addresses import parse
from appliance.model.mail import SuppressionOrigin
from appliance.web.doors.frame import Api, Json

_READ = 100  # suppressions in one request to our API
_READS = 50  # requests for one page
_OTHERS = (SuppressionOrigin.COMPLAINT, SuppressionOrigin.UNSUBSCRIBE)


def is_in(entry: Json, origin: SuppressionOrigin) -> bool:
    """Whether an entry is in the list of this origin; that of bounces has all that are in no other one."""
    return bool(entry["origin"] == origin or (origin is SuppressionOrigin.BOUNCE and entry["origin"] not in _OTHERS))


def key_of(address: str) -> str:
    try:
        return parse(address, "address").key
    except Refused as refused:
        raise not_listed() from refused


def not_listed() -> Refused:
    return Refused(Code.NOT_FOUND, "This address is not in the list.")


async def suppression_of(api: Api, address: str, origin: SuppressionOrigin) -> Json | None:
    key = key_of(address)
    before = f"{key[:-1]}{chr(ord(key[-1]) - 1)}\U0010fffd"  # sorts directly before the address
    page = await api("GET", "/v1/suppressions", limit=1, after=before)
    entries = [one for one in page["suppressions"] if one["address"] == key and is_in(one, origin)]
    return entries[0] if entries else None


async def suppressions_after(
    api: Api, origin: SuppressionOrigin, after: str | None, most: int
) -> tuple[list[Json], str | None]:
    """Entries of a list by address, and where to continue."""
    entries = list[Json]()
    only = None if origin is SuppressionOrigin.BOUNCE else origin.value
    for _ in range(_READS):
        page = await api("GET", "/v1/suppressions", limit=min(_READ, most - len(entries)), after=after, origin=only)
        entries += [one for one in page["suppressions"] if is_in(one, origin)]
        if (after := page["next"]) is None or len(entries) == most:
            break
    return entries, after


async def remove_suppression(api: Api, address: str, origin: SuppressionOrigin) -> None:
    if await suppression_of(api, address, origin) is None:
        raise not_listed()
    await api("DELETE", f"/v1/suppressions/{key_of(address)}")
