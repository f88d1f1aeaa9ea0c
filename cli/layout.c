/* SPDX-License-Identifier: Apache-2.0 */
#include "layout.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_BLOCK = 128, MOST_SEQUENCES = 1000000, MOST_TOKENS = 1 << 30 };

/* ---- Random numbers -------------------------------------------------------------------------------- */

static uint64_t next_random(uint64_t *state) {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    return *state;
}

static int64_t random_between(uint64_t *state, int64_t least, int64_t most) {
    return least + (int64_t)((next_random(state) >> 11) % (uint64_t)(most - least + 1));
}

static const uint64_t seed = UINT64_C(0x9e3779b97f4a7c15);

/* ---- What is asked for ----------------------------------------------------------------------------- */

/* One item of --lengths: "4096", "63x16" (63 sequences of 16), "64x1-2048" (64 of random lengths). */
typedef struct item {
    int64_t count, least, most;
} item;

/* A number that ends where `ends` says; NULL if there is none. */
static const char *read_number(const char *at, int64_t most, int64_t *out) {
    char *end;
    if (*at < '0' || *at > '9') return NULL;
    const long long value = strtoll(at, &end, 10);
    *out = value;
    return value <= most ? end : NULL;
}

static const char *read_item(const char *at, item *out) {
    *out = (item){.count = 1};
    at = read_number(at, MOST_TOKENS, &out->least);
    if (at && *at == 'x') {
        out->count = out->least;
        at = out->count <= MOST_SEQUENCES ? read_number(at + 1, MOST_TOKENS, &out->least) : NULL;
    }
    out->most = out->least;
    if (at && *at == '-') at = read_number(at + 1, MOST_TOKENS, &out->most);
    return at && out->least <= out->most && (*at == ',' || !*at) ? at : NULL;
}

static bool add_lengths(const item *next, uint64_t *state, call_layout *layout) {
    const int64_t count = layout->count + next->count;
    if (count > MOST_SEQUENCES)
        return complain("--lengths has more than %d sequences", MOST_SEQUENCES);
    int64_t *lengths = realloc(layout->lengths, (size_t)(count + 1) * sizeof *lengths);
    if (!lengths) return complain("no memory for %lld lengths", (long long)count);
    layout->lengths = lengths;
    for (; layout->count < count; layout->count++) {
        lengths[layout->count] = random_between(state, next->least, next->most);
        layout->total += lengths[layout->count];
    }
    return layout->total <= MOST_TOKENS ||
           complain("--lengths has more than %d tokens", MOST_TOKENS);
}

static bool read_lengths(call_layout *layout) {
    uint64_t state = seed;
    for (const char *at = layout->text;; at++) {
        item next;
        at = read_item(at, &next);
        if (!at)
            return complain("--lengths is '%.60s', expected lengths as 4096,63x16 (one of 4096, 63 "
                            "of 16) or 64x1-2048 (64 random ones)",
                            layout->text);
        if (!add_lengths(&next, &state, layout)) return false;
        if (!*at) break;
    }
    return layout->total > 0 || complain("--lengths is '%.60s', which has no token", layout->text);
}

static bool has_tensor(const ejk_kernel *kernel, const char *name) {
    const ejk_field *field = ejk_record_find(kernel->args, name, NULL);
    return field && field->kind == EJK_FIELD_TENSOR;
}

bool layout_open(const layout_words *words, const ejk_kernel *kernel, call_layout *out) {
    *out = (call_layout){.text = words->lengths,
                         .as_segments = words->lengths && !has_tensor(kernel, "cum_seqlens_q"),
                         .alive = words->alive,
                         .block = words->block ? words->block : DEFAULT_BLOCK};
    if (words->lengths && words->alive > 0)
        return complain("--lengths and --alive are given, expected one of them");
    if (words->alive > 1) return complain("--alive is %g, expected at most 1", words->alive);
    if (words->block && !(words->alive > 0)) return complain("--block is given without --alive");
    if (out->as_segments && !has_tensor(kernel, "q_segment_ids"))
        return complain("--lengths is given, but %s takes neither cum_seqlens_q nor q_segment_ids",
                        kernel->op_id);
    if (words->alive > 0 && !has_tensor(kernel, "fwd_block_mask"))
        return complain("--alive is given, but %s takes no blocks of a MaskInfo", kernel->op_id);
    return !words->lengths || read_lengths(out);
}

void layout_close(call_layout *layout) {
    free(layout->lengths);
    *layout = (call_layout){.text = NULL};
}

bool layout_given(const call_layout *layout) {
    return layout->lengths || layout->alive > 0;
}

/* ---- Shapes ---------------------------------------------------------------------------------------- */

const char *layout_tensors(const call_layout *layout) {
    return layout->as_segments ? "q_segment_ids,kv_segment_ids"
           : layout->lengths   ? "cum_seqlens_q,cum_seqlens_k"
           : layout->alive > 0 ? "fwd_data_next,fwd_block_mask"
                               : NULL;
}

