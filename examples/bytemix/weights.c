/* SPDX-License-Identifier: Apache-2.0 */
/* Weights: matrices that are multiplied by the same rows become one, and are quantised if that is wished. */
#include "layers.h"

#include <stdio.h>
#include <string.h>

typedef struct format {
    char mode[EJK_NAME_SIZE];
    int bits, group;
    ejk_dtype scale;
    bool zeros;
} format;

const char *const bytemix_formats[] = {"8bit", "4bit", "nf4", "mxfp4", NULL};

static const format formats[] = {{"affine", 8, 64, EJK_DTYPE_F16, true},
                                 {"affine", 4, 64, EJK_DTYPE_F16, true},
                                 {"nf4", 4, 64, EJK_DTYPE_F16, false},
                                 {"mxfp4", 4, 32, EJK_DTYPE_F8E8M0, false}};

typedef struct loader {
    bytemix *model;
    const ejk_safetensors *file;
    const format *format;
    bool bytelm;
    int layer;
} loader;

/* Bytelm's names of what it has, too. */
static const char *const translations[][2] = {{"norm1", "attn_norm"},
                                              {"norm2", "mlp_norm"},
                                              {"mix.w_q", "wq"},
                                              {"mix.w_k", "wk"},
                                              {"mix.w_v", "wv"},
                                              {"mix.w_o", "wo"},
                                              {"mix.sinks", "sinks"},
                                              {"mlp.w_gate", "gate"},
                                              {"mlp.w_up", "up"},
                                              {"mlp.w_down", "down"},
                                              {NULL, NULL}};

static ejk_status find(const loader *l, const char *name, ejk_tensor *out) {
    char full[64];
    for (int i = 0; l->bytelm && translations[i][0]; i++)
        if (strcmp(name, translations[i][0]) == 0) name = translations[i][1];
    snprintf(full, sizeof full, "layers.%d.%s", l->layer, name);
    return ejk_safetensors_tensor(l->file, full, out);
}

static bool has(const loader *l, const char *name) {
    ejk_tensor unused;
    return find(l, name, &unused) == EJK_OK;
}

static ejk_status create(bytemix *m, int device, ejk_dtype dtype, int rank, const int64_t *shape,
                         ejk_tensor *out) {
    ejk_owned_tensor *owned = &m->owned[m->owned_count];
    if (m->owned_count == OWNED) return EJK_STATUS_OUT_OF_MEMORY;
    TRY(device < 0 ? ejk_owned_tensor_create(dtype, rank, shape, owned)
                   : ejk_device_tensor_create(device, dtype, rank, shape, owned));
    m->owned_count++;
    *out = owned->tensor;
    return EJK_OK;
}

ejk_status bytemix_create(bytemix *m, ejk_dtype dtype, int rank, const int64_t *shape,
                          ejk_tensor *out) {
    return create(m, m->device, dtype, rank, shape, out);
}

ejk_status bytemix_create_here(bytemix *m, ejk_dtype dtype, int rank, const int64_t *shape,
                               ejk_tensor *out) {
    return create(m, -1, dtype, rank, shape, out);
}

#define NAMES(...) ((const char *const[]){__VA_ARGS__, NULL})

/* Tensors of the layer, one below the other. */
static ejk_status load(const loader *l, const char *const *names, ejk_dtype dtype,
                       ejk_tensor *out) {
    ejk_tensor parts[8] = {0};
    int count = 0;
    int64_t at = 0;
    for (; names[count]; count++) {
        TRY(find(l, names[count], &parts[count]));
        at += parts[count].shape[0];
    }
    ejk_tensor all = parts[0];
    all.shape[0] = at;
    TRY(bytemix_create(l->model, dtype, all.rank, all.shape, out));
    while (count-- > 0) {
        at -= parts[count].shape[0];
        const ejk_tensor target = ejk_tensor_slice(*out, 0, at, parts[count].shape[0]);
        TRY(ejk_device_copy(&parts[count], &target, NULL));
    }
    return EJK_OK;
}

