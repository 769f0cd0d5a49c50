"""What a step costs on the simulated device: a few constants instead of a model.

The defaults are an 8-billion-parameter model in bfloat16 (32 layers, 8 KV heads of 128) on one H200.
"""

from dataclasses import dataclass

from branchpoint.runtime.plan import StepPlan

__all__ = ["CostModel"]


@dataclass(frozen=True, slots=True)
class CostModel:
    """Seconds. A step reads all weights or computes its tokens, whichever takes longer, and then reads the KV of its contexts.

    `launch` is paid by each step; `weights`: 16 GB at 4 TB/s; `token`: 16 GFLOP at 400 TFLOP/s; `context`: 128 KiB of KV at
    4 TB/s for each token that a slot attends to; `row`: 1 GFLOP of logits and their sampling.
    """

    launch: float = 0.5e-3
    weights: float = 4.0e-3
    token: float = 40e-6
    context: float = 33e-9
    row: float = 3e-6

    def seconds(self, plan: StepPlan) -> float:
        """How long `plan` takes."""
        tokens = rows = context = 0
        for slot in plan.slots:
            tokens += slot.count
            rows += len(slot.rows)
            context += slot.start + slot.count
        return self.launch + max(self.weights, tokens * self.token) + context * self.context + rows * self.row
