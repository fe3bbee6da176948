"""The services of intake that HTTP and SMTP share, so that limits apply across both."""

from msgspec import Struct, field

from appliance.config.settings import Config, DeliveryMode, LimitSettings
from appliance.environment import Environment
from appliance.feedback.return_path import ReturnPaths, UnsubscribeLinks
from appliance.intake.accept import MessageIntake
from appliance.intake.limits import READS_PER_WRITE, READS_REFUSED, Credentials, FreeSpace, Quota, RequestRate
from appliance.intake.login_throttle import LoginThrottle
from appliance.intake.request_log import RequestLog
from appliance.model.streams import configured_streams
from appliance.net.connection_server import KnownNetworks
from appliance.store import Store


class IntakeServices(Struct, frozen=True):
    intake: MessageIntake
    credentials: Credentials
    guesses: LoginThrottle
    rate: RequestRate
    read_rate: RequestRate  # of GET under /v1
    requests: RequestLog
    known: KnownNetworks = field(default_factory=KnownNetworks)

    def adopt(self, limits: LimitSettings) -> None:
        self.rate.per_second = limits.requests_per_second
        self.read_rate.per_second = READS_PER_WRITE * limits.requests_per_second
        self.intake.free_space.min_bytes = limits.min_free_disk
        self.intake.free_space.min_percent = limits.min_free_disk_percent
        self.intake.quota.adopt(limits.stored_bytes_per_account)


def build_services(config: Config, env: Environment, store: Store, key: bytes) -> IntakeServices:
    limits, guesses = config.limits, LoginThrottle(env)
    free_space = FreeSpace(config.server.data_dir, limits.min_free_disk, limits.min_free_disk_percent, env)
    intake = MessageIntake(
        store,
        env,
        free_space,
        Quota(limits.stored_bytes_per_account, free_space),
        sandbox=config.delivery.mode is DeliveryMode.SANDBOX,
        hostname=config.server.hostname,
        text_from_html=config.http.text_from_html,
        links=UnsubscribeLinks(key, config.http.base_url),
        return_paths=ReturnPaths(key) if config.inbound.bind else None,
        streams=configured_streams(config.delivery.streams),
    )
    nodes, reads = store.engine.live_nodes, READS_PER_WRITE * limits.requests_per_second
    rate = RequestRate(limits.requests_per_second, env, nodes=nodes)
    read_rate = RequestRate(reads, env, refusal=READS_REFUSED, nodes=nodes)
    services = Credentials(store, env, guesses), guesses, rate, read_rate, RequestLog(store, env, free_space)
    return IntakeServices(intake, *services)
