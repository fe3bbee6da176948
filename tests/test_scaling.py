"""docs/scaling.md has what `python -m tests.bench.scaling` prints."""

from tests.bench.costs import MEASURED
from tests.bench.report import IMAGES
from tests.bench.scaling import DOCUMENT, scaling, written


def test_the_document_has_what_is_simulated() -> None:
    """Its tables and plots are those of `python -m tests.bench.scaling --write`."""
    everything, text = scaling(MEASURED), DOCUMENT.read_text()
    assert text == written(text, everything)
    for name, image in everything.images.items():
        assert (IMAGES / f"{name}.svg").read_text() == image
        assert f"images/{name}.svg" in text
