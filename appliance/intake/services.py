"""State that HTTP and SMTP share, built from the settings: throttles, rates and limits count across both."""

from dataclasses import dataclass, field

from appliance.config.settings import Config, DeliveryMode, LimitSettings
from appliance.intake.accept import MessageIntake
from appliance.intake.credentials import Credentials
from appliance.intake.limits import Quota, RequestRate
from appliance.intake.login_throttle import LoginThrottle
from appliance.net.connection_limits import KnownNetworks
from appliance.outside import Outside
from appliance.store import Store
from appliance.system.disk import FreeSpace


@dataclass(frozen=True, slots=True)
class IntakeServices:
    intake: MessageIntake
    credentials: Credentials
    guesses: LoginThrottle
    rate: RequestRate
    known: KnownNetworks = field(default_factory=KnownNetworks)

    def adopt(self, limits: LimitSettings) -> None:
        """Work by these limits from now on."""
        self.rate.per_second = limits.requests_per_second
        self.intake.free_space.min_bytes = limits.min_free_disk
        self.intake.free_space.min_percent = limits.min_free_disk_percent
        self.intake.quota.adopt(limits.stored_bytes_per_account)


def build(config: Config, outside: Outside, store: Store) -> IntakeServices:
    limits = config.limits
    free_space = FreeSpace(config.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, outside)
    guesses = LoginThrottle(outside)
    intake = MessageIntake(
        store,
        outside,
        free_space,
        sandbox=config.delivery.mode is DeliveryMode.SANDBOX,
        hostname=config.server.hostname,
        quota=Quota(limits.stored_bytes_per_account, free_space),
        text_from_html=config.http.text_from_html,
    )
    rate = RequestRate(limits.requests_per_second, outside)
    return IntakeServices(intake, Credentials(store, outside, guesses), guesses, rate)
