# The two commands of the README: `make demo` and `make test`. Both set up what they need. `make test-all` also runs the
# longer tests: docs/maintaining/testing.md.

PYTHON ?= python3
# Versions that `make test-torch` and `make test-python` test, in addition to those of `make test`; see
# docs/maintaining/testing.md.
TORCH ?= 2.11 2.12 2.15
PYTHONS ?= 2.11/3.12 2.13/3.12 2.13/3.13
# Processes that run tests, a file at a time. A test's ranks need more than one core only for moments.
TEST_PROCESSES ?= 3
# Folders with the longest files go first, so that none of these files runs alone at the end.
LONGEST := tests/stack/ tests/project/ tests/bench/ tests/workloads/
TEST_FOLDERS := $(LONGEST) $(filter-out $(LONGEST) tests/__pycache__/,$(wildcard tests/*/))
# Hundreds of test processes load the same modules; without bytecode files, each would compile all of ours again.
unexport PYTHONDONTWRITEBYTECODE
VENV := .venv
GPU_DEVICES := $(wildcard /dev/nvidiactl /dev/dxg)
BIN := $(VENV)/bin
SHARED := $(BIN)/python -m pytest --numprocesses $(TEST_PROCESSES) --dist loadfile

.PHONY: demo test test-all test-rest test-slow test-slow-bench test-slow-other test-faults test-slurm test-drawn test-examples test-bytes test-alone
.PHONY: test-ray test-memory test-torch test-python servers drawing screenshots
.PHONY: install install-dev check benchmarks clean

# On a CPU, two ranks; on one GPU, one rank; on several, up to 8, one rank per GPU with the same batch each. The model
# and its precision are the device's defaults.
demo: $(VENV)/.installed
	@gpus=$$($(BIN)/python -c "import torch; print(min(torch.cuda.device_count(), 8))") || exit 1; \
	case $$gpus in \
		0) set -- ddp --device cpu --ranks 2 --trials 3 --with-baseline weak;; \
		1) set -- single --device cuda --trials 3;; \
		*) set -- ddp --device cuda --ranks $$gpus --trials 3 --with-baseline weak \
			--batch $$((8 * gpus));; \
	esac; \
	echo "$(BIN)/observatory run $$*"; \
	$(BIN)/observatory run "$$@" && \
	if [ $$gpus -ne 1 ]; then \
		set -- ddp zero1 --shape tiny --batch 16 --steps 5 --budget 2m; \
		echo; \
		echo "$(BIN)/observatory choose $$*"; \
		$(BIN)/observatory choose "$$@"; \
	fi
	@echo
	@echo "Next, with $(BIN)/observatory:"
	@echo "    observatory list ddp                                 what it takes"
	@echo "    observatory run ddp --ranks 2 --inject kill@1:7      a fire drill"
	@echo "    observatory show                                     the history of runs"
	@echo "    observatory serve                                    /metrics for Prometheus"
	@echo "    observatory suite run smoke                          every strategy and probe, in some minutes"

test: servers $(VENV)/.installed-dev check
	$(SHARED) --no-loadscope-reorder --cpu-budget=1200 -m "not slow and not alone and not ray" $(TEST_FOLDERS)

test-all: test test-rest

test-rest:
	$(MAKE) test-slow
	for group in $(HEAVY); do $(MAKE) test-$$group || exit 1; done

# Groups that each take minutes; CI runs one of them, which the commit selects.
HEAVY := faults slurm drawn examples bytes alone ray memory
FAULTS := tests/slow/test_faults.py tests/bench/session/test_full_disk.py tests/bench/session/test_runner_ends.py
SLURM := $(wildcard tests/slow/test_slurm*.py tests/slow/clusters/test_*.py)
DRAWN := $(wildcard tests/stack/drawn/test_*.py)
EXAMPLES := tests/project/test_examples.py tests/project/pages/test_nightly_blocks.py \
	tests/bench/engines/kubernetes/test_pods.py
BYTES := tests/slow/test_server_bytes.py tests/slow/test_wire_bytes.py tests/collectors/traces/intervals/test_hta.py

# Load only files with such tests: loading all files takes half a minute.
SLOW_FILES = $(filter-out $(FAULTS) $(SLURM) $(DRAWN) $(EXAMPLES) $(BYTES), \
	$(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.slow' tests))

# CI runs one half of them, which the commit selects.
SLOW_BENCH = $(filter tests/bench/%,$(SLOW_FILES))
SLOW_OTHER = $(filter-out $(SLOW_BENCH),$(SLOW_FILES))

test-slow: test-slow-bench test-slow-other

test-slow-bench: servers $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=900 -m "slow and not alone" $(SLOW_BENCH)

test-slow-other: servers $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=700 -m "slow and not alone" $(SLOW_OTHER)

test-faults: servers $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=500 -m "slow and not alone" $(FAULTS)

test-slurm: servers $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=400 -m "slow and not alone" $(SLURM)

test-drawn: servers drawing $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=400 -m "slow and not alone" $(DRAWN)

test-examples: servers $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=300 -m "slow and not alone" $(EXAMPLES)

test-bytes: servers $(VENV)/.installed-dev
	$(SHARED) --cpu-budget=200 -m "slow and not alone" $(BYTES)

# Tests that measure, one after another.
test-alone: servers $(VENV)/.installed-dev
	$(BIN)/python -m pytest --cpu-budget=1250 -m alone \
		$(shell grep --recursive --files-with-matches --include='test_*.py' 'mark\.alone' tests)

# Ray takes 80 MB to install, and one cluster takes both cores of a small machine, so its tests also run alone.
test-ray: $(VENV)/.installed-ray
	$(BIN)/python -m pytest --cpu-budget=300 -m ray \
		tests/slow/test_ray.py tests/slow/clusters/test_ray_gpus.py tests/slow/clusters/test_cluster_trees.py

# The cost model of memory on CUDA, compared with torch's allocator on a fake CUDA: a CUDA build of torch, 530 MB.
test-memory:
	$(PYTHON) -m tests.torch_versions.run --memory 2.12

test-torch: servers
	$(PYTHON) -m tests.torch_versions.run $(TORCH)

test-python: servers
	$(PYTHON) -m tests.torch_versions.run --quick $(PYTHONS)

check: $(VENV)/.installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/observatory dashboards render --check

# Debian's packages, if they may be installed; otherwise the tests that need one skip with the reason.
servers:
	@sh tests/support/install_servers.sh

# Grafana's own components, with which tests draw the dashboards: 650 MB from npm, only for `make test-rest` and
# pictures. Without npm or Chromium, the tests skip with the reason.
DRAWING := .drawing
drawing:
	@sh tests/support/install_servers.sh drawing
	@if command -v npm >/dev/null && command -v chromium >/dev/null; then $(MAKE) $(DRAWING)/.installed; \
		else echo "npm or chromium is not installed; the tests that draw pages will skip"; fi

$(DRAWING)/.installed: tests/stack/drawn/package.json tests/stack/drawn/package-lock.json
	mkdir -p $(DRAWING)
	cp tests/stack/drawn/package.json tests/stack/drawn/package-lock.json $(DRAWING)
	cd $(DRAWING) && npm ci --silent --no-audit --no-fund
	@touch $@

# Draws the pictures in docs/pictures again.
screenshots: drawing $(VENV)/.installed-dev
	$(BIN)/python -m tests.stack.drawn.screenshots docs/pictures

benchmarks: $(VENV)/.installed-dev
	$(BIN)/python -m tests.benchmarks.plain
	$(BIN)/python -m tests.benchmarks.observer
	$(BIN)/python -m tests.benchmarks.exporter
	$(BIN)/python -m tests.benchmarks.exporter_parts.live_look
	$(BIN)/python -m tests.benchmarks.runner
	$(BIN)/python -m tests.benchmarks.scale
	$(BIN)/python -m tests.benchmarks.strategies.sharded
	$(BIN)/python -m tests.benchmarks.strategies.sequence
	$(BIN)/python -m tests.benchmarks.traces
	$(BIN)/python -m tests.benchmarks.traces --growth

# Checks of a GPU machine, which needs a Python with torch but no network: docs/measured/README.md. A call takes at most
# BUDGET seconds, and the next call continues: make gpu OUT=folder MORE="-k window".
OUT ?= gpu-results
BUDGET ?= 540
MORE ?=
GPU_WHEELS := .gpu-wheels
GPU_VENV := .gpu-venv
GPU_PYTHON_VERSION := 3.12
GPU_PLATFORMS := manylinux_2_28_x86_64 manylinux_2_17_x86_64 manylinux2014_x86_64

.PHONY: gpu gpu-rehearsal gpu-wheels gpu-clean

gpu:
	@$(PYTHON) -m tests.gpu.start --wheels $(GPU_WHEELS) --venv $(GPU_VENV) \
		--output $(OUT) --budget $(BUDGET) $(MORE)

# Runs every check's commands once on this CPU, with tiny sizes: a mistake shows here and costs no GPU time.
gpu-rehearsal: $(VENV)/.installed-dev
	$(BIN)/python -m tests.gpu.start --rehearse --output $(OUT) --budget 3600 $(MORE)

# Wheels for a machine without a network, to be copied there. At most 40 MB, without torch.
gpu-wheels:
	rm -rf $(GPU_WHEELS).new
	$(PYTHON) -m pip download --quiet --no-deps --only-binary=:all: --python-version $(GPU_PYTHON_VERSION) \
		$(addprefix --platform ,$(GPU_PLATFORMS)) --constraint constraints.txt --dest $(GPU_WHEELS).new \
		--requirement tests/gpu/wheels.txt
	rm -rf $(GPU_WHEELS) && mv $(GPU_WHEELS).new $(GPU_WHEELS)
	@du -sk $(GPU_WHEELS) | awk '{ printf "%.1f MB in %s\n", $$1 / 1024, $$2; exit $$1 > 40 * 1024 }'

gpu-clean:
	rm -rf $(GPU_WHEELS) $(GPU_WHEELS).new $(GPU_VENV) $(OUT)

# Breaks the files of a change in small ways, and lists the breaks that no test detects: docs/maintaining/testing.md.
# make mutants BASE=commit FILES="bench/suite/plan.py ..." MINUTES=10
BASE ?=
FILES ?=
TESTS ?=
MINUTES ?= 10
MUTANTS := .venv-mutants

.PHONY: mutants

mutants: $(MUTANTS)/.installed
	@$(BIN)/python -m tests.project.ci.mutants --minutes $(MINUTES) $(if $(BASE),--base $(BASE)) \
		$(FILES) $(if $(TESTS),--tests $(TESTS))

# A separate environment, which also reads the packages of the tests' environment.
$(MUTANTS)/.installed: $(VENV)/.installed-dev
	$(PYTHON) -m venv $(MUTANTS)
	$(MUTANTS)/bin/python -m pip install --quiet mutmut==3.8.1
	$(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))" \
		> $$($(MUTANTS)/bin/python -c "import sysconfig; print(sysconfig.get_path('purelib'))")/tests.pth
	@touch $@

install: $(VENV)/.installed
install-dev: $(VENV)/.installed-dev

SCANNER := hatch_build.py $(wildcard collectors/traces/reading/scanner/*)

# torch's own index of CPU builds. The builds of the default index, for Linux on x86-64, include CUDA's libraries.
CPU_TORCH = $(PYTHON) -m venv $(VENV) && $(BIN)/python -m pip install $(shell grep '^torch==' constraints.txt) \
	--index-url https://download.pytorch.org/whl/cpu

$(VENV)/.installed: pyproject.toml constraints.txt $(SCANNER)
	@echo "$(VENV): installing torch, this program and what it needs; this takes 1 to 6 minutes, and pip shows how far it is"
	@if [ "$$(uname -sm)" = "Linux x86_64" ] && [ -z "$(GPU_DEVICES)" ] \
		&& ! ls $(VENV)/lib/python*/site-packages/torch >/dev/null 2>&1; then \
		echo "this machine has no NVIDIA GPU, and the package index's torch includes CUDA's libraries: 2.8 GB; the CPU build has 0.2 GB"; \
		echo "to take that build, press Ctrl-C, run this command, then the same make again:"; \
		echo "    $(CPU_TORCH)"; \
	fi
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --constraint constraints.txt --editable .
	@touch $@

$(VENV)/.installed-dev: $(VENV)/.installed
	@echo "$(VENV): installing what tests need; this takes some minutes, and pip shows how far it is"
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[dev]'
	@touch $@

# Only for `make test-ray`.
$(VENV)/.installed-ray: $(VENV)/.installed-dev
	@echo "$(VENV): installing Ray, 80 MB"
	$(BIN)/python -m pip install --constraint constraints.txt --editable '.[ray]'
	@touch $@

clean:
	rm -rf $(VENV) $(DRAWING) .venv-torch-* $(MUTANTS) .mutants .hta dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	rm -f collectors/traces/reading/_scanner.abi3.so
