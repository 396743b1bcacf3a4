# SPDX-License-Identifier: Apache-2.0
# What is done with test programs, here and in ../rdpipe; included last. What it agrees with scripts/run-tests:
#   TEST_PROGRAMS    the executables that `make test-programs` builds; each is run without arguments,
#                    ends with the line `N passed, N failed, N skipped` on standard output and exits
#                    with another status than 0 if a case failed.
# ASAN_PROGRAMS and TSAN_PROGRAMS are the same under sanitizers, with binaries of their own.

.PHONY: test asan tsan valgrind test-programs print-test-programs

test-programs: $(TEST_PROGRAMS)
	@:

print-test-programs:
	@echo $(TEST_PROGRAMS)

test: $(TEST_PROGRAMS)
	@$(NATIVE)test/run.sh $(TEST_PROGRAMS)

# Leaks are looked for too: the sanitizer's own check at the end of each process.
asan: $(ASAN_PROGRAMS)
	@ASAN_OPTIONS=detect_leaks=1:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(NATIVE)test/run.sh $(ASAN_PROGRAMS)

tsan: $(TSAN_PROGRAMS)
	@TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0 $(NATIVE)test/run.sh $(TSAN_PROGRAMS)

# Processes that a test forks are watched as well. Threads take turns, so that none only spins; one
# that still runs at the end holds memory (possibly lost), which is no leak.
VALGRIND := valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
	--errors-for-leak-kinds=definite,indirect --fair-sched=yes --suppressions=$(NATIVE)test/valgrind.supp

valgrind: $(TEST_PROGRAMS)
	@TEST_SECONDS=1200 TEST_WRAPPER="$(VALGRIND)" STRESS_FRAMES=20000 $(NATIVE)test/run.sh $(TEST_PROGRAMS)
