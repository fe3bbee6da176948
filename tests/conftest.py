"""In charge of what all tests share: generated inputs may take their time, and no two tests have the same id."""

from collections import Counter

import pytest
from hypothesis import HealthCheck, settings

# A busy machine is nobody's fault.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Give each test its own id: of tests that share one, several processes would run the first and no other."""
    for item in items:
        label = getattr(item, "operation_label", None)  # of schemathesis, whose ids leave it out
        if label is not None and label not in item.nodeid:
            item._id = item.id.with_params(label)
    twice = [name for name, count in Counter(item.nodeid for item in items).items() if count > 1]
    if twice:
        raise pytest.UsageError(f"several tests have the id {twice[0]}: all but one would be left out")
