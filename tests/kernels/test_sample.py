"""The noise, the first of the largest, and what may be drawn, against slow plain definitions."""

import math

import pytest
import torch

from branchpoint.kernels.sample import first_argmax, gumbel_noise, keep_best

VOCABULARY = torch.arange(5000, dtype=torch.int32)


def _noise(seeds: list[int], positions: list[int], tokens: torch.Tensor = VOCABULARY) -> torch.Tensor:
    return gumbel_noise(torch.tensor(seeds), torch.tensor(positions), tokens)


def _splitmix(state: int) -> int:
    z = (state + 0x9E3779B97F4A7C15) % 2**64
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
    return z ^ (z >> 31)


def _gumbel(seed: int, position: int, token: int) -> float:
    """The same hash in Python's own integers."""
    key = _splitmix(_splitmix(seed % 2**64) ^ position)
    x = (token + (key >> 32)) % 2**32
    x = (x ^ (x >> 17)) * 0xED5AD4BB % 2**32
    x = ((x ^ (x >> 11)) + key) * 0xAC4C1B51 % 2**32
    x = (x ^ (x >> 15)) * 0x31848BAB % 2**32
    x = (x ^ (x >> 14)) % 2**31
    return -math.log(-math.log1p(-min((x + 0.5) / 2**31, 1 - 2**-24)))


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (1, 77), (-(2**63), 1), (2**63 - 1, 8191)])
def test_noise_is_the_hash_it_is_said_to_be(seed: int, position: int) -> None:
    noise = _noise([seed], [position])[0, :200].tolist()
    assert noise == pytest.approx([_gumbel(seed, position, token) for token in range(200)], abs=1e-4)


def test_noise_depends_on_nothing_but_seed_position_and_token() -> None:
    together = _noise([5, 5, 9], [1, 2, 2])
    for row, (seed, position) in enumerate([(5, 1), (5, 2), (9, 2)]):
        assert torch.equal(_noise([seed], [position])[0], together[row])
    some = torch.randperm(5000)[:37]
    assert torch.equal(_noise([5], [2], some.to(torch.int32))[0], together[1, some])


def test_noise_is_gumbel_distributed_and_rows_are_unrelated() -> None:
    noise = _noise(list(range(200)), [3] * 200).double()
    assert noise.isfinite().all()
    uniform = torch.exp(-torch.exp(-noise))
    counts = torch.histc(uniform, 100, 0, 1)
    expected = noise.numel() / 100
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 160  # 99 degrees of freedom: passed by chance but once in 10,000
    rows = torch.corrcoef(uniform) - torch.eye(200)
    assert rows.abs().max() < 6 / math.sqrt(5000)
    assert len(torch.unique(noise[0])) > 4990


def test_positions_and_seeds_do_not_stand_for_each_other() -> None:
    a, b = _noise([3, 4], [4, 3])
    assert not torch.isclose(a, b).all()
    assert float(torch.corrcoef(torch.stack((a, b)))[0, 1]) < 0.08


def test_the_lowest_of_equal_maxima_wins() -> None:
    scores = torch.zeros(3, 50_000)
    scores[1, [77, 40_000]] = 5
    scores[2, [49_999, 49_998]] = 1
    assert first_argmax(scores).tolist() == [0, 77, 49_998]
    assert int(first_argmax(scores[1])) == 77


def _reference(scores: torch.Tensor, top_k: int, top_p: float, min_p: float) -> list[int]:
    """The three filters, one after another, over the whole list."""
    values = scores.double().tolist()
    kept = [i for i, value in enumerate(values) if value > -math.inf]
    if top_k:
        least = sorted((values[i] for i in kept), reverse=True)[:top_k][-1]
        kept = [i for i in kept if values[i] >= least]
    kept.sort(key=lambda i: (-values[i], i))
    if top_p < 1:
        total = sum(math.exp(values[i]) for i in kept)
        mass, count = 0.0, 0
        while mass < top_p and count < len(kept):
            mass += math.exp(values[kept[count]]) / total
            count += 1
        kept = kept[:count]
    return sorted(i for i in kept if not min_p or values[i] >= values[kept[0]] + math.log(min_p))


@pytest.mark.parametrize("top_k", [0, 1, 5, 5000])
@pytest.mark.parametrize("top_p", [1.0, 0.999, 0.6, 1e-6])
@pytest.mark.parametrize("min_p", [0.0, 0.05, 1.0])
def test_filters_keep_what_their_definitions_keep(top_k: int, top_p: float, min_p: float) -> None:
    for seed, spread in [(1, 0.1), (2, 2.0), (3, 8.0)]:
        scores = torch.randn(3000, generator=torch.Generator().manual_seed(seed)) * spread
        scores[::7] = -torch.inf
        assert keep_best(scores, top_k, top_p, min_p).tolist() == _reference(scores, top_k, top_p, min_p)


def test_ties_at_the_edge_of_top_k_stay_and_of_top_p_go_to_lower_ids() -> None:
    scores = torch.tensor([1.0, 2.0, 2.0, 0.0, 2.0])
    assert keep_best(scores, 2, 1.0, 0.0).tolist() == [1, 2, 4]
    assert keep_best(scores, 2, 0.5, 0.0).tolist() == [1, 2]
