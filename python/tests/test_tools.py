# SPDX-License-Identifier: Apache-2.0
"""Gradients by pullbacks, plans, tuning, caches, the profiler and labels."""

import io
import json
import os

import libejkernel
import libejkernel.numpy as ejk
import numpy as np
import pytest
from calls import random_calls
from libejkernel._description import catalogue

DIFFERENTIABLE = [name for name in libejkernel.operations() if catalogue().gradient_of(name)]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch, tmp_path):
    monkeypatch.setenv("EJKERNEL_CACHE_DIR", str(tmp_path))


def qkv(t=6, heads=2, size=8):
    draw = np.random.default_rng(0)
    return [draw.standard_normal((1, t, heads, size)).astype(np.float32) for _ in range(3)]


def test_there_are_gradients():
    assert len(DIFFERENTIABLE) > 3


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_pullback(name):
    """The gradients of a call are those of the gradient operation on what the call wrote."""
    gradient = catalogue().gradient(name)
    done = 0
    for call in random_calls(name, 40, seed=6):
        arguments, _ = call.python()
        if done == 4:
            break
        try:
            results, pullback = ejk.vjp(name, **arguments)
            first = results[0] if isinstance(results, tuple) else results
            found = pullback(np.ones_like(first))
        except libejkernel.Error:  # dropout, activations: not every call has gradients
            continue
        done += 1
        fields = getattr(found, "_fields", None) or (next(iter(gradient.gradients.values())),)
        values = found if isinstance(found, tuple) else (found,)
        for each, value in zip(fields, values):
            assert value.shape == np.shape(arguments[each[2:]]), call.text
    assert done


def test_gradients_without_what_a_call_was_given_are_refused():
    """An argument that the gradients' operation does not have, and that changes them, is no call with gradients."""
    seen = set()
    for name in DIFFERENTIABLE:
        gradient = catalogue().gradient(name)
        for call in random_calls(name, 8, seed=7):
            arguments, _ = call.python()
            for each in gradient.lost(arguments, arguments):
                seen.add(each)
                with pytest.raises(libejkernel.Unavailable, match="has no gradients where"):
                    ejk.vjp(name, **arguments)
    assert "activation" in seen


def test_pullback_against_differences():
    q, k, v = (x.astype(np.float64).astype(np.float32) for x in qkv())
    weights = np.random.default_rng(1).standard_normal(q.shape).astype(np.float32)
    _, pullback = ejk.vjp(ejk.flash_attention, q, k, v, causal=True)
    d_query, d_key, d_value = pullback(weights)
    for array, gradient in ((q, d_query), (k, d_key), (v, d_value)):
        step = np.zeros_like(array)
        step[0, 3, 1, 2] = 1e-2
        moved = [[x + sign * step if x is array else x for x in (q, k, v)] for sign in (1, -1)]
        up, down = (float((ejk.flash_attention(*m, causal=True) * weights).sum()) for m in moved)
        assert abs((up - down) / 2e-2 - gradient[0, 3, 1, 2]) < 2e-2
    with pytest.raises(libejkernel.InvalidArgument, match="2 cotangents given, expected 1"):
        pullback(weights, weights)


def test_plans_say_what_runs():
    q, k, v = qkv()
    plan = ejk.plan(ejk.flash_attention, q, k, v, platform="reference")
    assert plan.describe()["platform"] == "reference"
    assert {each["verdict"] for each in plan.explain()} >= {"chosen"}
    with pytest.raises(libejkernel.UnknownName, match="is no operation"):
        ejk.plan("cooking", q)


def test_tuning_is_kept(tmp_path):
    q, k, v = qkv(t=64, heads=2, size=32)
    states = []
    report = libejkernel.tune("flash_attention", q, k, v, causal=True, budget=1.0, progress=states.append)
    assert report.problem.startswith("flash_attention:") and report.candidates
    assert {each["verdict"] for each in report.candidates} & {"won", "kept"}
    assert states and states[-1]["candidates"] == len(report.candidates)
    cache = libejkernel.PersistentCache()
    assert str(tmp_path) in cache.path
    assert len(cache) == int(report.stored)
    step = ejk.plan("flash_attention", q, k, v, causal=True).describe()["step"]
    assert step == ("persistent" if report.stored else "heuristics")
    out = ejk.flash_attention(q, k, v, causal=True)
    assert np.abs(ejk.flash_attention(q, k, v, causal=True, cfg=report.config) - out).max() < 1e-5
    other = libejkernel.PersistentCache(tmp_path / "other")
    assert other.import_json(cache.export_json())["added"] == len(cache)
    cache.clear()
    assert len(cache) == 0


def test_executors_choose_for_themselves(tmp_path):
    q, k, v = qkv(t=64, heads=2, size=32)
    expected = ejk.flash_attention(q, k, v, causal=True)
    plain = libejkernel.Executor()
    assert np.abs(plain(ejk.flash_attention, q, k, v, causal=True) - expected).max() < 1e-5
    assert plain.plan("flash_attention", q, k, v, causal=True).describe()["step"] == "heuristics"
    cache = libejkernel.PersistentCache(tmp_path / "own")
    tuned = libejkernel.Executor(cache, autotune=True, budget=10)
    for _ in range(2):
        out = tuned("flash_attention", q, k, v, causal=True, return_lse=True).out
        assert np.abs(out - expected).max() < 1e-5
    assert tuned.plan("flash_attention", q, k, v, causal=True, return_lse=True).describe()["step"] in {
        "memory",
        "autotune",
    }
    later = tuned._made("flash_attention").function
    del tuned
    assert np.abs(later(q, k, v, causal=True) - expected).max() < 1e-5
    child = os.fork()
    if child == 0:
        try:
            plain("flash_attention", q, k, v)
        except libejkernel.Unavailable:
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def test_the_bar_of_tuning():
    from libejkernel.tuning import Bar

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    terminal = Terminal()
    bar = Bar(terminal)
    state = {"phase": "rounds", "tried": 3, "candidates": 9, "best_median_s": 2e-3, "elapsed_s": 1.0, "budget_s": 4.0}
    bar(state)
    bar.close()
    assert "rounds: 3/9 tried, best 2 ms" in terminal.getvalue() and terminal.getvalue().endswith("\r")
    quiet = io.StringIO()
    Bar(quiet)(state)
    assert quiet.getvalue() == ""


def test_profiler():
    profiler = libejkernel.Profiler(min_duration_ns=0)
    q, k, v = qkv()
    for _ in range(3):
        with profiler.scope("step"), profiler.scope("attention"):
            ejk.flash_attention(q, k, v)
    profiler.add("gpu 0", "kernel", profiler.now(), profiler.now() + 1)
    times = profiler.times()
    assert times["step"]["count"] == 3 and times["step"]["total_s"] >= times["attention"]["total_s"]
    assert "attention" in str(profiler)
    names = {event.get("name") for event in json.loads(profiler.chrome_trace())["traceEvents"]}
    assert {"step", "attention", "kernel"} <= names


def test_labels():
    text = libejkernel.label("flash_attention@v0", "0123456789abcdef")
    program = f'custom_call @x {{op_name = "jit(f)/{text}/dot"}}'
    assert libejkernel.extract_labels_from_hlo_text(program) == [text]

    class Lowered:
        def as_text(self):
            return program

    assert libejkernel.find_labels_in_lowered(Lowered()) == [text]
