"""Tensors whose memory ends where a page begins that nobody may touch, or begins where one ends: a step outside of them
ends the process."""

import ctypes
import mmap

import torch

PAGE = mmap.PAGESIZE
NO_ACCESS, PRIVATE_ANONYMOUS = 0, 0x22

libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]


class Region:
    """Some pages between two without access."""

    def __init__(self, pages):
        self.bytes = pages * PAGE
        whole = libc.mmap(None, self.bytes + 2 * PAGE, NO_ACCESS, PRIVATE_ANONYMOUS, -1, 0)
        assert whole not in (None, ctypes.c_void_p(-1).value), "no memory for a guarded region"
        self.begin = whole + PAGE
        done = libc.mprotect(self.begin, self.bytes, mmap.PROT_READ | mmap.PROT_WRITE)
        assert done == 0, "no access to a guarded region"

    def tensor(self, numel, dtype, at_end):
        size = numel * torch.empty(0, dtype=dtype).element_size()
        address = self.begin + self.bytes - size if at_end else self.begin
        return torch.frombuffer((ctypes.c_ubyte * size).from_address(address), dtype=dtype)


class GuardedMemory:
    """Regions that are used in turn: a tensor is overwritten once as many others were made."""

    def __init__(self, regions=96, pages=16):
        self.regions = [Region(pages) for _ in range(regions)]
        self.next = 0

    def empty(self, shape, dtype, at_end=True):
        numel = 1
        for size in shape:
            numel *= size
        region = self.regions[self.next % len(self.regions)]
        if numel == 0 or numel * torch.empty(0, dtype=dtype).element_size() > region.bytes:
            return torch.empty(shape, dtype=dtype)
        self.next += 1
        return region.tensor(numel, dtype, at_end).view(shape)
