# SPDX-License-Identifier: Apache-2.0
# libFuzzer (clang) for all code that parses data from a peer, here and in ../rdpipe: fuzz/*_fuzz.c. FUZZ_SECONDS limits the time for each
# target. Findings are written to build/fuzz/found/ and, once fixed, are committed to fuzz/corpus/TARGET/ under a name that describes the fault.
# fuzz/corpus/TARGET.tar.gz contains unnamed inputs that are kept for their coverage; they are unpacked to build/reached/.
# `make test` replays all inputs (build/test/TARGET_replay), as one case per target.
# The Makefile defines fuzz_src, the sources that target $(1) is linked with, and FUZZ_NEEDS, the prerequisites of all targets.

FUZZ_ALL := $(sort $(notdir $(basename $(wildcard fuzz/*_fuzz.c))))
# F=target runs one.
FUZZ_TARGETS ?= $(filter $(or $(F),%),$(FUZZ_ALL))
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
FUZZ_CFLAGS = $(BASE_CFLAGS) -O1 -g -pthread
FUZZ_REPLAY := $(NATIVE)fuzz/replay.c
REACHED := $(patsubst fuzz/corpus/%.tar.gz,$(BUILD)/reached/%/.unpacked,$(wildcard fuzz/corpus/*.tar.gz))
comma := ,
corpus = -DCORPUS='"fuzz/corpus/$(1)"$(if $(wildcard fuzz/corpus/$(1).tar.gz),$(comma) "$(BUILD)/reached/$(1)")'

TEST_PROGRAMS += $(FUZZ_TARGETS:%=$(BUILD)/test/%_replay)
ASAN_PROGRAMS += $(FUZZ_TARGETS:%=$(BUILD)/asan/%_replay)

.PHONY: fuzz fuzz-keep
.SECONDARY: $(FUZZ_ALL:%=$(BUILD)/fuzz/%)

$(BUILD)/fuzz/%: fuzz/%.c $(FUZZ_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-o $@ $< $(call fuzz_src,$*)

$(BUILD)/test/%_replay: fuzz/%.c $(FUZZ_REPLAY) $(FUZZ_NEEDS) $(REACHED)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(FUZZ_CFLAGS) $(call corpus,$*) -o $@ $< $(FUZZ_REPLAY) $(call fuzz_src,$*)

$(BUILD)/asan/%_replay: fuzz/%.c $(FUZZ_REPLAY) $(FUZZ_NEEDS) $(REACHED)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(FUZZ_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all \
		$(call corpus,$*) -o $@ $< $(FUZZ_REPLAY) $(call fuzz_src,$*)

$(BUILD)/reached/%/.unpacked: fuzz/corpus/%.tar.gz
	@rm -rf $(@D)
	@mkdir -p $(@D)
	@tar -xzf $< -C $(@D)
	@touch $@

fuzz: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%) $(REACHED)
	@$(if $(FUZZ_TARGETS),FUZZ_CC=$(FUZZ_CC) $(NATIVE)fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS))

# After a run without findings, stores its counts and the smallest set of inputs with the same coverage in the
# repository. Named inputs are not changed.
fuzz-keep: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%) $(REACHED)
	@$(if $(FUZZ_TARGETS),FUZZ_ALL='$(FUZZ_ALL)' $(NATIVE)fuzz/keep.sh $(FUZZ_TARGETS))
