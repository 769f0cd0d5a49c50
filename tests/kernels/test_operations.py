"""A model gives the same logits with Triton's small operations as with torch's."""

import torch

from branchpoint.kernels.operations import operations_for, torch_operations, triton_operations
from branchpoint.runtime.config import EngineConfig
from branchpoint.runtime.models.decoder import Decoder
from branchpoint.runtime.weights.loader import load_model
from tests.runtime.model_checks import logits_of

CPU = torch.device("cpu")


def test_a_model_computes_the_same_with_either_form() -> None:
    model = load_model(EngineConfig(model="dummy:qwen3", threads=1, seed=1), CPU).model
    assert isinstance(model, Decoder)
    tokens = list(range(5, 17))
    expected = logits_of(model, tokens)
    model._operations = triton_operations()
    torch.testing.assert_close(logits_of(model, tokens), expected, atol=2e-5, rtol=1e-4)


def test_a_cpu_gets_torchs_forms() -> None:
    assert operations_for(CPU) == torch_operations()