/* Codes and scales of a matrix, or of those of experts, as a call reads them. */
static ejk_status quantise(const loader *l, ejk_tensor values, ejk_quantized_matmul_args *out) {
    const format *f = l->format;
    const int last = values.rank - 1;
    ejk_tensor codes = values, scales = values;
    codes.shape[last] = values.shape[last] * f->bits / 32;
    scales.shape[last] = values.shape[last] / f->group;
    TRY(bytemix_create(l->model, EJK_DTYPE_U32, codes.rank, codes.shape, &out->w));
    TRY(bytemix_create(l->model, f->scale, scales.rank, scales.shape, &out->scales));
    if (f->zeros) TRY(bytemix_create(l->model, f->scale, scales.rank, scales.shape, &out->zeros));
    out->transpose = true;
    out->bits = ejk_int(f->bits);
    out->group_size = ejk_int(f->group);
    memcpy(out->mode, f->mode, sizeof out->mode);
    ejk_quantize_args args = {.values = values,
                              .bits = out->bits,
                              .group_size = out->group_size,
                              .w = out->w,
                              .scales = out->scales,
                              .zeros = out->zeros};
    memcpy(args.mode, f->mode, sizeof args.mode);
    return ejk_quantize(l->model->context, &args);
}

static ejk_status load_matrix(const loader *l, const char *const *names, matrix *out) {
    bytemix *m = l->model;
    TRY(load(l, names, m->options.dtype, &out->values));
    if (!l->format) return EJK_OK;
    ejk_owned_tensor values = m->owned[--m->owned_count]; /* the latest */
    out->values = (ejk_tensor){0};
    const ejk_status status = quantise(l, values.tensor, &out->codes);
    ejk_owned_tensor_close(&values);
    return status;
}

/* A cache of keys or values; heads and numbers of a head are those of the weights. */
static ejk_status create_cache(const loader *l, int64_t heads, int64_t numbers, ejk_tensor *out) {
    const int64_t shape[] = {l->model->options.pages, BYTEMIX_PAGE, heads, numbers};
    return bytemix_create(l->model, l->model->options.dtype, 4, shape, out);
}

static ejk_status load_attention(const loader *l, layer *to) {
    ejk_tensor key;
    TRY(load_matrix(l, NAMES("mix.w_q", "mix.w_k", "mix.w_v"), &to->in));
    TRY(load(l, NAMES("mix.sinks"), EJK_DTYPE_F32, &to->sinks));
    TRY(find(l, "mix.w_k", &key));
    const int64_t heads = to->sinks.shape[0], numbers = WIDTH / (heads ? heads : 1);
    to->sinks.rank = 2;
    to->sinks.shape[1] = to->sinks.strides[1] = 1;
    const int64_t kv_heads = numbers ? key.shape[0] / numbers : 0;
    if (l->bytelm) to->cap = ejk_float(30);
    if (!l->bytelm || l->layer % 2) to->window = ejk_int(WINDOW);
    l->model->half = (int)numbers / 2;
    TRY(create_cache(l, kv_heads, numbers, &to->keys));
    return create_cache(l, kv_heads, numbers, &to->values);
}

/* What both kinds of recurrent layers have, and their states: of convolution and rule. */
static ejk_status load_recurrent(const loader *l, const char *const *conv, layer *to) {
    bytemix *m = l->model;
    const ejk_dtype dtype = m->options.dtype;
    TRY(load(l, conv, dtype, &to->conv));
    TRY(load(l, NAMES("mix.A_log"), EJK_DTYPE_F32, &to->log_a));
    TRY(load(l, NAMES("mix.dt_bias"), EJK_DTYPE_F32, &to->dt_bias));
    TRY(load(l, NAMES("mix.o_norm"), dtype, &to->o_norm));
    const int64_t before[] = {m->options.slots, to->conv.shape[0], to->conv.shape[1] - 1},
                  state[] = {m->options.slots, to->log_a.shape[0], HEAD, HEAD};
    TRY(bytemix_create(m, dtype, 3, before, &to->conv_state));
    return bytemix_create(m, EJK_DTYPE_F32, 4, state, &to->state);
}

static ejk_status load_gdn(const loader *l, layer *to) {
    TRY(load_matrix(l, NAMES("mix.w_qkv", "mix.w_z", "mix.w_beta", "mix.w_a"), &to->in));
    return load_recurrent(l, NAMES("mix.conv"), to);
}

