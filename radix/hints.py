"""What callers say about a stretch of the tree: how long it matters more, when it will be used again, that it won't be.

A hint lies on the node that ends the stretch. Leaves are evicted first, so the end guards all above it. Kept by `tree.py`,
weighed by `policy.py`; always soft: hints change the order of eviction, never what can be evicted.
"""

__all__ = ["GRACE_SECONDS", "MAX_SECONDS", "Hint", "Standing"]

MAX_SECONDS = 3600.0  # no hint lasts longer
GRACE_SECONDS = 30.0  # how much later than announced a return may come, on top of twice the announced time

Standing = tuple[int, int]
"""Who waits: of two stretches that are awaited, the one of higher standing is kept longer."""


class Hint:
    """The hints on one node. Times are those of the tree's clock, in seconds.

    `lifts` are (priority, until) pairs. `uses` returns are awaited at about `expected`, and until `expires`, by somebody of this
    `standing`. `last` says that nobody will come back. A pin covers this node until `pinned_until`.
    """

    __slots__ = ("expected", "expires", "last", "lifts", "pinned_until", "standing", "uses")

    def __init__(self) -> None:
        self.lifts: list[tuple[int, float]] = []
        self.expected = 0.0
        self.expires = 0.0
        self.uses = 0
        self.standing: Standing = (0, 0)
        self.last = False
        self.pinned_until = 0.0

    def lift(self, priority: int, until: float) -> None:
        """Raise the priority until then, beside what was said before."""
        if not any(other >= priority and end >= until for other, end in self.lifts):
            self.lifts = [(other, end) for other, end in self.lifts if other > priority or end > until]
            self.lifts.append((priority, until))
        self.last = False

    def expect(self, now: float, seconds: float, uses: int, standing: Standing) -> None:
        """`uses` returns in about `seconds`; twice that late, and the grace, and they are given up."""
        self.expected = now + seconds
        self.expires = now + 3 * seconds + GRACE_SECONDS
        self.uses = uses
        self.standing = standing
        self.last = False

    def priority(self, base: int, now: float) -> int:
        """The priority that holds now, where `base` is the node's own."""
        return max([base, *(priority for priority, until in self.lifts if until > now)])

    def is_awaited(self, now: float) -> bool:
        """Whether a return is still to come."""
        return self.uses > 0 and self.expires > now

    def changes(self, now: float) -> float | None:
        """When the next of these hints ends by itself; None if none will."""
        ends = [until for _, until in self.lifts if until > now]
        if self.is_awaited(now):
            ends.append(self.expires)
        return min(ends, default=None)

    def is_over(self, now: float) -> bool:
        """Whether nothing of this matters any longer."""
        return not self.last and self.changes(now) is None

    def only_lifts(self, priority: int, now: float) -> bool:
        """Whether a longer stretch inserted with `priority` may come under this hint: nothing but lifts up to as much."""
        return not self.last and not self.is_awaited(now) and self.pinned_until <= now and self.priority(0, now) <= priority
