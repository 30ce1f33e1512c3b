"""Kernels in Triton, a file each: the kernel, and a function that launches it on tensors.

A program is one place of a kernel's grid. Grids and all that is compiled in follow from shapes and
types, never from values, so that a CUDA graph may hold any launch. Offsets into pools are 64-bit: a
pool has more elements than 32 bits count.
"""
