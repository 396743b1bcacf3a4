/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into a VM under the sanitizers, so that OpenSSL does not clean up at exit.
 *
 * The VM's schedulers keep running while exit() calls the atexit() handlers, and a TLS connection
 * that is still in use would then access memory that OpenSSL has just freed. This is a race between
 * OTP and OpenSSL. It is harmless without a sanitizer, and the driver has no part in it. The memory
 * that stays allocated is reachable, so it is not reported as a leak.
 */
#include <dlfcn.h>
#include <string.h>

typedef int register_fn(void (*)(void *), void *, void *);

int __cxa_atexit(void (*at_exit)(void *), void *argument, void *handle);

int __cxa_atexit(void (*at_exit)(void *), void *argument, void *handle)
{
    static register_fn *next;
    Dl_info where;

    if (dladdr((void *)at_exit, &where) && where.dli_fname &&
        strstr(where.dli_fname, "/libcrypto.so"))
        return 0;
    if (!next)
        *(void **)&next = dlsym(RTLD_NEXT, "__cxa_atexit");
    return next(at_exit, argument, handle);
}
