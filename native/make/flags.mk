# SPDX-License-Identifier: Apache-2.0
# Compiler flags for native/ and for ../rdpipe, which uses link/ as a library. NATIVE is the path from the including Makefile to native/,
# which is empty or ends with a slash.

NATIVE := $(patsubst %make/,%,$(dir $(lastword $(MAKEFILE_LIST))))
BUILD := build

include $(NATIVE)make/system.mk

CFLAGS ?= -O2 -g
WARNINGS := -Wall -Wextra -Wshadow
# Only `make check` sets WERROR=-Werror, because a warning from a later compiler must not stop a user's build.
WERROR ?=
# Additional flags for everything including tests, used by scripts/test-asan and scripts/coverage.
EXTRA_CFLAGS ?=
BASE_CFLAGS := -std=c11 -D_GNU_SOURCE= $(WARNINGS) $(WERROR) $(EXTRA_CFLAGS) -I$(NATIVE)link
ALL_CFLAGS = $(BASE_CFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP

# Test programs, without and with sanitizers.
TEST_CFLAGS := $(BASE_CFLAGS) -O2 -g -pthread -I$(NATIVE)test
ASAN_CFLAGS := $(TEST_CFLAGS) -O1 -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all
TSAN_CFLAGS := $(TEST_CFLAGS) -O1 -fno-omit-frame-pointer -fsanitize=thread
# clang is used, because its thread sanitizer (clang 14) detects a missing release in ring.c, and that of gcc 12 did not.
TSAN_CC ?= clang

# rdma, tls and zstd are separate shared objects.
LINK_SRC := $(filter-out $(NATIVE)link/rdma/% $(NATIVE)link/tls/% $(NATIVE)link/zstd/%,$(sort $(wildcard $(NATIVE)link/*.c $(NATIVE)link/*/*.c)))
LINK_HEADERS := $(wildcard $(NATIVE)link/*.h $(NATIVE)link/*/*.h)
LINK_OBJ := $(LINK_SRC:$(NATIVE)%.c=$(BUILD)/%.o)

# The compiler is run once, and only if a target needs the answer. The value is empty if the headers are missing.
HAS_RDMA = $(eval HAS_RDMA := $$(shell printf '\043include <rdma/rdma_cma.h>\n' | \
	$$(CC) -fsyntax-only -x c - 2>/dev/null && echo yes))$(HAS_RDMA)
HAS_TLS = $(eval HAS_TLS := $$(shell printf '\043include <openssl/ssl.h>\n' | \
	$$(CC) -fsyntax-only -x c - 2>/dev/null && echo yes))$(HAS_TLS)
HAS_ZSTD = $(eval HAS_ZSTD := $$(shell printf '\043include <zstd.h>\n' | \
	$$(CC) -fsyntax-only -x c - 2>/dev/null && echo yes))$(HAS_ZSTD)

.PHONY: FORCE

$(BUILD)/link/%.o: $(NATIVE)link/%.c $(BUILD)/flags
	@mkdir -p $(@D)
	@echo "  CC   $<"
	@$(CC) $(ALL_CFLAGS) -c -o $@ $<

# Contains the compiler and its flags. If the flags or the OTP release change, everything is recompiled.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@{ $(CC) --version | sed -n 1p; echo "$(ALL_CFLAGS) $(LDFLAGS) $(ERL_INCLUDE)"; } > $@.$$$$; \
		if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

-include $(LINK_OBJ:.o=.d)
