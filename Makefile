# SPDX-License-Identifier: Apache-2.0
# Every target installs what it needs first (scripts/install-packages), so each works on a new machine.

include native/make/system.mk

.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory
# The targets that `make help` shows to a new user, in this order.
VISITORS := demo build test test-rest bench-report install uninstall release deb image edoc clean
ALIGNED := while IFS='|' read -r target what; do printf '%-20s%s\n' "$$target" "$$what"; done
.PHONY: bench-report install uninstall edoc release test-packages test-docs test-slurm test-fresh deb image build demo test test-all test-rest test-long test-idle test-cut test-strangers test-drain test-ticks test-otp test-otp-tls test-otp27 test-otp-newest bench-otp test-arm64 test-rabbitmq4 vendor test-rdma demo-rdma bench-rdma test-network test-pipe test-scipy nemesis check bench bench-all figures release-check soak asan test-asan tsan fuzz fuzz-keep fuzz-yucan overload-yucan spin clean help help-all build-test build-bench coverage valgrind

## build: compile the driver and the applications into the checkout
build:
	@scripts/install-packages build
	@scripts/build

## install: applications, commands, manual pages and completions into PREFIX (/usr/local); `make uninstall' removes exactly these
install: build
	@scripts/install-all $(or $(PREFIX),/usr/local)

## uninstall: removes what `make install' has put into PREFIX (/usr/local)
uninstall:
	@scripts/install-all --uninstall $(or $(PREFIX),/usr/local)

## edoc: the pages of public functions in docs/reference, and pages of all modules in build/edoc
edoc:
	@scripts/install-packages edoc
	@scripts/edoc.escript build/edoc
	@scripts/reference write

