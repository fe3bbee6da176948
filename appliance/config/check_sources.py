"""Checks that the outgoing addresses of the settings fit together: their families, each once, and known to streams."""

from appliance.config.settings import Config, ConfigError
from appliance.config.values import Address, place_of


def check_sources(config: Config, file: str) -> None:
    sources, owners = config.delivery.sources, dict[Address, str]()
    for name, source in sources.items():
        place = place_of("delivery.sources", name)
        if source.ipv4 is None and source.ipv6 is None:
            raise ConfigError(file, f"{place}.ipv4", "missing: a source needs ipv4, ipv6 or both")
        for version, key, address in ((4, "ipv4", source.ipv4), (6, "ipv6", source.ipv6)):
            if address is None:
                continue
            if address.version != version:
                raise ConfigError(file, f"{place}.{key}", f"{address} is an IPv{address.version} address")
            if address.is_unspecified or address.is_multicast:
                raise ConfigError(file, f"{place}.{key}", f"{address} is no address that mail can leave from")
            if (owner := owners.setdefault(address, name)) != name:
                raise ConfigError(file, f"{place}.{key}", f"{address} belongs to the source {owner} already")
    for name, stream in config.delivery.streams.items():
        for number, source_name in enumerate(stream.sources):
            place = f"{place_of('delivery.streams', name)}.sources"
            if source_name not in sources:
                known = f"expected {' or '.join(sources)}" if sources else "define it as [delivery.sources.NAME]"
                raise ConfigError(file, place, f"there is no source {source_name}; {known}")
            if source_name in stream.sources[:number]:
                raise ConfigError(file, place, f"names {source_name} twice")
