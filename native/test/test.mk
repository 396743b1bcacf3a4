# SPDX-License-Identifier: Apache-2.0
# C tests of native/link. `make -C native test` builds and runs them all, in under a minute;
# `asan` and `tsan` do so under sanitizers, with binaries of their own; `spin` checks the models.

# rdma_flow_test needs no device and no library; the others run where libibverbs is.
RDMA_TEST_NAMES := $(filter-out rdma_flow_test,$(notdir $(basename $(wildcard test/rdma_*test.c))))
TEST_NAMES = $(sort $(filter-out $(if $(HAS_RDMA),,$(RDMA_TEST_NAMES)), \
	$(notdir $(basename $(wildcard test/*_test.c)))))
TEST_PROGRAMS = $(TEST_NAMES:%=$(BUILD)/test/%)
ASAN_PROGRAMS = $(TEST_NAMES:%=$(BUILD)/asan/%)
# Only what runs two threads.
TSAN_NAMES = stress_test $(if $(HAS_RDMA),rdma_service_test)
TSAN_PROGRAMS = $(TSAN_NAMES:%=$(BUILD)/tsan/%)
TEST_HEADERS := $(LINK_HEADERS) $(wildcard test/*.h driver/*.h)

# Only these need the pump, and the header that declares what driver_shim.h stands in for.
# driver_test includes beamway_drv.c.
test_src = $(LINK_SRC) $(if $(filter pump_test lane_test driver_test,$(1)),$(PUMP_SRC) -isystem $(ERL_INCLUDE)) \
	$(if $(filter driver_test,$(1)),driver/job.c driver/lane.c driver/meet.c) \
	$(if $(filter rdma_flow_test,$(1)),link/rdma/flow.c link/rdma/wire.c) \
	$(if $(filter $(RDMA_TEST_NAMES),$(1)),$(RDMA_SRC) $(RDMA_LIBS))

.PHONY: spin

$(BUILD)/test/%: test/%.c $(LINK_SRC) $(RDMA_SRC) $(DRIVER_SRC) $(TEST_HEADERS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(TEST_CFLAGS) -o $@ $< $(call test_src,$*)

$(BUILD)/asan/%: test/%.c $(LINK_SRC) $(RDMA_SRC) $(DRIVER_SRC) $(TEST_HEADERS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(ASAN_CFLAGS) -o $@ $< $(call test_src,$*)

$(BUILD)/tsan/%: test/%.c $(LINK_SRC) $(RDMA_SRC) $(DRIVER_SRC) $(TEST_HEADERS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(TSAN_CC) $(TSAN_CFLAGS) -o $@ $< $(call test_src,$*)

spin:
	@test/spin/run.sh $(BUILD)/spin
