"""Programs, a clock and a cost model around the real engine, for `benchmarks.simulate`.

`scripts` says what programs do, `shapes` holds them, `Oracle` runs them at no cost to know what is possible, `simulate` lets a
`Driver` run them on an `Engine` whose runner is a `SimulatedRunner`; an `Outcome` is what that gave.
"""
