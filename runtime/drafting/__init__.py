"""Guesses for the tokens that come next, which the target verifies itself: they change how fast a text comes, never the text.

A `Speculation` asks its `Drafter`s, one after another, for a `Proposal` each (`drafter.py`), and decides with `Acceptance` (what
was agreed so far) and `StepCost` (what a token more costs a step) how much of each is worth verifying. A slot then has a row
for each guess (`plan.Slot.draft`), drawn with that position's own noise and mask; `verify.commit_rows` takes in those that agree.

`make_speculation` builds it all from a configuration. The drafters: `GrammarDrafter`, `NgramDrafter`, `SuffixDrafter` and
`RadixDrafter`, which look up, and `DrawnDrafter`, which draws from a `GuessSource`: a small model (`ModelSource`) or
a learned head (`HeadSource`).
"""
