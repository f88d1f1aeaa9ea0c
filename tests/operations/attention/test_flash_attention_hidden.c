/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The row-wise kernels read nothing of a block of keys that mask, segments or a window hide from every row: here
 * such blocks lie on pages that fault. Results have the bits that they have where those pages can be read, with any
 * number of workers.
 *
 * Its own main instead of cmocka's, because it also runs where only the C library is.
 */
#include "base/base.h"
#include "kernels/registry/builtin.h"
#include "operations/attention/flash/problem.h"
#include "support/element.h"
#include "support/guarded.h"
#include "support/test_threads.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MASK, HEAD_MASK, SEGMENTS, WINDOW, WAYS };
static const char *const way_names[WAYS] = {"mask", "mask of each head", "segments", "window"};

enum { BLOCKS = 8, HEADS = 2, GROUP = 2, WIDTH = 64, QUERIES = 2 };
enum { RESULTS = QUERIES * HEADS * GROUP * WIDTH };
/* The first block, two in a row over a task's end, and the last one. */
static const bool hidden[BLOCKS] = {true, false, false, true, true, false, false, true};
/* Of two heads one sees the block: it has to be read. */
enum { HALF_HIDDEN = 5 };

struct world {
    ejki_flash_problem p;
    int64_t block, parameters[5];
    struct guarded key, value;
    unsigned char *query, *out, *mask;
    int32_t *ids, *key_ids;
};

static void *filled(ejk_dtype dtype, void *data, int64_t count, int64_t period) {
    for (int64_t i = 0; i < count; i++)
        element_store(dtype, data, i, (double)(i * 7 % period) / (double)period - 0.4);
    return data;
}

static void *room(size_t bytes) {
    void *data = calloc(1, bytes);
    if (!data) abort();
    return data;
}

static bool way_hides(int way, int64_t block) {
    return way == WINDOW ? block < 2 || block > 4 : hidden[block];
}

/* Blocks are whole pages: a key of both heads is a power of two. */
static void create(struct world *w, ejk_dtype dtype, int way) {
    const int64_t size = (int64_t)ejk_dtype_size(dtype), row = HEADS * WIDTH;
    *w = (struct world){.block = ejki_max(32, (int64_t)sysconf(_SC_PAGESIZE) / (row * size))};
    const int64_t keys = BLOCKS * w->block, heads = HEADS * GROUP;
    ejki_flash_problem *p = &w->p;
    *p = (ejki_flash_problem){.batch = 1,
                              .queries = QUERIES,
                              .keys = keys,
                              .query_heads = heads,
                              .kv_heads = HEADS,
                              .group = GROUP,
                              .head_dim = WIDTH,
                              .value_dim = WIDTH,
                              .dtype = dtype,
                              .mask_group = way == HEAD_MASK ? GROUP : 1,
                              .sink_group = 1,
                              .scale = 0.125,
                              .first_offset = -(INT64_C(1) << 61),
                              .last_offset = INT64_C(1) << 61,
                              .normalize = true};
    guarded_create(&w->key, (size_t)(keys * row * size), GUARDED_END, 0);
    guarded_create(&w->value, (size_t)(keys * row * size), GUARDED_END, 0);
    w->query = room(RESULTS * 4);
    w->out = room(RESULTS * 4);
    p->query = (ejki_bthd){filled(dtype, w->query, RESULTS, 31), 0, heads * WIDTH, WIDTH};
    p->key = (ejki_bthd){filled(dtype, w->key.data, keys * row, 1009), 0, row, WIDTH};
    p->value = (ejki_bthd){filled(dtype, w->value.data, keys * row, 997), 0, row, WIDTH};
    p->out = (ejki_bthd){w->out, 0, heads * WIDTH, WIDTH};
    w->mask = room((size_t)(HEADS * keys));
    w->ids = room(QUERIES * sizeof *w->ids);
    w->key_ids = room((size_t)keys * sizeof *w->key_ids);
    for (int64_t h = 0; h < HEADS; h++)
        for (int64_t j = 0; j < keys; j++) {
            const int64_t block = j / w->block;
            const bool half = way == HEAD_MASK && block == HALF_HIDDEN && h == 0;
            w->mask[h * keys + j] = !hidden[block] && !half && j % 5 != 1;
            w->key_ids[j] = !hidden[block] && j % 5 != 1 ? 3 : (int32_t)(j % 3) - 1;
        }
    for (int i = 0; i < QUERIES; i++) w->ids[i] = 3;
    if (way == MASK || way == HEAD_MASK) {
        p->has_mask = true;
        p->mask = (ejki_bhts){.data = w->mask, .stride_h = way == HEAD_MASK ? keys : 0};
    } else if (way == SEGMENTS) {
        p->has_segments = true;
        p->query_segments = (ejki_ids){w->ids, 0};
        p->key_segments = (ejki_ids){w->key_ids, 0};
    } else {
        p->first_offset = 2 * w->block + 5;
        p->last_offset = 5 * w->block - 9;
    }
    w->parameters[0] = 3; /* splits, of three blocks each */
    w->parameters[1] = w->block;
    w->parameters[2] = 2; /* heads side by side */
}

