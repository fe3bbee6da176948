"""When a problem opens, ends, and counts as new."""

from appliance.model.attention import ENDS_AFTER, AttentionItem, AttentionKind, Severity, StoredProblem, changes

NOW = 1_000_000_000_000


def problem(detail: str = "Publish it.", since: int | None = None) -> AttentionItem:
    return AttentionItem(
        AttentionKind.DOMAIN_BROKEN, "a.example", Severity.WARNING, "Broken", detail, "/dashboard", since
    )


def test_a_new_problem_opens_now_and_keeps_its_own_time() -> None:
    assert changes([], [problem()], NOW) == [StoredProblem(problem(since=NOW), NOW)]
    assert changes([], [problem(since=5)], NOW) == [StoredProblem(problem(since=5), NOW)]


def test_an_open_problem_is_written_again_only_if_its_text_changes() -> None:
    row = StoredProblem(problem(since=NOW), NOW)
    assert changes([row], [problem()], NOW + 9) == []
    assert changes([row], [problem("Other.")], NOW + 9) == [StoredProblem(problem("Other.", NOW), NOW)]


def test_a_problem_ends_once() -> None:
    row = StoredProblem(problem(since=NOW), NOW)
    ended = StoredProblem(problem(since=NOW), NOW, NOW + 9)
    assert changes([row], [], NOW + 9) == [ended]
    assert changes([ended], [], NOW + 10) == []


def test_a_problem_that_returns_soon_is_the_same_one() -> None:
    ended = StoredProblem(problem(since=NOW), NOW, NOW + 9)
    soon, later = NOW + 9 + ENDS_AFTER - 1, NOW + 9 + ENDS_AFTER
    assert changes([ended], [problem()], soon) == [StoredProblem(problem(since=NOW), NOW)]
    assert changes([ended], [problem()], later) == [StoredProblem(problem(since=later), later)]
