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
    TRY(bytemix_create_here(m, EJK_DTYPE_F32, 2, shape, &m->cosine));
    TRY(bytemix_create_here(m, EJK_DTYPE_F32, 2, shape, &m->sine));
    for (int i = 0; i < BYTEMIX_CONTEXT * m->half; i++) {
        const double angle =
            floor((double)i / m->half) * pow(10000, -(i % m->half) / (double)m->half);
        ((float *)m->cosine.data)[i] = (float)cos(angle);
        ((float *)m->sine.data)[i] = (float)sin(angle);
    }
    return EJK_OK;
}

/* Rows that a step of so many has: on a GPU few numbers serve all, so that plans of calls are found again. */
static int rows_of(const bytemix *m, int rows) {
    int most = LEAST_ROWS;
    while (most < rows) most *= 2;
    return m->device < 0 ? rows : most;
}

static int texts_of(const bytemix *m, int texts) {
    return m->device < 0 || texts > m->options.slots ? texts : m->options.slots;
}

/* Memory for the numbers of a batch. */
static int64_t numbers_of(const bytemix *m) {
    return m->options.slots * (BYTEMIX_TABLE + 64);
}

static ejk_status create_scratch(bytemix *m) {
    const int64_t rows = rows_of(m, m->options.rows), count = numbers_of(m) + rows * SCRATCH;
    ejk_tensor positions;
    TRY(bytemix_create(m, EJK_DTYPE_F32, 1, &count, &m->scratch));
    m->mirror = m->scratch;
    if (m->device >= 0) TRY(bytemix_create_here(m, EJK_DTYPE_F32, 1, &count, &m->mirror));
    TRY(bytemix_create_here(m, EJK_DTYPE_I32, 1, &rows, &positions));
    m->positions = positions.data;
    return EJK_OK;
}

/* What a product adds by one sum to another. */
static ejk_status create_unit(bytemix *m) {
    const int64_t shape[] = {WIDTH, WIDTH};
    ejk_tensor unit;
    TRY(bytemix_create_here(m, EJK_DTYPE_F32, 2, shape, &unit));
    for (int i = 0; i < WIDTH; i++) ((float *)unit.data)[i * WIDTH + i] = 1;
    TRY(bytemix_create(m, m->plain, 2, shape, &m->unit));
    return ejk_device_copy(&unit, &m->unit, NULL);
}

static ejk_status load(bytemix *m) {
    char path[4096];
    const int64_t state = WIDTH * HEAD;
    snprintf(path, sizeof path, "%s/model.safetensors", m->options.folder);
    TRY(create_scratch(m));
    TRY(bytemix_load(m, path));
    TRY(bytemix_create_here(m, EJK_DTYPE_F32, 1, &state, &m->zeros));
    if (m->device >= 0) TRY(create_unit(m));
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
    m->device = !o->device || strcmp(o->device, "cpu") == 0 ? -1 : 0;
    if (m->device == 0) sscanf(o->device, "cuda:%d", &m->device);
    m->plain = m->device < 0 ? EJK_DTYPE_F32 : o->dtype;
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
    ejk_tensor out = ejk_tensor_2d(NULL, dtype, rows, columns);
    if (m->taken + size > m->scratch.shape[0]) return out;
    out.data = (float *)m->scratch.data + m->taken;
    out.device_type = m->scratch.device_type;
    out.device_index = m->scratch.device_index;
    m->taken += size;
    return out;
}

ejk_tensor bytemix_here(const bytemix *m, ejk_tensor x) {
    x.data = (char *)m->mirror.data + ((char *)x.data - (char *)m->scratch.data);
    x.device_type = m->mirror.device_type;
    x.device_index = m->mirror.device_index;
    if (x.dtype != EJK_DTYPE_I32) x.dtype = EJK_DTYPE_F32;
    return x;
}

ejk_status bytemix_see(const bytemix *m, ejk_tensor x, ejk_tensor *out) {
    *out = bytemix_here(m, x);
    return m->device < 0 ? EJK_OK : ejk_device_copy(&x, out, NULL);
}

ejk_status bytemix_put(const bytemix *m, ejk_tensor x) {
    const ejk_tensor here = bytemix_here(m, x);
    return m->device < 0 ? EJK_OK : ejk_device_copy(&here, &x, NULL);
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
            TRY(ejk_device_copy(&source, &target, NULL));
        }
    return EJK_OK;
}

/* The state before the first byte. */
static ejk_status clear_slot(bytemix *m, int slot) {
    for (layer *l = m->layers; l < m->layers + LAYERS; l++)
        for (int i = 0; i < 2 && is_recurrent(l); i++) {
            const ejk_tensor state = ejk_tensor_slice(i ? l->state : l->conv_state, 0, slot, 1);
            ejk_tensor zeros = m->zeros;
            zeros.rank = state.rank;
            memcpy(zeros.shape, state.shape, sizeof zeros.shape);
            memcpy(zeros.strides, state.strides, sizeof zeros.strides);
            TRY(ejk_tensor_check(&state, "slots"));
            TRY(ejk_device_copy(&zeros, &state, NULL));
        }
    return EJK_OK;
}