static void destroy(struct world *w) {
    guarded_destroy(&w->key);
    guarded_destroy(&w->value);
    free(w->query);
    free(w->out);
    free(w->mask);
    free(w->ids);
    free(w->key_ids);
}

/* From now on a block that `way` hides from all is a fault. */
static void close_blocks(const struct world *w, int way) {
    const size_t bytes = w->key.size / BLOCKS;
    for (int64_t i = 0; i < BLOCKS; i++) {
        if (!way_hides(way, i)) continue;
        if (mprotect(w->key.data + (size_t)i * bytes, bytes, PROT_NONE) != 0 ||
            mprotect(w->value.data + (size_t)i * bytes, bytes, PROT_NONE) != 0)
            abort();
    }
}

static bool run(const ejk_implementation *e, struct world *w, ejk_threads *threads,
                unsigned char *result) {
    const size_t bytes = RESULTS * ejk_dtype_size(w->p.dtype);
    ejk_launch launch = {.workers = 1};
    memset(w->out, 0, bytes);
    if (e->prepare(&w->p, w->parameters, ejk_threads_count(threads), &launch) != EJK_OK) abort();
    void *workspace = aligned_alloc(64, (launch.workspace_bytes + 64) / 64 * 64);
    if (!workspace) abort();
    const ejk_run run = {.problem = &w->p,
                         .parameters = w->parameters,
                         .workspace = workspace,
                         .threads = threads,
                         .workers = launch.workers};
    const bool ran = e->run(&run) == EJK_OK;
    if (!ran) printf("FAIL %s: %s\n", e->name, ejk_last_error());
    memcpy(result, w->out, bytes);
    free(workspace);
    return ran;
}

static bool holds(const ejk_implementation *e, int way, ejk_threads *threads) {
    static unsigned char open[RESULTS * 4], closed[RESULTS * 4];
    struct world w;
    create(&w, e->dtype, way);
    printf("%s, %s\n", e->name, way_names[way]);
    fflush(stdout);
    bool good = run(e, &w, NULL, open);
    for (int64_t i = 0; i < RESULTS; i++) good &= isfinite(element_load(e->dtype, open, i));
    good &= element_load(e->dtype, open, 0) != 0;
    close_blocks(&w, way);
    for (int i = 0; i < 2 && good; i++)
        good = run(e, &w, i == 0 ? NULL : threads, closed) &&
               memcmp(open, closed, RESULTS * ejk_dtype_size(e->dtype)) == 0;
    if (!good) printf("FAIL %s, %s\n", e->name, way_names[way]);
    destroy(&w);
    return good;
}

int main(void) {
    ejk_threads *threads = test_threads_create(3);
    int failures = 0, found = 0;
    for (int32_t i = 0; i < ejki_builtin_implementation_count; i++) {
        const ejk_implementation *e = ejki_builtin_implementations[i];
        const char *end = strrchr(e->name, '/');
        if (strcmp(e->algorithm, "flash_attention") != 0 || !end || strcmp(end, "/row") != 0)
            continue;
        if (e->isa != EJK_ISA_SCALAR && !ejk_cpu()->tiers[e->isa]) continue;
        found++;
        for (int way = 0; way < WAYS; way++) failures += !holds(e, way, threads);
    }
    ejk_threads_destroy(threads);
    if (found == 0) printf("FAIL no row-wise kernel\n");
    return failures == 0 && found > 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
