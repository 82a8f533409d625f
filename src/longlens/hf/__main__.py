"""Run another program with LaS attention known to transformers.

    python -m longlens.hf lm_eval --model hf --model_args pretrained=FOLDER --tasks wikitext

runs `lm_eval` as `python -m lm_eval` does, after `import longlens.hf`.
"""

import runpy
import sys

import longlens.hf  # noqa: F401

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        sys.exit("usage: python -m longlens.hf MODULE [ARGUMENT ...]")
    del sys.argv[0]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
