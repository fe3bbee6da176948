"""docs/scaling.md has the tables and plots of the simulation."""

from tests.bench.costs import MEASURED
from tests.bench.report import IMAGES
from tests.bench.scaling import DOCUMENT, scaling, terminal, written


def test_the_document_has_what_is_simulated() -> None:
    """`python -m tests.bench.scaling --write` writes them, and prints the same tables."""
    everything, text = scaling(MEASURED), DOCUMENT.read_text()
    assert text == written(text, everything)
    for name, image in everything.images.items():
        assert (IMAGES / f"{name}.svg").read_text() == image
        assert f"images/{name}.svg" in text
    assert all(title in terminal(everything) for title in everything.tables)
