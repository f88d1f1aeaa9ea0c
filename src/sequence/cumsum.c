/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sums over time. Everything is brought to [B,T,H,S] by a view. A task takes some lanes (h, s) of one b over a
 * range of time that begins and ends with a stretch, and walks it in tiles: a tile is copied in, summed in
 * place, and copied out, so that one loop serves all types and strides. Sums do not depend on tiles or tasks.
 */
#include "sequence/sequence.h"

#include <inttypes.h>
#include <stdlib.h>

enum { TILE = 4096, MOST_LANES = 64 };

typedef union tile {
    float f32[TILE];
    double f64[TILE];
    int64_t i64[TILE];
} tile;

typedef struct cumsum {
    ejk_tensor input, out; /* [B,T,H,S] */
    ejk_dtype sum_dtype;   /* F32, F64 or I64 */
    int64_t chunk_size;
    bool reverse;
    double scale;
    ejki_lengths lengths; /* `ends` NULL: none */
    int64_t lanes_h, lanes_s, blocks_h, blocks_s;
    int64_t time_parts;
} cumsum;

/* Steps [start, end) that are summed together, or that no sequence has. */
typedef struct stretch {
    int64_t start, end;
    bool unowned;
} stretch;

/* The last sequence that starts at or before t, which then has it, for t before the end of all. */
static int64_t sequence_of(const ejki_lengths *lengths, int64_t t) {
    int64_t low = 0, high = lengths->sequences - 1;
    while (low < high) {
        int64_t middle = low + (high - low + 1) / 2;
        if (lengths->ends[middle] <= t)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

static stretch stretch_at(const cumsum *c, int64_t t) {
    int64_t start = 0, end = c->input.shape[1];
    if (c->lengths.ends) {
        int64_t total = ejki_lengths_total(&c->lengths);
        if (t >= total) return (stretch){total, end, true};
        int64_t n = sequence_of(&c->lengths, t);
        start = c->lengths.ends[n];
        end = c->lengths.ends[n + 1];
    }
    start += (t - start) / c->chunk_size * c->chunk_size;
    if (end - start > c->chunk_size) end = start + c->chunk_size;
    return (stretch){start, end, false};
}

/* The part's first step: an even share of time, brought back to where a stretch starts. */
static int64_t part_start(const cumsum *c, int64_t part) {
    int64_t steps = c->input.shape[1];
    int64_t t = steps / c->time_parts * part + steps % c->time_parts * part / c->time_parts;
    return t >= steps ? steps : stretch_at(c, t).start;
}

/* ---- One tile ---------------------------------------------------------------------------------------- */

static int64_t add_i64(int64_t a, int64_t b) {
    int64_t sum;
    if (ejki_add(a, b, &sum)) return sum;
    return a < 0 ? INT64_MIN : INT64_MAX;
}

/* Adds a row to the sums and puts them, scaled, in its place. */
static void add_row(const cumsum *c, tile *values, int64_t row, int64_t lanes, tile *sums) {
    if (c->sum_dtype == EJK_DTYPE_F32) {
        float scale = (float)c->scale, *x = values->f32 + row * lanes;
        for (int64_t i = 0; i < lanes; i++) x[i] = (sums->f32[i] += x[i]) * scale;
    } else if (c->sum_dtype == EJK_DTYPE_F64) {
        double scale = c->scale, *x = values->f64 + row * lanes;
        for (int64_t i = 0; i < lanes; i++) x[i] = (sums->f64[i] += x[i]) * scale;
    } else {
        int64_t *x = values->i64 + row * lanes;
        for (int64_t i = 0; i < lanes; i++) x[i] = sums->i64[i] = add_i64(sums->i64[i], x[i]);
    }
}

/* All bits zero is 0 in every type. */
static void clear(const cumsum *c, tile *values, int64_t from, int64_t count) {
    size_t size = ejk_dtype_size(c->sum_dtype);
    unsigned char *bytes = (unsigned char *)values + (size_t)from * size;
    for (size_t i = 0; i < (size_t)count * size; i++) bytes[i] = 0;
}

/* What goes on from tile to tile. */
typedef struct walk {
    stretch current; /* empty: before the first */
    int64_t lanes;
    tile sums; /* the first `lanes` */
} walk;

static void sum_tile(const cumsum *c, walk *w, int64_t start, int64_t end, tile *values) {
    for (int64_t i = 0; i < end - start; i++) {
        int64_t t = c->reverse ? end - 1 - i : start + i;
        if (t < w->current.start || t >= w->current.end) {
            w->current = stretch_at(c, t);
            clear(c, &w->sums, 0, w->lanes);
        }
        if (w->current.unowned)
            clear(c, values, (t - start) * w->lanes, w->lanes);
        else
            add_row(c, values, t - start, w->lanes, &w->sums);
    }
}

/* ---- Tasks ------------------------------------------------------------------------------------------- */

/* The steps and lanes of one tile. */
typedef struct region {
    int64_t b, start, end, h, count_h, s, count_s;
} region;

static ejk_tensor cut(const ejk_tensor *tensor, const region *r) {
    ejk_tensor part = ejk_tensor_slice(*tensor, 0, r->b, 1);
    part = ejk_tensor_slice(part, 1, r->start, r->end - r->start);
    part = ejk_tensor_slice(part, 2, r->h, r->count_h);
    return ejk_tensor_slice(part, 3, r->s, r->count_s);
}

/* The copies cannot fail: the tensors were checked, and tiles are on the stack. */
static void run_region(const cumsum *c, walk *w, const region *r, tile *values) {
    ejk_tensor source = cut(&c->input, r), target = cut(&c->out, r);
    ejk_tensor held =
        ejk_tensor_4d(values, c->sum_dtype, 1, r->end - r->start, r->count_h, r->count_s);
    if (ejk_tensor_copy(&source, &held) != EJK_OK) return;
    sum_tile(c, w, r->start, r->end, values);
    if (ejk_tensor_copy(&held, &target) != EJK_OK) return;
}

static void run_task(void *argument, int64_t index) {
    const cumsum *c = argument;
    int64_t part = index % c->time_parts, rest = index / c->time_parts;
    int64_t block_s = rest % c->blocks_s, block_h = rest / c->blocks_s % c->blocks_h;
    region r = {.b = rest / c->blocks_s / c->blocks_h,
                .h = block_h * c->lanes_h,
                .s = block_s * c->lanes_s};
    r.count_h = ejki_min(c->lanes_h, c->input.shape[2] - r.h);
    r.count_s = ejki_min(c->lanes_s, c->input.shape[3] - r.s);
    int64_t start = part_start(c, part), end = part_start(c, part + 1);
    walk w = {.lanes = r.count_h * r.count_s};
    int64_t steps = TILE / w.lanes;
    tile values;
    for (int64_t done = 0; done < end - start; done += steps) {
        int64_t length = ejki_min(steps, end - start - done);
        r.start = c->reverse ? end - done - length : start + done;
        r.end = r.start + length;
        run_region(c, &w, &r, &values);
    }
}

static void run_all(ejk_threads *threads, cumsum *c) {
    const int64_t *shape = c->input.shape;
    if (ejk_tensor_count(&c->input) == 0) return;
    c->lanes_s = ejki_min(shape[3], MOST_LANES);
    c->lanes_h = ejki_min(shape[2], MOST_LANES / c->lanes_s);
    c->blocks_s = ejki_cdiv(shape[3], c->lanes_s);
    c->blocks_h = ejki_cdiv(shape[2], c->lanes_h);
    int64_t blocks = shape[0] * c->blocks_h * c->blocks_s;
    int64_t wanted = 4 * (int64_t)ejk_threads_count(threads);
    c->time_parts = ejki_max(1, ejki_min(ejki_cdiv(wanted, blocks), shape[1] / 1024));
    ejk_parallel_for(threads, blocks * c->time_parts, run_task, c);
}

/* ---- The calls --------------------------------------------------------------------------------------- */

static ejk_tensor as_bths(ejk_tensor tensor, bool head_first) {
    if (tensor.rank == 3) {
        tensor.shape[3] = tensor.strides[3] = 1;
        tensor.rank = 4;
    }
    return head_first ? ejk_tensor_transpose(tensor, 1, 2) : tensor;
}

static ejk_status check_types(const ejk_tensor *input, const ejk_cumsum_options *options,
                              const ejk_tensor *out, ejk_dtype *sum_dtype) {
    bool floating = ejki_dtype_in(input->dtype, EJKI_FLOATING);
    EJKI_TRY(ejki_sequence_output(out, "sums_out", floating ? EJKI_FLOATING : EJKI_INTEGERS,
                                  input->rank, input->shape));
    if (!floating && options->softmax_scale.set) {
        return ejki_fail(
            EJK_STATUS_INVALID_ARGUMENT,
            "softmax_scale is set to %g for an input of type %s, expected unset: sums of "
            "integers are not scaled",
            options->softmax_scale.value, ejk_dtype_name(input->dtype));
    }
    bool wide = input->dtype == EJK_DTYPE_F64 || out->dtype == EJK_DTYPE_F64;
    *sum_dtype = !floating ? EJK_DTYPE_I64 : wide ? EJK_DTYPE_F64 : EJK_DTYPE_F32;
    return EJK_OK;
}

/* Reads cu_seqlens, if any, into c->lengths. */
static ejk_status read_lengths(cumsum *c, const ejk_cumsum_options *options,
                               const ejk_tensor *out) {
    if (!options->cu_seqlens) return EJK_OK;
    if (c->input.shape[0] != 1) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "input has a batch of %" PRId64 ", expected 1 when cu_seqlens is given",
                         c->input.shape[0]);
    }
    EJKI_TRY(ejki_lengths_read(options->cu_seqlens, &c->lengths));
    int64_t total = ejki_lengths_total(&c->lengths);
    ejk_status status = ejki_argument_apart(out, "sums_out", options->cu_seqlens, "cu_seqlens");
    if (status == EJK_OK && total > c->input.shape[1]) {
        status = ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                           "cu_seqlens ends at %" PRId64 ", expected at most the %" PRId64
                           " steps of input",
                           total, c->input.shape[1]);
    }
    if (status != EJK_OK) free(c->lengths.ends);
    return status;
}

