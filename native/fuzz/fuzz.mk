# SPDX-License-Identifier: Apache-2.0
# libFuzzer (clang) on everything that is read from a peer. FUZZ_SECONDS bounds each target; what is
# found lands in build/fuzz/found/ and, once mended, is committed to fuzz/corpus/TARGET/ under a name
# that says what it was; inputs without one (reached-...) are there because they reach much.
# `make test` runs the committed files again (build/test/TARGET_replay).

# pipe_fuzz needs what rdpipe needs.
FUZZ_ALL := $(sort $(notdir $(basename $(wildcard fuzz/*_fuzz.c))))
FUZZ_TARGETS = $(if $(HAS_PIPE),$(FUZZ_ALL),$(filter-out pipe_fuzz,$(FUZZ_ALL)))
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
FUZZ_SRC := $(LINK_SRC) link/rdma/flow.c link/rdma/wire.c $(PUMP_SRC)
FUZZ_PIPE_SRC := rdpipe/pipeline.c rdpipe/control.c rdpipe/key.c rdpipe/squeeze.c rdpipe/item.c
FUZZ_HEADERS := $(LINK_HEADERS) $(wildcard fuzz/*.h test/*.h driver/*.h rdpipe/*.h)
FUZZ_CFLAGS = $(BASE_CFLAGS) -O1 -g -pthread -Ilink -isystem $(ERL_INCLUDE)

# The lists are read by recipes of test.mk, which have had their prerequisites already.
TEST_PROGRAMS += $(FUZZ_TARGETS:%=$(BUILD)/test/%_replay)
ASAN_PROGRAMS += $(FUZZ_TARGETS:%=$(BUILD)/asan/%_replay)
test: $(FUZZ_TARGETS:%=$(BUILD)/test/%_replay)
asan: $(FUZZ_TARGETS:%=$(BUILD)/asan/%_replay)
valgrind: $(FUZZ_TARGETS:%=$(BUILD)/test/%_replay)

.PHONY: fuzz fuzz-keep
.SECONDARY: $(FUZZ_ALL:%=$(BUILD)/fuzz/%)

# These run the pump, and with it the calls of the VM that driver_shim.h stands in for.
fuzz_src = $(LINK_SRC) $(if $(filter ring_fuzz frame_fuzz lane_fuzz,$(1)),$(PUMP_SRC)) \
	$(if $(filter rdma_fuzz,$(1)),link/rdma/flow.c link/rdma/wire.c) \
	$(if $(filter pipe_fuzz,$(1)),-Irdpipe $(FUZZ_PIPE_SRC) -lcrypto -lisal -lzstd)

$(BUILD)/fuzz/%: fuzz/%.c $(FUZZ_SRC) $(FUZZ_HEADERS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(FUZZ_CC) $(FUZZ_CFLAGS) -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all \
		-o $@ $< $(call fuzz_src,$*)

$(BUILD)/test/%_replay: fuzz/%.c fuzz/replay.c $(FUZZ_SRC) $(FUZZ_HEADERS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(FUZZ_CFLAGS) -DCORPUS='"fuzz/corpus/$*"' -o $@ $< fuzz/replay.c $(call fuzz_src,$*)

$(BUILD)/asan/%_replay: fuzz/%.c fuzz/replay.c $(FUZZ_SRC) $(FUZZ_HEADERS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(FUZZ_CFLAGS) -fsanitize=address,undefined -fno-sanitize-recover=all \
		-DCORPUS='"fuzz/corpus/$*"' -o $@ $< fuzz/replay.c $(call fuzz_src,$*)

fuzz: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)
	@FUZZ_CC=$(FUZZ_CC) fuzz/run.sh $(FUZZ_SECONDS) $(FUZZ_TARGETS)

# After a run without a finding: its counts, and the fewest inputs that reach as much, go into the
# repository. Inputs with a name of their own stay as they are.
fuzz-keep: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)
	@fuzz/keep.sh $(FUZZ_TARGETS)
