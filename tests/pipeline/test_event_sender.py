"""Events beside a job: sent in order, bounded, counted, without delaying it."""

from __future__ import annotations

import threading

from vdl.pipeline.event_sender import DROPPED, FAILED, SENT, EventSender


def test_events_are_sent_in_order_and_the_end_waits_for_them() -> None:
    found: list[int] = []
    sender: EventSender[int] = EventSender(found.append)
    for n in range(50):
        sender.put(n)
    sender.close(30)
    assert found == list(range(50))
    assert (sender.put_count, sender.sent) == (50, 50)


def test_events_that_fail_are_counted_and_others_go_on() -> None:
    outcomes: list[str] = []

    def send(n: int) -> None:
        if n % 2:
            raise OSError(f"no {n} " + "x" * 1000)

    sender: EventSender[int] = EventSender(send, outcomes.append)
    for n in range(4):
        sender.put(n)
    sender.close(30)
    assert outcomes == [SENT, FAILED, SENT, FAILED]
    assert sender.reason.startswith("OSError: no 3 xxx")
    assert len(sender.reason) == 300


def test_sender_that_hangs_drops_what_is_too_much_and_lets_a_job_end() -> None:
    """Only `close` waits, up to its timeout. The last event has room."""
    outcomes: list[str] = []
    found: list[int] = []
    hangs, is_under_way = threading.Event(), threading.Event()

    def send(n: int) -> None:
        is_under_way.set()
        hangs.wait(60)
        found.append(n)

    sender: EventSender[int] = EventSender(send, outcomes.append, waiting_max=3)
    sender.put(0)
    assert is_under_way.wait(30)
    for n in range(1, 1001):
        sender.put(n)
    assert outcomes == [DROPPED] * 997
    sender.put(1001, is_last=True)
    assert outcomes == [DROPPED] * 998
    sender.close(0.01)
    assert sender.sent == 0
    hangs.set()
    sender.close(30)
    assert found == [0, 2, 3, 1001]
    assert (sender.put_count, sender.sent) == (1002, 4)
