"""Sets right what Triton's interpreter gets wrong, for all tests of kernels."""

import importlib
import importlib.util
from collections.abc import Callable
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def _exact_bfloat16_products(monkeypatch: pytest.MonkeyPatch) -> None:
    """The interpreter keeps bfloat16 as 16-bit integers, and its `tl.dot` multiplies those; it is to multiply their values."""
    if importlib.util.find_spec("triton") is None:
        return
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder, language = interpreter.InterpreterBuilder, interpreter.tl
    plain: Callable[..., Any] = builder.create_dot

    def create_dot(self: Any, left: Any, right: Any, *rest: Any) -> Any:
        if left.dtype == language.bfloat16:
            left, right = (self.create_fp_ext(each, language.float32) for each in (left, right))
        return plain(self, left, right, *rest)

    monkeypatch.setattr(builder, "create_dot", create_dot)
