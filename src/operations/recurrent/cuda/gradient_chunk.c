/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Gradients in chunks on GPUs: chunk_prepare.cu, chunk_scan.cu, which keeps states, chunk_back.cu and chunk_rows.cu, of
 * which the first and last are others with decays of key channels, and the last of sums in one piece; gradient_sums.cu,
 * as for gradients token by token.
 */
#include "kernels/cuda/launch.h"
#include "kernels/declare.h"
#include "operations/recurrent/cuda/chunk_plan.h"
#include "operations/recurrent/cuda/gradient.cuh"

enum { PREPARE, KEEP, BACK, ROWS, SPREAD, TOTAL };
enum { LEAST_BLOCKS = 256 };

/* Pieces of what is multiplied: gradients in floats have their precision; that of a bonus is of no rounded operand. */
static int64_t pieces_of(const rec_problem *p) {
    bool any = false;
    for (int role = 0; role < REC_FINAL; role++) {
        const rec_view *v = &p->view[REC_D(role)];
        any = any || (role != REC_BONUS && v->present && v->dtype == EJK_DTYPE_F32);
    }
    return any ? 3 : 1;
}
static rec_walk keep_of(const rec_problem *p) {
    return (rec_walk){pieces_of(p), pieces_of(p), 0, p->update == REC_DELTA ? pieces_of(p) : 0,
                      false};
}
static rec_walk back_of(const rec_problem *p) {
    return (rec_walk){pieces_of(p), pieces_of(p), pieces_of(p),
                      p->update == REC_DELTA ? pieces_of(p) : 0, false};
}

/* Which kernel makes rows: of decays of key channels, of sums in one piece, or of all others. */
typedef enum rows_kind { ROWS_KEY, ROWS_SUM, ROWS_OTHER } rows_kind;
static rows_kind rows_kind_of(const rec_problem *p) {
    if (p->key_decay) return ROWS_KEY;
    return p->update == REC_ADD && pieces_of(p) == 1 ? ROWS_SUM : ROWS_OTHER;
}

/* Shared memory of that. */
static int64_t rows_bytes(const rec_problem *p) {
    const int64_t tile = rec_tile_bytes(p->key_size);
    const int64_t square = REC_CHUNK * REC_CHUNK_PITCH * 4;
    const int64_t blocks = REC_TILES * (2 * 256 + 2 * 16 + 1) * 4;
    const int64_t gates = REC_CHUNK * (8 + 4 + 2 * 4 + 5 * 4);
    switch (rows_kind_of(p)) {
    case ROWS_KEY:
        return 2 * tile + 2 * square + (4 * (p->key_size + 4) + 6) * REC_CHUNK * 4 +
               8 * p->key_size * 4 + 8 * 2 * REC_CHUNK_THREADS * 4;
    case ROWS_SUM:
        return 4 * tile + 2 * rec_tile_bytes(64) +
               ejki_round_up(blocks + 2 * gates + REC_CHUNK * 12 * 4 + 8 * 4 + 512, 16);
    default:
        return 2 * tile + ejki_max(pieces_of(p), 2) * tile + 2 * square +
               ejki_round_up(gates + REC_CHUNK * 20 * 4 + 8 * 4, 16);
    }
}

/* Two warps for 16 rows, but for sums in several pieces, where keys say nothing. */
static int32_t rows_threads(const rec_problem *p) {
    const bool is_alone = rows_kind_of(p) == ROWS_OTHER && p->update == REC_ADD;
    return (is_alone ? 1 : 2) * REC_CHUNK_THREADS;
}

/*
 * Heads of a block of these, of those that share queries and keys: more than one of sums in one piece whose values are
 * one slab, since registers hold sums of either heads or slabs; two where blocks would be too few for a GPU.
 */
static int32_t rows_heads(const rec_problem *p) {
    int32_t heads = 16;
    if (rows_kind_of(p) != ROWS_SUM || p->heads == 0 || p->value_size > 64) return 1;
    while (p->heads / p->query_heads % heads || p->heads / p->key_heads % heads) heads /= 2;
    while (heads > 2 && rec_chunks(p) * (p->heads / heads) < LEAST_BLOCKS) heads /= 2;
    return heads;
}

/* Memory of a call in bytes: each part at a multiple of 256. */
typedef struct memory {
    int64_t inverses, scores, operands, factors, states, cotangents, solved, backs, sums, bonuses;
    int64_t all;
} memory;

