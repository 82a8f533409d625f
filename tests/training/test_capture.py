"""When a step is captured and what it is given; the CUDA calls themselves are replaced."""

from contextlib import contextmanager

import pytest
import torch

from longlens.training import capture
from longlens.training.examples import Examples


class Device:
    """Stands for CUDA: runs everything at once, and notes what a graph was made of."""

    def __init__(self):
        self.capturing = False
        self.compiled = 0
        self.log = []

    def wait_stream(self, other):
        pass

    def step(self, examples):
        if self.capturing:
            self.graph_input = examples.inputs
        else:
            self.log.append(("eager", examples.inputs.tolist()))

    def replay(self):
        self.log.append(("replay", self.graph_input.tolist()))

    @contextmanager
    def graph(self, graph, pool, stream):
        self.capturing = True
        yield
        self.capturing = False
        self.log.append("capture")


@pytest.fixture
def device(monkeypatch):
    made = Device()

    @contextmanager
    def on(stream):
        yield

    for name, value in {
        "Stream": lambda: made, "current_stream": lambda: made, "stream": on, "graph": made.graph,
        "graph_pool_handle": lambda: None, "synchronize": lambda: None, "CUDAGraph": lambda: made,
    }.items():  # fmt: skip
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(capture, "programs_compiled", lambda: made.compiled)
    return made


def batch(*values):
    return Examples(torch.tensor(values), torch.tensor(0))


def test_a_shape_is_captured_after_calm_steps_and_replayed_with_new_values(device):
    step = capture.CapturedStep(device.step)
    for number in range(6):
        step(batch(number))
    assert device.log == [
        *(("eager", [n]) for n in range(3)), "capture", *(("replay", [n]) for n in (3, 4, 5)),
    ]  # fmt: skip


def test_a_compilation_puts_the_capture_off(device):
    def compiles_twice(examples):
        device.compiled += len(device.log) < 2
        device.step(examples)

    step = capture.CapturedStep(compiles_twice)
    for number in range(6):
        step(batch(number))
    assert device.log == [*(("eager", [n]) for n in range(5)), "capture", ("replay", [5])]


def test_each_shape_has_its_own_graph(device):
    step = capture.CapturedStep(device.step)
    for number in range(4):
        step(batch(number))
        step(batch(number, number))
    assert len(step.graphs) == 2
    assert [entry for entry in device.log if entry[0] == "replay"] == [
        ("replay", [3]), ("replay", [3, 3]),
    ]  # fmt: skip
