# SPDX-License-Identifier: Apache-2.0
# libFuzzer (clang) on everything that is read from a peer, here and in ../rdpipe: fuzz/*_fuzz.c. FUZZ_SECONDS bounds each target;
# what is found lands in build/fuzz/found/ and, once mended, is committed to fuzz/corpus/TARGET/ under a name that says what it was.
# fuzz/corpus/TARGET.tar.gz holds inputs without a name, which are there because they reach much; build/reached/ has them unpacked.
# `make test` runs all of them again (build/test/TARGET_replay), as one case a target.
# From the Makefile: fuzz_src, what target $(1) is linked with, and FUZZ_NEEDS, what all are made of.

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

# After a run without a finding: its counts, and the fewest inputs that reach as much, go into the
# repository. Inputs with a name of their own stay as they are.
fuzz-keep: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%) $(REACHED)
	@$(if $(FUZZ_TARGETS),FUZZ_ALL='$(FUZZ_ALL)' $(NATIVE)fuzz/keep.sh $(FUZZ_TARGETS))
