"""What can be known of a graph before it is played: how much of it is the same in each run, and which calls are a branch's last.

Asked by `graph.py`, `play.py` and `picture.py`. Texts are joined where they are traced (`trace.py`); gens that don't need each
other run side by side by themselves, since a player waits for nothing.
"""

from collections.abc import Mapping

from branchpoint.lang import nodes as op
from branchpoint.lang.nodes import Graph

__all__ = ["constant_prefix", "last_calls"]


def constant_prefix(graph: Graph) -> tuple[op.Text | op.Role, ...]:
    """The nodes at the beginning of the program's own text that are the same in every run, whatever the arguments."""
    found: list[op.Text | op.Role] = []
    for node in graph.nodes:
        if isinstance(node, op.Fork | op.Join) or node.state != 0:
            continue  # adds nothing to that text, or its own
        if not isinstance(node, op.Text | op.Role):
            break
        found.append(node)
    return tuple(found)


def last_calls(graph: Graph) -> Mapping[int, int]:
    """For each branch that ends with a call, the number of calls before that one: nothing goes on from what the last one leaves.

    The program's own state has none: a program may be called inside another, which goes on from there.
    """
    calls: dict[int, int] = {}
    ends: dict[int, bool] = {}
    for node in graph.nodes:
        if isinstance(node, op.Gen | op.Select):
            calls[node.state] = calls.get(node.state, 0) + 1
        if isinstance(node, op.Gen | op.Select | op.Fork):
            ends[node.state] = not isinstance(node, op.Fork)
    return {state: calls[state] - 1 for state, with_call in ends.items() if with_call and state != 0}
