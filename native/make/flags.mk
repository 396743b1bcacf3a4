# SPDX-License-Identifier: Apache-2.0
# How C is compiled, here and in ../rdpipe, which uses link/ as a library. NATIVE is the way from the including Makefile to native/,
# empty or with a slash at its end.

NATIVE := $(patsubst %make/,%,$(dir $(lastword $(MAKEFILE_LIST))))
BUILD := build

include $(NATIVE)make/system.mk

CFLAGS ?= -O2 -g
WARNINGS := -Wall -Wextra -Wshadow
# `make check` sets WERROR=-Werror: a warning of a later compiler must not stop a user's build.
WERROR ?=
# For a build of everything in another way, tests included: scripts/test-asan, scripts/coverage.
EXTRA_CFLAGS ?=
BASE_CFLAGS := -std=c11 -D_GNU_SOURCE= $(WARNINGS) $(WERROR) $(EXTRA_CFLAGS) -I$(NATIVE)link
ALL_CFLAGS = $(BASE_CFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden -MMD -MP

# Test programs, as they are and under sanitizers.
TEST_CFLAGS := $(BASE_CFLAGS) -O2 -g -pthread -I$(NATIVE)test
ASAN_CFLAGS := $(TEST_CFLAGS) -O1 -fno-omit-frame-pointer -fsanitize=address,undefined \
	-fno-sanitize-recover=all
TSAN_CFLAGS := $(TEST_CFLAGS) -O1 -fno-omit-frame-pointer -fsanitize=thread
# clang: the thread sanitizer of gcc 12 was tried and did not see a missing release in ring.c, that
# of clang 14 does.
TSAN_CC ?= clang

# rdma, tls and zstd are shared objects of their own.
LINK_SRC := $(filter-out $(NATIVE)link/rdma/% $(NATIVE)link/tls/% $(NATIVE)link/zstd/%,$(sort $(wildcard $(NATIVE)link/*.c $(NATIVE)link/*/*.c)))
LINK_HEADERS := $(wildcard $(NATIVE)link/*.h $(NATIVE)link/*/*.h)
LINK_OBJ := $(LINK_SRC:$(NATIVE)%.c=$(BUILD)/%.o)

# The compiler is asked once, and only by a goal that needs to know; empty: the headers are missing.
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

# Holds the compiler and its flags: other flags or another OTP mean that all is compiled again.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@{ $(CC) --version | sed -n 1p; echo "$(ALL_CFLAGS) $(LDFLAGS) $(ERL_INCLUDE)"; } > $@.$$$$; \
		if cmp -s $@.$$$$ $@; then rm $@.$$$$; else mv $@.$$$$ $@; fi

-include $(LINK_OBJ:.o=.d)
