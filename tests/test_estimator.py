"""SequenceClassifier as scikit-learn wants a classifier to be."""

import pickle

import numpy as np
import pytest

pytest.importorskip("sklearn")

from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from longlens.estimator import SequenceClassifier

SMALL = dict(dim=16, depth=1, epochs=20, batch_size=6, random_state=0)


def waves(cases=40, length=24, channels=None):
    """Slow or fast waves of any phase, labelled in words."""
    generator = np.random.default_rng(0)
    fast = np.arange(cases) % 2
    shape = (cases, channels or 1, 1)
    phase = generator.uniform(0, 6, shape)
    x = np.sin((0.2 + fast[:, None, None]) * np.arange(length) + phase)
    return (x if channels else x[:, 0]), np.array(["slow", "fast"])[fast]


@pytest.mark.parametrize("channels", [None, 3])
@pytest.mark.parametrize("mixer", ["las", "s4d"])
def test_it_learns(mixer, channels):
    X, y = waves(channels=channels)
    model = SequenceClassifier(mixer, **SMALL).fit(X[:30], y[:30])
    assert model.score(X[30:], y[30:]) >= 0.9
    assert list(model.classes_) == ["fast", "slow"]
    assert np.allclose(model.predict_proba(X).sum(1), 1)


@pytest.mark.parametrize("mixer", ["fox", "h3"])
def test_mixers_that_only_look_back_serve(mixer):
    X, y = waves(6)
    assert len(SequenceClassifier(mixer, **dict(SMALL, epochs=1)).fit(X, y).predict(X)) == 6


def test_a_seed_is_enough_and_pickles_predict_the_same():
    X, y = waves()
    model = SequenceClassifier(**SMALL).fit(X, y)
    again = SequenceClassifier(**SMALL).fit(X, y)
    assert np.array_equal(model.predict_proba(X), again.predict_proba(X))
    copy = pickle.loads(pickle.dumps(model))
    assert np.array_equal(model.predict_proba(X), copy.predict_proba(X))


def test_a_grid_search_takes_options_of_the_mixer():
    X, y = waves()
    grid = dict(mixer_options=[dict(window=1), dict(window=5)])
    search = GridSearchCV(SequenceClassifier(**dict(SMALL, epochs=2)), grid, cv=2).fit(X, y)
    assert search.best_params_["mixer_options"] in grid["mixer_options"]


def test_unknown_mixers_and_options_are_named():
    X, y = waves()
    with pytest.raises(ValueError, match="las"):
        SequenceClassifier("lass").fit(X, y)
    with pytest.raises(ValueError, match=r"X must be \(cases, length\)"):
        SequenceClassifier().fit(X[:, None, None], y)


@pytest.mark.parametrize("options", [{"epochs": 0}, {"epochs": -1}, {"batch_size": 0}, {"dim": 0},
                                     {"depth": 1.5}])  # fmt: skip
def test_numbers_that_train_nothing_are_refused(options):
    name, value = next(iter(options.items()))
    with pytest.raises(ValueError, match=f"^{name} must be an integer of 1 or more, got {value}$"):
        SequenceClassifier(**options).fit(np.eye(4), [0, 1, 0, 1])


@pytest.mark.parametrize("length", [4, 6])
def test_sequences_of_another_length_are_refused(length):
    """scikit-learn compares the second dimension, which of (cases, channels, length) is not it."""
    X = np.random.default_rng(0).normal(size=(4, 2, 5))
    model = SequenceClassifier(dim=8, depth=1, epochs=1).fit(X, [0, 1, 0, 1])
    with pytest.raises(ValueError, match=f"must be as long as in fit, 5, got {length}"):
        model.predict(np.ones((1, 2, length)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks([SequenceClassifier(dim=16, depth=1, random_state=0)])
def test_the_checks_of_scikit_learn(estimator, check):
    check(estimator)
