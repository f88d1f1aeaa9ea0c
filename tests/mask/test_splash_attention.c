/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Attention that reads a mask as a block-sparse kernel does, shard by shard from the processed MaskInfo,
 * against the library's attention with the elements of the same mask.
 */
#include "support/context.h"
#include "support/soak.h"
#include "support/splash_call.h"

#include <ejkernel/ejkernel.h>
#include <math.h>

enum { DIM = 5, MOST_HEADS = 4, MOST_ROWS = 60, MOST_COLUMNS = 40 };

struct inputs {
    int64_t kv_heads;
    float query[MOST_ROWS * MOST_HEADS * DIM];
    float key[MOST_COLUMNS * MOST_HEADS * DIM], value[MOST_COLUMNS * MOST_HEADS * DIM];
};

/* A row of a head while its columns come, in any order. */
struct row {
    double most, sum, values[DIM];
    int64_t seen;
};

/* ---- As a kernel reads it -------------------------------------------------------------------------- */

/* What one device of the mesh of shards works on. */
struct device {
    const struct splash_call *call;
    const ejk_splash_mask_info *info;
    const struct inputs *inputs;
    bool dkv;
    int64_t s, t;            /* which head shard and q shard */
    int64_t heads, rows;     /* in a shard; rows of blocks */
    int64_t first, cells[2]; /* its part of the grid: rows from `first`; rows, columns */
};

static void absorb(const struct device *d, int64_t head, int64_t q, int64_t kv, struct row *row) {
    const struct inputs *in = d->inputs;
    int64_t kv_head = head / (d->call->heads / in->kv_heads);
    const float *a = in->query + (q * d->call->heads + head) * DIM;
    const float *b = in->key + (kv * in->kv_heads + kv_head) * DIM;
    const float *v = in->value + (kv * in->kv_heads + kv_head) * DIM;
    double score = 0;
    for (int i = 0; i < DIM; i++) score += (double)a[i] * b[i];
    score /= sqrt(DIM);
    double most = fmax(row->most, score), scale = exp(row->most - most), weight = exp(score - most);
    row->most = most;
    row->sum = row->sum * scale + weight;
    for (int i = 0; i < DIM; i++) row->values[i] = row->values[i] * scale + weight * v[i];
    row->seen++;
}

/* An element of the block that a partial cell names: from a table of all, or from the device's part. */
static bool of_block(const struct device *d, int64_t id, int64_t i, int64_t j) {
    const int64_t bq = d->call->bq, bkv = d->call->bkv, columns = d->call->kv / bkv;
    const uint8_t *blocks = d->info->partial_mask_blocks.data;
    if (d->info->is_dynamic_mask) {
        int64_t head = d->s * d->heads + id / (d->rows * columns);
        int64_t row = d->t * d->rows + id / columns % d->rows;
        id = (head * (d->call->q / bq) + row) * columns + id % columns;
    }
    return blocks[id * bq * bkv + (d->dkv ? j * bq + i : i * bkv + j)];
}

static void visit(const struct device *d, int64_t head, int64_t cell, int64_t w, int64_t j,
                  struct row *rows) {
    const struct splash_call *call = d->call;
    const int64_t block_state = splash_at(&d->info->block_mask, cell);
    const int64_t next = splash_at(&d->info->data_next, cell);
    if (block_state == 0) return;
    const int64_t q0 = (d->t * d->rows + (d->dkv ? next : w)) * call->bq;
    const int64_t kv0 = (d->dkv ? j : next) * call->bkv;
    for (int64_t a = 0; a < call->bq; a++)
        for (int64_t b = 0; b < call->bkv; b++) {
            bool sees = block_state == 2;
            if (d->info->mask_function)
                sees = ejk_splash_mask_call(d->info->mask_function,
                                            splash_at(&d->info->q_sequence, q0 + a), kv0 + b);
            else if (block_state == 1)
                sees = of_block(d, splash_at(&d->info->mask_next, cell), a, b);
            if (sees) absorb(d, head, q0 + a, kv0 + b, &rows[head * call->q + q0 + a]);
        }
}

static void run_device(const struct device *d, struct row *rows) {
    const int64_t *shape = d->info->block_mask.shape;
    for (int64_t h = 0; h < d->heads; h++) {
        int64_t head = d->s * d->heads + h;
        int64_t plane = shape[0] == d->call->heads ? head : d->s;
        for (int64_t w = 0; w < d->cells[0]; w++)
            for (int64_t j = 0; j < d->cells[1]; j++)
                visit(d, head, (plane * shape[1] + d->first + w) * shape[2] + j, w, j, rows);
    }
}

