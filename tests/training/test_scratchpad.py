"""A scratchpad: values after their brackets, given in training, the model's own afterwards."""

import numpy as np
import pytest
import torch

from longlens import tasks
from longlens.lens.audit.model import shuffled_accuracy
from longlens.lens.subjects import find_subjects
from longlens.models.backbone import sees_ahead
from longlens.runs import train_run
from longlens.runs.build import build_on_meta, make_model
from longlens.runs.jobs import make_job
from longlens.runs.trained import evaluate_run, predict_run
from longlens.tasks.collapse import marked_values
from longlens.tasks.decode import listops_value
from longlens.tasks.listops import CLOSE, OPERATOR, PAD
from longlens.tasks.scratchpad import WRITTEN, most_written, with_room
from longlens.training.distributed import Ranks
from longlens.training.options import TrainOptions
from longlens.training.scratchpad import answer, write_values

SIZES = dict(train=200, validation=40, test=40, min_length=10, max_length=60, max_depth=4)
SMALL = dict(
    task="listops", task_options=SIZES, mixer="softmax", mixer_options={"num_heads": 2},
    bidirectional=False, positions="rotary", pooling="last", dim=16, depth=2, device="cpu",
    protocol="scratchpad+augment", batch_size=20, steps=3, progress=False,
)  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    return str(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def task(root):
    return tasks.load("listops", root, **SIZES)


def by_hand(tokens):
    """The expression with the value of each inner operator after its bracket, one by one."""
    written, opened = [], []
    for end, token in enumerate(tokens):
        written.append(int(token))
        if OPERATOR <= token < CLOSE:
            opened.append(end)
        elif token == CLOSE:
            value = listops_value(tokens[opened.pop() : end + 1])[0]
            written += [WRITTEN + value] if opened else []
    return written


def padded(rows, length):
    out = torch.zeros(len(rows), length, dtype=torch.long)
    for i, row in enumerate(rows):
        out[i, : len(row)] = torch.tensor(np.asarray(row).astype(np.int64))
    return out


def test_values_stand_after_their_brackets(task):
    split = task["train"]
    roomy = with_room(marked_values(split))
    length = roomy.spec.max_length
    written, values = write_values(padded([example.inputs[0] for example in roomy], length))
    assert torch.equal(written, padded([by_hand(e.inputs[0]) for e in split], length))
    for example, row, digits, size in zip(split, written, values, roomy.lengths, strict=True):
        assert (row[size:] == PAD).all() and (row[:size] != PAD).all()
        assert ((row == CLOSE) == (digits > 0)).all()
        inner = (row == CLOSE).nonzero()[:-1, 0]
        assert torch.equal(row[inner + 1], digits[inner])  # what is predicted is what is written
        assert digits[size - 1] == WRITTEN + example.target and row[size - 1] == CLOSE


def test_room_is_never_too_small(task):
    for split in task.splits.values():
        assert (with_room(split).lengths <= [most_written(n) for n in split.lengths]).all()
    closest = np.array([12, 3] + [12, 3] * 4 + [3] + [CLOSE] * 5)  # [MAX 2 [MAX 2 … 2 ] ] ]
    assert len(by_hand(closest)) == most_written(len(closest)) - 1


@pytest.mark.parametrize("protocol", ["scratchpad", "scratchpad+augment"])
def test_steps_see_true_values_and_evaluation_sees_none(task, root, protocol):
    options = TrainOptions(**SMALL | {"protocol": protocol}, root=root)
    model = make_model(options, task.spec, "supervised", torch.device("cpu"))
    job = make_job(options, task, model, Ranks(torch.device("cpu")))
    generator = torch.Generator().manual_seed(0)
    batch = next(job.train.epoch(0))
    examples = job.prepare(batch, generator, training=True)
    for row, target in zip(examples.inputs, batch.targets, strict=True):
        after = torch.cat([torch.tensor([False]), row[:-1] == CLOSE])
        plain = row[(row != PAD) & ~after]
        assert by_hand(plain.numpy()) == row[row != PAD].tolist()
        assert listops_value(plain.numpy())[0] == target
    assert torch.equal(examples.hidden, examples.inputs == CLOSE)
    for batches in (job.validation, job.test):
        for batch in batches.epoch(0):
            examples = job.prepare(batch, generator, training=False)
            after = (examples.inputs == CLOSE).roll(1, 1) & (examples.inputs != PAD)
            assert (examples.inputs[after] == WRITTEN).all()  # all zeros: nothing is given away
            assert examples.hidden is None and examples.original is None


def test_all_at_once_is_one_by_one(task):
    """Repeated passes give what writing the values from left to right gives."""
    options = TrainOptions(**SMALL)
    model = make_model(options, task.spec, "supervised", torch.device("cpu")).double().eval()
    roomy = with_room(task["test"])
    inputs, _ = write_values(padded([e.inputs[0] for e in roomy], roomy.spec.max_length))
    passes = 0

    def forward(x, mask):
        nonlocal passes
        passes += 1
        return model(x, mask, tokens=True)

    with torch.no_grad():
        found = answer(forward, inputs, inputs != PAD)
        slow = inputs.clone()
        for t in range(1, slow.shape[1]):
            here = (slow[:, t - 1] == CLOSE) & (slow[:, t] != PAD)
            logits = model(slow, slow != PAD, tokens=True)[1][:, t - 1, WRITTEN : WRITTEN + 10]
            slow[here, t] = WRITTEN + logits.argmax(-1)[here]
        assert not torch.equal(slow, inputs)
        assert torch.equal(found, model(slow, slow != PAD))
    assert passes < 10


def test_a_run_is_trained_evaluated_and_asked(task, root, tmp_path):
    longer = {"task_options": {"min_length": 60, "max_length": 120, "max_depth": 5}}
    options = TrainOptions(**SMALL, root=root, runs=str(tmp_path),
                           transfer_options={"longer": longer})  # fmt: skip
    record = train_run(options)
    test = record.metrics["test"]
    assert record.transfer["longer"]["examples"] == SIZES["test"]
    assert set(test) >= {"loss", "accuracy", "accuracy_by_operator"}
    with pytest.raises(ValueError, match="cut expressions off"):
        evaluate_run(record.folder, root=root, length=20)
    with pytest.raises(ValueError, match="writes values down"):  # lens and audit read bare inputs
        shuffled_accuracy(record.folder, task, options)
    with pytest.raises(ValueError, match="on bare inputs"):
        find_subjects(str(record.folder))
    again = evaluate_run(record.folder, root=root)
    assert again["accuracy"] == test["accuracy"]
    answers = predict_run(record.folder, [e.inputs[0] for e in task["test"]])
    right = [a["prediction"] == e.target for a, e in zip(answers, task["test"], strict=True)]
    assert np.mean(right) == pytest.approx(test["accuracy"])
    two = [12, 3, 3, 15, 12, 3, 3, 15]
    for wrong in ([12, 3, 15, 15, 15], [12, 3, 4], [12, 3, 4, 20], [3, 4], [12, 12, 15, 15], two):
        with pytest.raises(ValueError, match="takes whole expressions of ListOps"):
            predict_run(record.folder, [np.array(wrong)])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"bidirectional": True}, "never sees ahead"),
        ({"task": "cumsum", "task_options": {}, "protocol": "scratchpad"}, "no values of subtrees"),
        ({"length": 30}, "would cut expressions"),
        ({"transfer_options": {"cut": {"length": 30}}}, "would cut expressions"),
        ({"protocol": "scratchpad+values"}, "there can be one"),
        ({"protocol": "pretrain+scratchpad"}, "no pretraining"),
    ],
)
def test_what_cannot_be_is_refused(change, message):
    with pytest.raises(ValueError, match=message):
        build_on_meta(TrainOptions(**SMALL | change))


def test_only_models_that_see_ahead_are_refused():
    model = build_on_meta(TrainOptions(**SMALL | {"mixer": "las"}))
    assert not any(map(sees_ahead, model.backbone.mixers()))
