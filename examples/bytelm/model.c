/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    VOCABULARY = BYTELM_VOCABULARY,
    CONTEXT = BYTELM_CONTEXT,
    LAYERS = 4,
    WIDTH = 256, /* of the stream that runs through the layers */
    HEADS = 4,
    KV_HEADS = 2,
    HEAD_DIM = 64,
    HALF = HEAD_DIM / 2,
    Q_WIDTH = HEADS * HEAD_DIM,
    KV_WIDTH = KV_HEADS * HEAD_DIM,
    ROW = HEADS + 2 * KV_HEADS, /* heads of queries, keys and values */
    ROW_WIDTH = ROW * HEAD_DIM,
    LENGTHS = 2 * CONTEXT + 2,
    HIDDEN = 512, /* of the MLP */
    WINDOW = 127, /* bytes before its own that a query of every second layer sees */
    LANES = 16    /* partial sums of a dot product; divides all widths */
};

typedef struct layer {
    /* Weights, [out, in]. */
    float attn_norm[WIDTH], wqkv[ROW_WIDTH * WIDTH], wo[WIDTH * Q_WIDTH];
    float mlp_norm[WIDTH], gate[HIDDEN * WIDTH], up[HIDDEN * WIDTH], down[WIDTH * HIDDEN];
    ejk_window window;
} layer;

struct bytelm {
    ejk_context *context;
    int position; /* bytes read so far */
    float embed[VOCABULARY * WIDTH], norm[WIDTH];
    layer layers[LAYERS];
    float cosine[CONTEXT * HALF], sine[CONTEXT * HALF];
    /* What is computed for the bytes being read, a row for each. */
    float x[CONTEXT * WIDTH], h[CONTEXT * WIDTH];
    float qkv[CONTEXT * ROW_WIDTH], out[CONTEXT * Q_WIDTH];
    float gate[CONTEXT * HIDDEN], up[CONTEXT * HIDDEN];
    /* Where attention runs. */
    ejk_owned_tensor result, sinks; /* [1, CONTEXT, HEADS, HEAD_DIM]; [LAYERS * HEADS, 1] */
    ejk_owned_tensor ends, memory;  /* ends of sequences: 0, 0, 0, 1, 0, 2, …; of the cache */
    ejk_tensor cache;               /* [LAYERS, CONTEXT, ROW, HEAD_DIM] */
};

/* ---- Loading ---------------------------------------------------------------------------------------- */

/* Converts a tensor of the file. The copy refuses one whose shape differs from the target's. */
static ejk_status load(const ejk_safetensors *file, const char *name, ejk_tensor target) {
    ejk_tensor source;
    ejk_status status = ejk_safetensors_tensor(file, name, &source);
    return status == EJK_OK ? ejk_device_copy(&source, &target, NULL) : status;
}

/* A vector where there are no columns. */
static ejk_tensor matrix(float *data, int rows, int columns) {
    return columns ? ejk_tensor_2d(data, EJK_DTYPE_F32, rows, columns)
                   : ejk_tensor_1d(data, EJK_DTYPE_F32, rows);
}

static ejk_status load_layer(const ejk_safetensors *file, int index, bytelm *model) {
    layer *l = &model->layers[index];
    float *wk = l->wqkv + Q_WIDTH * WIDTH, *wv = wk + KV_WIDTH * WIDTH;
    ejk_tensor sinks = ejk_tensor_slice(model->sinks.tensor, 0, index * HEADS, HEADS);
    sinks.rank = 1; /* as the file has it */
    const struct {
        const char *name;
        ejk_tensor target;
    } weights[] = {
        {"attn_norm", matrix(l->attn_norm, WIDTH, 0)}, {"wq", matrix(l->wqkv, Q_WIDTH, WIDTH)},
        {"wk", matrix(wk, KV_WIDTH, WIDTH)},           {"wv", matrix(wv, KV_WIDTH, WIDTH)},
        {"wo", matrix(l->wo, WIDTH, Q_WIDTH)},         {"mlp_norm", matrix(l->mlp_norm, WIDTH, 0)},
        {"gate", matrix(l->gate, HIDDEN, WIDTH)},      {"up", matrix(l->up, HIDDEN, WIDTH)},
        {"down", matrix(l->down, WIDTH, HIDDEN)},      {"sinks", sinks}};
    ejk_status status = EJK_OK;
    for (size_t i = 0; i < sizeof weights / sizeof *weights && status == EJK_OK; i++) {
        char name[64];
        snprintf(name, sizeof name, "layers.%d.%s", index, weights[i].name);
        status = load(file, name, weights[i].target);
    }
    return status;
}

static ejk_status create(int device, ejk_dtype dtype, int rank, const int64_t *shape,
                         ejk_owned_tensor *out) {
    return device < 0 ? ejk_owned_tensor_create(dtype, rank, shape, out)
                      : ejk_device_tensor_create(device, dtype, rank, shape, out);
}

