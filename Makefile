# SPDX-License-Identifier: Apache-2.0
# A thin front to CMake: each target sets up what it needs, then configures, builds and runs.

PREFIX ?= /usr/local
FUZZ_SECONDS ?= 60

.PHONY: all demo test check check-python check-gpu-python docs-python wheel wheel-aarch64 check-pip check-gpu check-long
.PHONY: check-properties check-aarch64 check-asan check-tsan check-valgrind fuzz docs lint install portable clean

all:
	@tools/setup.sh build
	@cmake --preset release >/dev/null
	@cmake --build build

demo: all
	@cmake --build build --target bytelm_attention bytelm bytelm_logits bytemix serve
	build/examples/bytelm_attention examples/data/bytelm
	build/examples/bytelm_logits examples/data/bytelm
	build/examples/bytelm examples/data/bytelm
	build/examples/bytelm --dtype bf16 examples/data/bytelm
	build/examples/bytemix examples/data/bytemix
	build/examples/bytemix --weights 4bit examples/data/bytemix
	build/examples/serve --timeline build/timeline.svg examples/data/requests.txt

# What has to pass before a change lands; CI runs it.
test: check check-python
	@tools/check_total.sh build

check:
	@mkdir -p build && date +%s >build/check.start
	@tools/setup.sh check
	@cmake --preset check >/dev/null
	@cmake --build build --target all tests
	@tools/check.sh build

# The Python package in JAX, PyTorch and transformers; `make check` has it in NumPy.
check-python:
	@tools/setup.sh check
	@cmake --preset check >/dev/null
	@cmake --build build --target ejkernel ejk conformance_calls
	@EJK_CHECK_RECORD=check-python tools/check.sh build -C frameworks -L frameworks

# Every operation on a GPU through NumPy, JAX and PyTorch; says that it was skipped where there is no GPU.
check-gpu-python:
	@tools/setup.sh check
	@cmake --preset check >/dev/null
	@cmake --build build --target ejkernel ejk conformance_calls
	@tools/check_python.sh build --gpu || [ $$? = 77 ]

# Pages of the Python package's API in build/docs/python.
docs-python: check-python
	@build/python-frameworks/bin/pip install --quiet --disable-pip-version-check pdoc
	@PYTHONPATH=build/python build/python-frameworks/bin/python tools/python_pages.py build/docs/python

# A wheel for any Python from 3.10 in build/wheel, with the libraries that it needs, and the source distribution that it
# is built from. Tried with every CPython on the path.
wheel:
	@tools/setup.sh build
	@tools/wheel.sh build/wheel

# The same for 64-bit Arm, tried by qemu.
wheel-aarch64:
	@tools/setup.sh check
	@tools/wheel.sh build/wheel-aarch64 aarch64

# `pip install` of a clone in an empty environment, and the tests there.
check-pip:
	@tools/setup.sh build
	@rm -rf build/clone && git clone --quiet . build/clone
	@EJK_PYTHONS=python3 tools/try_wheel.sh build/try build/clone

# What needs a GPU, and says that it was skipped where there is none; `make check` has these tests too.
check-gpu:
	@tools/setup.sh check
	@cmake --preset check >/dev/null
	@cmake --build build --target all tests
	@tools/check.sh build -L gpu

# valgrind shows a processor of its own, which is not the one that the test of the device finds elsewhere; and
# a forked child has to leave its parent's SQLite handle alone, which valgrind counts as a leak.
check-valgrind: CTEST_OPTIONS = -LE slow -E '^(device|persistent_processes)$$'
check-asan check-tsan check-valgrind: check-%:
	@tools/setup.sh check
	@cmake --preset $* >/dev/null
	@cmake --build build/$* --target tests
	@tools/check.sh build/$* $(CTEST_OPTIONS)

# Ten minutes of random masks, each run from a seed of its own, which a failure tells; the texts of kernels for GPUs
# with all constants that the lists of kernels name; all cases of the conformance harness, in Python's frameworks, too.
check-properties:
	@tools/setup.sh check
	@cmake --preset check >/dev/null
	@cmake --build build --target tests
	@tools/check.sh build -C long -L long

# On 64-bit Arm, run by qemu, every kernel of the processor; `make check` has those in words of its own.
check-aarch64:
	@tools/setup.sh check
	@tools/aarch64_sysroot.sh build/aarch64-sysroot
	@cmake --preset aarch64 >/dev/null
	@cmake --build build/aarch64 --target all tests
	@tools/check.sh build/aarch64 -C long

# What is too slow for every change: sanitizers, fuzzing, valgrind, clang-tidy over the kernels too.
check-long: check-properties check check-python check-aarch64 check-asan check-tsan check-valgrind fuzz
	@tools/check_tidy.sh build all
	@tools/check_preset.sh clang-quick build/clang

fuzz:
	@tools/setup.sh check
	@cmake --preset fuzz -DEJK_FUZZ_SECONDS=$(FUZZ_SECONDS) >/dev/null
	@cmake --build build/fuzz --target tests
	@tools/check.sh build/fuzz

docs:
	@tools/setup.sh check
	@tools/check_docs.sh build

lint:
	@tools/setup.sh check
	@cmake --preset check >/dev/null
	@tools/check.sh build -L lint

install: all
	@cmake --install build --prefix $(PREFIX)

# Command, library, tests of GPUs and the libraries they need in one folder, build/portable/ejkernel, for machines
# with a GPU and without a package registry.
portable:
	@tools/setup.sh check
	@cmake --preset portable >/dev/null
	@cmake --build build/portable --target ejk bytelm serve tests_gpu
	@tools/portable.sh build/portable build/portable/ejkernel

clean:
	@rm -rf build