static memory memory_of(const rec_problem *p) {
    const int64_t places = rec_chunks(p) * p->heads, blocks = REC_TRIANGLE_BYTES;
    const int64_t state = places * p->key_size * p->value_size * (pieces_of(p) > 1 ? 4 : 2);
    const int64_t rows = places * REC_CHUNK * p->value_size * (pieces_of(p) > 1 ? 4 : 2);
    const bool delta = p->update == REC_DELTA;
    const int64_t sizes[] = {delta ? places * 2 * pieces_of(p) * blocks : 0,
                             places * pieces_of(p) * blocks,
                             p->key_decay ? places * 3 * REC_CHUNK * p->key_size * 2 : 0,
                             places * rec_factor_floats(p) * 4,
                             state,
                             state,
                             delta ? rows : 0,
                             rows,
                             p->batch * p->tokens * p->heads * rec_row_size(p) * 4,
                             p->read == REC_BEFORE ? places * p->key_size * 4 : 0};
    memory m;
    int64_t *const at[] = {&m.inverses,   &m.scores, &m.operands, &m.factors, &m.states,
                           &m.cotangents, &m.solved, &m.backs,    &m.sums,    &m.bonuses};
    m.all = 0;
    for (int i = 0; i < 10; i++) {
        *at[i] = m.all;
        m.all += ejki_round_up(sizes[i], 256);
    }
    return m;
}

static bool applicable(const void *problem) {
    const rec_problem *p = problem;
    const rec_view *d_out = &p->view[REC_D_OUT];
    /* Operands with decays of elements are rounded, which a gradient in floats must not see. */
    return rec_chunk_fits(p) && (p->read == REC_AFTER || p->key_decay) &&
           (!p->key_decay || pieces_of(p) == 1) && (p->key_size == 64 || p->key_size == 128) &&
           (!d_out->present || d_out->dtype == EJK_DTYPE_BF16) && rec_sum_blocks(p, 0) < INT32_MAX;
}

/* Kernels of the walks there and back. */
static void want_walks(const rec_problem *p, const rec_layout *there, const rec_layout *back,
                       ejki_cuda_kernels *kernels) {
    const ejki_cuda_constants over = rec_walk_constants(p, back, pieces_of(p));
    const rec_walk keep = keep_of(p);
    rec_want_walk(kernels, KEEP, &keep, there, rec_walk_constants(p, there, pieces_of(p)));
    if (there->wide)
        ejki_cuda_want(kernels, BACK, "operations/recurrent/cuda/chunk_back_sm90.cu", "back_sm90",
                       &over);
    else
        ejki_cuda_want(kernels, BACK, "operations/recurrent/cuda/chunk_back.cu", "back", &over);
}

/* Gradients that are stored as they are made: rounded, of heads of their own, and of all tokens. */
static int direct_of(const rec_problem *p) {
    if (pieces_of(p) > 1 || p->packed) return REC_WHOLE_QUERY;
    const bool is_gate =
        p->key_decay && !p->view[REC_A_LOG].present; /* nothing is made of raw ones */
    return REC_WHOLE_QUERY | (p->query_heads == p->heads ? REC_DIRECT_QUERY : 0) |
           (p->key_heads == p->heads ? REC_DIRECT_KEY : 0) |
           (p->value_heads == p->heads ? REC_DIRECT_VALUE : 0) | (is_gate ? REC_DIRECT_GATE : 0);
}

static void want_rows(const rec_problem *p, const ejki_cuda_constants *constants,
                      ejki_cuda_kernels *kernels) {
    static const char *const texts[] = {"operations/recurrent/cuda/chunk_rows_key.cu",
                                        "operations/recurrent/cuda/chunk_rows_sum.cu",
                                        "operations/recurrent/cuda/chunk_rows.cu"};
    static const char *const names[] = {"rows_key", "rows_sum", "rows"};
    const rows_kind kind = rows_kind_of(p);
    ejki_cuda_want(kernels, ROWS, texts[kind], names[kind], constants);
}

