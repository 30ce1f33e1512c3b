"""The loop of a driver: `python serve_lines.py DRIVER SETTINGS`, then a request a line on stdin.

A driver is a module beside this file with `load(settings) -> (vocab, generate)`, where `generate`
takes prompts (token ids) and computes so many tokens for each, greedily and past any end. It says
on stdout that it is loaded, and then how many seconds each request took; whatever else the engine
prints goes to stderr.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
import time


def main() -> None:
    """Load and answer until stdin ends."""
    replies = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    vocab, generate = importlib.import_module(sys.argv[1]).load(json.loads(sys.argv[2]))
    print(json.dumps({"vocab": vocab}), file=replies)
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        generate(request["prompts"], request["output"])
        print(json.dumps({"seconds": time.perf_counter() - began}), file=replies)


if __name__ == "__main__":
    main()
