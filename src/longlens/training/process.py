"""What a run sets for its whole process, all of it here: determinism, compiler, warnings."""

from __future__ import annotations

import os
import warnings

import torch

from longlens.training.options import TrainOptions

RECOMPILATIONS = 1024  # a program for each padded length, and some for what varies beside it


def is_compiled(options: TrainOptions, device: torch.device) -> bool:
    """Whether a run's model is compiled: as asked for, else on cuda."""
    return device.type == "cuda" if options.compile is None else options.compile


def set_process(options: TrainOptions, device: torch.device) -> None:
    """Make the process ready for a run; called when the run begins, never by an import."""
    if options.deterministic and device.type != "cpu":
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(options.deterministic)
    if is_compiled(options, device):
        torch._dynamo.config.recompile_limit = RECOMPILATIONS
        # the compiler itself looks at the .grad of a compiled block's input
        warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")


def forget_programs() -> None:
    """The next run is another model: it needs the memory and its own compiled programs."""
    torch.compiler.reset()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
