# SPDX-License-Identifier: Apache-2.0
# Rules for test programs, here and in ../rdpipe; included last. The contract with scripts/run-tests:
#   TEST_PROGRAMS    the executables that `make test-programs` builds; each is run without arguments,
#                    prints `N passed, N failed, N skipped` as the last line of its output, and exits
#                    with a non-zero status if a case failed.
# ASAN_PROGRAMS and TSAN_PROGRAMS are the same with sanitizers, as separate binaries.

.PHONY: test asan tsan valgrind test-programs print-test-programs

test-programs: $(TEST_PROGRAMS)
	@:

print-test-programs:
	@echo $(TEST_PROGRAMS)

test: $(TEST_PROGRAMS)
	@$(NATIVE)test/run.sh $(TEST_PROGRAMS)

# Leaks are also detected, by the sanitizer's own check when each process exits.
asan: $(ASAN_PROGRAMS)
	@ASAN_OPTIONS=detect_leaks=1:halt_on_error=1 UBSAN_OPTIONS=print_stacktrace=1 \
		$(NATIVE)test/run.sh $(ASAN_PROGRAMS)

tsan: $(TSAN_PROGRAMS)
	@TSAN_OPTIONS=halt_on_error=1:atexit_sleep_ms=0 $(NATIVE)test/run.sh $(TSAN_PROGRAMS)

# Child processes of a test are also checked. Threads are scheduled fairly, so that a spinning thread cannot block the others. A thread
# that still runs at the end has memory that is reported as possibly lost, which is not a leak.
VALGRIND := valgrind --quiet --error-exitcode=99 --leak-check=full --show-leak-kinds=definite,indirect \
	--errors-for-leak-kinds=definite,indirect --fair-sched=yes --suppressions=$(NATIVE)test/valgrind.supp

valgrind: $(TEST_PROGRAMS)
	@TEST_SECONDS=1200 TEST_WRAPPER="$(VALGRIND)" STRESS_FRAMES=20000 $(NATIVE)test/run.sh $(TEST_PROGRAMS)
