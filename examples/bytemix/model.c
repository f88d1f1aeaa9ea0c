/* SPDX-License-Identifier: Apache-2.0 */
/* The model as a whole: its memory, and the way of a batch through the layers. */
#include "layers.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { VOCABULARY = BYTEMIX_VOCABULARY };

/* ---- Opening ---------------------------------------------------------------------------------------- */

static ejk_status fill_angles(bytemix *m) {
    const int64_t shape[] = {BYTEMIX_CONTEXT, m->half};
    TRY(bytemix_create(m, EJK_DTYPE_F32, 2, shape, &m->cosine));
    TRY(bytemix_create(m, EJK_DTYPE_F32, 2, shape, &m->sine));
    for (int i = 0; i < BYTEMIX_CONTEXT * m->half; i++) {
        const double angle =
            floor((double)i / m->half) * pow(10000, -(i % m->half) / (double)m->half);
        ((float *)m->cosine.data)[i] = (float)cos(angle);
        ((float *)m->sine.data)[i] = (float)sin(angle);
    }
    return EJK_OK;
}

static ejk_status load(bytemix *m) {
    char path[4096];
    const int64_t rows = m->options.rows, scratch = rows * SCRATCH;
    ejk_tensor positions;
    snprintf(path, sizeof path, "%s/model.safetensors", m->options.folder);
    TRY(bytemix_create(m, EJK_DTYPE_F32, 1, &scratch, &m->scratch));
    TRY(bytemix_create(m, EJK_DTYPE_I32, 1, &rows, &positions));
    m->positions = positions.data;
    TRY(bytemix_load(m, path));
    return fill_angles(m);
}

ejk_status bytemix_open(ejk_context *context, const bytemix_options *options, bytemix **out) {
    bytemix *m = calloc(1, sizeof *m);
    if (!m) return EJK_STATUS_OUT_OF_MEMORY;
    m->context = context;
    m->options = *options;
    bytemix_options *o = &m->options;
    if (!o->folder) o->folder = "examples/data/bytemix";
    if (!o->dtype) o->dtype = EJK_DTYPE_F32;
    if (!o->rows) o->rows = 256;
    if (!o->pages) o->pages = BYTEMIX_TABLE;
    if (!o->slots) o->slots = 1;
    const ejk_status status = load(m);
    if (status == EJK_OK)
        *out = m;
    else
        bytemix_close(m);
    return status;
}

void bytemix_close(bytemix *m) {
    if (!m) return;
    while (m->owned_count > 0) ejk_owned_tensor_close(&m->owned[--m->owned_count]);
    free(m);
}

/* ---- Memory of a layer's results -------------------------------------------------------------------- */

ejk_tensor bytemix_scratch(bytemix *m, ejk_dtype dtype, int64_t rows, int64_t columns) {
    const int64_t size = (rows * columns + 15) / 16 * 16; /* floats, in whole lines of caches */
    if (m->taken + size > m->scratch.shape[0]) return ejk_tensor_2d(NULL, dtype, rows, columns);
    float *at = (float *)m->scratch.data + m->taken;
    m->taken += size;
    return ejk_tensor_2d(at, dtype, rows, columns);
}

ejk_status bytemix_typed(bytemix *m, ejk_tensor x, ejk_tensor *out) {
    *out = x;
    if (x.dtype == m->options.dtype) return EJK_OK;
    *out = bytemix_scratch(m, m->options.dtype, x.shape[0], x.shape[1]);
    return ejk_tensor_copy(&x, out);
}

/* ---- States ----------------------------------------------------------------------------------------- */

static bool is_recurrent(const layer *l) {
    return ejk_tensor_present(&l->state);
}

ejk_status bytemix_copy_slot(bytemix *m, int from, int to) {
    for (layer *l = m->layers; l < m->layers + LAYERS; l++)
        for (int i = 0; i < 2 && is_recurrent(l); i++) {
            const ejk_tensor all = i ? l->state : l->conv_state,
                             source = ejk_tensor_slice(all, 0, from, 1),
                             target = ejk_tensor_slice(all, 0, to, 1);
            TRY(ejk_tensor_copy(&source, &target));
        }
    return EJK_OK;
}

