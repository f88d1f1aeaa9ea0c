/* SPDX-License-Identifier: Apache-2.0 */
/* Requests answered: text in, text out. */
#include "mask/json.h"
#include "mask/process.h"

#include <stdlib.h>
#include <string.h>

typedef enum {
    PROCESS,
    PROCESS_DKV,
    DYNAMIC,
    DYNAMIC_DKV,
    DENSE,
    EQUAL,
    CHECK,
    KINDS
} request_kind;

static const char *const kind_names[KINDS] = {"process_mask",
                                              "process_mask_dkv",
                                              "process_dynamic_mask",
                                              "process_dynamic_mask_dkv",
                                              "mask_dense",
                                              "mask_equal",
                                              "mask_check"};

struct request {
    request_kind kind;
    const json_t *json;
    ejk_process_mask_args args; /* numbers of the call */
    bool blocks;                /* block_shape is given */
    int64_t start[3], stop[3];  /* of the slice; stop -1 = open */
    int32_t slices;             /* axes of the slice; 0 = none */
    ejk_splash_mask *mask, *other;
    ejki_json_array elements; /* of a dynamic mask */
    ejki_mask_reader reader;
};

/* ---- Form ------------------------------------------------------------------------------------------ */

static ejk_status read_flag(const json_t *json, const char *name, ejk_opt_bool *out) {
    const json_t *value = json_object_get(json, name);
    if (value == NULL) return EJK_OK;
    if (!json_is_boolean(value)) return BAD_FORM("%s is neither true nor false", name);
    *out = json_is_true(value) ? EJK_TRUE : EJK_FALSE;
    return EJK_OK;
}

static ejk_status read_count(const json_t *json, const char *name, ejk_opt_int *out) {
    const json_t *value = json_object_get(json, name);
    if (value == NULL) return EJK_OK;
    EJKI_TRY(ejki_json_integer(value, name, &out->value));
    out->set = true;
    return EJK_OK;
}

static ejk_status read_options(const json_t *json, ejk_process_mask_args *args) {
    static const char *const names[] = {"is_dkv",       "downcast_smem_data", "head_shards",
                                        "q_seq_shards", "shrink_grid",        NULL};
    if (json == NULL) return EJK_OK;
    EJKI_TRY(ejki_json_members(json, "options", names));
    EJKI_TRY(read_flag(json, "is_dkv", &args->is_dkv));
    EJKI_TRY(read_flag(json, "downcast_smem_data", &args->downcast_smem_data));
    EJKI_TRY(read_count(json, "head_shards", &args->head_shards));
    EJKI_TRY(read_count(json, "q_seq_shards", &args->q_seq_shards));
    return read_flag(json, "shrink_grid", &args->shrink_grid);
}

static ejk_status read_end(const json_t *json, int64_t open, int64_t *out) {
    *out = open;
    return json_is_null(json) ? EJK_OK : ejki_json_integer(json, "an end of slice", out);
}

/* A given end that is below 0 must not read as an open one. */
static ejk_status read_slice(const json_t *json, struct request *request) {
    if (!json_is_array(json) || json_array_size(json) < 2 || json_array_size(json) > 3)
        return BAD_FORM("slice is no list of a [start, stop] per axis");
    request->slices = (int32_t)json_array_size(json);
    for (int32_t i = 0; i < request->slices; i++) {
        const json_t *pair = json_array_get(json, (size_t)i);
        if (!json_is_array(pair) || json_array_size(pair) != 2)
            return BAD_FORM("slice[%d] is no [start, stop]", (int)i);
        EJKI_TRY(read_end(json_array_get(pair, 0), 0, &request->start[i]));
        EJKI_TRY(read_end(json_array_get(pair, 1), INT64_MAX, &request->stop[i]));
        if (!json_is_null(json_array_get(pair, 1)) && request->stop[i] == INT64_MAX)
            request->stop[i] = INT64_MAX - 1;
    }
    return EJK_OK;
}

static ejk_status read_kind(const json_t *json, request_kind *out) {
    const json_t *kind = json_object_get(json, "kind");
    *out = PROCESS;
    if (kind == NULL) return EJK_OK;
    if (!json_is_string(kind)) return BAD_FORM("kind is no text");
    while (*out < KINDS && strcmp(kind_names[*out], json_string_value(kind)) != 0) (*out)++;
    if (*out == KINDS) return BAD_FORM("kind is '%.40s', which is none", json_string_value(kind));
    return EJK_OK;
}

