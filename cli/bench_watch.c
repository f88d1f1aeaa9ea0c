/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether other programs ran on the cores of this one, by what the scheduler counts for each of its threads. A program
 * that shares a core in slices of time slows a measurement and its ceiling alike but not equally, so that neither
 * of the two, nor their quotient, tells.
 *
 * Best is the time that a thread was ready and waited for a core (the second number of schedstat). Where the kernel
 * does not count it, a thread that never slept should have had all of the time on a core; one that slept is charged
 * one slice for each time that the core was taken from it.
 */
#define _GNU_SOURCE 1
#include "bench.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <time.h>

/* The least slice of time that schedulers give to a program beside another. */
#define SLICE_SECONDS 1e-3

typedef struct thread_look {
    double delay;                  /* seconds ready without a core; below 0 = not counted here */
    double running;                /* seconds on a core */
    long long slept, switched_out; /* of its own accord, and not */
} thread_look;

struct watched_thread {
    pid_t id;
    thread_look last;
};

/* The clock of another thread's time on a core: Linux makes it of the thread's number. */
static clockid_t clock_of(pid_t thread) {
    return (clockid_t)(~(unsigned)thread << 3 | 6);
}

static double seconds_of(clockid_t clock) {
    struct timespec now;
    return clock_gettime(clock, &now) == 0 ? (double)now.tv_sec + 1e-9 * (double)now.tv_nsec : 0;
}

static void path_of(int process, char out[32]) {
    if (process > 0)
        snprintf(out, 32, "/proc/%d/task", process);
    else
        snprintf(out, 32, "/proc/self/task");
}

static FILE *open_file(int process, pid_t thread, const char *name) {
    char folder[32], path[96];
    path_of(process, folder);
    snprintf(path, sizeof path, "%s/%d/%s", folder, (int)thread, name);
    return fopen(path, "r");
}

static double read_delay(int process, pid_t thread) {
    char line[128];
    FILE *file = open_file(process, thread, "schedstat");
    const bool read = file && fgets(line, sizeof line, file);
    if (file) fclose(file);
    const char *second = read ? strchr(line, ' ') : NULL;
    return second ? 1e-9 * (double)strtoull(second, NULL, 10) : -1;
}

/* Of the calling thread, getrusage(RUSAGE_THREAD) tells the same. */
static void read_switches(int process, pid_t thread, thread_look *out) {
    static const char slept[] = "voluntary_ctxt_switches:";
    static const char taken[] = "nonvoluntary_ctxt_switches:";
    char line[256];
    FILE *file = open_file(process, thread, "status");
    while (file && fgets(line, sizeof line, file)) {
        if (strncmp(line, slept, sizeof slept - 1) == 0)
            out->slept = strtoll(line + sizeof slept - 1, NULL, 10);
        if (strncmp(line, taken, sizeof taken - 1) == 0)
            out->switched_out = strtoll(line + sizeof taken - 1, NULL, 10);
    }
    if (file) fclose(file);
}

static thread_look look_at(int process, pid_t thread) {
    thread_look look = {.delay = read_delay(process, thread)};
    if (look.delay >= 0) return look;
    look.running = seconds_of(clock_of(thread));
    read_switches(process, thread, &look);
    return look;
}

static double lost_by(const thread_look *before, const thread_look *now, double seconds) {
    if (now->delay >= 0) return now->delay - before->delay;
    if (before->delay >= 0) return 0; /* it has ended */
    const double taken = (double)(now->switched_out - before->switched_out);
    if (now->slept != before->slept) return taken * SLICE_SECONDS;
    return taken > 0 ? seconds - (now->running - before->running) : 0;
}

/* ---- All threads ------------------------------------------------------------------------------------ */

static bool add_thread(bench_watch *watch, pid_t id) {
    const size_t count = (size_t)watch->count + 1;
    watched_thread *threads = realloc(watch->threads, count * sizeof *threads);
    if (!threads) return report_error("no memory for a list of threads");
    watch->threads = threads;
    threads[watch->count++] = (watched_thread){.id = id};
    return true;
}

bool bench_watch_open(int process, bench_watch *out) {
    char path[32];
    *out = (bench_watch){.process = process};
    path_of(process, path);
    DIR *folder = opendir(path);
    if (!folder) return true; /* nothing is known of any thread */
    bool listed = true;
    for (struct dirent *each; listed && (each = readdir(folder));) {
        const long id = strtol(each->d_name, NULL, 10);
        if (id > 0) listed = add_thread(out, (pid_t)id);
    }
    closedir(folder);
    bench_watch_lost(out);
    return listed;
}

void bench_watch_close(bench_watch *watch) {
    free(watch->threads);
    *watch = (bench_watch){.count = 0};
}

double bench_watch_lost(bench_watch *watch) {
    const double now = ejk_now(), seconds = now - watch->when;
    double most = 0;
    for (int32_t i = 0; i < watch->count; i++) {
        const thread_look look = look_at(watch->process, watch->threads[i].id);
        const double lost = lost_by(&watch->threads[i].last, &look, seconds);
        watch->threads[i].last = look;
        if (lost > most) most = lost;
    }
    watch->when = ejk_now();
    return seconds > 0 && most > 0 ? most / seconds : 0;
}
