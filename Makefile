# Everything a person types. `make` lists the targets; each does the set-up that it needs.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c

# PYTHON=/path/to/python   an interpreter that has torch >= 2.11; without it, .venv is made
# TORCH=2.11.0             that version of torch, in an environment and a build folder of its own
# CUDA=ON                  with kernels for CUDA devices, in a build folder of its own; needs nvcc, and a card only where they run
# PRESET=debug             a preset of CMakePresets.json
# WERROR=ON                warnings in our own code are errors; without, a build folder keeps what it was configured with
# JOBS=4                   compilers at a time; each that reads torch's headers takes about 1 GB
# TEST_JOBS=1              processes of tests at a time, each with all threads and up to 2 GB
PYTHON ?=
TORCH ?=
CUDA ?=
BENCH_FLAGS ?=
FUZZ_SECONDS ?= 300
ATTACK_SECONDS ?= 1200
ATTACK_SEED ?= 1
PRESET ?= release
WERROR ?=
JOBS ?= $(shell nproc)
# One under a sanitizer, whose tests take several times as long and as much memory.
TEST_JOBS ?= $(if $(filter asan tsan,$(PRESET)),1,$(shell echo $$(($(shell nproc) < 8 ? $(shell nproc) : 8))))

ifneq ($(and $(PYTHON),$(TORCH)),)
$(error expected PYTHON or TORCH, got both)
endif
python := $(or $(PYTHON),$(CURDIR)/.venv$(TORCH:%=-torch-%)/bin/python)
build := build$(TORCH:%=-torch-%)$(if $(CUDA),-cuda)$(if $(filter-out release,$(PRESET)),-$(PRESET))
configuration := --preset $(PRESET) $(if $(TORCH)$(CUDA),-B $(build) )$(if $(CUDA),-DPLIMSOLL_CUDA=$(CUDA) )-DPLIMSOLL_PYTHON=$(python) $(if $(WERROR),-DPLIMSOLL_WERROR=$(WERROR))

# A signal ends a test's process as it would without the sanitizer.
signals_asan = handle_segv=0:handle_sigbus=0:handle_abort=0
# python has no sanitizer's runtime in it, so that one is loaded before it; what python and torch leave behind is no leak of ours.
preload = LD_PRELOAD="$$($(or $(CXX),c++) -print-file-name=lib$(1).so) $$($(or $(CXX),c++) -print-file-name=libstdc++.so)"
sanitizer_asan = $(call preload,asan) ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1:$(signals_asan)
# Threads of several tests that wait for each other sleep: spinning, they would take the others' cores.
ctest = OMP_WAIT_POLICY=passive $(signals_$(PRESET):%=ASAN_OPTIONS=%) ctest --test-dir $(build) -j $(TEST_JOBS) --output-on-failure
python_test = OMP_WAIT_POLICY=passive $(sanitizer_$(PRESET)) PLIMSOLL_BUILD=$(CURDIR)/$(build) $(python) -m pytest \
  $(if $(filter-out 1,$(TEST_JOBS)),-n $(TEST_JOBS) --dist loadfile)
pytest = $(python_test) tools bench tests/attack python/tests
ifeq ($(PRESET),tsan)
pytest = echo "pytest: not under tsan, which sees no lock and no barrier of libtorch and its OpenMP runtime"
endif

.PHONY: help setup configure build program test benchmarks bench tune demo nightly fuzz attack gpu-check format check wheel package clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/make \1\t\2/p' Makefile | expand -t 16

setup: ## install missing Debian packages, make .venv
	@tools/setup $(TORCH:%=--torch %) $(PYTHON)

# ninja runs CMake again when a CMake file changed; here only when the options did.
configure: setup
	@if [ "$$(cat $(build)/configured 2>/dev/null)" != "$(configuration)" ]; then \
	  cmake $(configuration) && echo "$(configuration)" > $(build)/configured; fi

build: configure ## build the library, the tests and build/bin/plimsoll
	@ninja -C $(build) -j $(JOBS)

program: configure ## build build/bin/plimsoll and what Python loads, without tests and examples
	@ninja -C $(build) -j $(JOBS) plimsoll_cli plimsoll_python

test: build ## run the C++ and Python tests
	@status=0; $(ctest) || status=$$?; \
	$(pytest) || status=$$?; exit $$status

nightly: build ## the tests that take minutes, too (a million texts for each tokenizer), CUDA kernels for each architecture, five minutes of training in flat memory, a minute of each fuzzer, and an hour of hostile calls
	@PLIMSOLL_NIGHTLY=1 $(ctest)
	@PLIMSOLL_NIGHTLY=1 $(python_test) python/tests/tokenizer_test.py python/tests/t5_hugging_face_test.py python/tests/line_promise_test.py
	@if grep -q '^PLIMSOLL_NVCC:.*/' $(build)/CMakeCache.txt; then $(MAKE) --no-print-directory CUDA=ON configure && \
	  ninja -C $(GPU_BUILD) kernels_cubin && ctest --test-dir $(GPU_BUILD) -R cuda_registers --output-on-failure; fi
	@PLIMSOLL_BUILD=$(CURDIR)/$(build) $(python) tests/attack/memory.py --seconds 300
	@$(MAKE) --no-print-directory FUZZ_SECONDS=60 fuzz
	@PLIMSOLL_BUILD=$(CURDIR)/$(build) $(python) tests/attack/operators.py --seconds 3600

