/* SPDX-License-Identifier: Apache-2.0 */
#include "model.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

enum {
    BATCH = 16,
    LAYERS = 2,
    WIDTH = 32,
    HEADS = 4,
    KV_HEADS = 2, /* each is read by two query heads */
    HEAD_DIM = 8,
    ALL_HEADS = HEADS + 2 * KV_HEADS, /* of queries, keys and values, which lie in one tensor */
    OUT_WIDTH = HEADS * HEAD_DIM,
    QKV_WIDTH = ALL_HEADS * HEAD_DIM,
    MARK = COPY_SYMBOLS,      /* the symbol behind those that are to be repeated */
    TOKENS = 2 * COPY_LENGTH, /* the last symbol is foreseen, not read */
    ROWS = BATCH * TOKENS,    /* of every matrix of activations */
    ANSWERS = BATCH * COPY_LENGTH
};

static const float rate = 0.05F, momentum = 0.8F;

/* Nothing but floats, so that the optimiser sees one long vector. Matrices are [in, out]. */
typedef struct weights {
    float symbols[(COPY_SYMBOLS + 1) * WIDTH], positions[TOKENS * WIDTH];
    struct {
        float qkv[WIDTH * QKV_WIDTH], out[OUT_WIDTH * WIDTH], sinks[HEADS];
    } layers[LAYERS];
    float logits[WIDTH * COPY_SYMBOLS];
} weights;

enum { WEIGHTS = sizeof(weights) / sizeof(float) };

/* What the forward pass of a layer leaves to its backward pass: of attention, inputs, `out` and `lse`. */
typedef struct activations {
    float x[ROWS * WIDTH], qkv[ROWS * QKV_WIDTH], out[ROWS * OUT_WIDTH], lse[ROWS * HEADS];
} activations;

struct copy_model {
    ejk_context *context;
    char platform[EJK_NAME_SIZE];
    uint64_t random;
    int symbols[ROWS], answers[ANSWERS];
    weights weights, gradient, velocity;
    activations layers[LAYERS];
    float x[ROWS * WIDTH], logits[ROWS * COPY_SYMBOLS];
    /* Gradients of activations. */
    float d_x[ROWS * WIDTH], d_logits[ROWS * COPY_SYMBOLS];
    float d_qkv[ROWS * QKV_WIDTH], d_out[ROWS * OUT_WIDTH];
};

static uint64_t next_random(copy_model *model) {
    model->random ^= model->random << 13;
    model->random ^= model->random >> 7;
    model->random ^= model->random << 17;
    return model->random >> 11; /* 53 bits */
}

ejk_status copy_open(ejk_context *context, const char *platform, copy_model **out) {
    copy_model *model = calloc(1, sizeof *model);
    if (!model) return EJK_STATUS_OUT_OF_MEMORY;
    model->context = context;
    strncpy(model->platform, platform, sizeof model->platform - 1);
    model->random = UINT64_C(0x9e3779b97f4a7c15);
    float *w = (float *)&model->weights;
    for (size_t i = 0; i < WEIGHTS; i++) {
        const bool embedding = i < offsetof(weights, layers) / sizeof *w;
        const float scale = embedding ? 1 : sqrtf(3.0F / WIDTH);
        w[i] = scale * ((float)next_random(model) * 0x1p-52F - 1);
    }
    *out = model;
    return EJK_OK;
}

void copy_close(copy_model *model) {
    free(model);
}

static void draw_batch(copy_model *model) {
    for (int b = 0; b < BATCH; b++) {
        int *symbols = &model->symbols[b * TOKENS], *answers = &model->answers[b * COPY_LENGTH];
        for (int i = 0; i < COPY_LENGTH; i++)
            symbols[i] = answers[i] = (int)(next_random(model) % COPY_SYMBOLS);
        symbols[COPY_LENGTH] = MARK;
        memcpy(&symbols[COPY_LENGTH + 1], answers, (COPY_LENGTH - 1) * sizeof *answers);
    }
}