static ejk_status read_encoding(const json_t *json, bool *base64) {
    const json_t *encoding = json_object_get(json, "encoding");
    const char *text = json_string_value(encoding);
    if (encoding == NULL) return EJK_OK;
    *base64 = text != NULL && strcmp(text, "base64") == 0;
    if (!*base64 && (text == NULL || strcmp(text, "list") != 0))
        return BAD_FORM("encoding is '%.40s', expected list or base64",
                        text != NULL ? text : "no text");
    return EJK_OK;
}

static void close_masks(struct request *request) {
    ejk_splash_mask_release(request->mask);
    ejk_splash_mask_release(request->other);
    free(request->elements.tensor.data);
    request->mask = request->other = NULL;
    request->elements = (ejki_json_array){0};
}

static ejk_status read_masks(struct request *request) {
    const json_t *mask = json_object_get(request->json, "mask");
    ejki_mask_reader *reader = &request->reader;
    if (request->kind == DYNAMIC || request->kind == DYNAMIC_DKV) {
        const char *type = json_string_value(json_object_get(mask, "type"));
        if (type == NULL || strcmp(type, "dense") != 0)
            return BAD_FORM("mask of a dynamic function is no dense mask");
        return ejki_json_elements(mask, reader, &request->elements);
    }
    EJKI_TRY(ejki_json_mask(mask, reader, &request->mask));
    if (request->kind != EQUAL) return EJK_OK;
    return ejki_json_mask(json_object_get(request->json, "other"), reader, &request->other);
}

static ejk_status read_form(struct request *request, bool *base64) {
    static const char *const process[] = {"kind",     "mask", "block_shape", "options",
                                          "encoding", "name", NULL};
    static const char *const dense[] = {"kind",     "mask", "slice", "block_shape",
                                        "encoding", "name", NULL};
    static const char *const equal[] = {"kind", "mask", "other", "encoding", "name", NULL};
    static const char *const check[] = {"kind", "mask", "encoding", "name", NULL};
    const json_t *json = request->json;
    if (!json_is_object(json)) return BAD_FORM("the request is no object");
    EJKI_TRY(read_kind(json, &request->kind));
    EJKI_TRY(read_encoding(json, base64));
    EJKI_TRY(ejki_json_members(json, "the request",
                               request->kind == DENSE   ? dense
                               : request->kind == EQUAL ? equal
                               : request->kind == CHECK ? check
                                                        : process));
    const json_t *name = json_object_get(json, "name"), *slice = json_object_get(json, "slice");
    if (name != NULL && !json_is_string(name)) return BAD_FORM("name is no text");
    request->blocks = json_object_get(json, "block_shape") != NULL;
    if (request->kind < DENSE || request->blocks) {
        if (request->kind <= DENSE)
            EJKI_TRY(ejki_json_pair(json_object_get(json, "block_shape"), "block_shape",
                                    request->args.block_shape));
    }
    if (slice != NULL && request->blocks) return BAD_FORM("both slice and block_shape are given");
    if (slice != NULL) EJKI_TRY(read_slice(slice, request));
    EJKI_TRY(read_options(json_object_get(json, "options"), &request->args));
    request->reader =
        (ejki_mask_reader){.stage = EJKI_READ_FORM, .max_bytes = request->args.max_bytes};
    return read_masks(request);
}

/* ---- Calls ----------------------------------------------------------------------------------------- */

static ejk_status run_process(struct request *request, ejk_splash_mask_info *info) {
    const ejk_process_mask_args *args = &request->args;
    if (request->kind == PROCESS || request->kind == PROCESS_DKV) {
        request->args.mask = request->mask;
        return (request->kind == PROCESS ? ejk_process_mask : ejk_process_mask_dkv)(args, info);
    }
    ejk_process_dynamic_mask_args dynamic = {
        .mask = request->elements.tensor,
        .block_shape = {args->block_shape[0], args->block_shape[1]},
        .is_dkv = args->is_dkv,
        .downcast_smem_data = args->downcast_smem_data,
        .head_shards = args->head_shards,
        .q_seq_shards = args->q_seq_shards,
        .shrink_grid = args->shrink_grid,
        .threads = args->threads,
        .max_bytes = args->max_bytes};
    return (request->kind == DYNAMIC ? ejk_process_dynamic_mask
                                     : ejk_process_dynamic_mask_dkv)(&dynamic, info);
}

