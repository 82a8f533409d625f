"""Any model class of transformers with LaS attention: right, or refused, or neither.

`python -m tests.hf.sweep` tries every class of the registry, and prints the row of
`tests/hf/sweep.csv` at its end.
"""

import collections
import copy
import datetime
import inspect
import re
import signal
import sys
import warnings

import torch
import transformers
from torch.utils._pytree import tree_leaves

import longlens.hf
import tests.hf.eager_las  # noqa: F401, registers its attention
from longlens.hf.modules import attention_modules
from tests.hf.tiny_configs import registered_classes, tiny_config

LARGEST = 10_000_000  # parameters; what is not tiny after shrinking is not tried
SECONDS = 60


def candidates(model):
    """Inputs to try, the fullest first."""
    names = set(inspect.signature(model.forward).parameters)
    ids = torch.randint(6, 60, (2, 12), generator=torch.Generator().manual_seed(0))
    mask = torch.ones_like(ids)
    mask[1, -2:] = 0
    size = _found(model.config, "image_size", 32)
    frames = 2 * _found(model.config, "max_source_positions", 32)
    known = dict(
        input_ids=ids, attention_mask=mask, decoder_input_ids=ids[:, :7],
        pixel_values=torch.randn(2, _found(model.config, "num_channels", 3), size, size),
        input_values=torch.randn(2, 4000),
        input_features=torch.randn(2, _found(model.config, "num_mel_bins", 16), frames),
        bbox=torch.zeros(2, 12, 4, dtype=torch.long),
        past_values=torch.rand(2, 128), inputs_embeds=torch.randn(2, 12, 32),
    )  # fmt: skip
    if type(model).__name__.endswith("ForMultipleChoice"):
        known.update(
            input_ids=ids[:, None], attention_mask=mask[:, None], bbox=known["bbox"][:, None]
        )
    main = getattr(model, "main_input_name", "input_ids")
    main = main if isinstance(main, str) else main[0]
    if main in ("input_values", "input_features"):  # the mask is one of samples or frames
        known["attention_mask"] = torch.ones(2, known[main].shape[-1], dtype=torch.long)
        known["attention_mask"][1, -known[main].shape[-1] // 4 :] = 0
    usable = {name: value for name, value in known.items() if name in names}
    text = {
        n: usable[n]
        for n in ("input_ids", "attention_mask", "bbox", "decoder_input_ids")
        if n in usable
    }
    tries = [
        {n: v for n, v in usable.items() if n != "inputs_embeds"},
        text,
        {n: v for n, v in text.items() if n != "attention_mask"},
        {main: usable[main]} if main in usable else {},
        {n: usable[n] for n in (main, "decoder_input_ids") if n in usable},
        {"pixel_values": usable["pixel_values"]} if "pixel_values" in usable else {},
        {main: usable[main][:, None].repeat(1, _found(model.config, "num_frames", 2), 1, 1, 1)}
        if main == "pixel_values" and main in usable
        else {},
        {"inputs_embeds": usable["inputs_embeds"]} if "inputs_embeds" in usable else {},
        *([] if main == "input_ids" else [{main: torch.randn(2, 64, 16)}]),
    ]
    return [
        {k: v.double() if v.is_floating_point() else v for k, v in t.items()} for t in tries if t
    ]


def _found(config, name, otherwise):
    """An integer of a configuration or of its parts."""
    for c in (config, *(getattr(config, n, None) for n in getattr(config, "sub_configs", {}))):
        value = getattr(c, name, None)
        if isinstance(value, int):
            return value
    return otherwise


def build(cls, config, implementation):
    config = copy.deepcopy(config)
    config._attn_implementation, config._experts_implementation = implementation, "eager"
    return cls(config)


@torch.no_grad()
def give_weights(model):
    """Weights with which attention is far from uniform."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.is_floating_point():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim > 1 and parameter.numel():
                parameter.copy_(noise * 1.5 * max(1, parameter[0].numel()) ** -0.5)
            else:
                parameter.add_(0.1 * noise)


@torch.no_grad()
def outputs(model, batch):
    torch.manual_seed(0)
    result = model(**batch)
    leaves = tree_leaves(result if isinstance(result, tuple) else result.to_tuple())
    return [x.double() for x in leaves if isinstance(x, torch.Tensor) and x.is_floating_point()]


def error(ours, theirs):
    """The largest difference, in units of the largest number."""
    if len(ours) != len(theirs) or any(
        a.shape != b.shape for a, b in zip(ours, theirs, strict=True)
    ):
        return float("inf")
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.numel():
            counts, others = (x.abs() < 1e30 for x in (a, b))  # beyond: logits that are masked out
            both = counts & others
            if not torch.equal(counts, others):
                return float("inf")
            scale = b[both].abs().max().item() if both.any() else 1.0
            difference = (a - b)[both].abs().max().item() if both.any() else 0.0
            worst = max(worst, difference / max(scale, 1e-6))
    return worst


def refused(problem):
    """Whether an exception is ours and says what it is about."""
    return bool(re.search(r"attn_implementation='las'|LaS", str(problem)))


def try_class(kind, name):
    """(verdict, detail): "not tried", "works", "refuses", "no attention", or a defect."""
    cls = getattr(transformers, name, None)
    if cls is None:
        return "not tried", "not exported"
    try:
        config = tiny_config(kind)
        with torch.device("meta"):
            size = sum(p.numel() for p in build(cls, config, "eager").parameters())
        if size > LARGEST:
            return "not tried", f"{size} parameters"
        plain = build(cls, config, "eager").double().eval()
        give_weights(plain)
    except Exception as problem:
        return "not tried", f"build: {type(problem).__name__}: {problem}"[:300]
    batch = expected = None
    why = ""
    for batch in candidates(plain):
        try:
            expected = outputs(plain, batch)
            if not any(x.isnan().any() for x in expected):
                break
            expected, why = None, why + "NaN | "
        except Exception as problem:
            why += f"{type(problem).__name__}: {problem!s:.90} | "
    if not expected:
        return "not tried", f"inputs: {why}"[:300]
    verdicts = []
    for make in (lambda: build(cls, config, "las"), lambda: _switched(plain)):
        try:
            verdicts.append(_try_model(make(), plain, batch, expected))
        except Exception as problem:
            ours = refused(problem)
            verdicts.append(
                ("refuses" if ours else "fails", f"{type(problem).__name__}: {problem}"[:300])
            )
        plain.set_attn_implementation("eager")
    if verdicts[0][0] == verdicts[1][0]:
        return verdicts[0]
    if {v[0] for v in verdicts} <= {"works", "refuses"}:
        return "differs", str(verdicts)[:600]
    return next(v for v in verdicts if v[0] not in ("works", "refuses"))


def _switched(model):
    model.set_attn_implementation("las")
    return model


def _try_model(model, plain, batch, expected):
    if not any(True for _ in attention_modules(model)):
        return "no attention", ""
    model = model.double().eval()
    own = plain.state_dict()
    model.load_state_dict({k: v for k, v in own.items() if ".las." not in k}, strict=False)
    longlens.hf.configure(model, bound=0.0, window=1)
    same = error(outputs(model, batch), expected)
    if not same < 1e-4:
        return (
            "WRONG",
            f"without decay and smoothing it is off the model's own attention by {same:.1e}",
        )
    longlens.hf.configure(model, bound=0.3, window=3)
    if "attention_mask" in batch:  # and the first row padded on the left
        real = batch["attention_mask"].clone()
        real[0, ..., :3] = 0
        batch = dict(batch, attention_mask=real)
    ours = outputs(model, batch)
    model.set_attn_implementation("eager_las")
    off = error(ours, outputs(model, batch))
    model.set_attn_implementation("las")
    if not off < 1e-4:
        return "WRONG", f"off an eager LaS attention by {off:.1e}"
    if not error(ours, expected) > 1e-6:
        return "WRONG", "LaS attention is softmax attention"
    return "works", f"{off:.0e} {same:.0e}"


def sweep(classes):
    """Try each class; yields (model type, class name, verdict, detail)."""
    transformers.logging.set_verbosity_error()

    def too_long(*_):
        raise TimeoutError("takes too long")

    signal.signal(signal.SIGALRM, too_long)
    for kind, name in classes:
        signal.alarm(SECONDS)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                verdict, detail = try_class(kind, name)
        except TimeoutError:
            verdict, detail = "not tried", "takes too long"
        finally:
            signal.alarm(0)
        yield kind, name, verdict, detail


def summary(rows):
    """The row of `tests/hf/sweep.csv` that a sweep makes."""
    counts = collections.Counter(row[2] for row in rows)
    errors = [[float(n) for n in row[3].split()] for row in rows if row[2] == "works"]
    fine = ("works", "refuses", "no attention", "not tried")
    return dict(
        transformers=transformers.__version__, torch=torch.__version__,
        date=datetime.date.today().isoformat(), classes=len(rows),
        tried=len(rows) - counts["not tried"], work=counts["works"], refuse=counts["refuses"],
        no_attention=counts["no attention"],
        wrong=len(rows) - sum(counts[verdict] for verdict in fine),
        error_las=max(e[0] for e in errors), error_own=max(e[1] for e in errors),
    )  # fmt: skip


if __name__ == "__main__":
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    tried = []
    for row in sweep(registered_classes()[::step]):
        tried.append(row)
        print("\t".join(row).replace("\n", " "), flush=True)
    found = summary(tried)
    print(",".join(found), ",".join(map(str, found.values())), sep="\n")
