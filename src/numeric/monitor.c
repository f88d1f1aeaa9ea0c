/* SPDX-License-Identifier: Apache-2.0 */
#include <ejkernel/numeric.h>

#include "base/base.h"

#include <stdio.h>
#include <unistd.h>

ejk_timer ejk_timer_start(const char *name, ejk_timer_sink_fn sink, void *user) {
    return (ejk_timer){.name = name ? name : "Operation",
                       .sink = sink,
                       .user = user,
                       .started_s = ejk_now(),
                       .running = true};
}

double ejk_timer_stop(ejk_timer *timer) {
    if (!timer || !timer->running) return 0;
    double seconds = ejk_now() - timer->started_s;
    timer->running = false;
    if (timer->sink) {
        char text[480];
        snprintf(text, sizeof text, "%.400s took %.3f seconds", timer->name, seconds);
        timer->sink(timer->user, text);
    }
    return seconds;
}

static bool resident_pages(long long *pages) {
    FILE *file = fopen("/proc/self/statm", "re");
    if (!file) return false;
    long long whole;
    bool read = fscanf(file, "%lld %lld", &whole, pages) == 2;
    fclose(file);
    return read;
}

ejk_status ejk_get_memory_usage(ejk_memory_usage *out) {
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "out is NULL");
    long long resident;
    int64_t page = sysconf(_SC_PAGESIZE), pages = sysconf(_SC_PHYS_PAGES);
    int64_t allocated, limit;
    if (page < 1 || pages < 1 || !resident_pages(&resident) ||
        !ejki_mul(resident, page, &allocated) || !ejki_mul(pages, page, &limit)) {
        return ejki_fail(EJK_STATUS_IO,
                         "the system does not tell how much memory is used, expected the resident "
                         "pages in /proc/self/statm");
    }
    *out = (ejk_memory_usage){.allocated = allocated, .limit = limit};
    return EJK_OK;
}
