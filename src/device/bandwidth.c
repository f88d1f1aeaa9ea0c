/* SPDX-License-Identifier: Apache-2.0 */
/* The memory ceiling: all threads read their own parts of a buffer that no cache holds. */
#include "base/base.h"
#include "device/rate.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LINE 64
/* Read between two looks at the clock. */
#define PIECE (INT64_C(512) << 10)
/*
 * A piece is read from one end to the other, or a line of each of four parts in turn: the better of the two counts. Of
 * one place alone some Intel processors, which ask ahead for so much of each place only, gave a quarter to a third
 * less; an AMD Zen 5 gave 39 GB/s of one place and 27 of four.
 */
static const int64_t orders[] = {1, 4};
enum { ORDERS = sizeof orders / sizeof *orders };
/* How far ahead lines are asked for: without it 15 % slower where measured; then wider loads gain nothing. */
#define AHEAD 4096

#define LEAST_BYTES (INT64_C(64) << 20)
/* What filling takes seconds for; all last caches of one machine together have less, but for the very largest. */
#define MOST_BYTES (INT64_C(2) << 30)

struct part {
    _Alignas(LINE) int64_t position;
    uint64_t sum; /* kept, so that reading has a purpose */
};

struct reading {
    char *buffer;
    int64_t part_bytes;
    int64_t places; /* read in turn */
    struct part *parts;
};

/* Any address, any type. */
typedef uint64_t vector __attribute__((vector_size(16), aligned(1), may_alias));

static uint64_t read_lines(const char *from, int64_t bytes, int64_t places) {
    vector a = {0}, b = a, c = a, d = a;
    const int64_t lines = bytes / LINE, apart = ejki_max(1, lines / places);
    for (int64_t i = 0; i < apart; i++)
        for (int64_t at = i; at < lines; at += apart) {
            const vector *line = (const vector *)(from + at * LINE);
            /* An address past the end may be asked for: a prefetch never faults. */
            __builtin_prefetch((const void *)((uintptr_t)line + AHEAD));
            a ^= line[0];
            b ^= line[1];
            c ^= line[2];
            d ^= line[3];
        }
    a ^= b ^ c ^ d;
    return a[0] ^ a[1];
}

static double read_piece(void *reading_, int64_t index) {
    const struct reading *reading = reading_;
    struct part *part = &reading->parts[index];
    int64_t bytes = ejki_min(PIECE, reading->part_bytes - part->position);
    part->sum ^= read_lines(reading->buffer + index * reading->part_bytes + part->position, bytes,
                            reading->places);
    part->position += bytes;
    if (part->position == reading->part_bytes) part->position = 0;
    return (double)bytes;
}

/* Writing gives each part memory of its own, near its thread: pages never written share one of zeros. */
static void touch_part(void *reading_, int64_t index) {
    const struct reading *reading = reading_;
    memset(reading->buffer + index * reading->part_bytes, 1, (size_t)reading->part_bytes);
}

/* Threads may have a last cache each, which virtual machines do not tell: what all read together is then in them, if it
 * is no more than twice one of them. */
int64_t ejk_rotation_bytes(int32_t threads) {
    const int64_t cache = 2 * ejk_cpu()->l3_bytes;
    const int64_t all = ejki_min(ejki_max(1, threads) * cache, MOST_BYTES);
    const int64_t wanted = ejki_max(ejki_max(all, cache), LEAST_BYTES);
    const int64_t room = (int64_t)sysconf(_SC_AVPHYS_PAGES) / 4 * (int64_t)sysconf(_SC_PAGESIZE);
    return ejki_max(ejki_min(wanted, room), LINE);
}

static ejk_status measure(ejk_threads *threads, char *buffer, int64_t bytes, double seconds,
                          double *out) {
    size_t count = (size_t)ejk_threads_count(threads);
    struct part *parts = aligned_alloc(LINE, count * sizeof *parts);
    if (!parts) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for %zu readers", count);
    memset(parts, 0, count * sizeof *parts);
    int64_t part_bytes = bytes / (int64_t)count / LINE * LINE;
    struct reading reading = {buffer, part_bytes, 0, parts};
    ejk_parallel_for(threads, (int64_t)count, touch_part, &reading);
    double best = 0, rate = 0;
    ejk_status status = EJK_OK;
    for (int i = 0; status == EJK_OK && i < ORDERS; i++) {
        reading.places = orders[i];
        status = ejki_measure_rate(threads, read_piece, &reading, seconds / ORDERS,
                                   (double)part_bytes * (double)count, &rate);
        if (rate > best) best = rate;
    }
    if (status == EJK_OK) *out = best;
    free(parts);
    return status;
}

static ejk_status check(const ejk_threads *threads, const void *scratch, int64_t bytes,
                        const double *out) {
    int64_t least = LINE * (int64_t)ejk_threads_count(threads);
    if (!out) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "bytes_per_second_out is NULL");
    if (bytes == 0 && scratch)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "bytes is 0; expected the size of scratch");
    if (bytes != 0 && bytes < least)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "bytes is %lld; expected 0 (default) or at least %lld", (long long)bytes,
                         (long long)least);
    return EJK_OK;
}

ejk_status ejk_measure_read_bandwidth(ejk_threads *threads, void *scratch, int64_t bytes,
                                      double seconds, double *bytes_per_second_out) {
    EJKI_TRY(check(threads, scratch, bytes, bytes_per_second_out));
    EJKI_TRY(ejki_check_seconds(seconds));
    if (scratch) return measure(threads, scratch, bytes, seconds, bytes_per_second_out);
    if (bytes == 0)
        bytes = ejki_max(ejk_rotation_bytes(ejk_threads_count(threads)),
                         LINE * (int64_t)ejk_threads_count(threads));
    char *buffer = ejki_allocate(bytes);
    if (!buffer)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a buffer of %lld bytes",
                         (long long)bytes);
    ejk_status status = measure(threads, buffer, bytes, seconds, bytes_per_second_out);
    free(buffer);
    return status;
}
