"""Speculative drafting that never changes the text: guesses for the tokens that come next, verified by the target itself.

The scheduler hands a `Speculation` the sequences of a step that draw a token. It asks its `Drafter`s, one after another, for a
`Proposal` each (`drafter.py`), decides with `Acceptance` (what was agreed so far) and `StepCost` (what a token more costs a step)
how much of each is worth verifying, and learns from what came out. Guesses become the `draft` of a `Slot`: the target draws at
every position with that position's own noise and mask, and `Generation.commit` takes tokens while they agree.

Drafters: `GrammarDrafter`, `NgramDrafter`, `SuffixDrafter`, `RadixDrafter`, `ModelDrafter`, `HeadDrafter`. `rejection.py`
holds the classical verification, which keeps the distribution only.
"""
