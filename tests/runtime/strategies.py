"""Random calls for the engine's property tests: prompts that share stems, all kinds of ends, grammars, scores."""

from hypothesis import strategies as st

from branchpoint.constrained.spec import Choice
from branchpoint.runtime.messages import Call, Hints, ScoreCall
from branchpoint.runtime.sampling import SamplingParams

STEMS = [tuple((7 * place + 3 * stem) % 38 for place in range(30)) for stem in range(3)]

tokens = st.integers(0, 38)


@st.composite
def prompts(draw: st.DrawFn, longest: int) -> tuple[int, ...]:
    stem = draw(st.sampled_from(STEMS))
    shared = draw(st.integers(1, min(len(stem), longest)))
    own = draw(st.lists(tokens, max_size=min(5, longest - shared)))
    return (*stem[:shared], *own)


@st.composite
def samplings(draw: st.DrawFn, prompt: int, most: int) -> SamplingParams:
    max_tokens = draw(st.integers(0, most))
    asks_prompt = draw(st.sampled_from([None, None, None, 0, 2]))
    return SamplingParams(
        max_tokens=max_tokens,
        min_tokens=draw(st.integers(0, max_tokens)),
        temperature=draw(st.sampled_from([0.0, 1.0])),
        seed=draw(st.integers(0, 5)),
        n=draw(st.sampled_from([1, 1, 2, 3])),
        stop=draw(st.sampled_from([(), (), ("ab",), ("cc",), ("m",)])),
        stop_token_ids=draw(st.sampled_from([(), (), (3, 4)])),
        ignore_eos=draw(st.booleans()),
        include_stop=draw(st.booleans()),
        logprobs=draw(st.sampled_from([None, None, 0, 2])),
        prompt_logprobs=asks_prompt,
        prompt_logprobs_start=draw(st.integers(0, prompt - 1)) if asks_prompt is not None else 0,
    )


places = st.one_of(st.sets(tokens, min_size=1, max_size=4), tokens.map(lambda token: {token}))
constraints = st.lists(places, min_size=1, max_size=8).map(lambda sets: Choice(tuple(",".join(map(str, each)) for each in sets)))
hints = st.builds(
    Hints,
    program=st.sampled_from(["", "p", "q"]),
    path=st.sampled_from([(), (0,), (1,), (1, 0)]),
    priority=st.sampled_from([0, 0, 0, 1]),
    siblings=st.sampled_from([1, 1, 3]),
    returns=st.booleans(),
    return_seconds=st.sampled_from([0.0, 1_000.0]),
)


@st.composite
def generate_calls(draw: st.DrawFn, name: str, longest: int = 30, most: int = 12) -> Call:
    """A call whose prompt and output have at most `longest` + `most` tokens."""
    prompt = draw(prompts(longest))
    return Call(
        name,
        prompt,
        draw(samplings(len(prompt), most)),
        draw(st.one_of(st.none(), st.none(), constraints)),
        namespace=draw(st.sampled_from(["", "", "other"])),
        hints=draw(hints),
    )


@st.composite
def score_calls(draw: st.DrawFn, name: str, longest: int = 30) -> ScoreCall:
    continuations = draw(st.lists(st.lists(tokens, max_size=6).map(tuple), min_size=1, max_size=4))
    return ScoreCall(name, draw(prompts(longest)), tuple(continuations), hints=draw(hints))


def any_call(name: str, longest: int = 30, most: int = 12) -> st.SearchStrategy[Call | ScoreCall]:
    return st.one_of(generate_calls(name, longest, most), generate_calls(name, longest, most), score_calls(name, longest))
