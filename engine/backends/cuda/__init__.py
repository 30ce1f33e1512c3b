"""The CUDA backend: the decoder on a GPU, over a paged KV cache that stays there."""
