/* SPDX-License-Identifier: Apache-2.0 */
/* How kernels of the chunked form are laid out on GPUs: chunk.c, chunk_rank.c and gradient_chunk.c launch them. */
#ifndef EJKI_RECURRENT_CUDA_CHUNK_PLAN_H
#define EJKI_RECURRENT_CUDA_CHUNK_PLAN_H

#include "operations/recurrent/cuda/chunk.cuh"
#include "operations/recurrent/cuda/plan.h"

/* As chunk_prepare.cu and rows of chunk_walk.cuh have them. */
enum { REC_CHUNK_THREADS = 128, REC_CHUNK_PITCH = REC_CHUNK + 4 };

/*
 * A walk: pieces of what is read of the state, of what is added to it, of P and of T in a stage; whether it makes
 * outputs.
 */
typedef struct rec_walk {
    int64_t terms, lefts, scores, inverses;
    bool asks;
} rec_walk;

/*
 * How a walk is laid out: warps that share 16 columns, all of a block, chunks in shared memory at once. A wide one is
 * by wgmma (chunk_wide.cuh), for which T and P are squares, and may have blocks that take turns at outputs, or at what
 * is kept; or it makes P.
 */
typedef struct rec_layout {
    int64_t parts, warps, columns, stages, turns;
    bool wide, makes;
} rec_layout;

static inline rec_layout rec_layout_with(const rec_problem *p, int64_t parts) {
    rec_layout l = {.parts = parts, .warps = 4, .columns = 64 / parts, .stages = 1, .turns = 1};
    while (l.columns > 16 && p->value_size % l.columns) l.warps /= 2, l.columns /= 2;
    return l;
}
static inline int64_t rec_walk_blocks(const rec_problem *p, const rec_layout *l) {
    return p->sequences * p->heads * (p->value_size / l->columns) * l->turns;
}

static inline int64_t rec_tile_bytes(int64_t columns) {
    return REC_CHUNK * ejki_round_up(columns, 64) * 2;
}
/* Tiles with their decays that are made of a chunk: where these are factors of elements. */
static inline int64_t rec_operands(const rec_problem *p, int64_t lefts) {
    return p->update == REC_RANK_ONE ? 4 : !p->key_decay ? 0 : lefts > 1 ? 4 : 3;
}
/* Of what prepares chunks: threads and shared memory. */
static inline int32_t rec_prepare_threads(const rec_problem *p) {
    return (p->key_decay ? 2 : 1) * REC_CHUNK_THREADS;
}
static inline int64_t rec_prepare_bytes(const rec_problem *p) {
    const int64_t tiles = 2 * rec_tile_bytes(p->key_size);
    const int64_t square = REC_CHUNK * REC_CHUNK_PITCH * 4, rows = REC_CHUNK * 4 * 4;
    if (!p->key_decay)
        return ejki_max(tiles, (p->gradient ? 2 : 1) * square) + rows +
               REC_CHUNK * (8 + 4 + 4 * 4) + 8;
    const int64_t gates = (REC_CHUNK * (p->key_size + 4) + 10 * p->key_size + 4 * 16 * 17) * 4 +
                          (p->gradient ? square : 4);
    return tiles + square + rows + gates;
}
static inline int64_t rec_factor_floats(const rec_problem *p) {
    return rec_operands(p, 1) > 0 ? p->key_size + REC_CHUNK : REC_FACTOR_ROWS * REC_CHUNK;
}
static inline int64_t rec_walk_factor_floats(const rec_problem *p, const rec_layout *l) {
    return l->makes ? REC_MORE_ROWS * REC_CHUNK : rec_factor_floats(p);
}
static inline int64_t rec_walk_bytes(const rec_problem *p, const rec_walk *walk,
                                     const rec_layout *l) {
    const int64_t sums = l->parts > 1 ? l->warps * 2 * 8 * 512 : 0;
    const int64_t block = l->wide ? REC_SQUARE_BYTES : REC_TRIANGLE_BYTES;
    const int64_t blocks = (walk->scores + walk->inverses) * block;
    const int64_t stage = ejki_max(rec_operands(p, walk->lefts), 2) * rec_tile_bytes(p->key_size) +
                          rec_tile_bytes(l->columns) + blocks + 4 * rec_walk_factor_floats(p, l);
    return l->stages * ejki_round_up(stage, l->wide ? 1024 : 16) + sums;
}

/*
 * Four warps have 64 columns, which is as few as wgmma takes; eight share keys where there are blocks enough for all
 * multiprocessors. As many chunks are in shared memory as there is room for, up to three.
 */
static inline rec_layout rec_layout_wide(const rec_problem *p, const rec_walk *walk,
                                         const ejk_gpu_info *gpu) {
    rec_layout l = {.parts = 1, .warps = 4, .columns = 64, .stages = 3, .turns = 1, .wide = true};
    l.makes = walk->asks && p->update == REC_ADD && !p->key_decay && !p->normalise;
    /* What one block has written another may not have read yet, where a state is the first and the last. */
    const rec_view *first = &p->view[walk->asks ? REC_INITIAL : REC_D_FINAL];
    const rec_view *last = &p->view[walk->asks ? REC_FINAL : REC_D(REC_INITIAL)];
    const bool may_overwrite = first->present && last->present;
    const int64_t blocks = rec_walk_blocks(p, &l);
    if (p->value_size % 128 == 0 && blocks > gpu->multiprocessors) l.warps = 8, l.columns = 128;
    const int64_t resident = l.warps == 4 && blocks > gpu->multiprocessors ? 2 : 1;
    if (resident * (rec_walk_bytes(p, walk, &l) + 1024) > gpu->shared_bytes) l.stages = 2;
    const int64_t walks = walk->asks ? 1 : 2; /* those of gradients are under way together */
    if (!may_overwrite && 2 * walks * blocks <= gpu->multiprocessors) l.turns = 2;
    return l;
}

