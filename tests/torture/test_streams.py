"""Some of the changed inputs of `sh packaging/torture`."""

import pytest

from tests.torture import streams

INPUTS = 200


@pytest.mark.parametrize("name", streams.STREAMS)
def test_changed_inputs_are_refused_or_read_as_others_read_them(name: str) -> None:
    wrong, _, _ = streams.task(name, 20_261_117, 0, INPUTS)
    assert wrong == []
