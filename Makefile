# quickstart, quickstart-papers, test, lint, docs and release, each from a bare clone with Python 3.11 and gcc.
# What is installed is remembered by the stamps in $(VENV): a second call reuses it.
PYTHON ?= python3.11
VENV ?= .venv
# three workers for two cores: some tests wait for schedulers and other processes
PYTEST_ARGS ?= -n 3 --dist loadfile --no-loadscope-reorder
MAX_JOBS ?= 2
BIN := $(VENV)/bin
DIGITS := configs/kcr/digits/
PIP := $(BIN)/python -m pip --disable-pip-version-check install -c requirements/constraints.txt
export MAX_JOBS

.PHONY: quickstart quickstart-papers test lint docs release
.DELETE_ON_ERROR:

quickstart: $(VENV)/runtime.stamp
	@echo '== quickstart: a trained network, compressed, timed and drawn'
	$(BIN)/python tools/quickstart.py --work-dir work_dirs/quickstart

quickstart-papers: $(VENV)/runtime.stamp
	@echo '== the papers on digits: dense, search, slim, retrain, evaluate'
	$(BIN)/python tools/dataset_converters/digits.py
	$(BIN)/mmkcr train $(DIGITS)kcr-dense_vit-mini_1xb64_digits.py --resume
	$(BIN)/mmkcr search $(DIGITS)kcr-search_vit-mini_1xb64_digits.py --resume
	$(BIN)/mmkcr slim $(DIGITS)kcr-search_vit-mini_1xb64_digits.py \
		work_dirs/kcr-search_vit-mini_1xb64_digits/epoch_16.pth --target-macs 80% --divisor 8
	$(BIN)/mmkcr train $(DIGITS)kcr-retrain_vit-mini_1xb64_digits.py --resume
	$(BIN)/mmkcr test $(DIGITS)kcr-deploy_vit-mini_1xb64_digits.py \
		work_dirs/kcr-retrain_vit-mini_1xb64_digits/epoch_32.pth

test: $(VENV)/tests.stamp $(VENV)/ops.stamp
	@echo '== tests'
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/lint.stamp
	$(BIN)/ruff check .
	$(BIN)/interrogate -c setup.cfg mmkcr

docs: $(VENV)/docs.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo 'Open site/index.html'

release: $(VENV)/release.stamp
	@echo '== a wheel in dist, checked as an index checks it'
	rm -rf dist
	$(BIN)/python -m pip wheel --no-deps --no-build-isolation --wheel-dir dist .
	$(BIN)/python -m twine check --strict dist/mmkcr-*.whl

$(VENV)/created.stamp:
	@echo '== virtual environment in $(VENV)'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/lint.stamp: $(VENV)/created.stamp requirements/lint.txt requirements/constraints.txt
	$(PIP) -r requirements/lint.txt
	@touch $@

$(VENV)/release.stamp: $(VENV)/created.stamp requirements/build.txt requirements/release.txt \
		requirements/constraints.txt
	$(PIP) -r requirements/build.txt -r requirements/release.txt
	@touch $@

$(VENV)/docs.stamp: $(VENV)/created.stamp requirements/docs.txt requirements/constraints.txt
	$(PIP) -r requirements/docs.txt
	@touch $@

# mmcv comes as whatever pip finds without compiling: the compiled operators can wait.
$(VENV)/runtime.stamp: $(VENV)/created.stamp requirements/build.txt requirements/runtime.txt \
		requirements/openmmlab.txt requirements/constraints.txt setup.py
	@echo '== installing PyTorch and the OpenMMLab libraries'
	$(PIP) -r requirements/build.txt -r requirements/runtime.txt \
		-r requirements/openmmlab.txt
	$(PIP) --no-deps --no-build-isolation -e .
	@touch $@

$(VENV)/tests.stamp: $(VENV)/runtime.stamp requirements/tests.txt
	$(PIP) -r requirements/tests.txt
	@touch $@

# pip may hold a wheel of mmcv without operators in its cache, hence --no-cache-dir.
$(VENV)/ops.stamp: $(VENV)/runtime.stamp
	@$(BIN)/python -c 'import mmcv.ops' 2>/dev/null || { \
	  echo "== compiling mmcv's operators, once, about 11 minutes on 2 cores"; \
	  $(PIP) -v --no-cache-dir --force-reinstall --no-deps --no-build-isolation onedl-mmcv; }
	@$(BIN)/python -c 'import mmcv.ops'
	@touch $@
