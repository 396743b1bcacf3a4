/* SPDX-License-Identifier: Apache-2.0
 *
 * Faults for scripts/test-asan, which compiles the driver with this header before each file,
 * because a check that has never been seen to fail proves nothing. No build of the product includes
 * it.
 */
#include <stdlib.h>
#include <string.h>

#include "erl_driver.h"

#if defined(PLANT_LEAK) /* never frees a closed link */
static inline void planted_free(void *at)
{
    memset(at, 0, 1);
}
#define free planted_free

#elif defined(PLANT_BINARY_LEAK) /* never releases a binary of the VM */
static inline void planted_free_binary(ErlDrvBinary *binary)
{
    (void)binary;
}
#define driver_free_binary planted_free_binary

#elif defined(PLANT_USE_AFTER_FREE) /* writes to freed memory */
static inline void planted_driver_free(void *at)
{
    driver_free(at);
    *(volatile char *)at = 1;
}
#define driver_free planted_driver_free

#elif defined(PLANT_OVERFLOW) /* writes a joined signal past the end of its binary */
static inline ErlDrvBinary *planted_alloc_binary(ErlDrvSizeT size)
{
    ErlDrvBinary *binary = driver_alloc_binary(size > 100000 ? size - 65536 : size);

    binary->orig_size = (ErlDrvSInt)size;
    return binary;
}
#define driver_alloc_binary planted_alloc_binary

#elif defined(PLANT_UNDEFINED) /* overflows a signed integer */
static inline void planted_select(ErlDrvPort port, ErlDrvEvent event, int mode, int on)
{
    volatile int largest = 2147483647;

    largest += on;
    driver_select(port, event, mode, largest < 0);
}
#define driver_select(port, event, mode, on) (planted_select(port, event, mode, on), 0)
#endif
