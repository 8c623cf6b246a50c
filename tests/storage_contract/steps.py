"""A store's history as a sequence of steps that both sides of test_failpoints can compute.

Each step is drawn from a seeded generator and the state of the logs alone, so the process that is
killed and the model that outlives it draw the same steps. A step is done when the store has
reported it durable. A store that died in a step must be found in the state before it or after it,
and in no other.
"""

from dataclasses import dataclass

from segments.api import HardState, MetaBatch, StoredEntry, StoreOptions

OPTIONS = StoreOptions(
    journal_file_bytes=64 << 10,
    journal_first_file_bytes=32 << 10,
    segment_bytes=24 << 10,
    index_segment_entries=64,
    cache_bytes_max=64 << 10,
    checkpoint_bytes=48 << 10,
    checkpoint_entries=80,
    checkpoint_interval_ms=100,
    idle_block_ms=2,
    place_bytes_min=1500,
    large_bytes_min=5000,
    meta_map_bytes=1 << 22,
)
LOGS = 3


@dataclass(frozen=True)
class Step:
    """One operation on one log; the meaning of `count` and the other fields depends on the kind."""

    kind: str
    log_id: int = 0
    count: int = 0
    size: int = 0
    index: int = 0
    term: int = 0


def draw(rng, logs, least=LOGS):
    """Draw the next step from the state of the logs; fewer than `least` are too few."""
    if len(logs) < least:
        return Step("create", index=rng.randint(1, 50))
    log = logs[rng.choice(sorted(logs))]
    kind = rng.choices(
        (
            "append", "many", "large", "replace", "commit", "vote", "reset", "trim", "renew",
            "checkpoint",
        ),
        (10, 1, 6, 3, 10, 2, 1, 2, 1, 3),
    )[0]  # fmt: skip
    last, commit, term = log.last_index, log.commit_index, max(1, log.hard_state.term)
    term = max(term, log.term(last))
    if kind == "many":
        return Step("append", log.log_id, 150, 700, last + 1, term)
    if kind == "large":
        return Step("append", log.log_id, 1, rng.randint(5000, 7500), last + 1, term)
    if kind == "replace" and commit < last:
        first = rng.randint(commit + 1, last)
        return Step("append", log.log_id, rng.randint(1, 4), 300, first, term + 1)
    if kind == "commit" and commit < last:
        return Step("hard", log.log_id, 0, log.hard_state.vote, rng.randint(commit, last), term)
    if kind == "vote":
        return Step("hard", log.log_id, 0, rng.randint(0, 3), commit, term + 1)
    if kind == "reset":
        size = rng.choice((0, 100, 90_000))
        return Step("reset", log.log_id, 0, size, last + rng.randint(1, 30), term)
    if kind == "trim" and log.first_index <= commit and not log.installed_state:
        return Step("trim", log.log_id, 0, 0, rng.randint(log.first_index, commit + 1))
    if kind == "renew":
        return Step("renew", log.log_id, index=rng.randint(1, 50))
    if kind == "checkpoint":
        return Step("checkpoint", term=rng.randint(0, 1))
    return Step("append", log.log_id, rng.randint(1, 12), rng.choice((0, 50, 900)), last + 1, term)


def entries_of(store, step):
    """Return the entries of an append."""
    offset = store.logs[step.log_id].offset_after(step.index - 1)
    return [
        StoredEntry(
            step.term, n, 0, bytes((n * 7 + step.term + k) & 0xFF for k in range(step.size)),
            offset + n - step.index, 1, n * 10,
        )
        for n in range(step.index, step.index + step.count)
    ]  # fmt: skip


def stage(store, step, entries=None):
    """Stage a step on a log, except for kinds that become durable by themselves.

    `entries`: those of an append, if its caller has them already.
    """
    log = store.logs[step.log_id]
    if step.kind == "append":
        store.append(log, entries or entries_of(store, step))
    elif step.kind == "hard":
        store.set_hard_state(log, HardState(step.term, step.size, step.index))
    elif step.kind == "reset":
        state = bytes((step.index + n) & 0xFF for n in range(step.size))
        store.reset_log(
            log, first_index=step.index, prev_term=step.term,
            next_offset=log.next_offset + 7, state=state,
        )  # fmt: skip
    else:
        assert step.kind == "trim", step
        store.trim_log(log, first_index=step.index)


def create(store, step, on_created):
    """Create a log; "renew" also deletes one in the same turn."""
    if step.kind == "renew":
        store.delete_log(step.log_id)
    store.create_log(
        9, step.index, first_index=step.index, prev_term=2, next_offset=step.index * 3,
        on_created=on_created,
    )  # fmt: skip


def applied(store, step):
    """Return what the step's checkpoint stores: the whole state of each log, or what changed."""
    return [
        MetaBatch(
            log.log_id, log.commit_index, [(b"applied", str(log.commit_index).encode())],
            clear=bool(step.term),
        )
        for log in store.logs.values()
        if step.term or log.commit_index > log.applied_index
    ]  # fmt: skip
