"""Which tests each mode of packaging/test runs.

`--fast` runs the short unit tests: no started program, browser or PostgreSQL. The default run adds tests of the whole
program. The rest, which only `--all` and `--rest` run, needs minutes or programs of others: browsers, mail servers,
database crashes, built packages. A test marked `slow` belongs to the rest, and so does the PostgreSQL half of an
end-to-end test marked `both_engines`, and of the store's tests outside BOTH_ENGINES.
"""

from enum import Enum
from functools import cache
from pathlib import PurePosixPath


class Level(Enum):
    """The part of the suite that one run covers."""

    FAST = "fast"
    DEFAULT = "default"
    REST = "rest"


# Files and folders outside the unit tests: they start the program, another one, or PostgreSQL.
PROGRAM = (
    "tests/e2e",
    "tests/cli",
    "tests/clients",
    "tests/docs",
    "tests/doctor/test_database_server.py",
    "tests/keys/test_installation_key.py",
    "tests/packaging",
    "tests/store/postgresql",
    "tests/store/test_copying.py",
    "tests/system/test_ownership.py",
    "tests/system/test_unit.py",
    "tests/test_main.py",
    "tests/test_programs.py",
    "tests/test_retention.py",
    "tests/torture",
)
# Unit tests that take seconds: thousands of generated inputs, hours of simulated time, every file of the tree.
LONG = (
    "clients/python/tests",
    "tests/acme/test_shared.py",
    "tests/backup/test_archive.py",
    "tests/backup/test_restore.py",
    "tests/deliver/test_domain_watch.py",
    "tests/deliver/test_greylisting.py",
    "tests/deliver/test_in_flight.py",
    "tests/deliver/test_new_mail.py",
    "tests/deliver/test_pending_due_mail.py",
    "tests/deliver/test_pool_limiters.py",
    "tests/deliver/test_scheduler.py",
    "tests/deliver/test_scheduler_sessions.py",
    "tests/deliver/test_sources.py",
    "tests/deliver/test_streams.py",
    "tests/deliver/test_warmup.py",
    "tests/doctor/test_each_fault_is_found_and_nothing_else.py",
    "tests/doctor/test_examination.py",
    "tests/feedback/test_hostile.py",
    "tests/intake/test_login_throttle.py",
    "tests/message/test_checks.py",
    "tests/message/test_compose.py",
    "tests/message/test_dkim.py",
    "tests/message/test_reader.py",
    "tests/message/test_request.py",
    "tests/message/test_submitted.py",
    "tests/message/test_text_from_html.py",
    "tests/store/sqlite/test_power_loss.py",
    "tests/store/test_body_parts_stored_bytes.py",
    "tests/store/test_messages_accepting.py",
    "tests/store/test_search_index.py",
    "tests/submission/test_server.py",
    "tests/test_patterns.py",
    "tests/test_shutdown.py",
    "tests/test_words.py",
    "tests/web/test_http1_fast_post.py",
    "tests/web/test_hypercorn_parts.py",
    "tests/web/test_operations.py",
    "tests/webhook/test_dispatcher.py",
)
# Files of the store whose tests the default run repeats on PostgreSQL.
BOTH_ENGINES = (
    "tests/store/test_accounts.py",
    "tests/store/test_access.py",
    "tests/store/test_engine.py",
    "tests/store/test_messages.py",
    "tests/store/test_messages_accepting.py",
    "tests/store/test_queue.py",
    "tests/store/test_received.py",
    "tests/store/test_retention.py",
    "tests/store/test_webhooks.py",
)
# Files and folders of the default run that take longest, in seconds; together they take two thirds of it. Each row is
# dealt to one worker. The files of a row share a PostgreSQL or an appliance, which take seconds to start.
LONGEST: tuple[tuple[int, tuple[str, ...]], ...] = (
    (180, ("tests/e2e/contract",)),
    (
        130,
        (
            *BOTH_ENGINES,
            "tests/store/test_copying.py",
            "tests/cli/test_store.py",
            "tests/keys/test_installation_key.py",
            "tests/test_retention.py",
        ),
    ),
    (90, ("tests/e2e/doors",)),
    (90, ("tests/store/postgresql",)),
    (60, ("tests/webhook/test_dispatcher.py",)),
    (45, ("clients/python/tests",)),
    (45, ("tests/feedback/test_hostile.py",)),
    *(
        (35, (entry,))
        for entry in (
            "tests/deliver/test_pool_limiters.py",
            "tests/deliver/test_scheduler.py",
            "tests/e2e/submission",
            "tests/e2e/webhooks",
            "tests/test_words.py",
        )
    ),
    (25, ("tests/e2e/test_a_data_directory_that_cannot_be_used_is_one_line.py",)),
    (25, ("tests/message/test_dkim.py",)),
    *(
        (20, (entry,))
        for entry in (
            "tests/cli/test_serve.py",
            "tests/deliver/test_in_flight.py",
            "tests/e2e/test_a_running_server_sees_changes_within_a_second.py",
            "tests/message/test_reader.py",
            "tests/test_layers.py",
        )
    ),
    *(
        (15, (entry,))
        for entry in (
            "tests/deliver/test_new_mail.py",
            "tests/message/test_compose.py",
            "tests/message/test_submitted.py",
            "tests/store/sqlite/test_power_loss.py",
        )
    ),
    *(
        (12, (entry,))
        for entry in (
            "tests/cli/test_output.py",
            "tests/e2e/certificates/test_acme_brings_a_certificate_and_renews_it.py",
            "tests/e2e/delivery/test_a_test_is_sent_from_the_shell.py",
            "tests/e2e/delivery/test_the_dashboard_tells_the_story.py",
            "tests/e2e/delivery/test_the_server_mails_people.py",
            "tests/e2e/test_first_start_prints_a_working_curl_line.py",
            "tests/net/test_dial.py",
            "tests/web/test_operations.py",
        )
    ),
    *(
        (10, (entry,))
        for entry in (
            "tests/cli/test_commands.py",
            "tests/cli/test_domain.py",
            "tests/cli/test_setup.py",
            "tests/config/test_load.py",
            "tests/deliver/test_scheduler_sessions.py",
            "tests/deliver/test_warmup.py",
            "tests/doctor/test_each_fault_is_found_and_nothing_else.py",
            "tests/doctor/test_examination.py",
            "tests/e2e/test_a_message_passes_few_files.py",
            "tests/e2e/test_sighup_reloads.py",
            "tests/message/test_checks.py",
            "tests/message/test_text_from_html.py",
            "tests/store/test_search_index.py",
        )
    ),
)
# Likewise for the rest: those that wait long, or start much.
LONGEST_OF_REST = (
    "tests/e2e/dashboard/test_live.py",
    "tests/e2e/dashboard/test_month.py",
    "tests/e2e/dashboard/test_accessible.py",
    "tests/e2e/test_openapi_describes_the_service.py",
    "tests/docs/test_shell_blocks.py",
    "tests/e2e/test_no_input_stalls_the_event_loop.py",
    "tests/e2e/test_memory_stays_bounded.py",
    "tests/clients/test_conformance.py",
    "tests/e2e/nodes/test_rolling_upgrade.py",
    "tests/e2e/nodes/test_nodes.py",
)
# What the default run leaves out.
REST = (
    # Browsers.
    "tests/e2e/dashboard",
    # Several nodes, crashes of databases, disks and clocks.
    "tests/e2e/nodes",
    "tests/e2e/storms",
    "tests/e2e/certificates/test_acme_on_several_nodes.py",
    "tests/e2e/test_a_database_that_cannot_be_used_is_one_line.py",
    "tests/e2e/test_a_database_that_is_away_is_told.py",
    "tests/e2e/test_a_postgresql_is_restored_from_a_dump.py",
    "tests/e2e/delivery/test_an_installation_moves_to_postgresql_and_back.py",
    "tests/deliver/test_soak.py",
    "tests/acme/test_shared.py",
    "tests/doctor/test_database_server.py",
    "tests/store/postgresql/test_faults.py",
    "tests/store/postgresql/test_limit_races.py",
    "tests/store/postgresql/test_nodes_cancellations.py",
    "tests/store/postgresql/test_nodes_certificates.py",
    "tests/store/postgresql/test_nodes_outages.py",
    "tests/store/postgresql/test_nodes_pools.py",
    "tests/store/postgresql/test_nodes_search_index.py",
    "tests/store/postgresql/test_nodes_statistics.py",
    "tests/store/postgresql/test_races.py",
    "tests/store/postgresql/test_upgrade.py",
    # Kills, outages and bounds that lower tests hold, too.
    "tests/e2e/certificates/test_acme_goes_on_without_the_authority.py",
    "tests/e2e/delivery/test_a_cancel_is_never_free_mail.py",
    "tests/e2e/delivery/test_a_deleted_accounts_mail_goes_out.py",
    "tests/e2e/delivery/test_a_large_message_arrives_byte_for_byte.py",
    "tests/e2e/delivery/test_a_new_address_is_warmed_up.py",
    "tests/e2e/feedback/test_kill_9_between_250_and_the_record.py",
    "tests/e2e/test_a_lost_key_file_is_told.py",
    "tests/e2e/test_guesses_at_once_are_counted_before_they_are_checked.py",
    "tests/e2e/test_the_service_manager_is_told.py",
    # Mail servers, mail clients and proxies of others.
    "tests/webhook/test_received_action_mailbox.py",
    "tests/e2e/receiving/test_real_servers_deliver.py",
    "tests/e2e/delivery/test_postfix_gets_it_byte_for_byte.py",
    "tests/e2e/delivery/test_postscreen_takes_the_second_attempt.py",
    "tests/e2e/feedback/test_real_servers_bounce_later.py",
    "tests/e2e/submission/test_a_pool_of_connections_submits.py",
    "tests/e2e/submission/test_real_clients_submit.py",
    "tests/e2e/submission/test_the_settings_in_the_docs_work.py",
    "tests/e2e/test_clients_are_generated_from_openapi.py",
    "tests/clients/test_conformance.py",
    "tests/clients/test_examples.py",
    "tests/docs/test_backup.py",
    "tests/docs/test_blocks.py",
    "tests/docs/test_install.py",
    "tests/docs/test_proxy.py",
    "tests/docs/test_shell_blocks.py",
    "tests/docs/test_webhooks.py",
    # Built packages and systemd.
    "tests/e2e/test_the_binary_needs_no_python.py",
    "tests/packaging/test_after_a_loss.py",
    "tests/packaging/test_container.py",
    "tests/packaging/test_debian_package.py",
    "tests/packaging/test_from_a_bare_machine_to_accepted_mail.py",
    "tests/packaging/test_licence.py",
    "tests/packaging/test_release.py",
    "tests/packaging/test_sbom.py",
    "tests/system/test_unit.py",
    # Bounds that take time to reach: memory, descriptors, connections, slow peers.
    "tests/e2e/test_a_log_that_is_not_read_stops_nothing.py",
    "tests/e2e/contract/test_hostile_input.py",
    "tests/e2e/test_hostile_mail_in_the_dashboard_harms_no_other_client.py",
    "tests/e2e/test_memory_stays_bounded.py",
    "tests/e2e/test_no_input_stalls_the_event_loop.py",
    "tests/e2e/test_no_request_kills_the_process.py",
    "tests/e2e/test_openapi_describes_the_service.py",
    "tests/e2e/test_slow_clients_are_cut.py",
    "tests/e2e/delivery/test_a_long_queue_stays_on_disk.py",
    "tests/e2e/delivery/test_slow_servers_delay_no_mail_of_their_own_account.py",
    "tests/e2e/submission/test_slow_and_many_clients_do_no_harm.py",
)


