# Everything is made from a fresh Debian 12 or 13 with git and make, as root: each target installs
# what it needs, once. `make help` lists the targets.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:
.NOTPARALLEL:
MAKEFLAGS += --no-builtin-rules

# The distribution's interpreter is the one that is frozen; another on PATH may be a wrapper.
PYTHON := /usr/bin/python3
VENV := build/venv
BIN := $(VENV)/bin

SOURCES := $(shell find rdma_cni ipam frozen -name '*.py' -o -name '*.c' 2>/dev/null)

.PHONY: help bundle image lint test test-lab fuzz soak reliability demo bench lab clean

help:
	@echo 'make bundle   the frozen plugin: dist/rdma-cni/'
	@echo 'make image    an OCI image of it, whose entrypoint installs it on a node: build/rdma-cni-image.tar'
	@echo 'make lint     ruff and mypy --strict'
	@echo 'make test     lint, bundle, then every test (unit, netns, lab)'
	@echo '              TESTS="tests/unit -k mtu": only these; LAB_ARGS="-k mtu": only these in the guests'
	@echo 'make fuzz     hostile input without end: FUZZ_MINUTES=10 in all, in rounds of FUZZ=1000 inputs a test'
	@echo 'make soak     20 minutes of chaos in the lab, and 1,000 rounds (two hours in all); SOAK_MINUTES=, SOAK_SEED=, SOAK_ROUNDS='
	@echo 'make reliability  the table of docs/reliability.md, of the faults that the last make test tried'
	@echo 'make demo     a VF into each of two pods and back, in the lab, step by step'
	@echo 'make bench    what a start, an ADD and a DEL cost; raw samples in build/bench.json'
	@echo 'make profile  what an ADD and a DEL are made of, in the lab: start, imports, state, each netlink message'
	@echo 'make lab      the images of the lab, in $${LAB_CACHE:-~/.cache/rdma-cni-lab}'
	@echo 'make pictures what docs/operating.md shows, from the lab'
	@echo 'make clean    remove build/ and dist/'

# Install those of the packages $(1) that are missing.
define packages
missing=; for package in $(1); do \
	[ "$$(dpkg-query -W -f '$${db:Status-Status}' $$package 2>/dev/null)" = installed ] || missing+=" $$package"; \
done; \
if [ -n "$$missing" ]; then \
	echo "installing$$missing"; mkdir -p build; \
	{ apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -qy --no-install-recommends $$missing; } \
		> build/apt.log 2>&1 < /dev/null || { cat build/apt.log; exit 1; }; \
fi
endef

# PyInstaller needs binutils and the shared libpython, which comes with the static one; the bundle's program is linked
# from that and SQLite's; the others are the tests'.
.PHONY: system
system:
	@$(call packages,python3 python3-venv binutils gcc libc6-dev libsqlite3-dev iproute2 strace containernetworking-plugins)
	@$(call packages,libpython$$($(PYTHON) -c 'import sys; print("%d.%d" % sys.version_info[:2])')-dev)

# Only the requirements are installed: the tests and the bundle take the plugin from the tree.
build/requirements.txt: pyproject.toml | system
	@mkdir -p build
	@$(PYTHON) -c 'import sys, tomllib; \
		project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
		print("#", sys.version); print(*project["dependencies"], *project["optional-dependencies"]["dev"], sep="\n")' > $@.new
	@cmp -s $@.new $@ && rm $@.new || mv $@.new $@

# Made anew when they, or the interpreter, have changed.
VENV_STAMP := $(VENV)/.installed
$(VENV_STAMP): build/requirements.txt | system
	@echo "$(VENV): installing the Python requirements (half a minute)"
	@rm -rf $(VENV); $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement build/requirements.txt
	@touch $@

dist/rdma-cni/rdma: build.spec frozen/imports.json $(SOURCES) $(VENV_STAMP)
	@echo "dist/rdma-cni: freezing"
	@$(BIN)/python -m PyInstaller --noconfirm --log-level WARN --distpath dist --workpath build/pyinstaller build.spec \
		> build/pyinstaller.log 2>&1 || { cat build/pyinstaller.log; exit 1; }
	@touch $@

bundle: system dist/rdma-cni/rdma

# An OCI image of the bundle, for a DaemonSet: a tar, made without a container engine.
IMAGE := build/rdma-cni-image.tar
image: bundle
	@$(BIN)/python frozen/image.py dist/rdma-cni $(IMAGE) rdma-cni:$$(dist/rdma-cni/rdma-cni --version | cut -d' ' -f2 | tr -d ,)

# Checks the metrics and the alert rules. Out of Debian's package, which would start a server if it were installed.
build/promtool:
	@mkdir -p build
	@cd build && { apt-get download -q prometheus || { apt-get update -q && apt-get download -q prometheus; }; } \
		> promtool.log 2>&1 || { cat promtool.log; exit 1; }
	@dpkg-deb --fsys-tarfile build/prometheus_*.deb | tar -xOf - ./usr/bin/promtool > $@.new
	@rm build/prometheus_*.deb; chmod 755 $@.new; mv $@.new $@

lint: system $(VENV_STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

lab:
	@tests/lab/lab setup

# Each test says in build/faults.jsonl which faults it tried.
test: lint bundle lab build/promtool
	$(if $(TESTS),,@rm -f build/faults.jsonl)
	$(BIN)/python -m pytest $(TESTS)

# The lab's tests alone: BOOT= one of the directories in tests/lab/guest; LAB_ARGS goes to pytest in the guest.
test-lab: bundle lab
	$(BIN)/python -m pytest tests/lab $(if $(BOOT),-k '$(BOOT)')

# Other inputs in each round; what is found belongs into tests/fuzz/corpus.
fuzz: bundle
	@export FUZZ=$${FUZZ:-1000} FAULTS=/dev/null; end=$$((SECONDS + 60 * $${FUZZ_MINUTES:-10})); \
	while [ $$SECONDS -lt $$end ]; do $(BIN)/python -m pytest -q tests/fuzz; done

# The seed is printed; with it and the minutes the run is the same again.
soak: bundle lab
	SOAK_MINUTES=$${SOAK_MINUTES:-20} SOAK_ROUNDS=$${SOAK_ROUNDS:-1000} $(BIN)/python -m pytest tests/lab -k soak

reliability: $(VENV_STAMP)
	@$(BIN)/python tests/reliability/faults_table.py

demo: bundle lab
	@tests/lab/lab run tests/lab/demo dist/rdma-cni

# What draws the bench is wanted nowhere else.
$(VENV)/.bench: $(VENV_STAMP)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check 'matplotlib>=3.8,<4'
	@touch $@

# Both are run, and the second adds to what the first writes.
bench: bundle lab $(VENV)/.bench
	@status=0; $(BIN)/python tests/bench/bench.py || status=1; \
	$(BIN)/python tests/bench/ipam_bench.py || status=1; exit $$status

# What docs/operating.md shows: the pictures, and the text that the commands print in the lab.
.PHONY: pictures
pictures: bundle lab
	@$(BIN)/python tests/lab/pictures.py

profile: bundle lab
	@tests/lab/lab run tests/bench/in-lab-profile dist/rdma-cni tests/bench tests/lab/guest frozen

clean:
	rm -rf build dist

export LAB_ARGS
