"""What the scripted model must say to a call, worked out from token lists alone: no pages, no batches, no scheduler."""

from dataclasses import dataclass, field

from branchpoint.runtime.admission import derive_seed
from branchpoint.runtime.messages import Call, ScoreCall
from tests.runtime.scripted import (
    CONTEXT,
    EOS,
    TABLE,
    VOCABULARY,
    Collected,
    ListMatcher,
    best,
    choose,
    digest,
    logprob,
    sets_of,
    text_of,
)

Entry = tuple[int, float, tuple[tuple[int, float], ...]]


@dataclass
class Sample:
    tokens: list[int] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    reason: str = ""
    stop: str | int | None = None
    text: str = ""
    made: int = 0


def expect(call: Call, index: int, length: int = CONTEXT) -> Sample:
    """The output of one sample where prompt and output may have `length` tokens together."""
    sampling = call.sampling
    sample = Sample()
    matcher = ListMatcher(sets_of(call.constraint)) if call.constraint else None
    room = length - len(call.prompt)
    limit = room if sampling.max_tokens is None else min(room, sampling.max_tokens)
    seed = derive_seed(sampling.seed or 0, index) if sampling.temperature else 0
    while not sample.reason:
        forced = matcher.forced() if matcher else []
        if len(sample.tokens) == limit:
            sample.reason = "length"
        elif forced:
            _append(sample, call, matcher, forced[0])
        elif matcher and matcher.finished:
            sample.reason = "stop"
        else:
            _sample(sample, call, matcher, seed)
        if matcher and matcher.finished and not sample.reason:
            sample.reason = "stop"
    if not sample.text:
        sample.text = text_of([token for token in sample.tokens if token != EOS])
    return sample


def _sample(sample: Sample, call: Call, matcher: ListMatcher | None, seed: int) -> None:
    sampling = call.sampling
    allowed = [token for token in range(VOCABULARY) if matcher is None or token in matcher._here()]
    closing = {EOS, *sampling.stop_token_ids}
    if len(sample.tokens) < sampling.min_tokens:
        allowed = [token for token in allowed if token not in closing] or allowed
    tokens = [*call.prompt, *sample.tokens]
    token = choose(digest(tokens), seed, len(tokens), allowed)
    stops = token in sampling.stop_token_ids and len(sample.tokens) >= sampling.min_tokens
    if stops or (token == EOS and not sampling.ignore_eos):
        sample.made += 1
        sample.reason, sample.stop = "stop", token if stops else None
        if sampling.include_stop:
            sample.entries.append(_entry(call, tokens, token))
            sample.tokens.append(token)
    else:
        _append(sample, call, matcher, token)


def _append(sample: Sample, call: Call, matcher: ListMatcher | None, token: int) -> None:
    tokens = [*call.prompt, *sample.tokens]
    sample.made += 1
    if token in call.sampling.stop_token_ids and len(sample.tokens) >= call.sampling.min_tokens:
        sample.reason, sample.stop = "stop", token
        if not call.sampling.include_stop:
            sample.made -= 1  # forced: it was never made
            return
        matcher = None
    sample.entries.append(_entry(call, tokens, token))
    sample.tokens.append(token)
    if matcher:
        assert matcher.advance([token]) == 1
    text = text_of([token for token in sample.tokens if token != EOS])
    begin = len(text_of([token for token in sample.tokens[: call.sampling.min_tokens] if token != EOS]))
    for stop in call.sampling.stop:
        at = text.find(stop, begin)
        if at >= 0:
            end = at + len(stop) if call.sampling.include_stop else at
            sample.reason, sample.stop, sample.text = "stop", stop, text[:end]
            while len(text_of([token for token in sample.tokens if token != EOS])) > end:
                sample.tokens.pop()
                sample.entries.pop()


def _entry(call: Call, tokens: list[int], token: int) -> Entry:
    state = digest(tokens)
    return token, logprob(state, token), best(state, call.sampling.logprobs or 0)


def expect_prompt(call: Call) -> list[tuple[int, float | None]]:
    """The prompt's log-probabilities that the call asks for."""
    if call.sampling.prompt_logprobs is None:
        return []
    start = call.sampling.prompt_logprobs_start
    return [(token, logprob(digest(call.prompt[:at]), token) if at else None) for at, token in enumerate(call.prompt)][start:]


def expect_scores(call: ScoreCall) -> tuple[tuple[float, ...], ...]:
    """The log-probability of each token of each continuation."""
    return tuple(
        tuple(logprob(digest([*call.prompt, *continuation[:at]]), token) for at, token in enumerate(continuation))
        for continuation in call.continuations
    )


def assert_as_expected(call: Call | ScoreCall, got: Collected, length: int = CONTEXT) -> None:
    """The call completed, and with exactly what a run of its own would give."""
    end = got.end
    assert end is not None
    if isinstance(call, ScoreCall):
        assert end.logprobs == expect_scores(call)
        return
    assert [(entry.token, entry.logprob) for entry in end.prompt_logprobs] == expect_prompt(call)
    made = 0
    for index in range(call.sampling.n):
        sample = expect(call, index, length)
        finished = got.finished[index]
        assert (got.tokens.get(index, ()), got.text.get(index, "")) == (tuple(sample.tokens), sample.text)
        assert (finished.reason, finished.stop) == (sample.reason, sample.stop)
        if call.sampling.logprobs is not None:
            entries = [
                (entry.token, entry.logprob, tuple(pair[:2] for pair in entry.top)) for entry in got.logprobs.get(index, ())
            ]
            assert entries == sample.entries
            assert all(entry.text == TABLE.bytes_of(entry.token) for entry in got.logprobs.get(index, ()))
        assert finished.completion_tokens == sample.made
        made += sample.made
    usage = end.usage
    assert usage.completion_tokens == made
    assert usage.prompt_tokens == len(call.prompt)
    assert usage.prefilled_tokens + usage.cached_tokens >= len(call.prompt)
