/* SPDX-License-Identifier: Apache-2.0 */
/*
 * native_sparse_attention and its gradients in vectors, float32 whatever the tensors' type. Keys and values are packed
 * once, with the means of blocks; then tiles of tokens are tasks. Lanes of a vector are query heads of a key head: all
 * of a group share the blocks of a token, whose keys are rows. Small groups leave lanes of selected blocks unused; the
 * other branches have the heads of several tokens side by side.
 *
 * A lane's numbers come from its own query and keys alone, in the order of keys, which begins at a block: so bits
 * depend neither on the tile nor on threads. What a token does not see in a tile gets the weight 0; where values there
 * are not finite, products leave it out.
 *
 * Memory besides keys and values in float32: scores of a tile, which are as many as its tokens see, and with gradients
 * three numbers for each row and branch, and the lists of blocks in both directions.
 */
#include "kernels/simd/vec.h"

#include "operations/attention/native_sparse/forward.h"
#include "operations/attention/native_sparse/gradients.h"

/* A thread is worth waking for this many products of keys and queries. */
enum { WORTH = 2000 };

static void measure(shared *s, const nsa_problem *p) {
    tile w;
    keys k;
    *s = (shared){0};
    place_shared(s, p, NULL);
    place_tile(&w, s, NULL);
    if (p->gradient) s->scratch_bytes = ejki_max(s->scratch_bytes, place_keys(&k, s, NULL));
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const nsa_problem *p = problem;
    shared s;
    measure(&s, p);
    (void)parameters;
    const double rows = (double)(p->batch * p->tokens) * (double)p->heads;
    const double work = rows * (double)(p->slots * p->blocks.chunk);
    launch->workers = work < (double)threads * WORTH ? (int32_t)(work / WORTH) + 1 : threads;
    if (s.bytes >= INT64_C(1) << 48 || s.scratch_bytes >= INT64_C(1) << 48)
        return ejki_fail(EJK_STATUS_OVERFLOW, "%lld tokens take more memory than can be counted",
                         p->tokens);
    launch->workspace_bytes = (size_t)(s.bytes + launch->workers * s.scratch_bytes);
    return EJK_OK;
}

static ejk_status run(const ejk_run *run) {
    const nsa_problem *p = run->problem;
    shared s;
    if (p->batch * p->tokens * p->heads == 0) return EJK_OK;
    measure(&s, p);
    place_shared(&s, p, run->workspace);
    s.run = run;
    s.scratch = (char *)run->workspace + s.bytes;
    each_worker(&s, pack_worker);
    if (!p->gradient) {
        each_worker(&s, forward_worker);
        return EJK_OK;
    }
    each_worker(&s, derive_worker);
    if (!p->d_key.dtype && !p->d_value.dtype) return EJK_OK;
    each_worker(&s, list_worker);
    if (nsa_has(p, NSA_COMPRESSED)) each_worker(&s, means_worker);
    each_worker(&s, blocks_worker);
    return EJK_OK;
}

#ifdef EJKI_TIER_AMX
static bool applicable(const void *problem) {
    return amx_takes(problem);
}
#define LIMITS .applicable = applicable, .needs = "D a multiple of 32 and Dv of 64",
#else
#define LIMITS
#endif

EJKI_DECLARE(EJKI_THIS_LINE, LIMITS.version = 1, .prepare = prepare, .run = run)
