/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Guarded memory on a GPU: each buffer with all that surrounds it lies there as it lies here, at the same distance
 * from a page, between canaries of its own. What a kernel wrote comes back with its surroundings, where guarded_blank()
 * and guarded_intact() look at it; what it should have left alone is compared.
 */
#ifndef TESTS_GPU_MIRROR_H
#define TESTS_GPU_MIRROR_H

#include "operations/attention/flash/vjp_problem.h"
#include "support/guarded.h"

#include <ejkernel/cuda.h>

enum { GPU_MIRROR_BUFFERS = 32 };

struct gpu_mirror {
    unsigned char *memory; /* on the GPU */
    size_t size, used;
    struct {
        struct guarded *host;
        unsigned char *pages; /* on the GPU */
        void *own;            /* memory of its own, NULL = a part of `memory` */
    } buffers[GPU_MIRROR_BUFFERS];
    int count;
    /* For a checker of memory: each buffer in memory of its own, without surroundings. */
    bool exact;
    void *workspace;
};

/* Exits the process if the GPU has no memory. EJK_TEST_EXACT in the environment asks for `exact`. */
void gpu_mirror_create(struct gpu_mirror *m, size_t size);
void gpu_mirror_destroy(struct gpu_mirror *m);

/* Forgets all buffers. */
void gpu_mirror_reset(struct gpu_mirror *m);
/* Copies a buffer with its surroundings; one without memory is left out. Its first byte comes to lie at a multiple of
 * `alignment`, at most 256. */
void gpu_mirror_add(struct gpu_mirror *m, struct guarded *host, size_t alignment);
/* The place there of an address here; NULL stays NULL. */
void *gpu_mirror_of(const struct gpu_mirror *m, const void *address);
/*
 * `bytes` of NaN for a workspace, canaries around them; one at a time. Also for a checker of memory, unless it is
 * `told` of all that is written there, as it is not of what sm_90a's copy engine writes.
 */
void *gpu_mirror_workspace(struct gpu_mirror *m, size_t bytes, bool told);
/* False if what surrounds the workspace was written. */
bool gpu_mirror_workspace_intact(struct gpu_mirror *m, const void *workspace, size_t bytes);
/* Copies a buffer back. */
void gpu_mirror_fetch(struct gpu_mirror *m, struct guarded *host);
/* True if a buffer is as it was here. */
bool gpu_mirror_same(struct gpu_mirror *m, const struct guarded *host);

/* Problems with addresses of the GPU. */
ejki_flash_problem gpu_mirror_problem(const struct gpu_mirror *m, const ejki_flash_problem *p);
ejki_flash_vjp_problem gpu_mirror_vjp_problem(const struct gpu_mirror *m,
                                              const ejki_flash_vjp_problem *v);

#endif
