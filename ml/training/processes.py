"""Data-parallel training under ``torchrun``.

Each step's batch is divided, gradients are averaged, and the first process
writes. ``torchrun`` ends the others when one has ended.
"""

import atexit
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

# imported before a process group exists: its functions keep the one they find
import torch.distributed.nn.functional  # noqa: F401
from torch import Tensor, nn
from torch.distributed.distributed_c10d import Store
from torch.distributed.rendezvous import rendezvous
from torch.nn.parallel import DistributedDataParallel

#: Set by ``torchrun`` and by whatever else starts several processes.
_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
#: Longer than any process waits for another, such as one on a slow disk.
_TIMEOUT = timedelta(minutes=10)
#: How often a process looks whether what started it is still there.
_PARENT_SECONDS = 1.0
#: Between the seeds of two processes; far more than there are epochs.
_SEEDS_APART = 1_000_000_007
_NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
_ENDED = (
    "a process of this training ended before its time; all of them stop. The same command resumes after the last "
    "whole epoch"
)


@dataclass(frozen=True)
class Processes:
    """Processes of a training; one by default."""

    rank: int = 0  # number of this one, from 0
    size: int = 1  # how many there are

    @property
    def first(self) -> bool:
        """Whether this one writes files and shows progress."""
        return self.rank == 0

    def device(self, device: torch.device) -> torch.device:
        """Device of this process, by its number on this machine."""
        if self.size == 1 or device.type != "cuda":
            return device
        number, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if device.index is not None:
            raise ValueError(f"{self.size} processes cannot share {device}: use --device cuda, and each takes its own")
        if number >= there:
            raise ValueError(f"process {number} of this machine has no GPU of its own: start at most {there} here")
        torch.cuda.set_device(number)
        return torch.device("cuda", number)

    def batch_norm_of(self, network: nn.Module) -> str | None:
        """Sharing of batch normalisation; None without it or alone."""
        if self.size == 1 or not any(isinstance(module, _NORMS) for module in network.modules()):
            return None
        return "per-process"  # statistics of each process's part of a batch

    def part(self, rows: npt.NDArray[np.intp]) -> npt.NDArray[np.intp]:
        """Part of some rows for this process; the first is never empty."""
        return np.array_split(rows, self.size)[self.rank]

    def seed(self, seed: int, epoch: int) -> int:
        """Seed of augmentation and dropout in an epoch."""
        return seed * 100_003 + epoch + self.rank * _SEEDS_APART

    def averaging(self, network: nn.Module) -> nn.Module:
        """Wrap a network to average gradients of all processes."""
        if self.size == 1:
            return network
        device = next(network.parameters()).device
        return DistributedDataParallel(
            network, device_ids=[device.index] if device.type == "cuda" else None, gradient_as_bucket_view=True
        )

    def total(self, values: Tensor) -> Tensor:
        """Sums over all processes, equal to the last bit in each."""
        if self.size > 1:
            dist.all_reduce(values)
        return values

    def take_buffers(self, network: nn.Module) -> None:
        """Give a network the first process's statistics of batch normalisation."""
        if self.size > 1:
            for buffer in network.buffers():
                dist.broadcast(buffer, 0)

    def from_first(self, read: Callable[[], bytes]) -> bytes:
        """Broadcast bytes that only the first process reads from its disk."""
        if self.size == 1:
            return read()
        content = [read() if self.first else b""]
        dist.broadcast_object_list(content, 0, device=torch.device("cpu"))
        return content[0]

    def require_equal(self, what: str, content: Callable[[], str]) -> None:
        """Refuse processes that were started with different things."""
        if self.size > 1:
            own = content().encode()
            if self.from_first(lambda: own) != own:
                raise ValueError(f"process {self.rank} of {self.size} has {what} that differ from those of process 0")


#: A process that trains without others.
ALONE = Processes()


@contextmanager
def started_processes() -> Iterator[Processes]:
    """The processes that ``torchrun`` has started, or this one."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        yield ALONE
        return
    missing = [name for name in _VARIABLES if name not in os.environ]
    if missing:
        raise ValueError(f"WORLD_SIZE announces several processes, but {', '.join(missing)} is not set: use torchrun")
    threading.Thread(target=_end_with, args=(os.getppid(),), daemon=True).start()
    try:
        store, rank, size = next(rendezvous("env://", timeout=_TIMEOUT))
    except dist.DistError as exc:
        announced, where = os.environ["WORLD_SIZE"], f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise ValueError(f"the {announced} processes of this training have not all met at {where}") from exc
    try:
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, store=store, rank=rank, world_size=size, timeout=_TIMEOUT)
        yield Processes(rank, size)
    except (Exception, KeyboardInterrupt) as exc:
        atexit.register(_exit_without_cleanup)
        if not _is_first_to_fail(store):
            raise SystemExit(1) from exc
        # gloo has no class of errors for a connection that another process has closed
        if isinstance(exc, dist.DistError) or (isinstance(exc, RuntimeError) and "gloo" in str(exc)):
            raise ValueError(_ENDED) from exc
        raise
    # A gloo thread that is left when Python ends aborts the process. Threads end with the last reference
    # to the process group, which may be part of a cycle.
    dist.destroy_process_group()
    gc.collect()


def _end_with(parent: int) -> None:
    """End soon after the parent process."""
    while os.getppid() == parent:
        time.sleep(_PARENT_SECONDS)
    os._exit(1)


def _exit_without_cleanup() -> None:
    """End at once: libraries may abort after a lost process."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)


def _is_first_to_fail(store: Store) -> bool:
    """Claim the first failure; true if that cannot be checked."""
    try:
        return int(store.add("failed", 1)) == 1
    except RuntimeError:
        return True
