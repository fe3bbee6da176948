"""In charge of what both ways in, HTTP and SMTP, share: one front door, one count of guesses, one rate a credential."""

from dataclasses import dataclass, field

from appliance.config.load import Config
from appliance.config.settings import DeliveryMode, LimitSettings
from appliance.intake.accept import Deliveries, FrontDoor
from appliance.intake.credentials import Credentials
from appliance.intake.login_throttle import Guesses
from appliance.intake.quota import Quota
from appliance.intake.rate_limit import RequestRate
from appliance.net.connection_limits import KnownNetworks
from appliance.outside import Outside
from appliance.store import Store
from appliance.system.free_space import FreeSpace


@dataclass(frozen=True, slots=True)
class Entrance:
    """Whoever comes in by either way meets these, and finds there what he did at the other."""

    door: FrontDoor
    credentials: Credentials
    guesses: Guesses
    rate: RequestRate
    known: KnownNetworks = field(default_factory=KnownNetworks)

    def adopt(self, limits: LimitSettings) -> None:
        """Work by these limits from now on."""
        self.rate.per_second = limits.requests_per_second
        self.door.free_space.min_bytes = limits.min_free_disk
        self.door.free_space.min_percent = limits.min_free_disk_percent
        self.door.quota.adopt(limits.stored_bytes_per_account)


def build(config: Config, outside: Outside, store: Store, deliveries: Deliveries) -> Entrance:
    """The parts, by the settings."""
    limits = config.limits
    free_space = FreeSpace(config.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, outside)
    guesses, quota = Guesses(outside), Quota(limits.stored_bytes_per_account, free_space)
    sandbox = config.delivery.mode is DeliveryMode.SANDBOX
    door = FrontDoor(
        store,
        outside,
        deliveries,
        free_space,
        sandbox=sandbox,
        hostname=config.server.hostname,
        quota=quota,
        text_from_html=config.http.text_from_html,
    )
    return Entrance(
        door,
        Credentials(store, outside, guesses),
        guesses,
        RequestRate(limits.requests_per_second, outside),
    )
