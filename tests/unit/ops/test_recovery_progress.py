"""Progress log of a start's recovery: silent when it is quick, otherwise a line a second."""

from vdl.server.recovery_progress import RecoveryProgress

SECOND = 1_000_000_000


class Lines:
    def __init__(self):
        self.lines = []

    def info(self, event, **fields):
        self.lines.append((event, fields))


def test_long_recovery_is_told_once_a_second_and_every_one_at_its_end():
    now = [5 * SECOND]
    log = Lines()
    progress = RecoveryProgress(log, lambda: now[0])
    for n in range(40):  # ten a second
        progress.told("logs", n, 40)
        now[0] += SECOND // 10
    progress.ended(40, journal_writes="thread")
    assert log.lines == [
        ("recovering", {"reading": "logs", "done": 20, "of": 40}),
        ("recovering", {"reading": "logs", "done": 30, "of": 40}),
        ("recovered", {"logs": 40, "seconds": 4.0, "journal_writes": "thread"}),
    ]