static ejk_status load_kda(const loader *l, layer *to) {
    TRY(load_matrix(l, NAMES("mix.w_q", "mix.w_k", "mix.w_v", "mix.w_f1", "mix.w_g1", "mix.w_beta"),
                    &to->in));
    TRY(load_matrix(l, NAMES("mix.w_f2"), &to->decay));
    TRY(load_matrix(l, NAMES("mix.w_g2"), &to->gate));
    TRY(load_recurrent(l, NAMES("mix.conv_q", "mix.conv_k", "mix.conv_v"), to));
    to->dt_bias.rank = 2;
    to->dt_bias.shape[0] = to->log_a.shape[0];
    to->dt_bias.shape[1] = to->dt_bias.strides[0] = HEAD;
    to->dt_bias.strides[1] = 1;
    return EJK_OK;
}

static ejk_status load_mla(const loader *l, layer *to) {
    const bytemix *m = l->model;
    TRY(load_matrix(l, NAMES("mix.w_q", "mix.w_kv"), &to->in));
    TRY(load(l, NAMES("mix.kv_norm"), m->plain, &to->kv_norm));
    TRY(load(l, NAMES("mix.w_kc"), m->options.dtype, &to->w_kc));
    TRY(load(l, NAMES("mix.w_vc"), m->options.dtype, &to->w_vc));
    const int64_t cache[] = {m->options.pages, BYTEMIX_PAGE, LATENT + NOPE};
    return bytemix_create(l->model, m->options.dtype, 3, cache, &to->keys);
}

static ejk_status load_layer(const loader *l, layer *to) {
    static ejk_status (*const mixers[])(const loader *,
                                        layer *) = {[MIX_ATTENTION] = load_attention,
                                                    [MIX_GDN] = load_gdn,
                                                    [MIX_KDA] = load_kda,
                                                    [MIX_MLA] = load_mla};
    to->kind = has(l, "mix.w_qkv")  ? MIX_GDN
               : has(l, "mix.w_f1") ? MIX_KDA
               : has(l, "mix.w_kv") ? MIX_MLA
                                    : MIX_ATTENTION;
    TRY(load(l, NAMES("norm1"), l->model->plain, &to->norm1));
    TRY(load(l, NAMES("norm2"), l->model->plain, &to->norm2));
    TRY(mixers[to->kind](l, to));
    TRY(load_matrix(l, NAMES("mix.w_o"), &to->out));
    if (!has(l, "mlp.w_router")) {
        TRY(load_matrix(l, NAMES("mlp.w_gate", "mlp.w_up"), &to->gate_up));
        return load_matrix(l, NAMES("mlp.w_down"), &to->down);
    }
    TRY(load(l, NAMES("mlp.w_router"), l->model->plain, &to->router));
    TRY(load_matrix(l, NAMES("mlp.w_gate_up"), &to->gate_up));
    return load_matrix(l, NAMES("mlp.w_down"), &to->down);
}

static ejk_status load_all(loader *l) {
    bytemix *m = l->model;
    ejk_tensor embed, norm;
    for (l->layer = 0; l->layer < LAYERS; l->layer++) TRY(load_layer(l, &m->layers[l->layer]));
    TRY(ejk_safetensors_tensor(l->file, "embed", &embed));
    TRY(ejk_safetensors_tensor(l->file, "norm", &norm));
    TRY(bytemix_create_here(m, EJK_DTYPE_F32, embed.rank, embed.shape, &m->embed));
    TRY(bytemix_create(m, m->plain, embed.rank, embed.shape, &m->unembed));
    TRY(bytemix_create(m, m->plain, norm.rank, norm.shape, &m->norm));
    TRY(ejk_tensor_copy(&embed, &m->embed));
    TRY(ejk_device_copy(&embed, &m->unembed, NULL));
    return ejk_device_copy(&norm, &m->norm, NULL);
}

ejk_status bytemix_load(bytemix *m, const char *path) {
    ejk_safetensors *file;
    loader l = {.model = m};
    for (int i = 0; m->options.weights && bytemix_formats[i]; i++)
        if (strcmp(m->options.weights, bytemix_formats[i]) == 0) l.format = &formats[i];
    if (m->options.weights && !l.format) return EJK_STATUS_UNKNOWN_NAME;
    TRY(ejk_safetensors_open(path, &file));
    l.file = file;
    l.bytelm = has(&l, "wq");
    const ejk_status status = load_all(&l);
    ejk_safetensors_close(file);
    return status;
}
