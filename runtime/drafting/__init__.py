"""Guesses for the tokens that come next, for the target to verify itself; no engine asks for them yet.

A `Speculation` asks its `Drafter`s, one after another, for a `Proposal` each (`drafter.py`), and decides with `Acceptance` (what
was agreed so far) and `StepCost` (what a token more costs a step) how much of each is worth verifying.

Drafters: `GrammarDrafter`, `NgramDrafter`, `SuffixDrafter`, `RadixDrafter`.
"""