static ejk_status run(ejk_threads *threads, const ejk_tensor *input, int64_t chunk_size,
                      const ejk_cumsum_options *options, const ejk_tensor *out) {
    static const ejk_cumsum_options none;
    if (!options) options = &none;
    EJKI_TRY(ejki_sequence_input(input, "input", EJKI_ANY_DTYPE));
    if (input->rank != 3 && input->rank != 4) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "input has rank %" PRId32 ", expected 3 or 4: [B,T,H] or [B,T,H,S]",
                         input->rank);
    }
    cumsum c = {.chunk_size = chunk_size, .reverse = options->reverse};
    EJKI_TRY(check_types(input, options, out, &c.sum_dtype));
    EJKI_TRY(ejki_argument_apart(out, "sums_out", input, "input"));
    c.input = as_bths(*input, options->head_first);
    c.out = as_bths(*out, options->head_first);
    c.scale = options->softmax_scale.set ? options->softmax_scale.value : 1;
    EJKI_TRY(read_lengths(&c, options, out));
    run_all(threads, &c);
    free(c.lengths.ends);
    return EJK_OK;
}

ejk_status ejk_chunk_local_cumsum(ejk_threads *threads, const ejk_tensor *input, int64_t chunk_size,
                                  const ejk_cumsum_options *options, const ejk_tensor *sums_out) {
    if (chunk_size < 1) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "chunk_size is %" PRId64 ", expected 1 or more", chunk_size);
    }
    return run(threads, input, chunk_size, options, sums_out);
}

ejk_status ejk_chunk_global_cumsum(ejk_threads *threads, const ejk_tensor *input,
                                   const ejk_cumsum_options *options, const ejk_tensor *sums_out) {
    return run(threads, input, INT64_MAX, options, sums_out);
}
