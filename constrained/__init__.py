"""Which tokens may come next: constraints are compiled into grammars, and matchers fill masks. No model, no request."""