/* Of a block: wide ones have four warps that copy. */
static inline int32_t rec_walk_threads(const rec_layout *l) {
    return (int32_t)(32 * (l->warps + (l->wide ? 4 : 0)));
}

/*
 * A warp has 128 rows of the state, as many as registers hold, or 64 where there are too few blocks for all
 * multiprocessors otherwise, or where products have several pieces. The next chunk is in shared memory, too, where two
 * blocks of a multiprocessor have room for it, or the only one. Bits depend on none of this.
 */
static inline ejk_status rec_layout_of(const rec_problem *p, const rec_walk *walk, int32_t device,
                                       rec_layout *out) {
    const ejk_gpu_info *gpu;
    EJKI_TRY(ejki_cuda_gpu(device, &gpu));
    const bool has_size = p->key_size <= 128 && p->value_size % 64 == 0;
    if (gpu->capability == 90 && has_size && walk->terms == 1) {
        *out = rec_layout_wide(p, walk, gpu);
        return EJK_OK;
    }
    rec_layout l = rec_layout_with(p, 1);
    if (p->key_size == 256 || walk->terms > 1 || rec_walk_blocks(p, &l) < gpu->multiprocessors)
        l = rec_layout_with(p, p->key_size / 64);
    const int64_t resident = rec_walk_blocks(p, &l) <= gpu->multiprocessors ? 1 : 2;
    l.stages = 2;
    if (resident * rec_walk_bytes(p, walk, &l) > gpu->shared_bytes) l.stages = 1;
    *out = l;
    return EJK_OK;
}

/* What kernels are compiled with: those of all chunks at once, and a walk. */
static inline ejki_cuda_constants rec_chunk_constants(const rec_problem *p, int64_t terms) {
    ejki_cuda_constants constants = {.count = 0};
    ejki_cuda_add(&constants, "ELEMENT", EJK_DTYPE_BF16);
    ejki_cuda_add(&constants, "KEY_SIZE", p->key_size);
    ejki_cuda_add(&constants, "UPDATE", p->update);
    ejki_cuda_add(&constants, "TERMS", terms);
    return constants;
}
static inline ejki_cuda_constants rec_walk_constants(const rec_problem *p, const rec_layout *l,
                                                     int64_t terms) {
    ejki_cuda_constants constants = {.count = 0};
    if (!l->wide) {
        constants = rec_chunk_constants(p, terms);
        ejki_cuda_add(&constants, "PARTS", l->parts);
        ejki_cuda_add(&constants, "WARPS", l->warps);
    } else {
        ejki_cuda_add(&constants, "ELEMENT", EJK_DTYPE_BF16);
        ejki_cuda_add(&constants, "KEY_SIZE", p->key_size);
        ejki_cuda_add(&constants, "UPDATE", p->update);
        ejki_cuda_add(&constants, "GROUPS", l->warps / 4);
        ejki_cuda_add(&constants, "TURNS", l->turns);
    }
    ejki_cuda_add(&constants, "KEY_DECAY", rec_operands(p, 1) > 0);
    ejki_cuda_add(&constants, "STAGES", l->stages);
    return constants;
}

/* Blocks that clear what no sequence has, of packed calls. */
enum { REC_REST = 32 };

/* The walk that makes outputs, or keeps what gradients need. */
static inline void rec_want_walk(ejki_cuda_kernels *kernels, int32_t slot, const rec_walk *walk,
                                 const rec_layout *l, ejki_cuda_constants constants) {
    ejki_cuda_add(&constants, "REST", REC_REST);
    ejki_cuda_add(&constants, "LEFTS", walk->lefts);
    ejki_cuda_add(&constants, "KEEP", !walk->asks);
    if (l->wide) ejki_cuda_add(&constants, "MAKES", l->makes);
    if (l->wide)
        ejki_cuda_want(kernels, slot, "operations/recurrent/cuda/chunk_scan_sm90.cu", "scan_sm90",
                       &constants);
    else
        ejki_cuda_want(kernels, slot, "operations/recurrent/cuda/chunk_scan.cu", "scan",
                       &constants);
}
static inline ejk_status rec_begin_walk(const ejk_run *run, int32_t slot, const rec_walk *walk,
                                        const rec_layout *l, rec_chunked *a) {
    const rec_problem *p = &a->p;
    const ejki_cuda_work work = {.slot = slot,
                                 .threads = rec_walk_threads(l),
                                 .blocks = rec_walk_blocks(p, l) + (p->packed ? REC_REST : 0),
                                 .shared_bytes = rec_walk_bytes(p, walk, l)};
    return ejki_cuda_begin(run, &work, a);
}

/* Sizes and types of chunks. */
static inline bool rec_chunk_sizes_fit(const rec_problem *p) {
    const bool is_bf16 = p->view[REC_QUERY].dtype == EJK_DTYPE_BF16 &&
                         p->view[REC_KEY].dtype == EJK_DTYPE_BF16 &&
                         p->view[REC_VALUE].dtype == EJK_DTYPE_BF16;
    const bool is_plain = !p->value_decay && !p->view[REC_SEGMENTS].present;
    return is_bf16 && is_plain && p->value_size >= 16 && p->value_size % 16 == 0 &&
           p->tokens < INT32_MAX - REC_CHUNK && rec_chunks(p) * p->heads < INT32_MAX &&
           p->sequences * p->heads * p->value_size < INT32_MAX / 2;
}
/* Of sums and delta rules. */
static inline bool rec_chunk_fits(const rec_problem *p) {
    return p->update != REC_RANK_ONE && rec_chunk_sizes_fit(p);
}

#endif
