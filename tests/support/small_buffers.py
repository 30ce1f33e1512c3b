"""`octavo` with small socket buffers, as a program: a reader who is slow is noticed soon.

Otherwise the kernel takes several hundred kilobytes for a client who reads nothing.
"""

from __future__ import annotations

import socket
from typing import Any

from app.cli import main
from app.listener import Listener

SENT_BYTES = 4096

if __name__ == "__main__":
    made = Listener.__init__

    def small(self: Listener, *arguments: Any) -> None:
        made(self, *arguments)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_BYTES)

    Listener.__init__ = small  # type: ignore[method-assign]
    main()
