"""Programs that tests run beside the event loop."""

from __future__ import annotations

import asyncio
from pathlib import Path


async def run(
    *command: str, folder: Path | None = None, env: dict[str, str] | None = None
) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a command; it does not outlive who waits for it."""
    process = await asyncio.create_subprocess_exec(
        *command,
        cwd=folder,
        env=env,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        out, err = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
