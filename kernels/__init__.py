"""Tensors in, tensors out. Every operation has a plain torch form; torch and triton only."""
