"""The transcript of a session: timed, bounded."""

from appliance.deliver.smtp.protocol import (
    CLIENT,
    FIRST_TRANSCRIPT_LINES,
    LAST_TRANSCRIPT_LINES,
    LINE_CHARACTERS,
    NOTE,
    SERVER,
    Transcript,
    TranscriptLine,
)


def test_lines_have_milliseconds_from_the_beginning() -> None:
    """Times count from when the dialogue began."""
    times = iter([100.0, 100.0, 100.25])
    transcript = Transcript(lambda: next(times))
    transcript.add(CLIENT, "MAIL", "RCPT")
    transcript.add(SERVER, "250 ok")
    assert transcript.lines() == (
        TranscriptLine(0, CLIENT, "MAIL"),
        TranscriptLine(0, CLIENT, "RCPT"),
        TranscriptLine(250, SERVER, "250 ok"),
    )


def test_a_long_dialogue_keeps_its_beginning_and_its_end() -> None:
    """A thousand lines leave a bounded record that says how many are missing; long lines are cut."""
    transcript = Transcript(lambda: 0.0)
    for number in range(1_000):
        transcript.add(SERVER, f"{number} " + "x" * 5_000)
    lines = transcript.lines()
    assert len(lines) == FIRST_TRANSCRIPT_LINES + 1 + LAST_TRANSCRIPT_LINES
    assert lines[0].text.startswith("0 ")
    assert lines[-1].text.startswith("999 ")
    assert lines[FIRST_TRANSCRIPT_LINES] == TranscriptLine(
        0, NOTE, f"{1_000 - FIRST_TRANSCRIPT_LINES - LAST_TRANSCRIPT_LINES} lines left out"
    )
    assert max(len(line.text) for line in lines) == LINE_CHARACTERS


def test_a_dialogue_that_just_fits_is_whole() -> None:
    """With exactly as many lines as are kept, none is left out."""
    transcript = Transcript(lambda: 0.0)
    for number in range(FIRST_TRANSCRIPT_LINES + LAST_TRANSCRIPT_LINES):
        transcript.add(SERVER, str(number))
    assert [line.text for line in transcript.lines()] == [
        str(number) for number in range(FIRST_TRANSCRIPT_LINES + LAST_TRANSCRIPT_LINES)
    ]
