"""One edge of the radix tree: a run of tokens, and the pages that end in it.

A page that spans several nodes of a path belongs to the lowest of them. So an inner node owns the pages which its tokens
complete, `start // P` up to `end // P`; a leaf owns the last, partly filled one too. The first page of a node that starts inside
a page holds the ancestors' tokens of that page as well, which is how a match that ends there finds them.
"""

from array import array

__all__ = ["Node"]


class Node:
    """Tokens `start` to `end` of every prefix through this node; made and changed by the tree only. A root has no tokens."""

    __slots__ = ("children", "hits", "last_used", "pages", "parent", "priority", "queued", "start", "tokens")

    def __init__(self, parent: "Node | None", start: int, tokens: "array[int]", pages: list[int]) -> None:
        self.parent = parent
        self.start = start
        self.tokens = tokens
        self.pages = pages
        self.children: dict[int, Node] = {}
        self.last_used = 0.0
        self.priority = 0
        self.hits = 0
        self.queued = False

    @property
    def end(self) -> int:
        """Position behind the last token."""
        return self.start + len(self.tokens)

    def split(self, offset: int, page_size: int) -> "Node":
        """Put a new node for the first `offset` tokens between this one and its parent, and return it."""
        parent = self.parent
        assert parent is not None and 0 < offset < len(self.tokens), f"can't split {len(self.tokens)} tokens at {offset}"
        completed = (self.start + offset) // page_size - self.start // page_size
        upper = Node(parent, self.start, self.tokens[:offset], self.pages[:completed])
        upper.last_used, upper.priority, upper.hits = self.last_used, self.priority, self.hits
        parent.children[upper.tokens[0]] = upper
        upper.children[self.tokens[offset]] = self
        self.parent = upper
        self.start += offset
        del self.tokens[:offset]
        del self.pages[:completed]
        return upper

    def absorb(self, upper: "list[Node]") -> None:
        """Become one with the only-child chain `upper` above this node, listed from the top; undoes splits that nobody needs."""
        top = upper[0]
        assert top.parent is not None, "a root can't be absorbed"
        tokens, pages = top.tokens[:0], list[int]()
        for node in (*upper, self):
            tokens.extend(node.tokens)
            pages.extend(node.pages)
        self.tokens, self.pages = tokens, pages
        self.start, self.parent, self.hits = top.start, top.parent, top.hits
        top.parent.children[self.tokens[0]] = self

    def page_at(self, index: int, page_size: int) -> int:
        """The page that holds this path's tokens of page number `index`, one that this node's tokens reach into.

        Where the node doesn't own it, any descendant that does will do: down at most `page_size` nodes.
        """
        node = self
        while True:
            own = index - node.start // page_size
            if own < len(node.pages):
                return node.pages[own]
            node = next(reversed(node.children.values()))  # the latest: old ones go first and leave holes behind them