static ejk_status check_cut(const struct request *request, int64_t q, int64_t kv) {
    int64_t bq = request->args.block_shape[0], bkv = request->args.block_shape[1];
    if (bq < 1 || bkv < 1)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "block_shape is [%lld, %lld], expected at least 1", (long long)bq,
                      (long long)bkv);
    if (q % bq != 0)
        return REFUSE(INVALID_ARGUMENT, Q_BLOCK_SIZE,
                      "q_block_size = %lld does not divide the query length, %lld", (long long)bq,
                      (long long)q);
    if (kv % bkv != 0)
        return REFUSE(INVALID_ARGUMENT, KV_BLOCK_SIZE,
                      "kv_block_size = %lld does not divide the key length, %lld", (long long)bkv,
                      (long long)kv);
    return EJK_OK;
}

/* The elements cut into blocks, as a strided copy. */
static ejk_status cut(const struct request *request, ejk_tensor *whole) {
    int32_t lead = whole->rank - 2;
    int64_t q = whole->shape[lead], kv = whole->shape[lead + 1];
    int64_t bq = request->args.block_shape[0], bkv = request->args.block_shape[1];
    int64_t shape[5] = {whole->shape[0], q / bq, kv / bkv, bq, bkv};
    int64_t count = ejk_tensor_count(whole);
    ejk_tensor blocks = ejk_tensor_contiguous(NULL, EJK_DTYPE_BOOL, lead + 4, shape + 1 - lead);
    ejk_tensor view = blocks;
    int64_t strides[5] = {q * kv, bq * kv, bkv, kv, 1};
    memcpy(view.strides, strides + 1 - lead, (size_t)view.rank * sizeof *strides);
    view.data = whole->data;
    blocks.data = malloc((size_t)count);
    if (blocks.data == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT,
                      "memory for a mask's blocks could not be had");
    ejk_status status = ejk_tensor_copy(&view, &blocks);
    free(status == EJK_OK ? whole->data : blocks.data);
    if (status == EJK_OK) *whole = blocks;
    return status;
}

/* What a slice comes to: its ends, its lengths and the bytes of its elements. */
static ejk_status check_dense(struct request *request, int32_t *rank, int64_t shape[3],
                              int64_t *bytes) {
    *rank = ejk_splash_mask_shape(request->mask, shape);
    *bytes = 1;
    if (request->slices != 0 && request->slices != *rank)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT, "slice has %d axes, expected %d",
                      (int)request->slices, (int)*rank);
    for (int32_t i = 0; i < *rank; i++) {
        if (request->slices == 0 || request->stop[i] == INT64_MAX) request->stop[i] = shape[i];
        if (request->start[i] < 0 || request->stop[i] > shape[i] ||
            request->start[i] > request->stop[i])
            return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                          "slice[%d] is [%lld, %lld], expected a part of [0, %lld]", (int)i,
                          (long long)request->start[i], (long long)request->stop[i],
                          (long long)shape[i]);
        shape[i] = request->stop[i] - request->start[i];
        if (!ejki_mul(*bytes, ejki_max(shape[i], 1), bytes)) *bytes = INT64_MAX;
    }
    if (*bytes > request->args.max_bytes || *bytes == INT64_MAX)
        return REFUSE(OVERFLOW, INVALID_ARGUMENT,
                      "%lld elements are asked for, more than the limit of %lld", (long long)*bytes,
                      (long long)request->args.max_bytes);
    EJKI_TRY(ejki_mask_expect_work(request->mask, *rank == 3 ? shape[1] : shape[0],
                                   shape[*rank - 1], request->args.max_bytes));
    return request->blocks ? check_cut(request, shape[*rank - 2], shape[*rank - 1]) : EJK_OK;
}

