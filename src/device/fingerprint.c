/* SPDX-License-Identifier: Apache-2.0 */
/* One line that tells devices apart whose measurements must not be mixed. */
#include <ejkernel/device.h>
#include <pthread.h>
#include <stdio.h>

static char line[96];

static void write_line(void) {
    const ejk_cpu_info *cpu = ejk_cpu();
    snprintf(line, sizeof line, "cpu|%s %d.%d.%d; %s; %d cores", cpu->vendor, cpu->family,
             cpu->model, cpu->stepping, ejk_isa_name(cpu->isa), cpu->cores);
}

const char *ejk_device_fingerprint(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, write_line);
    return line;
}
