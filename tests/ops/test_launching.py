"""Launches: the compiled form of a kernel is found by what it was compiled for."""

import pytest
import torch

from longlens.ops import launching


class Kernel:
    """Stands in for a Triton kernel; `searched` counts the launches that Triton looked at."""

    arg_names = ("x", "y", "n", "scale", "BLOCK", "HAS_Y")

    def __init__(self):
        self.searched, self.ran = 0, []

    def __getitem__(self, grid):
        def search(*arguments, BLOCK, HAS_Y, num_warps=4, enable_fp_fusion):
            assert enable_fp_fusion  # whatever Triton's default is
            self.searched += 1
            return Compiled(self, (BLOCK, HAS_Y))

        return search


class Compiled:
    """Its `run` takes what that of Triton's compiled kernels does."""

    function, packed_metadata = "function", "packed"

    def __init__(self, kernel, constants):
        self.kernel, self.constants = kernel, constants

    def run(self, x, y, z, stream, function, packed, metadata, enter, leave, *arguments):
        assert (stream, function, packed) == (7, "function", "packed")
        assert metadata is enter is leave is None
        self.kernel.ran.append(((x, y, z), arguments, self.constants))


@pytest.fixture(autouse=True)
def compiled_kernels(monkeypatch):
    """No interpreter, a device that is a CPU tensor's, a stream, and nothing remembered."""
    monkeypatch.setattr(launching, "INTERPRETED", False)
    monkeypatch.setattr(launching, "_launches", {})
    monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
    monkeypatch.setattr(torch._C, "_cuda_getCurrentRawStream", lambda device: 7, raising=False)


def test_a_launch_is_searched_once_for_what_a_kernel_is_compiled_for():
    kernel, x = Kernel(), torch.zeros(64)

    def launch(x, y=None, n=64, scale=0.5, grid=(2,), **constants):
        constants = {"BLOCK": 16, "HAS_Y": y is not None, "num_warps": 4} | constants
        launching.launch(kernel, grid, [x, y], [n, scale], **constants)

    launch(x, grid=(3, 2))
    again = torch.ones(64)  # another tensor of the kind
    launch(again, grid=(3, 2))
    assert kernel.searched == 1
    ((grid, arguments, constants),) = kernel.ran
    assert grid == (3, 2, 1) and constants == (16, False)
    assert arguments[0] == again.data_ptr()
    assert arguments[1:] == (None, 64, 0.5, 16, False)  # constants in the kernel's own order
    launch(x)  # on another grid
    launch(x[1:])  # not aligned to 16 bytes
    launch(x.double())
    launch(x, y=x)
    launch(x, n=63)
    launch(x, BLOCK=32)
    launch(x, num_warps=8)
    assert kernel.searched == 8 and len(kernel.ran) == 1
    launch(x[1:])
    launch(x, y=x)
    assert kernel.searched == 8 and len(kernel.ran) == 3


def test_what_is_remembered_is_bounded(monkeypatch):
    monkeypatch.setattr(launching, "MOST_KEPT", 3)
    kernel, x = Kernel(), torch.zeros(4)
    for n in range(20):
        launching.launch(kernel, (1,), [x, None], [n, 1.0], BLOCK=16, HAS_Y=False)
        assert len(launching._launches) <= 3