# Installs clang, and builds sentencepiece with the sanitizers, too. FUZZ_SECONDS=60 runs each for a minute. An input that fails is left in build-fuzz.
fuzz: ## fuzz what reads a model's configs, index, tokenizer and chat template, five minutes each
	@tools/setup --fuzz $(PYTHON)
	@tools/fetch_sentencepiece build-fuzz/sentencepiece
	@cmake --preset fuzz -DPLIMSOLL_PYTHON=$(python) \
	  -DPLIMSOLL_SENTENCEPIECE_SOURCE=$(CURDIR)/build-fuzz/sentencepiece/source && ninja -C build-fuzz -j $(JOBS) fuzz
	@cd build-fuzz && for name in chat_template config decoder_config index tokenizer tokenizer_json; do mkdir -p corpus/$$name; \
	  bin/$${name}_fuzz -max_total_time=$(FUZZ_SECONDS) -print_final_stats=1 corpus/$$name ../tests/fuzz/corpus/$$name; done

# ATTACK_SECONDS=60 runs them for a minute in all, ATTACK_SEED=2 with other random numbers.
attack: configure ## crashes, hangs and wrong errors looked for with hostile input, 20 minutes; the result goes to docs/results
	@ninja -C $(build) -j $(JOBS) attack
	@PLIMSOLL_BUILD=$(CURDIR)/$(build) $(python) tests/attack/run.py --seconds $(ATTACK_SECONDS) --seed $(ATTACK_SEED)

# On the machine with the card, which may have no Debian packages: the build may be brought along (docs/cuda.md).
# GPU_BUILD=build-cuda says which, GPU_PYTHON=python3 a Python with the torch that it was built for.
GPU_BUILD ?= build$(TORCH:%=-torch-%)-cuda
GPU_PYTHON ?= python3
gpu-check: ## on a machine with a CUDA card: tests and benchmarks of a build with CUDA=ON; the result goes to docs/results/gpu.json
	@$(GPU_PYTHON) tools/gpu_check $(GPU_BUILD)

# On one core, whose clock and caches the limits are measured on, too. BENCH_FLAGS=--benchmark_filter=norm runs some.
benchmarks: build ## build the benchmark programs
	@ninja -C $(build) -j $(JOBS) benchmarks

bench: benchmarks ## benchmark every kernel against the machine's limit into bench.json (15 minutes)
	@taskset -c $$($(python) -c 'import os; print(min(os.sched_getaffinity(0)))') \
	  $(build)/bin/plimsoll_bench --benchmark_min_time=0.05 --benchmark_out=bench.json $(BENCH_FLAGS)

tune: configure ## find the sizes of a product's blocks for this processor (under five minutes), and print the row that gives them to it
	@ninja -C $(build) -j $(JOBS) gemm_tune && $(build)/bin/gemm_tune

demo: configure ## train a small GPT in FP32, BF16 and FP8, compare them and draw a page (6 to 12 minutes on two cores)
	@ninja -C $(build) -j $(JOBS) plimsoll_train
	@$(build)/bin/plimsoll-train compare --recipes fp32,bf16,fp8 --model tiny --context 128 --batch 8 --steps 300 --out out/demo \
	  --data "$$($(python) -c 'import sysconfig; print(sysconfig.get_path("stdlib"))')"
	@$(python) tools/draw_report out/demo --out out/demo/report.html
	@echo "Next: make build, then $(build)/bin/plimsoll --help; docs/start.md goes on from here."

format: setup ## rewrite the sources as clang-format and ruff want them
	@tools/check_format --fix
	@tools/check_python --fix $(python)

check: build ## layers, format, types, pages, headers by themselves, weak symbols, OpenMP runtime, whether what `make attack` runs builds
	@tools/setup --check $(TORCH:%=--torch %) $(PYTHON)
	@grep -q '^PLIMSOLL_CLANG:.*/' $(build)/CMakeCache.txt || cmake $(build) >/dev/null
	@status=0; tools/check_layers || status=1; tools/check_format || status=1; tools/check_python $(python) || status=1; \
	$(python) tools/check_docs $(build) || status=1; \
	ninja -C $(build) -j $(JOBS) -k 0 --quiet headers && echo "headers: ok" || status=1; \
	ninja -C $(build) -j $(JOBS) --quiet attack && echo "attack: builds" || status=1; \
	tools/check_weak_symbols $(build) || status=1; tools/check_openmp $(build) || status=1; exit $$status

wheel: setup ## a wheel of the Python package and the command, for the torch of this Python, into dist/
	@rm -rf build-wheel/dist
	@CMAKE_BUILD_PARALLEL_LEVEL=$(JOBS) $(python) -m pip wheel --quiet --disable-pip-version-check --no-build-isolation --no-deps \
	  --config-settings=build-dir=build-wheel --wheel-dir build-wheel/dist .
	@PATH="$(dir $(python)):$$PATH" $(python) -m auditwheel repair --wheel-dir dist \
	  --exclude 'libtorch*' --exclude 'libc10*' --exclude 'libgomp*' build-wheel/dist/*.whl

package: program ## a Debian package and an archive with the program, libraries, headers and CMake package, into dist/
	@cd $(build) && cpack
	@rm -rf dist/_CPack_Packages

clean: ## remove what was built
	rm -rf build build-cuda build-debug build-asan build-fuzz build-tsan build-ubsan build-wheel build-torch-* dist out