_STORE = PurePosixPath("tests/store")


@cache
def _dealt(workers: int) -> dict[str, int]:
    """The worker of each row of LONGEST: the longest first, each to the worker that has least."""
    loads, dealt = [0] * workers, dict[str, int]()
    for seconds, entries in sorted(LONGEST, reverse=True):
        worker = loads.index(min(loads))
        loads[worker] += seconds
        dealt |= dict.fromkeys(entries, worker)
    return dealt


def dealt_to(path: PurePosixPath, workers: int) -> int | None:
    """The worker that LONGEST deals this file of the default run to; None: it is in no row."""
    return next((worker for entry, worker in _dealt(workers).items() if path.is_relative_to(entry)), None)


def _is_below(path: PurePosixPath, entries: tuple[str, ...]) -> bool:
    return any(path.is_relative_to(entry) for entry in entries)


def runs_file(level: Level, path: PurePosixPath, *, has_slow_tests: bool) -> bool:
    """Whether a run reads this file of tests, or this folder; the path begins at the root of the repository."""
    if level is Level.REST:
        return has_slow_tests or path.parent == _STORE or _is_below(path, REST) or _holds(path, REST)
    return not _is_below(path, REST) and not (level is Level.FAST and _is_below(path, PROGRAM + LONG))


def starts_programs(path: PurePosixPath) -> bool:
    """Whether a file takes more than the time of unit tests."""
    return _is_below(path, PROGRAM + LONG)


def _holds(folder: PurePosixPath, entries: tuple[str, ...]) -> bool:
    return any(PurePosixPath(entry).is_relative_to(folder) for entry in entries)


def runs_test(level: Level, path: PurePosixPath, *, is_slow: bool, on_postgresql: bool) -> bool:
    """Whether a run includes a test of that file; `on_postgresql`: as the second engine of the same test."""
    if level is Level.FAST and _is_below(path, PROGRAM + LONG):
        return False  # of a folder whose files no hook leaves out, such as that of the client library
    is_repeated = on_postgresql and (path.is_relative_to("tests/e2e") or path.parent == _STORE)
    is_rest = is_slow or _is_below(path, REST) or (is_repeated and not _is_below(path, BOTH_ENGINES))
    if level is Level.REST:
        return is_rest
    return not is_rest and not (level is Level.FAST and on_postgresql)