/* Rows of all heads, in one after the other. */
static void run_mesh(const struct splash_call *call, const ejk_splash_mask_info *info, bool dkv,
                     const struct inputs *inputs, struct row *rows) {
    const int64_t shards = call->args.q_seq_shards.value, heads = call->args.head_shards.value;
    struct device d = {.call = call,
                       .info = info,
                       .inputs = inputs,
                       .dkv = dkv,
                       .heads = call->heads / heads,
                       .rows = call->q / call->bq / shards,
                       .cells = {info->block_mask.shape[1] / shards, info->block_mask.shape[2]}};
    for (int64_t i = 0; i < call->heads * call->q; i++) rows[i] = (struct row){.most = -INFINITY};
    for (d.s = 0; d.s < heads; d.s++)
        for (d.t = 0; d.t < shards; d.t++) {
            d.first = d.t * d.cells[0];
            run_device(&d, rows);
        }
}

/* ---- As the library computes it -------------------------------------------------------------------- */

static void expect_rows(const struct splash_call *call, const struct row *rows, const float *out,
                        const float *lse) {
    for (int64_t h = 0; h < call->heads; h++)
        for (int64_t i = 0; i < call->q; i++) {
            const struct row *row = &rows[h * call->q + i];
            const float *got = out + (i * call->heads + h) * DIM;
            const uint8_t *mask = call->dense + (h * call->q + i) * call->kv;
            int64_t visible = 0;
            for (int64_t j = 0; j < call->kv; j++) visible += mask[j];
            assert_int_equal(row->seen, visible);
            for (int k = 0; k < DIM; k++)
                EXPECT_NEAR(got[k], visible ? row->values[k] / row->sum : 0, 2e-5);
            if (visible)
                EXPECT_NEAR(lse[h * call->q + i], row->most + log(row->sum), 2e-5);
            else
                assert_true(lse[h * call->q + i] == -INFINITY);
        }
}

static void attend(const struct splash_call *call, struct inputs *in, const char *platform,
                   float *out, float *lse) {
    ejk_flash_attention_args args = {
        .query = ejk_tensor_4d(in->query, EJK_DTYPE_F32, 1, call->q, call->heads, DIM),
        .key = ejk_tensor_4d(in->key, EJK_DTYPE_F32, 1, call->kv, in->kv_heads, DIM),
        .value = ejk_tensor_4d(in->value, EJK_DTYPE_F32, 1, call->kv, in->kv_heads, DIM),
        .attention_mask =
            ejk_tensor_4d(call->dense, EJK_DTYPE_BOOL, 1, call->heads, call->q, call->kv),
        .out = ejk_tensor_4d(out, EJK_DTYPE_F32, 1, call->q, call->heads, DIM),
        .lse = ejk_tensor_3d(lse, EJK_DTYPE_F32, 1, call->heads, call->q)};
    snprintf(args.platform, sizeof args.platform, "%s", platform);
    EXPECT_OK(ejk_flash_attention(context, &args));
}

static void process(const struct splash_call *call, int way, ejk_splash_mask_info *info) {
    ejk_process_dynamic_mask_args dynamic = {
        .mask = ejk_tensor_3d(call->dense, EJK_DTYPE_BOOL, call->heads, call->q, call->kv),
        .block_shape = {call->bq, call->bkv},
        .head_shards = call->args.head_shards,
        .q_seq_shards = call->args.q_seq_shards};
    if (way < 2)
        EXPECT_OK((way ? ejk_process_mask_dkv : ejk_process_mask)(&call->args, info));
    else
        EXPECT_OK(
            (way == 3 ? ejk_process_dynamic_mask_dkv : ejk_process_dynamic_mask)(&dynamic, info));
}

static void fill(struct random *r, float *values, size_t count) {
    for (size_t i = 0; i < count; i++) values[i] = (float)random_normal(r);
}

static void blocks_attend_as_the_mask_does(void **state) {
    (void)state;
    static struct inputs in;
    static struct row rows[MOST_HEADS * MOST_ROWS];
    float out[MOST_ROWS * MOST_HEADS * DIM], lse[MOST_HEADS * MOST_ROWS];
    for (struct random r; soak_round(&r, 31, 500);) {
        struct splash_call call;
        splash_call_open(&r, &call);
        in.kv_heads = random_chance(&r, 0.5) ? call.heads : 1;
        fill(&r, in.query, sizeof in.query / sizeof *in.query);
        fill(&r, in.key, sizeof in.key / sizeof *in.key);
        fill(&r, in.value, sizeof in.value / sizeof *in.value);
        attend(&call, &in, random_chance(&r, 0.5) ? "auto" : "reference", out, lse);
        for (int way = 0; way < 4; way++) {
            ejk_splash_mask_info info;
            process(&call, way, &info);
            run_mesh(&call, &info, way % 2 == 1, &in, rows);
            expect_rows(&call, rows, out, lse);
            ejk_splash_mask_info_close(&info);
        }
        splash_call_close(&call);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {SOAK_TEST(blocks_attend_as_the_mask_does)};
    return cmocka_run_group_tests(tests, context_set_up, context_tear_down);
}
