# SPDX-License-Identifier: Apache-2.0
# libFuzzer (clang) on everything that is read from a peer. FUZZ_SECONDS bounds each target; what is
# found lands in build/fuzz/found/ and, once mended, is committed to fuzz/corpus/TARGET/ under a name
# that says what it was. `make test` runs the committed files again (build/test/TARGET_replay).

FUZZ_TARGETS := $(sort $(notdir $(basename $(wildcard fuzz/*_fuzz.c))))
FUZZ_SECONDS ?= 60
FUZZ_CC ?= clang
FUZZ_SRC := $(LINK_SRC) driver/pump.c
FUZZ_HEADERS := $(wildcard fuzz/*.h test/*.h link/*.h driver/*.h)
FUZZ_CFLAGS = $(BASE_CFLAGS) -O1 -g -pthread -Ilink -isystem $(ERL_INCLUDE)

# The lists are read by recipes of test.mk, which have had their prerequisites already.
TEST_PROGRAMS += $(FUZZ_TARGETS:%=$(BUILD)/test/%_replay)
ASAN_PROGRAMS += $(FUZZ_TARGETS:%=$(BUILD)/asan/%_replay)
test: $(FUZZ_TARGETS:%=$(BUILD)/test/%_replay)
asan: $(FUZZ_TARGETS:%=$(BUILD)/asan/%_replay)

.PHONY: fuzz
.SECONDARY: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)

# Only ring_fuzz runs the pump, and with it the calls of the VM that driver_shim.h stands in for.
fuzz_src = $(LINK_SRC) $(if $(filter ring_fuzz,$(1)),driver/pump.c)

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

# A target that hangs has found something too: a call that a peer can keep from ending.
fuzz: $(FUZZ_TARGETS:%=$(BUILD)/fuzz/%)
	@mkdir -p $(BUILD)/fuzz/found
	@for target in $(FUZZ_TARGETS); do \
		echo "---- $$target, $(FUZZ_SECONDS) s"; \
		mkdir -p $(BUILD)/fuzz/corpus/$$target; \
		$(BUILD)/fuzz/$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -max_len=4096 \
			-rss_limit_mb=1024 -print_final_stats=1 -verbosity=1 -close_fd_mask=1 \
			-artifact_prefix=$(BUILD)/fuzz/found/$$target- \
			$(BUILD)/fuzz/corpus/$$target fuzz/corpus/$$target >$(BUILD)/fuzz/$$target.log 2>&1 || \
			{ tail -n 40 $(BUILD)/fuzz/$$target.log; \
			  echo "$$target: FAILED, see $(BUILD)/fuzz/$$target.log and found/"; exit 1; }; \
		sed -n 's/^stat::\(number_of_executed_units\|new_units_added\): */  \1 /p' \
			$(BUILD)/fuzz/$$target.log; \
	done
	@echo "fuzz: all targets passed"
