"""The errors, all of the package's: each travels between processes with what it knows."""

import pickle
from collections.abc import Iterator

import pytest

import branchpoint as bp
from branchpoint.constrained.errors import UnsupportedKeyword
from branchpoint.errors import BranchpointError
from branchpoint.lang.errors import Origin, OutOfBudget
from branchpoint.runtime.errors import CapacityError, InvalidRequest
from branchpoint.runtime.messages import Usage

KNOWN: list[BranchpointError] = [
    bp.ProgramError("m", variable="x", program="p", origin=Origin("f.py", 3), branch=(1, 2), status=500, body="b"),
    bp.BackendError("m", status=429, body="b"),
    bp.Incomplete("m", variable="x", partial="so f"),
    OutOfBudget("m", variable="x", partial="so f", usage=Usage(completion_tokens=3)),
    bp.UnknownVariable("m"),
    bp.ProgramMistake("m"),
    bp.NotSupported("m"),
    InvalidRequest("m", param="top_p"),
    CapacityError("m", param="max_tokens"),
    UnsupportedKeyword("not", "/a", "m"),
]


def _below(kind: type[BranchpointError]) -> Iterator[type[BranchpointError]]:
    for each in kind.__subclasses__():
        yield each
        yield from _below(each)


@pytest.mark.parametrize("error", KNOWN, ids=lambda error: type(error).__name__)
def test_an_error_survives_pickling_with_what_it_knows(error: BranchpointError) -> None:
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), str(again), again.args) == (type(error), str(error), error.args)
    assert vars(again) == vars(error)


def test_so_does_every_kind_that_there_is() -> None:
    for kind in _below(BranchpointError):
        error = kind.__new__(kind, "m")
        assert type(pickle.loads(pickle.dumps(error))) is kind