## release: a folder in build/ that runs wherever it is moved, and a tar.gz of it
release: build
	@scripts/install-all --release "build/beamway-$$(sed -n 's/.*{vsn, *"\([^"]*\)"}.*/\1/p' apps/beamway/ebin/beamway.app)"

## deb: Debian packages beamway, beamway-rdpipe and yucan in build/, for this release and machine
deb: build
	@scripts/install-all --debs build

## test-slurm: jobs of a real Slurm on this machine whose tasks are nodes; RESULTS=folder keeps the table of ML-ACO (root; leaves nothing)
test-slurm:
	@scripts/install-packages test
	@$(MAKE) build-test
	@test/system/placement/slurm $(T)

## test-packages: release, make install and packages, tried in new Debian trees of their own: SUITES="bookworm trixie" (root)
test-packages:
	@scripts/install-packages build test-bare
	@$(MAKE) release deb
	@test/system/packages/test $(SUITES)

## image: a container image in build/oci, from Debian's packages alone, and two containers of it that share memory (root)
image: build
	@scripts/install-packages image
	@rm -rf build/oci
	@scripts/container-image build/oci
	@scripts/container-demo "build/oci:$$(scripts/version)"

build-bench: build
	@scripts/build --bench

build-test: build
	@scripts/build --bench --test

## demo: start four real nodes and compare Beamway with stock TCP (about a minute)
demo:
	@scripts/demo

## test: the quick tests, three runners side by side (about ten minutes); T=name runs the runners whose name holds it, whatever they take, T=suite:case one case
test:
	@scripts/install-packages test
	@$(MAKE) build-test
	@scripts/run-tests $(T)

## test-rest: what `make test' leaves out: slow suites, other carriers, `make check', sanitizers, models, nemesis (about half an hour)
## test-all: `make test' and `make test-rest' in one
test-rest test-all:
	@scripts/install-packages test-all $(if $(filter yes,$(BEAMWAY_TEST_RDMA)),test-rdma)
	@$(MAKE) build-test
	@BEAMWAY_TEST_LEVEL=$(@:test-%=%) BEAMWAY_TEST_HUGE=1 scripts/run-tests

SYSTEMS := rabbitmq ejabberd metrics wordpress wikis git trac browser console
## test-NAME: real applications, each installed for the run alone: rabbitmq or ejabberd over Beamway, metrics with Prometheus, wordpress, wikis, git or trac under yucan, browser and console in Chromium; T=case (root)
# Phony targets have no implicit rule, so this is a static one.
.PHONY: $(SYSTEMS:%=test-%)
$(SYSTEMS:%=test-%): test-%:
	@scripts/install-packages test
	@$(MAKE) build-test
	@test/system/run $* $(T)

## test-rabbitmq4: as test-rabbitmq, with RabbitMQ 4 and OTP 27 of Debian 13, in a tree of its own (needs root); T=case
test-rabbitmq4:
	@scripts/install-packages test-bare
	@test/system/clusters/rabbitmq4 $(T)

## test-long: the multi-node suites with their full counts, and test-arm64 (about an hour; BEAMWAY_TEST_HUGE=1 adds a message of 2.2 GB)
test-long:
	@scripts/install-packages test test-bare
	@$(MAKE) build-test
	@BEAMWAY_TEST_LONG=1 TEST_MINUTES=90 scripts/run-tests $(or $(T),_SUITE arm64)

## test-idle: ten idle minutes through a firewall that drops idle connections after one (needs root)
test-idle:
	@scripts/install-packages test
	@$(MAKE) build-test
	@BEAMWAY_TEST_IDLE=1 TEST_MINUTES=20 scripts/run-tests beamway_firewall_SUITE

## test-cut: 1,000 cuts between two hosts under load, over tcp, tls, encrypted links, through a NAT and beside a ring, and 200 kills (about 50 minutes, root; CUTS=n, STORE=1, FORCE=1)
test-cut:
	@scripts/install-packages test
	@$(MAKE) build-test
	@BEAMWAY_TEST_CUTS=$(or $(CUTS),1000) $(if $(STORE),BEAMWAY_TEST_CUTS_STORE=$(if $(FORCE),force,yes)) TEST_MINUTES=110 scripts/run-tests beamway_cut_SUITE

## test-strangers: a million connections of strangers who do not finish the handshake, against a node with encrypt, which must keep no memory of them (about five minutes; STRANGERS=n)
test-strangers:
	@scripts/install-packages test
	@$(MAKE) build-test
	@BEAMWAY_TEST_STRANGERS=$(or $(STRANGERS),1000000) TEST_MINUTES=210 scripts/run-tests beamway_encrypt_SUITE:flood_of_strangers

## test-drain: 100 drains of a node with 20,000 processes that hold 500 MB in all, on four nodes under 100 callers, and 100 more with a node killed in the middle (hours; DRAINS=n CHILDREN=n STORE=1)
test-drain:
	@scripts/install-packages test
	@$(MAKE) build-test
	@BEAMWAY_TEST_DRAINS=$(or $(DRAINS),100) $(if $(STORE),BEAMWAY_TEST_DRAINS_STORE=yes) BEAMWAY_TEST_CHILDREN=$(or $(CHILDREN),20000) TEST_MINUTES=$$((90 + 6 * $(or $(DRAINS),100))) scripts/run-tests $(or $(T),placement_drain_SUITE)

## test-ticks: five minutes over a path that is slow, lossy and full of bulk, schedulers busy: no connection may end by net_tick_timeout; STORE=1, FORCE=1 (needs root)
test-ticks:
	@scripts/install-packages test
	@$(MAKE) build-test
	@$(if $(STORE),BEAMWAY_TEST_TICKS_STORE=$(if $(FORCE),force,yes)) scripts/run-tests beamway_ticks_SUITE

## test-otp: OTP's own distribution suites over stock TCP and Beamway on shm, compared with the stored result if there is one (about 45 minutes)
test-otp:
	@scripts/install-packages test-otp
	@$(MAKE) build-test
	@test/system/otp/otp_suites

## test-otp-tls: OTP's own suites of distribution over TLS, its benchmark among them, over stock TLS and beamway_tls (about six minutes)
test-otp-tls:
	@scripts/install-packages test-otp
	@$(MAKE) build-test
	@test/system/otp/tls_suites

## test-otp-newest: build, some quick tests and a rolling change of OTP on the newest OTP that Debian has, in a tree of unstable (needs root)
test-otp-newest:
	@scripts/install-packages test-otp27
	@$(MAKE) build-test
	@test/system/otp/otp27 --debian sid quick rolling

## test-otp27: build and test on OTP 27 in a Debian 13 tree, and nodes of both releases in one cluster (needs root)
test-otp27:
	@scripts/install-packages test-otp27
	@$(MAKE) build-test
	@test/system/otp/otp27

## bench-otp: headline benchmarks on OTP 27 in a Debian 13 tree, stored in bench/results/otp27 (half an hour); N="rpc pingpong stream beside" runs some, DEBIAN=sid on the newest OTP, FORCE=1 (needs root)
bench-otp:
	@scripts/install-packages test-otp27
	@$(MAKE) build-bench
	@OTP27_BENCH="$(N)" OTP27_BENCH_OPTIONS="$(if $(FORCE),--force)" test/system/otp/otp27 $(if $(DEBIAN),--debian $(DEBIAN)) bench

## test-arm64: the C tests on an emulated arm64, and nodes of its OTP (Debian 13) in one cluster with nodes of this machine's; T=c or cluster (root; some minutes)
test-arm64:
	@scripts/install-packages test test-bare
	@$(MAKE) build-test
	@test/system/arm64/test $(T)

## nemesis: random faults on real nodes for MIN minutes (1), judged by an oracle; SEED=n, CARRIER=shm|tcp|stock|encrypted|tls|tls_shm|stock_tls, STORE=1 (shm and encrypted), FORCE=1
nemesis:
	@scripts/install-packages test
	@$(MAKE) build-test
	@scripts/nemesis --minutes $(call minutes,1) $(if $(SEED),--seed $(SEED)) $(if $(CARRIER),--carrier $(CARRIER)) $(if $(STORE),--store) $(if $(FORCE),--force)

## test-docs: every code block of README.md and docs/guide; T=page runs one (what is quick is in `make test`, too)
test-docs:
	@scripts/install-packages test
	@$(MAKE) build-test
	@test/system/docs/blocks $(T)

## vendor: the libraries of the console's pages from npm, by their lock file (needs npm; the files are in the checkout already)
vendor:
	@scripts/vendor

## test-rdma: soft-RoCE in virtual machines made by software, and what proves the link in them (about 20 minutes); T=part runs one (needs root once, to make the image)
test-rdma:
	@scripts/install-packages test-rdma
	@$(MAKE) build-test
	@$(MAKE) -C native test-programs
	@$(MAKE) -C rdpipe test-programs
	@test/system/rdma/test $(T)

## demo-rdma: a virtual machine with a soft-RoCE device, two nodes that ping each other over verbs, calls over rdma and TCP
demo-rdma:
	@scripts/install-packages test-rdma
	@$(MAKE) build-bench
	@test/system/rdma/guest --minutes 8 -- test/system/rdma/demo

## bench-rdma: figures of rdma, measured in virtual machines, one for each benchmark, and stored in bench/results/soft-roce (about 50 minutes, a third of them for cost); N="name ..." runs some
bench-rdma:
	@scripts/install-packages test-rdma
	@$(MAKE) build-bench
	@erl -noshell -noinput -pa bench/ebin -eval '{ok, _} = beamway_bench_tools:compile("count_syscalls", "cc"), halt().'
	@status=0; for name in $(or $(N),rdma rpc stream cost); do \
		test/system/rdma/guest --minutes 45 --memory 3072 --results "$(CURDIR)/bench/results/soft-roce" -- \
			env BEAMWAY_BENCH_COMMIT="$$(scripts/figures commit)" \
			test/system/rdma/figures bench/results/soft-roce "$$name" || status=1; \
	done; exit $$status

## test-network: 32 nodes in network namespaces under rate-limited bridges, their tree found by measuring (root; about two minutes)
test-network:
	@scripts/install-packages test
	@$(MAKE) build-test
	@BEAMWAY_TEST_NETWORK=1 scripts/run-tests placement_network_SUITE

## test-pipe: all cases of the pipe between hosts with 200 random streams, 100 with a fault, one of more than 4 GiB, ffmpeg's test picture, two databases and an image by skopeo (root; leaves nothing); T=case runs those whose name holds it
test-pipe:
	@scripts/install-packages test
	@$(MAKE) build
	@PIPE_STREAMS=200 PIPE_TORTURE=100 PIPE_HUGE=1 PIPE_FFMPEG=1 PIPE_POSTGRESQL=1 PIPE_SKOPEO=1 scripts/in-overlay --packages "ffmpeg postgresql skopeo zstd" -- rdpipe/test/hosts/test $(T)

## test-scipy: the clustering's linkage beside scipy's
test-scipy:
	@scripts/install-packages test test-scipy
	@$(MAKE) build-test
	@test/system/placement/scipy_linkage

## test-fresh: what a new user does, in a new Debian 12, or in each of SUITES="bookworm trixie": clone, make demo, make test; TARGETS="demo" runs less (root; leaves nothing)
test-fresh:
	@scripts/install-packages test-bare
	@status=0; for suite in $(or $(SUITES),bookworm); do \
		scripts/try-bare --suite "$$suite" $(or $(TARGETS),demo test) || status=1; \
	done; exit $$status

## check: warnings as errors, xref, dialyzer, C with gcc and clang, formats, shell scripts
check:
	@scripts/install-packages check
	@$(MAKE) build-test
	@scripts/check

## coverage: which lines of native/, rdpipe/ and the applications the tests run; KEEP=1 stores the figures, T=name as in `make test`
coverage:
	@scripts/install-packages test coverage
	@$(MAKE) build-bench
	@scripts/coverage $(if $(KEEP),--keep) $(T)

## bench: the benchmarks that need no root and take minutes, one after the other; N=name runs one, Q=1 the quick form
bench:
	@scripts/install-packages bench
	@$(MAKE) build-bench
	@scripts/bench $(if $(Q),--quick) $(N)

## bench-all: measures again whatever is not of this tree, what matters most first, and stores each result at once; HOURS=n ends in time, REPEATS=n, N="name ..."; go on with the same command
bench-all:
	@scripts/install-packages bench
	@$(MAKE) build-bench
	@scripts/bench --all --hours $(or $(HOURS),12) $(if $(REPEATS),--repeats $(REPEATS)) $(N)

## bench-report: ten questions about this machine in a quarter of an hour, on one page (build/bench-report.md and .json) to compare with the published figures
bench-report:
	@scripts/install-packages bench
	@$(MAKE) build-bench
	@bin/beamway bench report

## figures: the tables and drawings of README and guides from bench/results, and the tables of docs/options.md; MARK=1 notes first which results are older than what they measure
figures:
	@scripts/install-packages bench
	@$(MAKE) build-bench
	@scripts/figures $(if $(MARK),mark,write)
	@scripts/options write

## release-check: no figure of the documents is older than 40 commits that touched what it measures; before an issue is resolved
release-check:
	@scripts/install-packages build
	@$(MAKE) build-bench
	@scripts/figures release

## soak: nodes under mixed load for MIN minutes (20): what grew; NODES=n, a plot in bench/results; FORCE=1
soak:
	@scripts/install-packages build
	@$(MAKE) build-bench
	@bin/beamway soak --minutes $(call minutes,20) --nodes $(or $(NODES),2) $(if $(FORCE),--force)

## asan: C tests under address and undefined-behaviour sanitizers
## tsan: C tests under the thread sanitizer
## valgrind: C tests under memcheck, with reduced counts
asan tsan valgrind:
	@scripts/install-packages $@
	@$(MAKE) -C native $@
	@$(MAKE) -C rdpipe $@

## test-asan: all tests, C and Erlang, with everything native under the sanitizers, leaks included (T=name as in `make test`)
test-asan:
	@scripts/install-packages test asan
	@scripts/test-asan $(T)

# Expands to MIN or, if that is not set, to $(1): the minutes for which something runs. 0 is rejected, because it would mean no end.
minutes = $(if $(MIN),$(or $(shell printf %s '$(MIN)' | grep -xE '[1-9][0-9]{0,4}'),$(error MIN=$(MIN): expected whole minutes, at least 1)),$(1))

## fuzz: libFuzzer on everything that is read from a peer; MIN=10 is ten minutes for each target (default 1); F=target runs one
fuzz:
	@scripts/install-packages fuzz
	@$(if $(filter-out $(notdir $(basename $(wildcard */fuzz/*_fuzz.c))),$(F)),$(error F=$(F): expected one of $(notdir $(basename $(wildcard */fuzz/*_fuzz.c)))))
	@$(MAKE) -C native fuzz FUZZ_SECONDS=$$(($(call minutes,1) * 60))
	@$(MAKE) -C rdpipe fuzz FUZZ_SECONDS=$$(($(call minutes,1) * 60))

## fuzz-yucan: properties of yucan's parsers (heads, chunks, frames, FastCGI, CGI, configurations) for MIN minutes (1); writes bench/results/fuzz_yucan.json; FORCE=1
fuzz-yucan:
	@scripts/install-packages test
	@$(MAKE) build-test
	@erl -noinput -boot no_dot_erlang -pa apps/*/ebin apps/*/test/ebin bench/ebin -s yucan_fuzz main -extra $(call minutes,1) bench/results/fuzz_yucan.json $(if $(FORCE),--force)

## overload-yucan: twice the requests that yucan can answer, for SECONDS (60): no crash, bounded memory, full speed after
overload-yucan:
	@scripts/install-packages test
	@$(MAKE) build-test
	@erl -noinput -boot no_dot_erlang -pa apps/*/ebin -s yucan_overload main -extra $(or $(SECONDS),60)

## fuzz-keep: stores counts and inputs of the last `make fuzz` (bench/results/fuzz.json, fuzz/corpus of native and rdpipe); FORCE=1
fuzz-keep:
	@scripts/install-packages fuzz
	@$(MAKE) build-bench
	@$(MAKE) -C native fuzz-keep
	@$(MAKE) -C rdpipe fuzz-keep

## spin: the Promela models of the doorbell and of the choice of link
spin:
	@scripts/install-packages spin
	@$(MAKE) -C native spin

## clean: remove all build products
clean:
	@scripts/build --clean

help:
	@for target in $(VISITORS); do sed -n "s/^## \($$target\): \(.*\)/  make \1|\2/p" Makefile; done | $(ALIGNED)
	@echo '  make help-all     all targets, for those who change Beamway'

help-all:
	@sed -n 's/^## \([a-zA-Z0-9-]*\): \(.*\)/  make \1|\2/p' Makefile | $(ALIGNED)