static bool bind_lengths(const call_layout *layout, ejk_axes *axes) {
    static const char *const symbols[] = {"B", "T", "S", "N"};
    for (int i = 0; i < 4; i++)
        if (ejk_axes_get(axes, symbols[i]) >= 0)
            return complain("--shape has %s, which follows from --lengths", symbols[i]);
    return succeeded(ejk_axes_set(axes, "T", layout->total)) &&
           succeeded(ejk_axes_set(axes, "S", layout->total)) &&
           (layout->as_segments || succeeded(ejk_axes_set(axes, "N", layout->count)));
}

static bool bind_blocks(const call_layout *layout, ejk_axes *axes) {
    const int64_t t = ejk_axes_get(axes, "T"), block = layout->block;
    const int64_t s = ejk_axes_get(axes, "S") < 0 ? t : ejk_axes_get(axes, "S");
    if (t < 1 || s < 1 || t % block != 0 || s % block != 0)
        return complain("--alive needs T and S that are multiples of --block, %lld",
                        (long long)block);
    return succeeded(ejk_axes_set(axes, "Pf", 1)) &&
           succeeded(ejk_axes_set(axes, "Rf", t / block)) &&
           succeeded(ejk_axes_set(axes, "Cf", s / block));
}

bool layout_sizes(const call_layout *layout, ejk_axes *axes) {
    return layout->lengths     ? bind_lengths(layout, axes)
           : layout->alive > 0 ? bind_blocks(layout, axes)
                               : true;
}

bool layout_arguments(const call_layout *layout, const op_call *call) {
    char text[32];
    if (!(layout->alive > 0)) return true;
    snprintf(text, sizeof text, "%lld", (long long)layout->block);
    return succeeded(ejk_record_set_text(call->kernel->args, call->args, "fwd_kv_blocksize", text));
}

int64_t layout_even_length(const call_layout *layout) {
    double squares = 0;
    for (int64_t i = 0; i < layout->count; i++)
        squares += (double)layout->lengths[i] * (double)layout->lengths[i];
    const int64_t even = llround(sqrt(squares / (double)layout->count));
    return even > 0 ? even : 1;
}

/* ---- Contents -------------------------------------------------------------------------------------- */

static int32_t field_index(const ejk_kernel *kernel, const char *name) {
    for (int32_t i = 0; i < kernel->args->count; i++)
        if (strcmp(kernel->args->fields[i].name, name) == 0) return i;
    return -1;
}

/* A tensor of int32 with memory, by its name; NULL if there is none. */
static int32_t *numbers(const ejk_kernel *kernel, void *args, const char *name) {
    const int32_t index = field_index(kernel, name);
    ejk_tensor *tensor = index < 0 ? NULL : call_tensor(kernel, args, index);
    return tensor && tensor->dtype == EJK_DTYPE_I32 ? tensor->data : NULL;
}

static void fill_sums(const call_layout *layout, int32_t *sums) {
    if (!sums) return;
    sums[0] = 0;
    for (int64_t i = 0; i < layout->count; i++) sums[i + 1] = sums[i] + (int32_t)layout->lengths[i];
}

/* The number of its sequence for each token. */
static void fill_segments(const call_layout *layout, int32_t *ids) {
    for (int64_t n = 0; ids && n < layout->count; n++)
        for (int64_t i = 0; i < layout->lengths[n]; i++) *ids++ = (int32_t)n;
}

/* In each row of cells as many alive, at random places: a cell lives if those still wanted say so. */
static void draw_row(const call_layout *layout, uint64_t *state, int64_t columns, int32_t *alive) {
    const double wanted = round(layout->alive * (double)columns);
    int64_t left = wanted > 1 ? (int64_t)wanted : 1;
    for (int64_t column = 0; column < columns; column++) {
        alive[column] = random_between(state, 1, columns - column) <= left;
        left -= alive[column];
    }
}

/* Cells that live are full: 2. */
static void fill_grid(const call_layout *layout, const ejk_kernel *kernel, void *args) {
    int32_t *next = numbers(kernel, args, "fwd_data_next");
    int32_t *states = numbers(kernel, args, "fwd_block_mask");
    if (!next || !states) return;
    const ejk_tensor *grid = call_tensor(kernel, args, field_index(kernel, "fwd_block_mask"));
    uint64_t random = seed;
    for (int64_t row = 0; row < grid->shape[1]; row++) {
        const int64_t columns = grid->shape[2];
        draw_row(layout, &random, columns, &states[row * columns]);
        for (int64_t i = row * columns; i < (row + 1) * columns; i++) {
            next[i] = (int32_t)(i % columns);
            states[i] *= 2;
        }
    }
}

