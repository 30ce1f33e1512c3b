"""Kernels in these tests run in Triton's interpreter, whoever imports triton first."""

import os

os.environ["TRITON_INTERPRET"] = "1"
