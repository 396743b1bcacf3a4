# SPDX-License-Identifier: Apache-2.0
# The commands of the pipe: rdpipe, rdsend, rdrecv, rdcp, in build/bin. They need libcrypto and libssl, libzstd and ISA-L; without
# their headers the rest is built all the same, and a line says so.
# Tests: rdpipe/test/*_test.c, and fuzz/*.

PIPE_MAINS := $(filter $(notdir $(basename $(wildcard rdpipe/rd*.c))),rdpipe rdsend rdrecv rdcp)
PIPE_BIN := $(PIPE_MAINS:%=$(BUILD)/bin/%)
PIPE_SRC := $(filter-out $(PIPE_MAINS:%=rdpipe/%.c),$(sort $(wildcard rdpipe/*.c)))
PIPE_OBJ := $(PIPE_SRC:%.c=$(BUILD)/%.o)
PIPE_HEADERS := $(LINK_HEADERS) $(wildcard rdpipe/*.h)
PIPE_CFLAGS = $(BASE_CFLAGS) $(CFLAGS) -pthread -Ilink -Irdpipe -MMD -MP
PIPE_LIBS := -lssl -lcrypto -lisal -lzstd -pthread

# A command in FOLDER/bin finds the carrier for rdma in FOLDER/lib.
PIPE_RDMA := $(BUILD)/lib/rdpipe/beamway_rdma.so

.PHONY: pipe
.SECONDARY: $(PIPE_OBJ) $(PIPE_MAINS:%=$(BUILD)/rdpipe/%.o)

pipe:
	@$(if $(HAS_PIPE),$(MAKE) --no-print-directory $(PIPE_BIN) $(if $(HAS_RDMA),$(PIPE_RDMA)), \
		echo "  no rdpipe: headers are missing (libssl-dev, libzstd-dev, libisal-dev)")

$(BUILD)/rdpipe/%.o: rdpipe/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC   $<"
	@$(CC) $(PIPE_CFLAGS) -c -o $@ $<

$(BUILD)/bin/%: $(BUILD)/rdpipe/%.o $(PIPE_OBJ) $(LINK_OBJ)
	@mkdir -p $(@D)
	@echo "  LD   $(notdir $@)"
	@$(CC) $(EXTRA_CFLAGS) $(CFLAGS) $(LDFLAGS) -o $@.new $^ $(PIPE_LIBS) && mv $@.new $@

$(PIPE_RDMA): $(RDMA_OUT)
	@mkdir -p $(@D)
	@cp $< $@.new && mv $@.new $@

-include $(PIPE_OBJ:.o=.d) $(PIPE_MAINS:%=$(BUILD)/rdpipe/%.d)

PIPE_TEST_NAMES := $(notdir $(basename $(wildcard rdpipe/test/*_test.c)))
PIPE_TESTS = $(if $(HAS_PIPE),$(PIPE_TEST_NAMES:%=$(BUILD)/test/%))
PIPE_ASAN_TESTS = $(if $(HAS_PIPE),$(PIPE_TEST_NAMES:%=$(BUILD)/asan/%))
PIPE_TEST_CFLAGS = $(TEST_CFLAGS) -Irdpipe
PIPE_TEST_NEEDS := $(PIPE_SRC) $(LINK_SRC) $(PIPE_HEADERS) $(wildcard test/*.h rdpipe/test/*.h)

$(PIPE_TEST_NAMES:%=$(BUILD)/test/%): $(BUILD)/test/%: rdpipe/test/%.c $(PIPE_TEST_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(PIPE_TEST_CFLAGS) -o $@ $< $(PIPE_SRC) $(LINK_SRC) $(PIPE_LIBS)

$(PIPE_TEST_NAMES:%=$(BUILD)/asan/%): $(BUILD)/asan/%: rdpipe/test/%.c $(PIPE_TEST_NEEDS)
	@mkdir -p $(@D)
	@echo "  CC   $@"
	@$(CC) $(ASAN_CFLAGS) -Irdpipe -o $@ $< $(PIPE_SRC) $(LINK_SRC) $(PIPE_LIBS)

# The lists are read by recipes of test.mk, which have had their prerequisites already.
TEST_PROGRAMS += $(PIPE_TESTS)
ASAN_PROGRAMS += $(PIPE_ASAN_TESTS)
test: $(PIPE_TESTS)
asan: $(PIPE_ASAN_TESTS)
valgrind: $(PIPE_TESTS)
