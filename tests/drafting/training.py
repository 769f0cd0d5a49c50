"""A tiny EAGLE head, made of transformers' own layer and trained here on what a model says: some hundred steps, a few seconds."""

from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRotaryEmbedding

from branchpoint.runtime.models.base import Model
from tests.runtime.model_checks import DenseAttention

LETTERS = tuple(range(3, 115, 7))
"""The tokens that texts are made of: what a random model makes of all of its tokens can't be learned in seconds."""
LENGTH = 64


class TrainedHead(nn.Module):
    """What `EagleHead` computes, with gradients."""

    def __init__(self, model: Model) -> None:
        super().__init__()
        shape = model.config
        config = LlamaConfig(
            hidden_size=shape.hidden_size,
            num_attention_heads=shape.num_heads,
            num_key_value_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            intermediate_size=shape.intermediate_size,
            rms_norm_eps=shape.rms_eps,
            rope_theta=shape.rope_theta,
            attn_implementation="sdpa",
        )
        self.fc = nn.Linear(2 * shape.hidden_size, shape.hidden_size)
        layer = LlamaDecoderLayer(config, 0)
        layer.input_layernorm = nn.Identity()  # EAGLE's layer has none
        self.layers = nn.ModuleList([layer])
        self._rotary = LlamaRotaryEmbedding(config)

    def forward(self, embedded: Tensor, before: Tensor) -> Tensor:
        """Embeddings [B, T, H] and the hidden states before them to guesses of the hidden states there."""
        x = self.fc(torch.cat((embedded, before), dim=-1))
        positions = torch.arange(x.shape[1]).unsqueeze(0)
        out = self.layers[0](x, position_embeddings=self._rotary(x, positions), attention_mask=None)
        return out[0] if isinstance(out, tuple) else out

    def save(self, folder: Path) -> str:
        """Write it as EAGLE's heads are distributed."""
        folder.mkdir(exist_ok=True)
        save_file({name: value.contiguous() for name, value in self.state_dict().items()}, folder / "model.safetensors")
        return str(folder)


def texts_of(model: Model, count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Random texts of `LETTERS`, int64 [count, LENGTH], and the model's hidden states [count, LENGTH, H]."""
    texts = torch.tensor(LETTERS)[torch.randint(len(LETTERS), (count, LENGTH), generator=torch.Generator().manual_seed(seed))]
    with torch.inference_mode():
        hidden = torch.stack([model.forward(text, torch.arange(LENGTH), DenseAttention()) for text in texts])
    return texts, hidden.clone()


def before(hidden: Tensor) -> Tensor:
    """The hidden states before those of `hidden` [..., T, H]: zeros at first."""
    return functional.pad(hidden[..., :-1, :], (0, 0, 1, 0))


def train_head(model: Model, steps: int = 200) -> TrainedHead:
    """A head that has seen what the model makes of texts of `LETTERS`."""
    torch.manual_seed(3)
    head = TrainedHead(model)
    tokens, hidden = texts_of(model, 128, seed=1)
    embedded = torch.stack([model.embed(text) for text in tokens]).clone()
    optimiser = torch.optim.AdamW(head.parameters(), lr=3e-3)
    for _ in range(steps):
        part = torch.randint(len(tokens), (16,))
        loss = functional.smooth_l1_loss(head(embedded[part], before(hidden[part])), hidden[part])
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return head
