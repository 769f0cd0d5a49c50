"""One edge of the radix tree: a run of tokens, and the pages that end in it. Down a path come device pages, then host slots.

A page that spans several nodes of a path belongs to the lowest: an inner node owns pages `start // P` up to `end // P`, which its
tokens complete; a leaf owns the last, partly filled one too. The first page of a node that starts inside a page holds the
ancestors' tokens of that page as well.
"""

from array import array

from branchpoint.radix.hints import Hint

__all__ = ["Node"]


class Node:
    """Tokens `start` to `end` of every prefix through this node; made and changed by the tree only. A root has no tokens.

    `pages` lie on the device, `slots` behind them in host memory. A node is warm if it or any below it has pages: warm children
    are in `children`, the others in `cold`. `priority` is the lasting one, at most 0; higher ones are lifts in `hint`. `cut` says
    that eviction has begun to take it, `busy_until` that it found its end in use and looks again then.
    """

    __slots__ = (
        "busy_until",
        "children",
        "cold",
        "cut",
        "hint",
        "hits",
        "last_used",
        "pages",
        "parent",
        "priority",
        "slots",
        "start",
        "tokens",
    )

    def __init__(self, parent: "Node | None", start: int, tokens: "array[int]", pages: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.slots: list[int] = []
        self.children: dict[int, Node] = {}
        self.cold: dict[int, Node] = {}
        self.last_used = 0.0
        self.priority = 0
        self.hits = 0
        self.hint: Hint | None = None
        self.cut = False
        self.busy_until = 0.0

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)

    @property
    def is_cold(self) -> bool:
        """Whether nothing of this node or below it is on the device."""
        return not self.pages and not self.children

    @property
    def is_leaf(self) -> bool:
        """Whether nothing lies below, in either tier."""
        return not self.children and not self.cold

    def priority_at(self, now: float) -> int:
        """The priority that holds now."""
        return self.hint.priority(self.priority, now) if self.hint else self.priority

    def path_tokens(self) -> list[int]:
        """All tokens from the root to the end of this node."""
        parts: list[array[int]] = []
        node: Node | None = self
        while node is not None:
            parts.append(node.tokens)
            node = node.parent
        return [token for part in reversed(parts) for token in part]

    def device_end(self, page_size: int) -> int:
        """The position up to which pages on the device hold this warm node's path."""
        if self.slots:
            return (self.start // page_size + len(self.pages)) * page_size
        return self.end // page_size * page_size if self.cold and not self.children else self.end

    def place(self) -> None:
        """Stand among the parent's warm or cold children, as is right now."""
        assert self.parent is not None, "a root has no parent"
        token = self.tokens[0]
        here, there = self.parent.children, self.parent.cold
        if self.is_cold:
            here, there = there, here
        if here.get(token) is not self:
            here[token] = self
        there.pop(token, None)

    def split(self, offset: int, page_size: int) -> "Node":
        """Put a new node for the first `offset` tokens between this one and its parent, and return it. Hints stay below."""
        parent = self.parent
        assert parent is not None and 0 < offset < len(self.tokens), f"can't split {len(self.tokens)} tokens at {offset}"
        completed = (self.start + offset) // page_size - self.start // page_size
        upper = Node(parent, self.start, self.tokens[:offset], self.pages[:completed])
        in_host = max(0, completed - len(self.pages))
        upper.slots = self.slots[:in_host]
        upper.last_used, upper.priority, upper.hits = self.last_used, self.priority, self.hits
        self.parent = upper
        self.start += offset
        del self.tokens[:offset], self.pages[:completed], self.slots[:in_host]
        self.place()
        upper.place()
        return upper

    def absorb(self, upper: "list[Node]") -> None:
        """Become one with the only-child chain `upper` above this node, listed from the top; undoes splits that nobody needs."""
        top = upper[0]
        tokens, pages, slots = top.tokens[:0], list[int](), list[int]()
        for node in (*upper, self):
            tokens.extend(node.tokens)
            pages.extend(node.pages)
            slots.extend(node.slots)
        self.tokens, self.pages, self.slots = tokens, pages, slots
        self.start, self.parent, self.hits = top.start, top.parent, top.hits
        self.place()

    def page_at(self, index: int, page_size: int) -> int:
        """The device page that holds this path's tokens of page number `index`, one that this node's tokens reach into.

        Where the node doesn't own it, any warm descendant that does will do: down at most `page_size` nodes.
        """
        node = self
        while True:
            own = index - node.start // page_size
            if own < len(node.pages):
                return node.pages[own]
            node = next(reversed(node.children.values()))  # the latest: old ones go first and leave holes behind them

    def slot_at(self, index: int, page_size: int) -> int:
        """The host slot that holds page number `index`, where no page on the device does."""
        node = self
        while True:
            own = index - node.start // page_size - len(node.pages)
            if own < len(node.slots):
                return node.slots[own]
            node = next(reversed(node.cold.values()))
