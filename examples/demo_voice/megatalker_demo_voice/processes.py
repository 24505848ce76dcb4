"""Several processes, one for each GPU (or, on CPUs, as many as ``torchrun`` starts)."""

import os
from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.distributed.nn  # before there is a group: its functions' defaults keep the one they find, for ever


@dataclass(frozen=True, slots=True)
class Processes:
    """This process among its like."""

    rank: int
    count: int
    device: torch.device

    @classmethod
    def start(cls, device: str) -> "Processes":
        """Join the others that ``torchrun`` started, if it did."""
        count, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
        place = torch.device(device)
        if place.type == "cuda":
            place = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
            torch.cuda.set_device(place)
        if count > 1:
            dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
        return cls(rank, count, place)

    def wait_for_all(self) -> None:
        if self.count > 1:
            dist.barrier()

    def team(self, teams: int) -> "tuple[int, dist.ProcessGroup | None]":
        """Split the processes evenly into ``teams``: which one this is in, and its group if it is not alone there.

        Raises:
            ValueError: they cannot be split evenly.
        """
        if self.count % teams:
            raise ValueError(f"{self.count} processes cannot share {teams} talkers evenly; name as many or a divisor")
        size = self.count // teams
        groups = (
            [dist.new_group(list(range(start, start + size))) for start in range(0, self.count, size)]
            if size > 1
            else []
        )
        mine = self.rank // size
        return mine, groups[mine] if groups else None

    def stop(self) -> None:
        """Leave the others, once all have come so far: a process that is still sending would be cut off.

        Threads of a group end with its last reference. Drop those before the program ends: a thread that lets go of a
        tensor while Python is torn down aborts the process.
        """
        self.wait_for_all()
        if self.count > 1:
            dist.destroy_process_group()
