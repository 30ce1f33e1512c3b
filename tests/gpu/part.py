"""One part, in a process of its own: a GPU that failed in one says no more to that process.

python -m tests.gpu.part NAME [--rehearse]        findings as lines of JSON on stdout
"""

from __future__ import annotations

import importlib
import sys

from tests.gpu.bed import bed


def main(name: str, rehearse: bool) -> None:
    """Run the part `tests.gpu.parts.NAME`, telling each finding at once."""
    part = importlib.import_module(f"tests.gpu.parts.{name}")
    for finding in part.run(bed(rehearse)):
        print(finding.line(), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], "--rehearse" in sys.argv[2:])
