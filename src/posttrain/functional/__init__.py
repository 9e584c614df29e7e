"""Pure tensor functions of the field; they see nothing of the house.

Convention: trained tokens lie flat, [N], sample after sample, with ``samples`` int64 [N] naming each token's
row; masked places do not exist, so nothing is ever multiplied by a mask. `masked.flatten` goes there from [B, T].
"""
