# SPDX-License-Identifier: Apache-2.0
"""The example programs, against the goldens that their C counterparts have."""

import importlib
import os
import random

import numpy as np
import pytest

import libejkernel

EXAMPLES = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "examples")
DATA = os.path.join(EXAMPLES, "data", "bytelm")

pytestmark = pytest.mark.skipif(not os.path.exists(DATA), reason="no source tree")


@pytest.fixture(scope="module")
def programs():
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(os.path.join(EXAMPLES, "python"))
        # Matrices are small: where cores are busy, threads that wait for each other take most of the time.
        threads = libejkernel.get_num_threads()
        libejkernel.set_num_threads(1)
        yield {name: importlib.import_module(name) for name in ("bytelm", "bytemix", "serve")}
        libejkernel.set_num_threads(threads)


@pytest.fixture
def bytelm(programs):
    return programs["bytelm"]


@pytest.fixture
def bytemix(programs):
    return programs["bytemix"]


def read(name, folder=DATA):
    with open(os.path.join(folder, name), "rb") as file:
        return file.read()


def test_bytelm_has_the_exact_logits(bytelm):
    prompt, exact = read("prompt.txt"), np.load(os.path.join(DATA, "logits.npy"))
    assert np.abs(bytelm.Model().read(prompt) - exact).max() < 2e-4
    model, at = bytelm.Model(), 0
    for count in (1, 130, 7, 333):
        found = model.read(prompt[at : at + count])
        assert np.abs(found - exact[at : at + count]).max() < 2e-4
        at += count
    with pytest.raises(ValueError, match="expected at most 1024"):
        model.read(prompt)


def test_bytelm_writes_the_likeliest_bytes(bytelm):
    written = b"".join(bytelm.Model().generate(read("prompt.txt")[:600], 120))
    assert written == read("greedy_600_120.txt")


def greedy(model, prompt, count):
    """What follows a prompt, and the smallest margin of a byte over the next likely."""
    text, margin, at = bytearray(prompt), np.inf, 0
    while len(text) < len(prompt) + count:
        row = model.read(bytes(text[at:]), at)[-1]
        at = len(text)
        text.append(int(row.argmax()))
        margin = min(margin, np.diff(np.sort(row)[-2:])[0])
    return bytes(text), margin


def test_bytemix_has_the_exact_logits_and_bytes(bytemix):
    prompt, exact = read("prompt.txt", bytemix.FOLDER), np.load(os.path.join(bytemix.FOLDER, "logits.npy"))
    model, at = bytemix.Model(), 0
    assert np.abs(model.read(prompt) - exact).max() < 2e-4
    for count in (1, 130, 7, 33, 1, 1):
        assert np.abs(model.read(prompt[at : at + count], at) - exact[at : at + count]).max() < 2e-4
        at += count
    assert greedy(model, prompt[:600], 60)[0] == prompt[:600] + read("greedy_600_60.txt", bytemix.FOLDER)


@pytest.mark.parametrize("name", ["bytemix", "bytelm"])
def test_served_bytes_are_those_of_each_text_alone(programs, name):
    bytemix, server = programs["bytemix"], programs["serve"]
    folder = os.path.join(EXAMPLES, "data", name)
    prompt, chance = read("prompt.txt", folder), random.Random(24)
    model = bytemix.Model(folder, bytemix.CONTEXT // bytemix.PAGE, 12)
    alone = {}
    while len(alone) < 8:
        start = prompt[: len(alone) % 2 * 40]
        start += prompt[(at := chance.randrange(900)) : at + chance.randint(1, 70 - len(start))]
        text, margin = greedy(model, start, 6)
        if margin > 1e-3:
            alone[start] = text
    preempted = shared = 0
    for _ in range(12):
        engine = server.Server(model, chance.randint(6, 20), chance.randint(6, 12), chance.choice([8, 64]), 4)
        pages, slots = len(engine.free), len(engine.slots)
        coming = [server.Request(each, chance.randint(1, 6)) for each in chance.choices(list(alone), k=5)]
        while engine.step() or coming:
            if coming and chance.random() < 0.6:
                engine.requests.append(coming.pop())
            shared += sum(count > 1 for count in engine.users.values())
        assert len(engine.requests) == 5
        for r in engine.requests:
            assert r.data == alone[r.prompt][: r.end]
            preempted += r.preempted
        while engine.prefixes:
            engine.drop_prefix()
        assert (len(engine.free), len(engine.slots)) == (pages, slots)
    assert preempted > 0 and shared > 20


def test_the_model_in_jax_is_fitted_by_exact_gradients(programs):
    jax = pytest.importorskip("jax")
    program = importlib.import_module("fit_jax")

    def plain(q, k, v, softmax_aux, causal, sliding_window):
        k, v = (jax.numpy.repeat(each, program.HEADS // program.KV_HEADS, 2) for each in (k, v))
        scores = jax.numpy.einsum("bthd,bshd->bhts", q, k) / q.shape[-1] ** 0.5
        back = np.arange(q.shape[1])[:, None] - np.arange(q.shape[1])
        window = back <= sliding_window[0] if sliding_window else True
        scores = jax.numpy.where((back >= 0) & window, scores, -np.inf)
        sinks = jax.numpy.broadcast_to(softmax_aux[:, None], (*scores.shape[:3], 1))
        shares = jax.nn.softmax(jax.numpy.concatenate([scores, sinks], -1))[..., :-1]
        return jax.numpy.einsum("bhts,bshd->bthd", shares, v)

    text = read("prompt.txt")
    data = np.frombuffer(text, np.uint8)[: 2 * program.LENGTH + 2].reshape(2, -1).astype(np.int32)
    weights = program.initial(jax.random.key(1))
    weights["layers"][1]["sinks"] = jax.numpy.ones_like(weights["layers"][1]["sinks"])
    found = jax.value_and_grad(program.loss)(weights, data)
    exact = jax.value_and_grad(lambda w: program.loss(w, data, plain))(weights)
    for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(exact)):
        np.testing.assert_allclose(a, b, rtol=1e-3, atol=1e-5)
    values = program.fit(text, 60)
    assert values[0] > 4 and np.mean(values[-10:]) < 2.5


def test_the_llama_in_torch_is_tuned_as_by_eager_attention(programs):
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    program = importlib.import_module("tune_torch")
    text = read("prompt.txt")
    values = program.fit(program.create(), text, 60)
    np.testing.assert_allclose(values[:5], program.fit(program.create("eager"), text, 5), rtol=1e-4)
    assert values[0] > 4 and np.mean(values[-10:]) < 2.5
