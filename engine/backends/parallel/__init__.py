"""One model over several processes: each holds a shard of every matrix, and its own KV cache.

    rank 0   HTTP, scheduler, Batch ─▶ run ─▶ logits ─▶ sampler
                                 │      ║ products are added up, logits put together
    rank 1                       └────▶ run                     (torch.distributed)
                 wire: a message a step

Every rank computes the same step over its own attention heads and its own columns of the MLP
(Megatron-LM, https://arxiv.org/abs/1909.08053): after attention and after the MLP the partial sums
are added up, so that all ranks go on with the same activations. KV blocks have the same numbers
everywhere. What a step is goes over a connection of its own, on which a follower sleeps between
steps for as long as there are none, and on whose other end it is noticed at once that a process
has ended.
"""
