"""A GGUF file as a checkpoint: names mapped to Hugging Face's, blocks dequantised by the `gguf` package or handed on as they lie.

Opened by `weights.loader`; the model's shape comes from `models.gguf_metadata`.
"""

from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from torch import Tensor

from branchpoint.runtime.errors import ModelError
from branchpoint.runtime.models.gguf_metadata import config_from
from branchpoint.runtime.quant.blocks import GROUP, FourBit
from branchpoint.runtime.weights.checkpoint import Stored
from branchpoint.runtime.weights.gguf_header import TensorEntry, read_header

__all__ = ["SUPPORTED_KINDS", "GgufCheckpoint", "four_bit_blocks"]

Bytes = npt.NDArray[np.uint8]

SUPPORTED_KINDS = ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q5_K", "Q6_K")

_FLOATS = ("F32", "F16", "BF16")

_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_LAYER = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


class GgufCheckpoint:
    """Tensors of one GGUF file. Raises ModelError where the file is corrupt, or holds an unsupported architecture or type."""

    def __init__(self, path: Path) -> None:
        header = read_header(path)
        self._entries = header.tensors
        self._bytes: Bytes = np.memmap(path, dtype=np.uint8, mode="r")
        self.where = path.name
        factors = self._rope_factors()
        self.config, family = config_from(header, path.name, factors)
        self._permuted = family.gguf_permuted

    def find(self, name: str) -> Stored | None:
        """See `Checkpoint`."""
        entry = self._entries.get(_gguf_name(name))
        if entry is None:
            return None
        if entry.kind.name not in SUPPORTED_KINDS:
            raise ModelError(
                f"{self.where}: {entry.name} is stored as {entry.kind.name}; supported are {', '.join(SUPPORTED_KINDS)}."
            )
        four_bit = entry.kind.name in ("Q4_0", "Q4_1") and len(entry.shape) == 2
        order = self._row_order(name, entry)
        if len(entry.shape) == 1 and entry.kind.name not in _FLOATS:
            raise ModelError(
                f"{self.where}: {entry.name} is a vector stored as {entry.kind.name}; only float vectors are supported."
            )
        rows = entry.shape[:1]

        def raw() -> Bytes:
            data = self._bytes[entry.offset : entry.offset + entry.num_bytes].reshape(*rows, -1)
            return data if order is None else data[order]

        def blocks() -> FourBit:
            return four_bit_blocks(raw(), entry.kind)

        def read() -> Tensor:
            return (blocks().dense() if four_bit else _dense(raw(), entry.kind)).reshape(entry.shape)

        return Stored(name, entry.shape, entry.kind.name, read, blocks if four_bit else None)

    def _rope_factors(self) -> tuple[float, ...]:
        """Divisors of the rope frequencies that the file carries (llama3's scaling), or none."""
        entry = self._entries.get("rope_freqs.weight")
        if entry is None:
            return ()
        if entry.kind.name not in _FLOATS:
            raise ModelError(f"{self.where}: {entry.name} is stored as {entry.kind.name}; only float vectors are supported.")
        return tuple(_dense(self._bytes[entry.offset : entry.offset + entry.num_bytes], entry.kind).tolist())

    def _row_order(self, name: str, entry: TensorEntry) -> npt.NDArray[np.int64] | None:
        """Where the file interleaves the two halves of each head's rows (llama.cpp's rope order): the order that undoes it."""
        if not self._permuted or not any(f".self_attn.{part}_proj." in name for part in "qk"):
            return None
        heads = self.config.num_heads if ".q_proj." in name else self.config.num_kv_heads
        rows = np.arange(entry.shape[0], dtype=np.int64)
        if rows.size % (2 * heads):
            return None  # a wrong shape, which `require` names
        return np.ascontiguousarray(rows.reshape(heads, -1, 2).swapaxes(1, 2)).reshape(-1)


def _gguf_name(name: str) -> str:
    if not name.startswith("model.layers."):
        return _GLOBAL.get(name, "")
    index, _, rest = name.removeprefix("model.layers.").partition(".")
    module, _, leaf = rest.rpartition(".")
    return f"blk.{index}.{_LAYER.get(module, '')}.{leaf}"


def _dense(data: Bytes, kind: GGMLQuantizationType) -> Tensor:
    """The values of raw bytes [rows, bytes], in their own float type or float32 out of blocks. A copy, off the file."""
    if kind.name in ("F32", "F16"):
        return torch.from_numpy(np.array(data).view(np.float32 if kind.name == "F32" else np.float16))
    if kind.name == "BF16":
        return torch.from_numpy(np.array(data).view(np.int16)).view(torch.bfloat16)
    if kind.name == "Q8_0":
        return _q8_0(data)
    return torch.from_numpy(np.ascontiguousarray(dequantize(data, kind), dtype=np.float32))


def _q8_0(data: Bytes) -> Tensor:
    """Blocks of a float16 scale and 32 int8 codes. The package gives the same values, in many small steps; heads are large."""
    blocks = np.array(data).reshape(*data.shape[:-1], -1, 2 + GROUP)
    scale = torch.from_numpy(np.ascontiguousarray(blocks[..., :2]).view(np.float16).astype(np.float32))
    codes = torch.from_numpy(np.ascontiguousarray(blocks[..., 2:]).view(np.int8))
    return codes.float().mul_(scale).flatten(-2)


def four_bit_blocks(data: Bytes, kind: GGMLQuantizationType) -> FourBit:
    """Split raw Q4_0 or Q4_1 rows [N, bytes] into codes, scales and minima.

    A block is a float16 step (Q4_1: and a float16 minimum), then 16 bytes: the low halves are weights 0 to 15, the high ones
    16 to 31. Q4_0 counts its codes from 8.
    """
    head = 2 if kind.name == "Q4_0" else 4
    blocks = np.ascontiguousarray(data).reshape(data.shape[0], -1, head + GROUP // 2)
    floats = torch.from_numpy(np.ascontiguousarray(blocks[..., :head]).view(np.float16).astype(np.float32))
    packed = torch.from_numpy(np.ascontiguousarray(blocks[..., head:]))
    codes = torch.cat((packed & 15, packed >> 4), dim=-1).reshape(data.shape[0], -1)
    scale = floats[..., 0].contiguous()
    minimum = scale * -8.0 if kind.name == "Q4_0" else floats[..., 1].contiguous()
    return FourBit(codes, scale, minimum)
