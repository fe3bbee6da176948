"""Log lines through a thread: order, bounds, and the count of what was dropped."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from typing import IO

import pytest

from appliance.telemetry.log import BUFFER_CHARACTERS, BUFFER_LINES, LogWriter, write_all
from appliance.telemetry.metrics import LOG_DROPPED
from tests.cpu_time import cpu_seconds

LINE = "x" * 99 + "\n"


@pytest.fixture
def pipe() -> Iterator[tuple[IO[bytes], int]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as file:
        yield file, writing
    with suppress(OSError):
        os.close(writing)


def dropped_line(count: int) -> str:
    return f"dropped {count}\n"


def test_lines_of_several_threads_come_whole_and_in_order(pipe: tuple[IO[bytes], int]) -> None:
    file, writing = pipe
    writer = LogWriter(writing, dropped_line)

    def speak(name: int) -> None:
        for number in range(500):
            writer.put(f"{name} {number}\n")

    threads = [threading.Thread(target=speak, args=(name,)) for name in range(4)]
    for thread in threads:
        thread.start()
    found = [file.readline().split() for _ in range(2_000)]
    for thread in threads:
        thread.join()
    for name in range(4):
        assert [int(number) for speaker, number in found if int(speaker) == name] == list(range(500))
    assert writer.flush(5)
    writer.close()


def test_what_does_not_fit_is_dropped_counted_and_told(pipe: tuple[IO[bytes], int]) -> None:
    file, writing = pipe
    writer = LogWriter(writing, dropped_line)
    before = LOG_DROPPED.values[""]
    began = time.monotonic()
    for number in range(BUFFER_LINES + 5_000):
        writer.put(f"{number:0>99}\n")
    assert time.monotonic() - began < 5
    dropped = LOG_DROPPED.values[""] - before
    assert 4_000 < dropped <= 5_000  # some are in the pipe
    assert not writer.flush(0.05)
    kept = BUFFER_LINES + 5_000 - dropped
    assert [int(file.readline()) for _ in range(kept)] == list(range(kept))
    assert file.readline() == b"dropped %d\n" % dropped
    writer.put("and on\n")
    assert file.readline() == b"and on\n"
    writer.close()


def test_the_buffer_is_bounded_in_characters_too(pipe: tuple[IO[bytes], int]) -> None:
    file, writing = pipe
    writer = LogWriter(writing, dropped_line)
    before, huge = LOG_DROPPED.values[""], BUFFER_CHARACTERS // 4
    for _ in range(10):
        writer.put("x" * huge)
    assert LOG_DROPPED.values[""] - before == 6
    assert len(file.readline()) == 4 * huge + len(dropped_line(6))
    assert writer.flush(5)
    writer.close()


def test_lines_that_cannot_be_written_are_counted_and_told(pipe: tuple[IO[bytes], int]) -> None:
    file, writing = pipe
    nowhere = os.open("/dev/full", os.O_WRONLY)
    aside = os.dup(writing)
    os.dup2(nowhere, writing)
    writer = LogWriter(writing, dropped_line)
    writer.put(LINE * 3, 3)
    assert writer.flush(5)
    os.dup2(aside, writing)
    os.close(aside)
    os.close(nowhere)
    writer.put("again\n")
    assert [file.readline(), file.readline()] == [b"dropped 3\n", b"again\n"]
    writer.close()


def test_what_is_no_text_ends_no_later_line(pipe: tuple[IO[bytes], int]) -> None:
    file, writing = pipe
    writer = LogWriter(writing, dropped_line)
    writer.put(b"no text\n")  # type: ignore[arg-type]  # the fault that is tested
    assert writer.flush(5)
    writer.put("again\n")
    assert writer.flush(5)
    os.close(writing)
    assert file.read() == b"dropped 1\nagain\n"
    writer.close()


def test_a_descriptor_that_does_not_block_gets_every_byte(pipe: tuple[IO[bytes], int]) -> None:
    file, writing = pipe
    os.set_blocking(writing, False)
    content = os.urandom(1_000_000)
    thread = threading.Thread(target=write_all, args=(writing, content))
    thread.start()
    assert file.read(len(content)) == content
    thread.join()


def test_a_line_costs_its_caller_little(pipe: tuple[IO[bytes], int]) -> None:
    _, writing = pipe
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, writing)
    os.close(nowhere)
    writer = LogWriter(writing, dropped_line)

    def put() -> None:
        for _ in range(100):
            writer.put(LINE)

    assert cpu_seconds(put, tries=20) / 100 < 20e-6
    writer.close()
