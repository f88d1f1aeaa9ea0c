/* SPDX-License-Identifier: Apache-2.0 */
/* Which lines few rows ask for: paged_ask.h has the figures. */
#include "operations/paged/cpu/suggest.h"

#include <ejkernel/device.h>

#include <string.h>

enum { HINT = 3 };

void ejki_paged_suggest(const void *problem, int32_t threads, ejk_opt_int *values) {
    const ejk_cpu_info *cpu = ejk_cpu();
    const bool zen5 = strcmp(cpu->vendor, "amd") == 0 && cpu->family >= 26;
    (void)problem, (void)threads;
    values[HINT] = ejk_int(!zen5);
}
