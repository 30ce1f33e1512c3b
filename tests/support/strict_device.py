"""A stand-in for a GPU whose tensors are not the host's: what mixes the two, or waits, fails.

    Elsewhere     says it is on a device of its own, holds a tensor of the CPU
    each operator is looked at on its way there, with what it is given:

a number, a list or a mask that the host asks for                      the host would wait
a copy from memory that is not pinned, or to it, or a blocking one     the host would wait
operands on both sides                                                 torch would refuse

Only within `StrictDevice.active()`, as on a GPU. What is computed is what `CPUDevice` computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils import backend_registration
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

from support.cpu_device import LOOKS, CPUDevice, CPUDownload, Indiscipline, masks

CPU = torch.device("cpu")

COPIES = {"aten::_to_copy", "aten::copy_"}
"""Operators that may have operands on both sides."""


class Elsewhere(Tensor):
    """A tensor on the device. there: what it holds, on the CPU."""

    there: Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, there: Tensor) -> Elsewhere:
        with torch.inference_mode(there.is_inference()):
            made = Tensor._make_wrapper_subclass(
                cls,
                there.size(),
                strides=there.stride(),
                storage_offset=there.storage_offset(),
                dtype=there.dtype,
                device=elsewhere(),
            )
        made.there = there
        return made

    @classmethod
    def __torch_dispatch__(
        cls, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        raise Indiscipline(f"{func.name()} on a device that is not the current one")

    def tolist(self) -> Any:
        raise Indiscipline("tolist: the host has to wait")

    def numpy(self, *, force: bool = False) -> Any:
        raise Indiscipline("numpy: the host has to wait")

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.there})"


@cache
def elsewhere() -> torch.device:
    """The device of these tensors. torch keeps a place for devices that it does not know."""
    backend_registration._setup_privateuseone_for_python_backend()
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", _made_from_a_list, "PrivateUse1")
    _KEPT.append(library)
    return torch.device("privateuseone", 0)


_KEPT: list[Any] = []


def _made_from_a_list(*args: Any, **kwargs: Any) -> Tensor:
    raise Indiscipline("a list is copied to the device, not from pinned memory: the host waits")


class StrictDevice(CPUDevice):
    """The Device protocol: a `CPUDevice` with tensors elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.torch_device = elsewhere()
        self._starting = False
        self._pinned: set[int] = set()
        self._held: list[Tensor] = []

    def active(self) -> AbstractContextManager[Any]:
        return _Boundary(self)

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Within `active`; copies may wait, since nothing is served yet."""
        self._starting = True
        with self.active():
            yield
        self._starting = False

    @property
    def serves(self) -> bool:
        """Whether a copy that waits keeps anybody waiting."""
        return not self._starting

    def upload(self, array: npt.NDArray[Any]) -> Tensor:
        return Elsewhere(super().upload(array))

    def pinned(self, array: npt.NDArray[np.int32]) -> Tensor:
        return self._pin(super().pinned(array))

    def pinned_zeros(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return self._pin(super().pinned_zeros(shape, dtype))

    def download(self, tensor: Tensor) -> CPUDownload:
        if not isinstance(tensor, Elsewhere):
            raise Indiscipline("a download of what is on the host")
        return super().download(tensor.there)

    def holds(self, tensor: Tensor) -> bool:
        """Whether memory of the host is pinned."""
        return tensor.untyped_storage().data_ptr() in self._pinned

    def _pin(self, tensor: Tensor) -> Tensor:
        self._held.append(tensor)  # so that nothing else is ever in its place
        self._pinned.add(tensor.untyped_storage().data_ptr())
        return tensor


class _Boundary(TorchDispatchMode):
    """Sees every operator, and moves it to where its operands are."""

    def __init__(self, device: StrictDevice) -> None:
        super().__init__()
        self._device = device

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # or torch imports its compiler, which takes seconds

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        with self:  # operators that consist of others are looked at as these
            parts = func.decompose(*args, **kwargs)
        if parts is not NotImplemented:
            return parts
        flat, _ = tree_flatten((args, kwargs))
        away = [each for each in flat if isinstance(each, Elsewhere)]
        target = next((each for each in flat if isinstance(each, torch.device)), None)
        self._check(func.name(), away, flat, kwargs)
        result = func(*tree_map(_inside, args), **tree_map(_inside, kwargs))
        if not (away if target is None else target == elsewhere()):
            return result
        back = {id(each.there): each for each in away}
        if isinstance(args[0] if args else None, Tensor) and id(result) == id(args[0]):
            return result  # a copy to the host, in place
        return tree_map(lambda each: _outside(each, back), result)

    def _check(
        self, name: str, away: list[Elsewhere], flat: list[Any], kwargs: dict[str, Any]
    ) -> None:
        host = [t for t in flat if isinstance(t, Tensor) and not isinstance(t, Elsewhere)]
        base = name.split(".")[0]
        if base in COPIES:
            target = kwargs.get("device")
            crosses = bool(host and away) or (
                target is not None and bool(host) != (target != elsewhere())
            )
            if crosses and self._device.serves:
                self._check_copy(name, host, flat, kwargs)
        elif away and (base in LOOKS or masks(name, away)):
            raise Indiscipline(f"{name}: the host has to wait")
        elif away and any(tensor.dim() for tensor in host):
            raise Indiscipline(f"{name} of tensors on the host and on the device")

    def _check_copy(
        self, name: str, host: list[Tensor], flat: list[Any], kwargs: dict[str, Any]
    ) -> None:
        blocking = not kwargs.get("non_blocking", len(flat) > 2 and flat[2] is True)
        if blocking or not host or not all(map(self._device.holds, host)):
            raise Indiscipline(f"{name} between host and device: the host has to wait")


def on_host(tree: Any) -> Any:
    """The same with what tensors of the device hold, as a kernel would find it."""
    return tree_map(_inside, tree)


def _inside(value: Any) -> Any:
    if isinstance(value, Elsewhere):
        return value.there
    return CPU if isinstance(value, torch.device) else value


def _outside(value: Any, back: dict[int, Elsewhere]) -> Any:
    if not isinstance(value, Tensor):
        return value
    known = back.get(id(value))  # what was changed in place
    return Elsewhere(value) if known is None else known
