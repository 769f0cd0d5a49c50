"""Tree of thought: every thought forks into more, all branches run at once, and a select judges each leaf.

The shared stretches of the tree are computed once; only the text that differs costs anything.
"""

import branchpoint as bp

SCORES = ["1", "2", "3", "4", "5"]


def think(s: bp.State, depth: int, width: int) -> list[bp.State]:
    """Grow `width` branches a level and give back the leaves."""
    if depth == 0:
        return [s]
    branches = s.fork(width)
    for number, branch in enumerate(branches):
        branch += bp.user(f"Give idea {number + 1} for the next step, in one short sentence.")
        branch += bp.assistant(bp.gen("thought", max_tokens=24, stop="\n", temperature=0.8))
    return [leaf for branch in branches for leaf in think(branch, depth - 1, width)]


@bp.function
def solve(s: bp.State, problem: str, depth: int = 2, width: int = 2) -> list[tuple[int, str]]:
    s += bp.system("You solve problems step by step.")
    s += bp.user(problem)
    leaves = think(s, depth, width)
    for leaf in leaves:
        leaf += bp.user("How good is this plan, from 1 to 5?") + bp.assistant(bp.select("score", SCORES))
    return sorted(((int(leaf["score"]), leaf["thought"]) for leaf in leaves), reverse=True)


def main(backend: bp.BackendLike) -> bp.Run:
    return solve.run(problem="Plan a cheap birthday party for ten people.", backend=backend, config=bp.RunConfig(seed=1))


if __name__ == "__main__":
    with bp.Engine(model="smollm2") as engine:
        run = main(engine)
        for score, thought in run.value:
            print(score, thought)
        print(run.report())
