"""What a user writes: programs, states, expressions, and the executor that runs them. Imports no torch."""
