"""A multi-turn agent with tools. The decision is a select, the argument is held to a regex, the tool is plain Python.

Every turn goes on from the tokens of the last: nothing that was computed is computed again.
"""

import branchpoint as bp

STOCK = {"apples": 12, "pears": 0, "plums": 7}
PRICES = {"apples": 3, "pears": 4, "plums": 2}
TOOLS = {"stock": STOCK, "price": PRICES}


@bp.function
def agent(s: bp.State, question: str, max_turns: int = 3) -> str:
    s += bp.system("You help in a shop. Look things up with the tools stock and price, then answer in one sentence.")
    s += bp.user(question)
    for turn in range(max_turns):
        with s.assistant():
            s += "Next step: "
            s += bp.select("step", [*TOOLS, "answer"] if turn else list(TOOLS))  # it looks up something before it answers
            if s["step"] == "answer":
                break
            s += " of " + bp.gen("item", regex="|".join(STOCK), max_tokens=8)
        s += bp.user(f"{s['step']} of {s['item']} is {TOOLS[s['step']][s['item']]}.")
    s += bp.user("Answer the question now.")
    s += bp.assistant(bp.gen("answer", max_tokens=40, stop="\n"))
    answer: str = s["answer"]
    return answer


def main(backend: bp.BackendLike) -> bp.Run:
    return agent.run(question="How many apples do you have, and what does one cost?", backend=backend, temperature=0.0)


if __name__ == "__main__":
    with bp.Engine(model="smollm2") as engine:
        run = main(engine)
        print(run.text())
        print(run.report())
