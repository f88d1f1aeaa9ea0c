/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of the model share. Numbers of a layer are those of its weights; what these leave open is here. */
#ifndef BYTEMIX_LAYERS_H
#define BYTEMIX_LAYERS_H

#include "model.h"

enum {
    LAYERS = 4,
    WIDTH = 256,    /* of the stream that runs through the layers */
    HEAD = 64,      /* a head of the recurrent layers */
    NOPE = 32,      /* the part of a latent head that is not rotated */
    LATENT = 64,    /* numbers that keys and values of all heads are made of */
    CHOSEN = 2,     /* experts of a byte */
    WINDOW = 128,   /* bytes that a query sees, its own among them */
    OWNED = 256,    /* tensors of a model, at most */
    SCRATCH = 8192, /* floats of a layer for each row */
    LEAST_ROWS = 16 /* of a step on a GPU */
};

#define EPSILON 1e-6

typedef enum mixer { MIX_ATTENTION, MIX_GDN, MIX_KDA, MIX_MLA } mixer;

/* [outputs, inputs]: numbers, or the call that multiplies by codes, all but its rows and result. */
typedef struct matrix {
    ejk_tensor values; /* not present if there are codes */
    ejk_quantized_matmul_args codes;
} matrix;

typedef struct layer {
    mixer kind;
    ejk_tensor norm1, norm2;
    matrix in, out; /* all that the mixer wants of the stream, one below the other; and back */
    /* Attention. */
    ejk_tensor sinks, keys, values;
    ejk_opt_int window;
    ejk_opt_float cap;
    /* Recurrent layers; `decay` and `gate` are second matrices, of KDA. */
    ejk_tensor conv, log_a, dt_bias, o_norm, conv_state, state;
    matrix decay, gate;
    /* Latent attention; its cache is `keys`. */
    ejk_tensor kv_norm, w_kc, w_vc;
    /* MLP: gate and up in one matrix; with a router, such matrices of each expert. */
    matrix gate_up, down;
    ejk_tensor router;
} layer;

struct bytemix {
    ejk_context *context;
    bytemix_options options;
    layer layers[LAYERS];
    int device;      /* of GPUs; -1: the CPU */
    ejk_dtype plain; /* of what is not multiplied: float32, on a GPU the model's */
    ejk_tensor embed, unembed, norm, unit;
    int half; /* of the numbers of a head that are rotated */
    ejk_tensor cosine, sine, zeros;
    /* The batch that is read. */
    int rows;
    int32_t *positions;
    ejk_tensor starts, lengths, table, slots, distribution;
    /* The stream, and where its next sum goes on a GPU. */
    ejk_tensor stream, spare;
    /* Memory of a step's results, and how much of it is taken; where the CPU sees the same. */
    ejk_tensor scratch, mirror;
    int64_t taken, kept;
    ejk_owned_tensor owned[OWNED];
    int owned_count;
};

/* A tensor that lives as long as the model, where it computes, or on the CPU and of zeros. */
ejk_status bytemix_create(bytemix *m, ejk_dtype dtype, int rank, const int64_t *shape,
                          ejk_tensor *out);
ejk_status bytemix_create_here(bytemix *m, ejk_dtype dtype, int rank, const int64_t *shape,
                               ejk_tensor *out);

/* Reads the weights of all layers. */
ejk_status bytemix_load(bytemix *m, const char *path);

/* y [rows, outputs] = x [rows, inputs] times the transpose of a matrix. */
ejk_status bytemix_linear(const bytemix *m, const matrix *w, ejk_tensor x, ejk_tensor y);

/* y = x / sqrt(mean(x²) + EPSILON) · weight */
ejk_status bytemix_normalise(const bytemix *m, ejk_tensor x, ejk_tensor weight, ejk_tensor y);

/* What a layer adds to the stream, of the normed stream x; both [rows, WIDTH]. */
ejk_status bytemix_mix(bytemix *m, layer *l, ejk_tensor x, ejk_tensor y);
ejk_status bytemix_mlp(bytemix *m, layer *l, ejk_tensor x, ejk_tensor y);

/* Memory for a result of the layer; without data if there is no more. */
ejk_tensor bytemix_scratch(bytemix *m, ejk_dtype dtype, int64_t rows, int64_t columns);

/*
 * Scratch as plain loops see it, on the CPU, numbers as float32: on a GPU a copy. `see` brings what is there, `put`
 * back what the CPU has made of it.
 */
ejk_tensor bytemix_here(const bytemix *m, ejk_tensor x);
ejk_status bytemix_see(const bytemix *m, ejk_tensor x, ejk_tensor *out);
ejk_status bytemix_put(const bytemix *m, ejk_tensor x);

/* x itself if it has the model's element type, else a copy that has. */
ejk_status bytemix_typed(bytemix *m, ejk_tensor x, ejk_tensor *out);

#endif
