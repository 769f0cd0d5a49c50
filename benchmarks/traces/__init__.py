"""Programs in the shapes of the SGLang paper's evaluation, recorded and replayed, for `benchmarks.programs`.

`SHAPES` makes the programs, a `Recorder` writes down the calls that they make of an engine, a `Replay` sends the same calls as
requests that know nothing of each other, `Reuse` is how much of their prompts was reused, and how much could have been, and
`Work` what they need at least.
"""