/* On a CPU each head's keys lie together, so that a call over any number of them reads memory in order. */
static ejk_status create_tensors(bytelm *model, ejk_dtype dtype, int device) {
    static int32_t numbers[LENGTHS];
    const bool cpu = device < 0;
    const int64_t rows[] = {1, CONTEXT, HEADS, HEAD_DIM}, sinks[] = {LAYERS * HEADS, 1};
    const int64_t cache[] = {LAYERS, cpu ? ROW : CONTEXT, cpu ? CONTEXT : ROW, HEAD_DIM};
    for (int i = 0; i < LENGTHS; i++) numbers[i] = i % 2 ? i / 2 : 0;
    const ejk_tensor all = ejk_tensor_1d(numbers, EJK_DTYPE_I32, LENGTHS);
    ejk_status status = create(device, dtype, 4, rows, &model->result);
    if (status == EJK_OK) status = create(device, dtype, 2, sinks, &model->sinks);
    if (status == EJK_OK) status = create(device, dtype, 4, cache, &model->memory);
    if (status == EJK_OK) status = create(device, EJK_DTYPE_I32, 1, all.shape, &model->ends);
    if (status == EJK_OK) status = ejk_device_copy(&all, &model->ends.tensor, NULL);
    model->cache = cpu ? ejk_tensor_transpose(model->memory.tensor, 1, 2) : model->memory.tensor;
    for (int i = 1; i < LAYERS; i += 2) model->layers[i].window = ejk_window_of(WINDOW, 0);
    return status;
}

static void fill_angles(bytelm *model) {
    for (int i = 0; i < CONTEXT * HALF; i++) {
        const double angle = floor((double)i / HALF) * pow(10000, -(i % HALF) / (double)HALF);
        model->cosine[i] = (float)cos(angle);
        model->sine[i] = (float)sin(angle);
    }
}

ejk_status bytelm_open(ejk_context *context, const char *folder, ejk_dtype dtype, int device,
                       bytelm **out) {
    char path[4096];
    snprintf(path, sizeof path, "%s/model.safetensors", folder);
    ejk_safetensors *file = NULL;
    bytelm *model = calloc(1, sizeof *model);
    if (!model) return EJK_STATUS_OUT_OF_MEMORY;
    model->context = context;
    fill_angles(model);
    ejk_status status = ejk_safetensors_open(path, &file);
    if (status == EJK_OK) status = create_tensors(model, dtype, device);
    if (status == EJK_OK) status = load(file, "embed", matrix(model->embed, VOCABULARY, WIDTH));
    if (status == EJK_OK) status = load(file, "norm", matrix(model->norm, WIDTH, 0));
    for (int i = 0; i < LAYERS && status == EJK_OK; i++) status = load_layer(file, i, model);
    ejk_safetensors_close(file);
    if (status == EJK_OK)
        *out = model;
    else
        bytelm_close(model);
    return status;
}

void bytelm_close(bytelm *model) {
    if (!model) return;
    ejk_owned_tensor *const all[] = {&model->result, &model->sinks, &model->ends, &model->memory};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) ejk_owned_tensor_close(all[i]);
    free(model);
}

/* ---- Plain loops ------------------------------------------------------------------------------------ */

/* Sums in LANES independent parts, which is an order that compilers may vectorise. */
static float dot(const float *a, const float *b, int length) {
    float sums[LANES] = {0}, sum = 0;
    for (int i = 0; i < length; i += LANES)
        for (int lane = 0; lane < LANES; lane++) sums[lane] += a[i + lane] * b[i + lane];
    for (int lane = 0; lane < LANES; lane++) sum += sums[lane];
    return sum;
}

/* y [rows, outputs] = x [rows, inputs] times the transpose of w [outputs, inputs]. */
static void linear(const float *x, int rows, int inputs, const float *w, int outputs, float *y) {
    for (int row = 0; row < rows; row++)
        for (int i = 0; i < outputs; i++)
            y[row * outputs + i] = dot(&x[row * inputs], &w[i * inputs], inputs);
}

static void add(float *x, const float *y, int count) {
    for (int i = 0; i < count; i++) x[i] += y[i];
}

static void normalise(const float *x, int rows, const float *weight, float *y) {
    for (; rows > 0; rows--, x += WIDTH, y += WIDTH) {
        float scale = 1 / sqrtf(dot(x, x, WIDTH) / WIDTH + 1e-6F);
        for (int i = 0; i < WIDTH; i++) y[i] = x[i] * scale * weight[i];
    }
}

/* Rotates each head of queries and keys of each row by the angles of the row's position. */
static void rotate(const bytelm *model, float *x, int rows) {
    for (int head = 0; head < rows * ROW; head++, x += HEAD_DIM) {
        const int at = (model->position + head / ROW) * HALF;
        const float *cosine = &model->cosine[at], *sine = &model->sine[at];
        for (int i = 0; i < HALF && head % ROW < HEADS + KV_HEADS; i++) {
            float a = x[i], b = x[i + HALF];
            x[i] = a * cosine[i] - b * sine[i];
            x[i + HALF] = b * cosine[i] + a * sine[i];
        }
    }
}

