"""The small kernels compile for Hopper in the shapes that matter, and none spills registers."""

import pytest

from tests.kernels.compiled import Specialisation, compile_kernels, needs_compiler

pytestmark = [needs_compiler, pytest.mark.slow]

ROWS = dict.fromkeys(("temperature_ptr", "least_ptr", "edge_ptr", "best_ptr", "score_ptr", "chosen_best_ptr"), "*fp32")
ROWS |= dict.fromkeys(("mask_ptr", "mask_row_ptr", "top_k_ptr", "last_ptr", "token_ptr", "best_token_ptr"), "*i32")
ROWS |= {"logits_ptr": "*fp32", "top_p_ptr": "*fp64", "seed_ptr": "*i64", "position_ptr": "*i64", "chosen_ptr": "*i64"}
ROWS |= dict.fromkeys(("vocabulary", "words", "segments"), "i32")
TOPS = dict.fromkeys(("most_ptr", "sum_ptr", "value_ptr", "total_ptr", "top_value_ptr"), "*fp32") | {"top_token_ptr": "*i64"}
LAYER = dict.fromkeys(("x_ptr", "residual_ptr", "weight_ptr", "out_ptr", "total_ptr", "gate_up_ptr", "norm_ptr"), "*bf16")
LAYER |= dict.fromkeys(("qkv_ptr", "cos_ptr", "sin_ptr", "q_ptr", "cache_ptr"), "*bf16") | {
    "places_ptr": "*i64",
    "scales_ptr": "*fp32",
}
LAYER |= {"width": "i32", "eps": "fp32", "num_heads": "i32", "num_kv_heads": "i32"}
ADJUST = dict.fromkeys(("bias_ptr", "factor_ptr", "amount_ptr"), "*fp32") | {"places_ptr": "*i64", "count": "i32"}


def _form(module: str, kernel: str, types: dict[str, str], warps: int, arguments: str, **constants: object) -> Specialisation:
    signature = {name: types[name] for name in arguments.split()}
    aligned = [name for name, kind in signature.items() if kind.startswith("*") or name == "width"]
    return Specialisation(f"branchpoint.kernels.{module}", kernel, signature, constants, aligned, {"num_warps": warps})


NORM = "x_ptr residual_ptr weight_ptr out_ptr total_ptr width eps"
ROTARY = "qkv_ptr cos_ptr sin_ptr norm_ptr places_ptr q_ptr cache_ptr scales_ptr num_heads num_kv_heads eps"
DRAW = "logits_ptr mask_ptr mask_row_ptr temperature_ptr seed_ptr position_ptr edge_ptr last_ptr best_ptr score_ptr token_ptr"
EDGE = "logits_ptr mask_ptr mask_row_ptr temperature_ptr top_k_ptr top_p_ptr least_ptr best_ptr edge_ptr last_ptr"
PICK = "temperature_ptr best_ptr best_token_ptr score_ptr token_ptr chosen_ptr chosen_best_ptr segments"
MERGE = "most_ptr sum_ptr value_ptr token_ptr total_ptr top_value_ptr top_token_ptr segments"
FORMS = [
    *(_form("norm", "_norm_kernel", LAYER, 8, NORM, ADD=add, BLOCK=4096) for add in (False, True)),
    _form("activation", "_silu_mul_kernel", LAYER, 4, "gate_up_ptr out_ptr width", BLOCK=1024),
    *(
        _form("rotary", "_rope_write_kernel", LAYER, 4, ROTARY, NORM=normed, SCALES=False, HALF=half, HEADS=heads, BLOCK=block)
        for normed, half, heads, block in [(True, 64, 16, 64), (False, 64, 16, 64), (False, 40, 16, 64), (True, 128, 8, 128)]
    ),
    _form(
        "rotary", "_rope_write_kernel", LAYER | {"cache_ptr": "*fp8e4nv"}, 4, ROTARY,
        NORM=False, SCALES=True, HALF=64, HEADS=16, BLOCK=64,
    ),
    _form("draw", "_best_kernel", ROWS, 4, "logits_ptr mask_ptr mask_row_ptr best_ptr token_ptr vocabulary words", BLOCK=4096),
    _form("draw", "_draw_kernel", ROWS, 4, f"{DRAW} vocabulary words", FILTERS=True, SEGMENTS=32, BLOCK=4096),
    _form("adjust", "_adjust_kernel", ROWS | ADJUST, 4, "logits_ptr places_ptr bias_ptr factor_ptr amount_ptr count", BLOCK=256),
    _form("draw", "_pick_kernel", ROWS, 1, PICK, SEGMENTS=32),
    _form("threshold", "_threshold_kernel", ROWS, 16, f"{EDGE} vocabulary words segments", SEGMENTS=32, BLOCK=4096),
    _form(
        "logprobs", "_segment_kernel", ROWS | TOPS, 8, "logits_ptr most_ptr sum_ptr value_ptr token_ptr vocabulary",
        COUNT=20, BLOCK=4096,
    ),
    _form("logprobs", "_merge_kernel", ROWS | TOPS, 4, MERGE, COUNT=20, SEGMENTS=32, CANDIDATES=1024),
]  # fmt: skip


def test_small_kernels_compile_and_do_not_spill() -> None:
    for form, compiled in zip(FORMS, compile_kernels(FORMS), strict=True):
        assert compiled.stack == 0, f"{form.kernel} {form.constants} spills {compiled.stack} bytes a thread"
        assert compiled.registers * form.options["num_warps"] * 32 <= 65536
