"""The pieces that models are made of.

`linear` has `LinearSource` (where weights come from), `LinearMethod` (makes layers), `Linear` (applies one) and the plain
float method; `rope` has the rotary frequencies, their scaling and the table of cos and sin.
"""
