"""Members that subscribe by a pattern: the client behind each, the topics it may see, the matches.

The client that sent a member's heartbeats is known only to the leader that received them. A member
that has not sent one to this leader yet is taken to see every topic.

A pattern is matched with the topics of the catalog and with Kafka's internal topics, which are
views here.

Does not depend on requests, nor on when targets are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from vdl.kafka.groups.topic_patterns import Key, TopicPatterns
from vdl.kafka.limits.pattern_work import PatternWork
from vdl.patterns import BadPattern
from vdl.state.catalog import Catalog, TopicInfo
from vdl.state.modern.group import ModernGroup
from vdl.state.modern.member import ModernMember

_VIEWED_MAX = 100
"""Viewers whose visible topics are cached."""
UNKNOWN_ASKER = ""
"""`asker` for members that have not sent a heartbeat to this leader yet."""


class Viewer(Hashable, Protocol):
    """A member that may not see every topic. Equal viewers see the same topics."""

    @property
    def revision(self) -> int:
        """Number that changes when the visible topics may have changed."""

    def hidden(self, names: Iterable[str]) -> frozenset[str]:
        """Return those of the topics that it may not describe."""


@dataclass(frozen=True, slots=True)
class Sender:
    """The client that sent a heartbeat. `viewer` None: it may see everything."""

    asker: str
    viewer: Viewer | None


@dataclass(frozen=True, slots=True)
class _View:
    """The topics that a viewer can see, and the others."""

    revisions: tuple[int, int]
    hidden: frozenset[str]
    visible: frozenset[str]


@dataclass(slots=True)
class Matched:
    """Matches of a group's patterns. `names`: by member, ascending; the earlier matches if a
    pattern is not matched yet. `hidden`: by member, topics that it may not see."""

    names: dict[str, tuple[str, ...]] = field(default_factory=dict)
    hidden: dict[str, frozenset[str]] = field(default_factory=dict)
    missing: dict[Key, tuple[frozenset[str], str]] = field(default_factory=dict)
    """Patterns still to be matched: the names, and the asker in whose turn."""


class PatternSubscriptions:
    """Pattern subscriptions of one coordinator while this server leads it."""

    def __init__(self, catalog: Catalog, own: Mapping[str, TopicInfo], work: PatternWork) -> None:
        """`own`: Kafka's internal topics, without those that the catalog has."""
        self._catalog = catalog
        self._own = own
        self._patterns = TopicPatterns(work)
        self._senders: dict[tuple[str, str], Sender] = {}
        """(group, member) → client that sent its heartbeats to this leader."""
        self._views: dict[Viewer | None, _View] = {}

    def __len__(self) -> int:
        """Return the number of patterns, by viewer, with cached results."""
        return len(self._patterns)

    # --- senders -----------------------------------------------------------------------------
    def heard_from(self, group: ModernGroup, member: ModernMember, sender: Sender) -> bool:
        """Note the client of a member. Return True if that may change what the member reads."""
        key = group.group_id, member.member_id
        if not member.pattern:
            self._senders.pop(key, None)
            return False
        if self._senders.get(key) == sender or member.member_id not in group.members:
            return False
        self._senders[key] = sender
        return True

    def forget(self, group_id: str, member_id: str) -> None:
        """Forget a member that is gone."""
        self._senders.pop((group_id, member_id), None)

    def forget_group(self, group_id: str) -> None:
        """Forget a group that has no members."""
        for key in [key for key in self._senders if key[0] == group_id]:
            del self._senders[key]

    def limited_groups(self) -> list[str]:
        """Return the groups with members that may not see every topic, ascending."""
        return sorted(
            {
                group_id
                for (group_id, _), sender in self._senders.items()
                if sender.viewer is not None
            }
        )

    # --- matches -----------------------------------------------------------------------------
    def refusal(self, pattern: str, sender: Sender) -> BadPattern | None:
        """Return the error of an invalid pattern, or None if none is known."""
        return self._patterns.refusal((pattern, sender.viewer))

    def matched(self, group: ModernGroup) -> Matched:
        """Return the known matches of the group's patterns."""
        found = Matched()
        by_key: dict[Key, tuple[str, ...]] = {}
        for member in group.members.values():
            if not member.pattern:
                continue
            sender = self._senders.get((group.group_id, member.member_id))
            viewer = None if sender is None else sender.viewer
            view = self._view(viewer)
            if view.hidden:
                found.hidden[member.member_id] = view.hidden
            key = member.pattern, viewer
            if key not in by_key:
                names = self._patterns.matched(key, view.visible)
                if names is None:
                    asker = UNKNOWN_ASKER if sender is None else sender.asker
                    found.missing[key] = view.visible, asker
                by_key[key] = self._with_known(group, member.pattern, view, names)
            found.names[member.member_id] = by_key[key]
        return found

    def resolve(self, group_id: str, matched: Matched, done: Callable[[], None]) -> None:
        """Start matching what is missing; `done()` is called after each part of it."""
        for key, (names, asker) in matched.missing.items():
            self._patterns.resolve(key, names, asker=asker, group_id=group_id, done=done)

    def _with_known(
        self, group: ModernGroup, pattern: str, view: _View, names: tuple[str, ...] | None
    ) -> tuple[str, ...]:
        """Return `names` and those earlier matches that this server's catalog does not have yet. If
        `names` is None, return all earlier matches."""
        before = [name for name in group.patterns.get(pattern, ()) if name not in view.hidden]
        if names is None:
            return tuple(before)
        unheard = [name for name in before if name not in view.visible]
        unheard = [name for name in unheard if self._is_unheard_of(group, name)]
        return tuple(sorted({*names, *unheard})) if unheard else names

    def _is_unheard_of(self, group: ModernGroup, name: str) -> bool:
        """Return True if the group knows the topic from another server's catalog and this server's
        does not have it yet. False for a topic that is known to be deleted."""
        topic = group.topics.get(name)
        return topic is not None and not self._catalog.has_deleted(topic.last_group)

    def _view(self, viewer: Viewer | None) -> _View:
        catalog = self._catalog
        revisions = (0 if viewer is None else viewer.revision), catalog.topics_revision
        known = self._views.get(viewer)
        if known is not None and known.revisions == revisions:
            return known
        if len(self._views) >= _VIEWED_MAX:
            self._views.clear()
        if viewer is None:
            every = frozenset(catalog.topics).union(self._own)
            view = _View(revisions, frozenset(), every)
        else:
            every = self._view(None).visible
            hidden = viewer.hidden(every)
            view = _View(revisions, hidden, every - hidden if hidden else every)
        self._views[viewer] = view
        return view

    # --- clean-up ----------------------------------------------------------------------------
    def keep_only(self, groups: Iterable[ModernGroup]) -> None:
        """Forget patterns that no member of these groups uses."""
        if not len(self._patterns):
            return
        used: set[Key] = set()
        for group in groups:
            for member in group.members.values():
                if member.pattern:
                    sender = self._senders.get((group.group_id, member.member_id))
                    used.add((member.pattern, None if sender is None else sender.viewer))
        self._patterns.keep_only(used)

    def close(self) -> None:
        """Forget everything because this server no longer leads the coordinator."""
        self._patterns.keep_only(set())
