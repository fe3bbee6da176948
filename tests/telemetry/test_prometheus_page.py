"""The page that Prometheus reads: its format, its numbers, and any text in a label."""

from appliance.telemetry.metrics import COUNTERS, HISTOGRAMS, Counter, Histogram
from appliance.telemetry.prometheus import Reading, page
from tests.telemetry.exposition import read


def test_counts_by_their_labels() -> None:
    one, two, none = (
        Counter("a_total", ("x",), "A."),
        Counter("b_total", ("x", "y"), "B."),
        Counter("c_total", (), "C."),
    )
    one.add("p")
    one.add("p", 4)
    two.add(("p", "q"))
    two.add(("p", "r"), 2)
    found = read(page([one, two, none], [], []))
    assert found["a_total"].samples == {("a_total", (("x", "p"),)): 5}
    assert found["b_total"].samples == {
        ("b_total", (("x", "p"), ("y", "q"))): 1,
        ("b_total", (("x", "p"), ("y", "r"))): 2,
    }
    assert found["c_total"].samples == {("c_total", ()): 0}


def test_a_spread_counts_up_to_each_bound() -> None:
    spread = Histogram("t_seconds", (0.1, 1.0), "T.")
    for value in (0.05, 0.1, 0.5, 30.0):
        spread.add(value)
    samples = read(page([], [spread], []))["t_seconds"].samples
    buckets = {dict(labels)["le"]: value for (name, labels), value in samples.items() if name == "t_seconds_bucket"}
    assert buckets == {"0.1": 2, "1": 3, "+Inf": 4}
    assert (samples["t_seconds_sum", ()], samples["t_seconds_count", ()]) == (30.65, 4)


def test_no_text_breaks_the_page() -> None:
    evil = 'a"b\\c\nd{}, e="f'
    counts = Counter("a_total", ("x",), "One\nline \\ of it.")
    counts.add(evil)
    found = read(page([counts], [], [Reading("g", "G.", {evil: 1.0}, ("x",))]))
    escaped = 'a\\"b\\\\c\\nd{}, e=\\"f'
    assert found["a_total"].samples == {("a_total", (("x", escaped),)): 1}
    assert found["g"].samples == {("g", (("x", escaped),)): 1}
    assert found["a_total"].about == "One\\nline \\\\ of it."


def test_a_reading_may_have_several_labels() -> None:
    found = read(page([], [], [Reading("g", "G.", {("google", "192.0.2.1"): 28.0}, ("pool", "address"))]))
    assert found["g"].samples == {("g", (("pool", "google"), ("address", "192.0.2.1"))): 28}


def test_readings_keep_their_digits() -> None:
    found = read(page([], [], [Reading("g", "G.", {"": 78_006_292_480.0}), Reading("h", "H.", {"": 1794731723.913})]))
    assert found["g"].samples == {("g", ()): 78_006_292_480}
    assert found["h"].samples == {("h", ()): 1794731723.913}


def test_everything_that_is_counted_makes_a_page() -> None:
    assert len(read(page(COUNTERS, HISTOGRAMS, []))) == len(COUNTERS) + len(HISTOGRAMS)
