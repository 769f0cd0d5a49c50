"""Linears in fewer bits, each form a `layers.linear.LinearMethod` or a part of one.

`blocks.FourBit` is 4-bit weights in groups of 32; `int4`, `int8` and `bfloat16` hold weights for torch's CPU operators;
`measured.Measured` (`--cpu-weights auto`) times them and takes the fastest allowed form for each shape and number of rows.

Exactness, as the mean relative error of SmolLM2's logits against its dequantised float32 weights (held by a test): bfloat16
0.01, int4 0.01, int8 0.08. The file's own Q4_1 rounding stands for 0.3. So a 4-bit file may use all of them, int8 only where
it is clearly faster; a file of 5 to 8 bits only bfloat16; a float checkpoint none: it stays as it is unless `--cpu-weights`
asks for a form.
"""