void layout_fill(const call_layout *layout, const ejk_kernel *kernel, void *args) {
    if (layout->lengths) {
        fill_sums(layout, numbers(kernel, args, "cum_seqlens_q"));
        fill_sums(layout, numbers(kernel, args, "cum_seqlens_k"));
        fill_segments(layout, numbers(kernel, args, "q_segment_ids"));
        fill_segments(layout, numbers(kernel, args, "kv_segment_ids"));
    } else if (layout->alive > 0) {
        fill_grid(layout, kernel, args);
    }
}

bool layout_own(const call_layout *layout, op_call *call) {
    static const char *const names[] = {"cum_seqlens_q",  "cum_seqlens_k", "q_segment_ids",
                                        "kv_segment_ids", "fwd_data_next", "fwd_block_mask"};
    if (!layout_given(layout)) return true;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        const int32_t index = field_index(call->kernel, names[i]);
        ejk_tensor *tensor = index < 0 ? NULL : call_tensor(call->kernel, call->args, index);
        if (!tensor || !ejk_tensor_present(tensor)) continue;
        if (!succeeded(ejk_owned_tensor_create(tensor->dtype, tensor->rank, tensor->shape,
                                               &call->owned[index])))
            return false;
        *tensor = call->owned[index].tensor;
    }
    layout_fill(layout, call->kernel, call->args);
    return true;
}

/* ---- Counting -------------------------------------------------------------------------------------- */

/* What positions let a query see: causal, sliding_window and chunk_size, as far as the operation has them. */
typedef struct positions {
    bool causal;
    ejk_opt_int offset, chunk;
    ejk_window window;
} positions;

static const void *value_of(const op_call *call, const char *name, ejk_field_kind kind) {
    size_t offset;
    const ejk_field *field = ejk_record_find(call->kernel->args, name, &offset);
    return field && field->kind == kind ? (const char *)call->args + offset : NULL;
}

static positions positions_of(const op_call *call) {
    positions p = {.causal = false};
    const bool *causal = value_of(call, "causal", EJK_FIELD_BOOL);
    const ejk_opt_int *offset = value_of(call, "causal_offset", EJK_FIELD_OPT_INT);
    const ejk_opt_int *chunk = value_of(call, "chunk_size", EJK_FIELD_OPT_INT);
    const ejk_window *window = value_of(call, "sliding_window", EJK_FIELD_WINDOW);
    if (causal) p.causal = *causal;
    if (offset) p.offset = *offset;
    if (chunk) p.chunk = *chunk;
    if (window) p.window = *window;
    return p;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Far beyond every key; sums of it fit. */
static int64_t limited(ejk_opt_int value) {
    const int64_t far = INT64_C(1) << 60;
    return larger(-far, smaller(value.value, far));
}

/* The keys [first, end) of `keys` that query `i` of `queries` may see. */
static void visible_keys(const positions *p, int64_t i, int64_t queries, int64_t keys,
                         int64_t *first, int64_t *end) {
    const int64_t at = i + (p->offset.set ? limited(p->offset) : keys - queries);
    *first = 0;
    *end = keys;
    if (p->window.left.set) *first = larger(*first, at - limited(p->window.left));
    if (p->window.right.set) *end = smaller(*end, at + limited(p->window.right) + 1);
    if (p->causal || p->chunk.set) *end = smaller(*end, at + 1);
    if (p->chunk.set && at > 0) *first = larger(*first, at - at % larger(1, p->chunk.value));
}

static double scores_of_sequence(const positions *p, int64_t length) {
    double scores = 0;
    for (int64_t i = 0; i < length; i++) {
        int64_t first, end;
        visible_keys(p, i, length, length, &first, &end);
        scores += (double)larger(0, end - first);
    }
    return scores;
}

static double scores_of_blocks(const call_layout *layout, const positions *p, int64_t queries,
                               int64_t keys) {
    const int64_t block = layout->block, columns = keys / block;
    int32_t *alive = calloc((size_t)columns + 1, sizeof *alive);
    uint64_t random = seed;
    double scores = 0;
    for (int64_t i = 0; alive && i < queries; i++) {
        int64_t first, end;
        if (i % block == 0) draw_row(layout, &random, columns, alive);
        visible_keys(p, i, queries, keys, &first, &end);
        for (int64_t column = 0; column < columns; column++)
            if (alive[column])
                scores += (double)larger(0, smaller(end, (column + 1) * block) -
                                                larger(first, column * block));
    }
    free(alive);
    return scores;
}

double layout_scores(const call_layout *layout, const op_call *call, const ejk_axes *axes) {
    const positions p = positions_of(call);
    const int64_t batch = ejk_axes_get(axes, "B");
    double scores = 0;
    if (layout->alive > 0)
        return (double)larger(1, batch) *
               scores_of_blocks(layout, &p, ejk_axes_get(axes, "T"), ejk_axes_get(axes, "S"));
    for (int64_t i = 0; i < layout->count; i++)
        scores += scores_of_sequence(&p, layout->lengths[i]);
    return scores;
}