/* gate = silu(gate) · up */
static void activate(float *gate, const float *up, int count) {
    for (int i = 0; i < count; i++) gate[i] = gate[i] / (1 + expf(-gate[i])) * up[i];
}

/* ---- Attention -------------------------------------------------------------------------------------- */

/* Some positions and heads of a layer's cache as attention reads them, [1, count, n, HEAD_DIM]. */
static ejk_tensor cached(const bytelm *model, int index, int start, int count, int head, int n) {
    const ejk_tensor of_layer = ejk_tensor_slice(model->cache, 0, index, 1);
    return ejk_tensor_slice(ejk_tensor_slice(of_layer, 1, start, count), 2, head, n);
}

/* Copies q, k and v to attention, and back what comes out of it. On a GPU it is given the whole cache and how many rows
 * are filled: its call differs from step to step by data only, and is planned once. */
static ejk_status attend(bytelm *model, int index, int rows) {
    const bool gpu = model->cache.device_type == EJK_DEVICE_CUDA;
    const int seen = model->position + rows, keys = gpu ? CONTEXT : seen;
    const ejk_tensor qkv = ejk_tensor_4d(model->qkv, EJK_DTYPE_F32, 1, rows, ROW, HEAD_DIM);
    const ejk_tensor out = ejk_tensor_4d(model->out, EJK_DTYPE_F32, 1, rows, HEADS, HEAD_DIM);
    const ejk_tensor place = cached(model, index, model->position, rows, 0, ROW);
    const ejk_tensor result = ejk_tensor_slice(model->result.tensor, 1, 0, rows);
    /* With fewer queries than keys, the last query sees the last key: no offset has to be given. */
    ejk_flash_attention_args args = {
        .query = cached(model, index, model->position, rows, 0, HEADS),
        .key = cached(model, index, 0, keys, HEADS, KV_HEADS),
        .value = cached(model, index, 0, keys, HEADS + KV_HEADS, KV_HEADS),
        .softmax_aux = ejk_tensor_slice(model->sinks.tensor, 0, index * HEADS, HEADS),
        .causal = true,
        .sliding_window = model->layers[index].window,
        .logits_soft_cap = ejk_float(30),
        .out = result};
    if (gpu) args.cum_seqlens_q = ejk_tensor_slice(model->ends.tensor, 0, 2 * rows, 2);
    if (gpu) args.cum_seqlens_k = ejk_tensor_slice(model->ends.tensor, 0, 2 * seen, 2);
    ejk_status status = ejk_device_copy(&qkv, &place, NULL);
    if (status == EJK_OK) status = ejk_flash_attention(model->context, &args);
    if (status == EJK_OK) status = ejk_device_copy(&result, &out, NULL);
    return status;
}

static ejk_status apply(bytelm *model, int index, int rows) {
    const layer *l = &model->layers[index];
    float *x = model->x, *h = model->h;
    normalise(x, rows, l->attn_norm, h);
    linear(h, rows, WIDTH, l->wqkv, ROW_WIDTH, model->qkv);
    rotate(model, model->qkv, rows);
    ejk_status status = attend(model, index, rows);
    if (status != EJK_OK) return status;
    linear(model->out, rows, Q_WIDTH, l->wo, WIDTH, h);
    add(x, h, rows * WIDTH);
    normalise(x, rows, l->mlp_norm, h);
    linear(h, rows, WIDTH, l->gate, HIDDEN, model->gate);
    linear(h, rows, WIDTH, l->up, HIDDEN, model->up);
    activate(model->gate, model->up, rows * HIDDEN);
    linear(model->gate, rows, HIDDEN, l->down, WIDTH, h);
    add(x, h, rows * WIDTH);
    return EJK_OK;
}

ejk_status bytelm_read(bytelm *model, const uint8_t *bytes, int count, float *logits) {
    /* Bytes that do not fit give a view that the library refuses. */
    const ejk_tensor room = cached(model, 0, model->position, count, 0, ROW);
    ejk_status status = ejk_tensor_check(&room, "cache");
    if (status != EJK_OK) return status;
    for (int i = 0; i < count; i++)
        memcpy(&model->x[i * WIDTH], &model->embed[bytes[i] * WIDTH], WIDTH * sizeof(float));
    for (int i = 0; i < LAYERS && status == EJK_OK; i++) status = apply(model, i, count);
    if (status != EJK_OK) return status;
    normalise(model->x, count, model->norm, model->h);
    linear(model->h, count, WIDTH, model->embed, VOCABULARY, logits);
    model->position += count;
    return EJK_OK;
}

void bytelm_forget(bytelm *model) {
    model->position = 0;
}

uint8_t bytelm_likeliest(const float *logits) {
    int best = 0;
    for (int i = 1; i < VOCABULARY; i++)
        if (logits[i] > logits[best]) best = i;
    return (uint8_t)best;
}
