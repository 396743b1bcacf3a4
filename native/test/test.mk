# SPDX-License-Identifier: Apache-2.0
# C tests of native/link. `make -C native test` builds and runs them all, in under a minute;
# `asan` and `tsan` do so under sanitizers, using separate binaries; `spin` checks the models.
# The name of a program leaves the directory out: test/link/ring_test.c becomes build/test/ring_test.

TESTS := $(wildcard test/*_test.c test/*/*_test.c)
vpath %_test.c $(sort $(dir $(TESTS)))

# rdma_flow_test needs no verbs. The other rdma tests run over the fake verbs in test/verbs, which
# need only the headers of rdma-core. build/test/NAME uses real verbs, and so does build/asan/NAME
# with VERBS=real; these run in the virtual machine of test/system/rdma/guest.
RDMA_TEST_NAMES := $(filter-out rdma_flow_test,$(notdir $(basename $(wildcard test/rdma/*_test.c))))
TEST_NAMES = $(sort $(filter-out $(if $(HAS_RDMA),,$(RDMA_TEST_NAMES)) $(if $(HAS_TLS),,tls_test record_test) $(if $(HAS_ZSTD),,codec_test), \
	$(notdir $(basename $(TESTS)))))
CARRIER_TEST_NAMES := link_test stress_test pump_test pump_bounds_test overtake_test port_test
FAKE_TEST_NAMES = $(if $(HAS_RDMA),$(filter $(RDMA_TEST_NAMES) $(CARRIER_TEST_NAMES),$(TEST_NAMES)))
TEST_PROGRAMS = $(patsubst %,$(BUILD)/test/%,$(filter-out $(FAKE_TEST_NAMES),$(TEST_NAMES))) \
	$(FAKE_TEST_NAMES:%=$(BUILD)/fake/%)
REAL_PROGRAMS = $(patsubst %,$(BUILD)/test/%,$(filter-out rdma_service_test $(CARRIER_TEST_NAMES),$(FAKE_TEST_NAMES)))
ASAN_PROGRAMS = $(TEST_NAMES:%=$(BUILD)/asan/%)
# Only programs that run more than one thread.
TSAN_NAMES = $(sort block_test stress_test port_test flush_test packet_test $(FAKE_TEST_NAMES))
TSAN_PROGRAMS = $(TSAN_NAMES:%=$(BUILD)/tsan/%)
FAKE_VERBS := $(wildcard test/verbs/*.c)
# The emulator of a network path (test/path), whose decisions are tested here; its program connects namespaces.
PATH_SRC := test/path/path.c
# Carriers that only test programs include: test/NAME, with the table bw_NAME_carrier. The test suites also run over these.
TEST_CARRIERS := pipes
TEST_CARRIER_SRC := $(foreach name,$(TEST_CARRIERS),$(wildcard test/$(name)/*.c))
TEST_CARRIER_LIST = '-DBW_TEST_CARRIERS(X)=$(foreach name,$(TEST_CARRIERS) $(if $(HAS_TLS),tls),X(bw_$(name)_carrier))'
# The tls carrier is a shared object for the driver, but it is linked into test programs.
TLS_TEST = $(if $(HAS_TLS),-DBW_TEST_TLS $(filter-out %/object.c,$(TLS_SRC)) -lssl -lcrypto)
# The same applies to the codec.
ZSTD_TEST = $(if $(HAS_ZSTD),-DBW_TEST_ZSTD link/zstd/zstd.c -lzstd)
TEST_NEEDS = $(VM_SRC) $(LINK_SRC) $(TEST_CARRIER_SRC) $(RDMA_SRC) $(TLS_SRC) $(ZSTD_SRC) $(DRIVER_SRC) $(PATH_SRC) \
	$(LINK_HEADERS) $(wildcard block/* test/*.h test/*/*.h driver/*.h)

# The driver loads the carrier that is linked into the program (ports.h).
OWN_DLOPEN := $(if $(HAS_RDMA),-Ddlopen=own_dlopen -Ddlsym=own_dlsym -Ddlclose=own_dlclose) -ldl

# test/kernel.h intercepts the system calls of the code under test.
WRAP_KERNEL := -Wl,--wrap=send,--wrap=sendmsg

# Only these tests need the pump, and the header that declares the functions that driver_shim.h replaces.
# driver_test includes beamway_drv.c.
test_src = $(LINK_SRC) $(if $(filter $(CARRIER_TEST_NAMES),$(1)),$(TEST_CARRIER_LIST) $(TEST_CARRIER_SRC) $(TLS_TEST)) \
	$(if $(filter pump_test pump_bounds_test overtake_test packet_test driver_test join_test,$(1)),$(PUMP_SRC) -isystem $(ERL_INCLUDE)) \
	$(if $(filter port_test,$(1)),$(VM_SRC) $(DRIVER_SRC) -isystem $(ERL_INCLUDE) $(OWN_DLOPEN)) \
	$(if $(filter flush_test read_test,$(1)),$(VM_SRC) $(DRIVER_SRC) -isystem $(ERL_INCLUDE) -ldl $(WRAP_KERNEL)) \
	$(if $(filter session_test session_rogue_test,$(1)),$(VM_SRC) $(DRIVER_SRC) -isystem $(ERL_INCLUDE) -ldl $(ZSTD_TEST)) \
	$(if $(filter driver_test,$(1)),driver/async_job.c driver/senders.c driver/establish.c driver/closing.c driver/pulse.c driver/offers.c driver/codec.c driver/fault.c driver/fault_way.c $(wildcard driver/port_*.c)) \
	$(if $(filter rdma_flow_test,$(1)),link/rdma/flow.c link/rdma/wire.c) \
	$(if $(filter frame_scheduler_test,$(1)),$(SCHEDULER_SRC)) \
	$(if $(filter traffic_test,$(1)),driver/traffic.c) \
	$(if $(filter codec_test,$(1)),$(ZSTD_TEST)) \
	$(if $(filter fault_way_test,$(1)),driver/fault_way.c) \
	$(if $(filter path_test,$(1)),$(PATH_SRC)) \
	$(if $(filter block_test,$(1)),block/block.c block/channel.c) \
	$(if $(filter tls_test,$(1)),$(TLS_TEST) $(WRAP_KERNEL)) \
	$(if $(filter record_test,$(1)),$(TLS_TEST)) \
	$(if $(filter $(FAKE_TEST_NAMES),$(1)),-DBW_TEST_RDMA $(RDMA_SRC) $(if $(filter real,$(2)),$(RDMA_LIBS),$(FAKE_VERBS)))

.PHONY: spin path-emulator

test-programs: $(REAL_PROGRAMS)

$(BUILD)/test/%: %.c $(TEST_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(TEST_CFLAGS) -o $@ $< $(call test_src,$*,real)

$(BUILD)/fake/%: %.c $(FAKE_VERBS) $(TEST_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(TEST_CFLAGS) -o $@ $< $(call test_src,$*)

$(BUILD)/asan/%: %.c $(FAKE_VERBS) $(TEST_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(ASAN_CFLAGS) -o $@ $< $(call test_src,$*,$(VERBS))

$(BUILD)/tsan/%: %.c $(FAKE_VERBS) $(TEST_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(TSAN_CC) $(TSAN_CFLAGS) -o $@ $< $(call test_src,$*)

path-emulator: $(BUILD)/path_emulator
	@:

$(BUILD)/path_emulator: test/path/path_emulator.c $(PATH_SRC) test/path/path.h
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(BASE_CFLAGS) -O2 -g -o $@ test/path/path_emulator.c $(PATH_SRC)

spin:
	@test/spin/run.sh $(BUILD)/spin