/* The state before the first byte. */
static ejk_status clear_slot(bytemix *m, int slot) {
    for (layer *l = m->layers; l < m->layers + LAYERS; l++)
        for (int i = 0; i < 2 && is_recurrent(l); i++) {
            const ejk_tensor state = ejk_tensor_slice(i ? l->state : l->conv_state, 0, slot, 1);
            TRY(ejk_tensor_check(&state, "slots"));
            memset(state.data, 0, (size_t)ejk_dtype_bytes(state.dtype, ejk_tensor_count(&state)));
        }
    return EJK_OK;
}

/* ---- Reading ---------------------------------------------------------------------------------------- */

static ejk_status begin(bytemix *m, const bytemix_batch *b) {
    const int32_t texts = b->texts;
    m->rows = b->rows;
    m->starts = ejk_tensor_1d(b->starts, EJK_DTYPE_I32, texts + 1);
    m->lengths = ejk_tensor_1d(b->lengths, EJK_DTYPE_I32, texts);
    m->slots = ejk_tensor_1d(b->slots, EJK_DTYPE_I32, texts);
    m->table = ejk_tensor_2d(b->pages, EJK_DTYPE_I32, texts, BYTEMIX_TABLE);
    for (int i = 0; i < texts; i++) {
        const int32_t count = b->starts[i + 1] - b->starts[i], before = b->lengths[i] - count;
        if (before == 0) TRY(clear_slot(m, b->slots[i]));
        for (int k = 0; k < count; k++) m->positions[b->starts[i] + k] = before + k;
    }
    return EJK_OK;
}

static ejk_status apply(bytemix *m, layer *l, ejk_tensor x) {
    ejk_status (*const parts[])(bytemix *, layer *, ejk_tensor, ejk_tensor) = {bytemix_mix,
                                                                               bytemix_mlp};
    for (int part = 0; part < 2; part++) {
        m->taken = m->rows * WIDTH; /* the stream's own */
        const ejk_tensor h = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, WIDTH),
                         y = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, WIDTH);
        TRY(bytemix_normalise(m, x, part ? l->norm2 : l->norm1, h));
        TRY(parts[part](m, l, h, y));
        float *to = x.data;
        const float *added = y.data;
        for (int i = 0; i < m->rows * WIDTH; i++) to[i] += added[i];
    }
    return EJK_OK;
}

ejk_status bytemix_step(bytemix *m, const bytemix_batch *b, float *logits) {
    const ejk_tensor room = ejk_tensor_slice(m->scratch, 0, 0, (int64_t)b->rows * SCRATCH);
    TRY(ejk_tensor_check(&room, "rows"));
    TRY(begin(m, b));
    m->taken = 0;
    const ejk_tensor x = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, WIDTH);
    for (int i = 0; i < m->rows; i++)
        memcpy((float *)x.data + i * WIDTH, (const float *)m->embed.data + b->bytes[i] * WIDTH,
               WIDTH * sizeof(float));
    for (int i = 0; i < LAYERS; i++) TRY(apply(m, &m->layers[i], x));
    const ejk_tensor h = bytemix_scratch(m, EJK_DTYPE_F32, m->rows, WIDTH);
    TRY(bytemix_normalise(m, x, m->norm, h));
    return bytemix_linear(m, &(matrix){.values = m->embed}, h,
                          ejk_tensor_2d(logits, EJK_DTYPE_F32, m->rows, VOCABULARY));
}

ejk_status bytemix_read(bytemix *m, int position, const uint8_t *bytes, int count, float *logits) {
    int32_t starts[2] = {0}, length = position, slot = 0, pages[BYTEMIX_TABLE];
    /* Bytes that do not fit give a view that the library refuses. */
    const ejk_tensor room = ejk_tensor_slice(m->cosine, 0, position, count);
    TRY(ejk_tensor_check(&room, "text"));
    for (int i = 0; i < BYTEMIX_TABLE; i++) pages[i] = i;
    for (int done = 0, rows; done < count; done += rows) {
        rows = count - done < m->options.rows ? count - done : m->options.rows;
        starts[1] = rows;
        length += rows;
        const bytemix_batch batch = {1, rows, bytes + done, starts, &length, pages, &slot};
        TRY(bytemix_step(m, &batch, logits + (size_t)done * VOCABULARY));
    }
    return EJK_OK;
}

uint8_t bytemix_likeliest(const float *logits) {
    int best = 0;
    for (int i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return (uint8_t)best;
}
