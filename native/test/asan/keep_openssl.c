/* SPDX-License-Identifier: Apache-2.0
 *
 * Preloaded into a VM under the sanitizers: OpenSSL does not tidy up at exit.
 *
 * The VM's schedulers run on while exit() calls what atexit() was told, and a TLS connection that
 * still works then uses what OpenSSL has just freed. It is a race between OTP and OpenSSL, harmless
 * where nobody looks, and none of the driver's. What stays allocated is reachable: no leak.
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
