# Every target does its own set-up, as root on a fresh Debian machine; a second run finds it done.

# Debian's own: the bootloader is linked from its static library.
PYTHON ?= /usr/bin/python3
BINDIR ?= /opt/cni/bin

NAME := ovn-k8s-cni-overlay
BINARY := dist/$(NAME)
OUT := build/out
VENV := .venv
BIN := $(VENV)/bin
BOOTLOADER := $(OUT)/bootloader/run

# The same tree makes the same file.
export PYTHONHASHSEED := 0
export SOURCE_DATE_EPOCH ?= 0
export PYINSTALLER_CONFIG_DIR := $(CURDIR)/$(OUT)/pyinstaller
# For a module that exists only inside the bootloader.
export MYPYPATH := build:build/bootloader

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.SUFFIXES:
.PHONY: help venv lock build lean tools lint unit check-elf conformance fuzz test demo bench install clean \
	build-packages test-packages FORCE

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

# ---- set-up

build-packages:
	@build/packages.sh build

test-packages:
	@build/packages.sh build test

venv: $(VENV)/.done ## the Python environment of the build and the tests, from build/requirements.lock

$(VENV)/.done: build/requirements.lock | build-packages
	$(PYTHON) -m venv --clear $(VENV)
	$(BIN)/pip install --quiet --require-hashes --requirement $<
	touch $@

lock: | build-packages ## resolve build/requirements.in into build/requirements.lock
	$(PYTHON) -m venv --clear $(OUT)/lock
	$(OUT)/lock/bin/pip install --quiet pip-tools
	CUSTOM_COMPILE_COMMAND='make lock' $(OUT)/lock/bin/pip-compile --quiet --upgrade --generate-hashes --allow-unsafe \
		--strip-extras --no-emit-options --no-emit-index-url --no-emit-trusted-host --no-emit-find-links \
		--output-file build/requirements.lock build/requirements.in

tools: | build-packages ## the pinned Go tools and the kernel of the test guest, in .tools
	build/go-tools.sh
	build/guest.sh

# ---- the file

build: $(BINARY) ## the plugin, dist/ovn-k8s-cni-overlay

# What boot.c has its own version of.
REPLACED := hypot _PyConfig_InitPathConfig _PyImportZip_Init

# sysconfig knows where the static library and the headers are; -no-pie because relocating CPython's tables costs a
# millisecond, --export-dynamic because extension modules look for the interpreter's functions in the executable.
$(BOOTLOADER): build/bootloader/boot.c build/bootloader/bootstrap.py build/bootloader/generate.py Makefile | build-packages
	mkdir -p $(@D)
	$(PYTHON) build/bootloader/generate.py $(@D)/generated.h
	gcc -std=gnu11 -O2 -Wall -Wextra -Werror -fno-pie -no-pie -s -o $@ -I$(@D) $< \
		$$($(PYTHON) build/bootloader/generate.py --flags) \
		-Wl,--export-dynamic $(REPLACED:%=-Wl,--wrap=%) -Wl,-Bstatic -lz -Wl,-Bdynamic -lm

# Rewritten only when a source file has come or gone, which no time stamp of a remaining file shows.
$(OUT)/sources: FORCE
	@mkdir -p $(@D)
	@find ovn_k8s_cni -name '*.py' | LC_ALL=C sort >$@.new
	@cmp --quiet $@.new $@ && rm $@.new || mv $@.new $@

# Stored, not compressed: level 0.
$(BINARY): $(shell find ovn_k8s_cni -name '*.py') $(OUT)/sources $(BOOTLOADER) \
		build/$(NAME).spec build/freezing.py $(VENV)/.done
	PYINSTALLER_ZLIB_COMPRESSION_LEVEL=0 $(BIN)/pyinstaller --log-level WARN --noconfirm --clean \
		--distpath $(OUT)/frozen --workpath $(OUT)/work build/$(NAME).spec
	mkdir -p $(@D)
	chmod 755 $(OUT)/frozen/$(NAME)
	mv $(OUT)/frozen/$(NAME) $@

lean: $(OUT)/lean $(OUT)/hello ## the yardsticks of the benchmark: PyInstaller's leanest onefile

$(OUT)/lean $(OUT)/hello &: build/lean.spec build/lean.py build/hello.py $(VENV)/.done
	$(BIN)/pyinstaller --log-level WARN --noconfirm --distpath $(OUT) --workpath $(OUT)/work build/lean.spec
	touch $(OUT)/lean $(OUT)/hello

# Copied beside its place and renamed: a runtime that starts the plugin meanwhile gets the old file or the new one.
install: $(BINARY) ## copy it to DESTDIR/BINDIR (/opt/cni/bin), atomically
	$(PYTHON) build/install.py $(BINARY) $(DESTDIR)$(BINDIR)

# ---- checks

lint: $(VENV)/.done ## ruff and mypy --strict
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy build/*.py build/bootloader/*.py

unit: $(VENV)/.done $(BINARY) | test-packages ## the tests in tests/
	$(BIN)/pytest tests

check-elf: $(BINARY) ## the glibc that the file needs, over every ELF file inside
	$(BIN)/python build/check_elf.py $(BINARY)

conformance: $(VENV)/.done $(BINARY) lean tools | test-packages ## real networks, servers, runtimes and peers
	$(BIN)/pytest conformance

test: lint check-elf unit fuzz conformance ## everything that CI runs

# Coverage-guided, from the corpus in the tree; what it finds goes to build/out. FUZZ_RUNS=0 means no limit but the time.
FUZZ_SECONDS ?= 30
FUZZ_RUNS ?= 0
fuzz: $(VENV)/.done ## fuzz the DHCP codec and the client, FUZZ_SECONDS (30) or FUZZ_RUNS each
	for target in message client; do \
		mkdir -p $(OUT)/fuzz/$$target && \
		$(BIN)/python -m tests.fuzz.fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -runs=$$(( $(FUZZ_RUNS) ? $(FUZZ_RUNS) : -1 )) \
			-artifact_prefix=$(OUT)/fuzz/ -print_final_stats=1 $(OUT)/fuzz/$$target tests/fuzz/corpus/$$target || exit 1; \
	done

demo: $(VENV)/.done $(BINARY) tools | test-packages ## the main job on real parts, step by step
	$(BIN)/python -m conformance.demo

bench: $(VENV)/.done $(BINARY) lean tools | test-packages ## how fast, beside macvlan and bridge
	$(BIN)/python -m conformance.bench

clean: ## remove what was built; .venv and .tools stay
	rm -rf dist $(OUT)