/* The row of activations at which an answer is due. */
static int row_of(int answer) {
    return answer / COPY_LENGTH * TOKENS + COPY_LENGTH + answer % COPY_LENGTH;
}

/* ---- Plain loops ------------------------------------------------------------------------------------ */

/* y [ROWS, outputs] += x [ROWS, inputs] w [inputs, outputs] */
static void linear(const float *x, int inputs, const float *w, int outputs, float *restrict y) {
    for (int row = 0; row < ROWS; row++)
        for (int i = 0; i < inputs; i++)
            for (int j = 0; j < outputs; j++)
                y[row * outputs + j] += x[row * inputs + i] * w[i * outputs + j];
}

/* d_x += d_y wᵀ and d_w += xᵀ d_y */
static void linear_vjp(const float *x, int inputs, const float *w, int outputs, const float *d_y,
                       float *restrict d_x, float *restrict d_w) {
    for (int row = 0; row < ROWS; row++, d_y += outputs)
        for (int i = 0; i < inputs; i++) {
            float sum = 0;
            for (int j = 0; j < outputs; j++) sum += d_y[j] * w[i * outputs + j];
            for (int j = 0; j < outputs; j++) d_w[i * outputs + j] += x[row * inputs + i] * d_y[j];
            d_x[row * inputs + i] += sum;
        }
}

/* Mean of −log softmax(logits)[answer] over all answers, and its derivative. */
static void cross_entropy(copy_model *model, double *loss, double *right) {
    *loss = *right = 0;
    memset(model->d_logits, 0, sizeof model->d_logits);
    for (int i = 0; i < ANSWERS; i++) {
        const float *logits = &model->logits[row_of(i) * COPY_SYMBOLS];
        float *d_logits = &model->d_logits[row_of(i) * COPY_SYMBOLS];
        const int answer = model->answers[i];
        double odds[COPY_SYMBOLS], others = 0; /* against the answer: small losses stay exact */
        for (int j = 0; j < COPY_SYMBOLS; j++) {
            odds[j] = j == answer ? 0 : exp((double)logits[j] - logits[answer]);
            others += odds[j];
        }
        odds[answer] = -others;
        for (int j = 0; j < COPY_SYMBOLS; j++)
            d_logits[j] = (float)(odds[j] / (1 + others) / ANSWERS);
        *loss += log1p(others) / ANSWERS;
        *right += (others < 1) / (double)ANSWERS;
    }
}

/* ---- Attention -------------------------------------------------------------------------------------- */

/* Some heads of a tensor of `width` heads, as attention reads and writes them, wherever they lie. */
static ejk_tensor heads(float *data, int width, int first, int count) {
    ejk_tensor all = ejk_tensor_4d(data, EJK_DTYPE_F32, BATCH, TOKENS, width, HEAD_DIM);
    return ejk_tensor_slice(all, 2, first, count);
}

/* The inputs that both passes have, of the layer's activations `a`. */
#define INPUTS(model, layer, a)                                                                    \
    .query = heads((a)->qkv, ALL_HEADS, 0, HEADS),                                                 \
    .key = heads((a)->qkv, ALL_HEADS, HEADS, KV_HEADS),                                            \
    .value = heads((a)->qkv, ALL_HEADS, HEADS + KV_HEADS, KV_HEADS),                               \
    .softmax_aux = ejk_tensor_2d((model)->weights.layers[layer].sinks, EJK_DTYPE_F32, HEADS, 1),   \
    .causal = true, .out = heads((a)->out, HEADS, 0, HEADS),                                       \
    .lse = ejk_tensor_3d((a)->lse, EJK_DTYPE_F32, BATCH, HEADS, TOKENS)

static ejk_status attend(copy_model *model, int layer, activations *a) {
    ejk_flash_attention_args args = {INPUTS(model, layer, a)};
    memcpy(args.platform, model->platform, sizeof args.platform);
    return ejk_flash_attention_fwd(model->context, &args);
}