static ejk_status run_dense(struct request *request, ejk_tensor *out) {
    int64_t shape[3], bytes;
    int32_t rank;
    EJKI_TRY(check_dense(request, &rank, shape, &bytes));
    void *data = malloc((size_t)bytes);
    if (data == NULL)
        return REFUSE(OUT_OF_MEMORY, INVALID_ARGUMENT, "memory of %lld bytes could not be had",
                      (long long)bytes);
    ejk_tensor whole = ejk_tensor_contiguous(data, EJK_DTYPE_BOOL, rank, shape);
    ejk_status status = ejk_splash_mask_read(request->mask, request->start, request->stop, &whole);
    if (status == EJK_OK && request->blocks) status = cut(request, &whole);
    if (status == EJK_OK)
        *out = whole;
    else
        free(whole.data);
    return status;
}

/* The numbers of a call, by the shapes of its masks alone. */
static ejk_status check_numbers(struct request *request) {
    int64_t shape[3], bytes;
    int32_t rank = request->elements.tensor.rank;
    if (request->kind > DENSE) return EJK_OK;
    if (request->kind == DENSE) return check_dense(request, &rank, shape, &bytes);
    memcpy(shape, request->elements.tensor.shape, sizeof shape);
    if (request->mask != NULL) rank = ejk_splash_mask_shape(request->mask, shape);
    if (rank != 3)
        return REFUSE(INVALID_SHAPE, MASK_NOT_3D, "mask has %d axes, expected 3", (int)rank);
    ejki_mask_call call;
    bool dkv = request->kind == PROCESS_DKV || request->kind == DYNAMIC_DKV;
    return ejki_mask_call_check(shape, &request->args, dkv, &call);
}

/* All masks with their elements; those are computed only where the numbers of the call are right. */
static ejk_status make_masks(struct request *request) {
    request->reader.stage = EJKI_READ_SHAPES;
    EJKI_TRY(read_masks(request));
    if (!request->reader.stood_in) return EJK_OK;
    EJKI_TRY(check_numbers(request));
    close_masks(request);
    request->reader.stage = EJKI_READ_ALL;
    return read_masks(request);
}

static ejk_status run(struct request *request, ejki_writer *writer) {
    if (request->kind == EQUAL) {
        bool equal = ejk_splash_mask_equal(request->mask, request->other);
        ejki_put(writer, equal ? "{\"equal\": true}" : "{\"equal\": false}");
    } else if (request->kind == CHECK) {
        EJKI_TRY(ejki_mask_check(request->mask, ejki_mask_most_work(request->args.max_bytes)));
        ejki_put(writer, "{\"valid\": true}");
    } else if (request->kind == DENSE) {
        ejk_tensor dense = {0};
        EJKI_TRY(run_dense(request, &dense));
        ejki_put(writer, "{\"dense\": ");
        ejki_put_tensor(writer, &dense);
        ejki_put(writer, "}");
        free(dense.data);
    } else {
        ejk_splash_mask_info info = {0};
        EJKI_TRY(run_process(request, &info));
        ejki_put_info(writer, &info);
        ejk_splash_mask_info_close(&info);
    }
    return EJK_OK;
}

static void put_error(ejki_writer *writer) {
    ejki_put(writer, "{\"error\": {\"reason\": \"");
    ejki_put(writer, ejk_splash_reason_name(ejk_splash_last_reason()));
    ejki_put(writer, "\", \"message\": ");
    ejki_put_text(writer, ejk_last_error());
    ejki_put(writer, "}}");
}

ejk_status ejk_splash_answer(const char *request_text, size_t length,
                             const ejk_splash_answer_options *options, ejk_splash_write_fn write,
                             void *user, bool *is_result) {
    if (request_text == NULL || write == NULL || is_result == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_splash_answer: request, write or is_result is NULL");
    json_t *json = NULL;
    struct request request = {0};
    ejki_writer writer = {.write = write, .user = user};
    request.args.max_bytes = INT64_MAX;
    if (options != NULL) {
        request.args.threads = options->threads;
        if (options->max_bytes > 0) request.args.max_bytes = options->max_bytes;
    }
    ejk_status status = ejki_json_parse(request_text, length, &json);
    request.json = json;
    if (status == EJK_OK) status = read_form(&request, &writer.base64);
    close_masks(&request);
    if (status == EJK_OK) status = make_masks(&request);
    if (status == EJK_OK) status = run(&request, &writer);
    if (status != EJK_OK) put_error(&writer);
    close_masks(&request);
    json_decref(json);
    EJKI_TRY(ejki_put_end(&writer));
    *is_result = status == EJK_OK;
    return EJK_OK;
}