/* ---- Reading ---------------------------------------------------------------------------------------- */

/* Numbers of the batch, in memory that lasts for the step; what is beyond `count` is `rest`. */
static ejk_status keep(bytemix *m, const int32_t *numbers, int count, int columns, int texts,
                       int32_t rest, ejk_tensor *out) {
    *out = bytemix_scratch(m, EJK_DTYPE_I32, texts, columns);
    TRY(ejk_tensor_check(out, "texts"));
    int32_t *to = bytemix_here(m, *out).data;
    for (int i = 0; i < texts * columns; i++) to[i] = i < count * columns ? numbers[i] : rest;
    TRY(bytemix_put(m, *out));
    if (columns == 1) out->rank = 1;
    return EJK_OK;
}

static ejk_status begin(bytemix *m, const bytemix_batch *b) {
    const int32_t count = b->texts, texts = texts_of(m, count);
    m->rows = rows_of(m, b->rows);
    m->taken = 0;
    m->stream = bytemix_scratch(m, m->plain, m->rows, WIDTH);
    m->spare = bytemix_scratch(m, m->plain, m->rows, WIDTH);
    TRY(keep(m, b->starts, count + 1, 1, texts + 1, b->rows, &m->starts));
    TRY(keep(m, b->lengths, count, 1, texts, 0, &m->lengths));
    TRY(keep(m, b->slots, count, 1, texts, -1, &m->slots));
    TRY(keep(m, b->pages, count, BYTEMIX_TABLE, texts, 0, &m->table));
    TRY(keep(m, (int32_t[]){0, 0, texts}, 3, 1, 3, 0, &m->distribution));
    m->kept = m->taken;
    for (int i = 0; i < count; i++) {
        const int32_t rows = b->starts[i + 1] - b->starts[i], before = b->lengths[i] - rows;
        if (before == 0) TRY(clear_slot(m, b->slots[i]));
        for (int k = 0; k < rows; k++) m->positions[b->starts[i] + k] = before + k;
    }
    return EJK_OK;
}

/* The stream takes y in: on a GPU as what a product with the unit matrix adds to. */
static ejk_status add(bytemix *m, ejk_tensor y) {
    const ejk_tensor old = m->stream;
    if (m->device < 0) {
        float *to = old.data;
        const float *added = y.data;
        for (int i = 0; i < m->rows * WIDTH; i++) to[i] += added[i];
        return EJK_OK;
    }
    m->stream = m->spare;
    m->spare = old;
    return ejk_matmul(m->context, &(ejk_matmul_args){
                                      .lhs = y, .rhs = m->unit, .residual = old, .out = m->stream});
}

static ejk_status apply(bytemix *m, layer *l) {
    ejk_status (*const parts[])(bytemix *, layer *, ejk_tensor, ejk_tensor) = {bytemix_mix,
                                                                               bytemix_mlp};
    for (int part = 0; part < 2; part++) {
        m->taken = m->kept;
        const ejk_tensor h = bytemix_scratch(m, m->plain, m->rows, WIDTH),
                         y = bytemix_scratch(m, m->plain, m->rows, WIDTH);
        TRY(bytemix_normalise(m, m->stream, part ? l->norm2 : l->norm1, h));
        TRY(parts[part](m, l, h, y));
        TRY(add(m, y));
    }
    return EJK_OK;
}

/* The stream before the first layer; rows that no text has are 0. */
static ejk_status embed(bytemix *m, const bytemix_batch *b) {
    float *to = bytemix_here(m, m->stream).data;
    memset(to, 0, (size_t)m->rows * WIDTH * sizeof(float));
    for (int i = 0; i < b->rows; i++)
        memcpy(to + i * WIDTH, (const float *)m->embed.data + b->bytes[i] * WIDTH,
               WIDTH * sizeof(float));
    return bytemix_put(m, m->stream);
}

ejk_status bytemix_step(bytemix *m, const bytemix_batch *b, float *logits) {
    const ejk_tensor room =
                         ejk_tensor_slice(m->scratch, 0, numbers_of(m), (int64_t)b->rows * SCRATCH),
                     to = ejk_tensor_2d(logits, EJK_DTYPE_F32, b->rows, VOCABULARY);
    TRY(ejk_tensor_check(&room, "rows"));
    TRY(begin(m, b));
    TRY(embed(m, b));
    for (int i = 0; i < LAYERS; i++) TRY(apply(m, &m->layers[i]));
    m->taken = m->kept;
    const ejk_tensor h = bytemix_scratch(m, m->plain, m->rows, WIDTH),
                     all = bytemix_scratch(m, m->plain, m->rows, VOCABULARY),
                     some = ejk_tensor_slice(all, 0, 0, b->rows);
    TRY(bytemix_normalise(m, m->stream, m->norm, h));
    TRY(bytemix_linear(m, &(matrix){.values = m->unembed}, h, all));
    return ejk_device_copy(&some, &to, NULL);
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