/* The same inputs, what the call wrote, the gradient of that, and where the gradients of the inputs go. */
static ejk_status attend_vjp(copy_model *model, int layer, activations *a) {
    float *d_sinks = model->gradient.layers[layer].sinks;
    ejk_flash_attention_vjp_args args = {
        INPUTS(model, layer, a),
        .d_out = heads(model->d_out, HEADS, 0, HEADS),
        .d_query = heads(model->d_qkv, ALL_HEADS, 0, HEADS),
        .d_key = heads(model->d_qkv, ALL_HEADS, HEADS, KV_HEADS),
        .d_value = heads(model->d_qkv, ALL_HEADS, HEADS + KV_HEADS, KV_HEADS),
        .d_softmax_aux = ejk_tensor_2d(d_sinks, EJK_DTYPE_F32, HEADS, 1)};
    memcpy(args.platform, model->platform, sizeof args.platform);
    return ejk_flash_attention_vjp(model->context, &args);
}

/* ---- Forward and backward --------------------------------------------------------------------------- */

static ejk_status forward(copy_model *model) {
    const weights *all = &model->weights;
    memset(model->layers, 0, sizeof model->layers);
    memset(model->logits, 0, sizeof model->logits);
    for (int i = 0; i < ROWS * WIDTH; i++)
        model->x[i] = all->symbols[model->symbols[i / WIDTH] * WIDTH + i % WIDTH] +
                      all->positions[i % (TOKENS * WIDTH)];
    for (int layer = 0; layer < LAYERS; layer++) {
        activations *a = &model->layers[layer];
        memcpy(a->x, model->x, sizeof a->x);
        linear(a->x, WIDTH, all->layers[layer].qkv, QKV_WIDTH, a->qkv);
        ejk_status status = attend(model, layer, a);
        if (status != EJK_OK) return status;
        linear(a->out, OUT_WIDTH, all->layers[layer].out, WIDTH, model->x);
    }
    linear(model->x, WIDTH, all->logits, COPY_SYMBOLS, model->logits);
    return EJK_OK;
}

/* From d_logits to the gradient of all weights. d_x passes by every layer, and gets what goes through it. */
static ejk_status backward(copy_model *model) {
    const weights *all = &model->weights;
    weights *gradient = &model->gradient;
    float *d_x = model->d_x;
    memset(gradient, 0, sizeof *gradient);
    memset(d_x, 0, sizeof model->d_x);
    linear_vjp(model->x, WIDTH, all->logits, COPY_SYMBOLS, model->d_logits, d_x, gradient->logits);
    for (int layer = LAYERS - 1; layer >= 0; layer--) {
        activations *a = &model->layers[layer];
        memset(model->d_out, 0, sizeof model->d_out);
        linear_vjp(a->out, OUT_WIDTH, all->layers[layer].out, WIDTH, d_x, model->d_out,
                   gradient->layers[layer].out);
        ejk_status status = attend_vjp(model, layer, a);
        if (status != EJK_OK) return status;
        linear_vjp(a->x, WIDTH, all->layers[layer].qkv, QKV_WIDTH, model->d_qkv, d_x,
                   gradient->layers[layer].qkv);
    }
    for (int i = 0; i < ROWS * WIDTH; i++) {
        gradient->symbols[model->symbols[i / WIDTH] * WIDTH + i % WIDTH] += d_x[i];
        gradient->positions[i % (TOKENS * WIDTH)] += d_x[i];
    }
    return EJK_OK;
}

ejk_status copy_step(copy_model *model, double *loss, double *right) {
    draw_batch(model);
    ejk_status status = forward(model);
    if (status != EJK_OK) return status;
    cross_entropy(model, loss, right);
    status = backward(model);
    if (status != EJK_OK) return status;
    float *w = (float *)&model->weights, *velocity = (float *)&model->velocity;
    const float *gradient = (const float *)&model->gradient;
    for (int i = 0; i < WEIGHTS; i++) {
        velocity[i] = momentum * velocity[i] + gradient[i];
        w[i] -= rate * velocity[i];
    }
    return EJK_OK;
}
