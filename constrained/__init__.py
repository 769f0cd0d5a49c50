"""Which tokens may come next: constraints are compiled into grammars, and matchers fill masks. No model, no request.

`spec.Constraint` and a `vocabulary.Vocabulary` go into `compiler.GrammarCompiler`, which answers with futures of
`grammar.CompiledGrammar`; each sequence takes a `grammar.Matcher` from it: `fill(row)`, `advance(tokens)`, `rollback(n)`,
`forced()`. Everything that is refused is an `errors.GrammarError`.
"""