static ejk_status prepare(const void *problem, const int64_t *parameters, int32_t threads,
                          ejk_launch *launch) {
    const rec_problem *p = problem;
    const rec_walk there = keep_of(p), back = back_of(p);
    rec_layout of_keep, of_back;
    ejki_cuda_constants rows = rec_chunk_constants(p, pieces_of(p)), first = rows;
    ejki_cuda_constants sums = {.count = 0};
    ejki_cuda_kernels kernels = {.count = 0};
    (void)parameters;
    (void)threads;
    EJKI_TRY(rec_layout_of(p, &there, launch->device, &of_keep));
    EJKI_TRY(rec_layout_of(p, &back, launch->device, &of_back));
    if (!p->key_decay) ejki_cuda_add(&rows, "DIRECT", direct_of(p));
    ejki_cuda_add(&rows, "WARPS", rows_threads(p) / 32);
    if (rows_kind_of(p) == ROWS_SUM) ejki_cuda_add(&rows, "HEADS", rows_heads(p));
    ejki_cuda_add(&first, "BACK", 1);
    ejki_cuda_add(&first, "SQUARE", of_keep.wide);
    if (p->key_decay) {
        ejki_cuda_add(&first, "BEFORE", p->read == REC_BEFORE);
        ejki_cuda_add(&first, "LEFTS", 1);
        ejki_cuda_add(&rows, "BEFORE", p->read == REC_BEFORE);
    }
    ejki_cuda_add(&sums, "PARTS", rec_cuda_parts(p));
    if (p->key_decay)
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare_key.cu",
                       "prepare_key", &first);
    else
        ejki_cuda_want(&kernels, PREPARE, "operations/recurrent/cuda/chunk_prepare.cu", "prepare",
                       &first);
    want_rows(p, &rows, &kernels);
    want_walks(p, &of_keep, &of_back, &kernels);
    ejki_cuda_want(&kernels, SPREAD, "operations/recurrent/cuda/gradient_sums.cu", "spread", &sums);
    ejki_cuda_want(&kernels, TOTAL, "operations/recurrent/cuda/gradient_sums.cu", "total", &sums);
    launch->workspace_bytes = (size_t)memory_of(p).all;
    return ejki_cuda_ready_all(launch, &kernels);
}

/* A walk over all chunks; wide ones back need not wait for those there. */
static ejk_status walk_over(const ejk_run *run, int32_t slot, const rec_walk *walk,
                            rec_chunked *a) {
    rec_layout l;
    EJKI_TRY(rec_layout_of(&a->p, walk, run->device, &l));
    const ejki_cuda_work work = {.slot = slot,
                                 .threads = rec_walk_threads(&l),
                                 .blocks = rec_walk_blocks(&a->p, &l),
                                 .shared_bytes = rec_walk_bytes(&a->p, walk, &l),
                                 .overlaps = slot == BACK && l.wide};
    return ejki_cuda_begin(run, &work, a);
}

static ejk_status run(const ejk_run *run) {
    const rec_problem *p = run->problem;
    const rec_walk there = keep_of(p), back = back_of(p);
    char *own = run->workspace;
    EJKI_TRY(rec_cuda_check(p));
    const memory m = memory_of(p);
    rec_chunked a = {.p = *p,
                     .inverses = own + m.inverses,
                     .scores = own + m.scores,
                     .operands = own + m.operands,
                     .factors = (float *)(void *)(own + m.factors),
                     .chunks = rec_chunks(p),
                     .states = (float *)(void *)(own + m.states),
                     .cotangents = (float *)(void *)(own + m.cotangents),
                     .solved = (float *)(void *)(own + m.solved),
                     .backs = (float *)(void *)(own + m.backs),
                     .sums = (float *)(void *)(own + m.sums),
                     .bonuses = (float *)(void *)(own + m.bonuses),
                     .width = rec_row_size(p),
                     .direct = direct_of(p)};
    const ejki_cuda_work first = {.slot = PREPARE,
                                  .threads = rec_prepare_threads(p),
                                  .blocks = rec_chunks(p) * p->heads,
                                  .shared_bytes = rec_prepare_bytes(p)};
    const ejki_cuda_work rows = {.slot = ROWS,
                                 .threads = rows_threads(p),
                                 .blocks = rec_chunks(p) * (p->heads / rows_heads(p)),
                                 .shared_bytes = rows_bytes(p)};
    EJKI_TRY(ejki_cuda_begin(run, &first, &a));
    EJKI_TRY(walk_over(run, KEEP, &there, &a));
    EJKI_TRY(walk_over(run, BACK, &back, &a));
    EJKI_TRY(ejki_cuda_begin(run, &rows, &a));
    rec_gradient sums = {.p = *p,
                         .sums = a.sums,
                         .width = a.width,
                         .direct = direct_of(p),
                         .apart = rows_heads(p),
                         .bonuses = p->read == REC_BEFORE ? a.bonuses : NULL};
    return rec_begin_sums(run, SPREAD, TOTAL, &sums);
}

EJKI_DECLARE(recurrent_attention_vjp_chunk_cuda, .version = 1, .priority = 1,
             .applicable = applicable, .prepare = prepare, .run = run,
             .needs = "sums or delta rules without decays of values or segments, Dk 64 or 128, "
                      "Dv a multiple of 16; with decays of keys no gradients in float32")
