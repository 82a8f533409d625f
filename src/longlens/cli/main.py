"""`longlens COMMAND …`: finds the command's module and runs its `main`.

Modules load only when their command is called, so `longlens --help` is quick and a command needs
no more than its own dependencies.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

from longlens._version import __version__
from longlens.cli.parser import UsageError
from longlens.cli.terminal import INTERRUPTED, complain, leave_pipe, plain_output
from longlens.config import did_you_mean

COMMANDS = {
    "demo": "train softmax and LaS attention and two controls on a CPU, in a few minutes",
    "train": "train any mixer on any task, with a record; goes on where it was cut off",
    "evaluate": "measure a trained run again, on any split or another task",
    "predict": "what a trained run says about your own inputs",
    "run": "an experiment (table2, readings …) or a table of runs, here or on a cluster",
    "collect": "the records of an experiment as one compact file",
    "tune": "search over any options of train",
    "runs": "list and compare the records of runs",
    "show": "a run's facts and curves",
    "report": "a page of results beside the published ones, or its tables",
    "audit": "does a task need long range? bounded beside global models, with a verdict",
    "atlas": "many tasks audited, on one page: how long they are, how far they reach",
    "curve": "accuracy against context window, training examples, or any option of a run",
    "bench": "time LaS attention against plain attention, FlexAttention and eager Eq. 4",
    "data": "list, prepare, import and look at tasks",
    "layers": "the zoo of mixers as a table",
    "lens": "look inside layers: kernels, attention by distance, receptive fields",
}

# Modules of the extra `lab`, and the packages that hold them.
LAB = {name: name for name in ("jinja2", "torch", "numpy", "safetensors", "filelock")}
LAB |= {"PIL": "pillow", "yaml": "pyyaml"}


def usage() -> str:
    """The text of `longlens --help`."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {what}" for name, what in COMMANDS.items() if _exists(name)]
    return "\n".join(
        ["usage: longlens COMMAND [options]", "", *lines, "", "longlens COMMAND --help tells more."]
    )


def _exists(name: str) -> bool:
    return find_spec(f"longlens.cli.{name}") is not None


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code: 0, 1 for an error, 2 for wrong usage."""
    words = list(sys.argv[1:] if argv is None else argv)
    if argv is None:  # torch's compiler looks for an --only of its own, and chokes on quotes in it
        del sys.argv[1:]
    if not words or words[0] in ("-h", "--help"):
        print(usage())
        return 0
    if words[0] == "--version":
        print(__version__)
        return 0
    name = words[0]
    if name not in COMMANDS or not _exists(name):
        complain(
            "longlens", f"unknown command {name!r}{did_you_mean(name, COMMANDS)} (longlens --help)"
        )
        return 2
    try:
        with plain_output():
            code: int = import_module(f"longlens.cli.{name}").main(words[1:])
            if sys.stdout is not None:
                sys.stdout.flush()
    except UsageError as error:
        complain(f"longlens {name}", f"{error} (longlens {name} --help)")
        return 2
    except ModuleNotFoundError as error:
        if error.name not in LAB:
            raise
        complain(f"longlens {name}", f"needs {LAB[error.name]}: pip install 'longlens[lab]'")
        return 1
    except BrokenPipeError:
        leave_pipe()
        return 0
    except (ValueError, OSError) as error:
        complain(f"longlens {name}", error)
        return 1
    except KeyboardInterrupt:
        complain(f"longlens {name}", INTERRUPTED)
        return 130
    except Exception as error:
        faults = sys.modules.get("longlens.training.faults")  # needs torch: only if it is there
        if faults is None or not isinstance(error, faults.Stopped):
            raise
        complain(f"longlens {name}", error)
        return 128 + int(error.signum)
    return code


if __name__ == "__main__":
    sys.exit(main())
