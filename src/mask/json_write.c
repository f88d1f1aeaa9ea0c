/* SPDX-License-Identifier: Apache-2.0 */
/* Masks and MaskInfo to JSON, handed over piece by piece: no text is ever held as a whole. */
#include "mask/json.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

static void hand_over(ejki_writer *writer) {
    if (!writer->failed && writer->used > 0)
        writer->failed = !writer->write(writer->user, writer->buffer, writer->used);
    writer->used = 0;
}

static void put_bytes(ejki_writer *writer, const char *bytes, size_t count) {
    if (writer->used + count > sizeof writer->buffer) hand_over(writer);
    if (count > sizeof writer->buffer) {
        writer->failed = writer->failed || !writer->write(writer->user, bytes, count);
        return;
    }
    memcpy(writer->buffer + writer->used, bytes, count);
    writer->used += count;
}

void ejki_put(ejki_writer *writer, const char *text) {
    put_bytes(writer, text, strlen(text));
}

void ejki_put_integer(ejki_writer *writer, int64_t value) {
    char digits[24], *at = digits + sizeof digits;
    uint64_t rest = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    do *--at = (char)('0' + rest % 10);
    while ((rest /= 10) > 0);
    if (value < 0) *--at = '-';
    put_bytes(writer, at, (size_t)(digits + sizeof digits - at));
}

/* Names in a sentence may be cut within a character: what is not ASCII is written as "?". */
void ejki_put_text(ejki_writer *writer, const char *text) {
    char plain[1024], quoted[8 * sizeof plain];
    size_t length = 0;
    for (; text[length] != '\0' && length < sizeof plain; length++)
        plain[length] = (signed char)text[length] < 0 ? '?' : text[length];
    json_t *json = json_stringn(plain, length);
    size_t size = json_dumpb(json, quoted, sizeof quoted, JSON_ENCODE_ANY);
    if (size > 0 && size <= sizeof quoted)
        put_bytes(writer, quoted, size);
    else
        ejki_put(writer, "\"the request failed for want of memory\"");
    json_decref(json);
}

ejk_status ejki_put_end(ejki_writer *writer) {
    hand_over(writer);
    if (!writer->failed) return EJK_OK;
    return REFUSE(IO, INVALID_ARGUMENT, "the function that takes the JSON refused a part of it");
}

/* ---- Arrays ---------------------------------------------------------------------------------------- */

static int64_t element_at(const ejk_tensor *tensor, int64_t index) {
    if (tensor->dtype == EJK_DTYPE_I16) return ((const int16_t *)tensor->data)[index];
    if (tensor->dtype == EJK_DTYPE_I32) return ((const int32_t *)tensor->data)[index];
    if (tensor->dtype == EJK_DTYPE_I8) return ((const int8_t *)tensor->data)[index];
    return ((const uint8_t *)tensor->data)[index] != 0;
}

/* Most numbers are of one digit. */
static void put_row(ejki_writer *writer, const ejk_tensor *tensor, int64_t first, int64_t count) {
    for (int64_t i = 0; i < count && !writer->failed; i++) {
        const int64_t value = element_at(tensor, first + i);
        if (i > 0) put_bytes(writer, ", ", 2);
        if (value < 0 || value > 9) {
            ejki_put_integer(writer, value);
            continue;
        }
        if (writer->used == sizeof writer->buffer) hand_over(writer);
        writer->buffer[writer->used++] = (char)('0' + value);
    }
}

static void put_list(ejki_writer *writer, const ejk_tensor *tensor, int32_t axis, int64_t *index) {
    ejki_put(writer, "[");
    if (axis == tensor->rank - 1) {
        put_row(writer, tensor, *index, tensor->shape[axis]);
        *index += tensor->shape[axis];
        ejki_put(writer, "]");
        return;
    }
    for (int64_t i = 0; i < tensor->shape[axis] && !writer->failed; i++) {
        if (i > 0) ejki_put(writer, ", ");
        put_list(writer, tensor, axis + 1, index);
    }
    ejki_put(writer, "]");
}

static void put_base64(ejki_writer *writer, const ejk_tensor *tensor) {
    enum { PIECE = 3 * 1024 };
    unsigned char text[PIECE / 3 * 4 + 1];
    const unsigned char *bytes = tensor->data;
    int64_t left = ejk_tensor_count(tensor) * (int64_t)ejk_dtype_size(tensor->dtype);
    ejki_put(writer, "\"");
    for (; left > 0 && !writer->failed; left -= PIECE, bytes += PIECE) {
        int length = EVP_EncodeBlock(text, bytes, (int)ejki_min(left, PIECE));
        put_bytes(writer, (const char *)text, (size_t)length);
    }
    ejki_put(writer, "\"");
}

void ejki_put_tensor(ejki_writer *writer, const ejk_tensor *tensor) {
    if (!ejk_tensor_present(tensor)) {
        ejki_put(writer, "null");
        return;
    }
    int64_t index = 0;
    ejki_put(writer, "{\"dtype\": \"");
    ejki_put(writer, ejk_dtype_name(tensor->dtype));
    ejki_put(writer, "\", \"shape\": [");
    for (int32_t i = 0; i < tensor->rank; i++) {
        if (i > 0) ejki_put(writer, ", ");
        ejki_put_integer(writer, tensor->shape[i]);
    }
    ejki_put(writer, "], \"data\": ");
    if (writer->base64)
        put_base64(writer, tensor);
    else
        put_list(writer, tensor, 0, &index);
    ejki_put(writer, "}");
}

/* ---- Masks ----------------------------------------------------------------------------------------- */

static void put_member(ejki_writer *writer, const char *name, int64_t value) {
    ejki_put(writer, name);
    ejki_put_integer(writer, value);
}

static void put_side(ejki_writer *writer, ejk_opt_int side) {
    if (side.set)
        ejki_put_integer(writer, side.value);
    else
        ejki_put(writer, "null");
}

void ejki_put_numbers(ejki_writer *writer, const ejk_splash_mask *mask) {
    if (mask->kind == EJK_SPLASH_MASK_CHUNKED_CAUSAL) {
        put_member(writer, ", \"chunk_size\": ", mask->chunk_size);
        return;
    }
    if (mask->kind == EJK_SPLASH_MASK_LOCAL) {
        ejki_put(writer, ", \"window_size\": [");
        put_side(writer, mask->window.left);
        ejki_put(writer, ", ");
        put_side(writer, mask->window.right);
        ejki_put(writer, "]");
    }
    put_member(writer, ", \"offset\": ", mask->offset);
}

/* What JSON has no word for. */
static ejk_status check_words(const ejk_splash_mask *mask) {
    if (mask->kind == EJK_SPLASH_MASK_FUNCTION || mask->kind == EJK_SPLASH_MASK_LOGICAL_NOT)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "mask holds a %s mask, which cannot be written as JSON",
                      ejk_splash_mask_kind_name(mask->kind));
    for (int64_t i = 0; i < mask->part_count; i++) EJKI_TRY(check_words(mask->parts[i]));
    return EJK_OK;
}

static void put_elements(ejki_writer *writer, const ejk_splash_mask *mask) {
    ejki_put(writer, ", \"array\": [");
    for (int64_t i = 0; i < mask->q && !writer->failed; i++) {
        const uint8_t *row = mask->elements + i * mask->row_stride;
        ejki_put(writer, i > 0 ? ", [" : "[");
        for (int64_t j = 0; j < mask->kv; j++) {
            if (j > 0) ejki_put(writer, ", ");
            ejki_put(writer, row[j] != 0 ? "1" : "0");
        }
        ejki_put(writer, "]");
    }
    ejki_put(writer, "]");
}

static void put_mask(ejki_writer *writer, const ejk_splash_mask *mask);

static void put_parts(ejki_writer *writer, const ejk_splash_mask *mask) {
    bool heads = mask->kind == EJK_SPLASH_MASK_MULTI_HEAD;
    if (heads) ejki_put(writer, ", \"masks\": [");
    for (int64_t i = 0; i < mask->part_count && !writer->failed; i++) {
        if (!heads)
            ejki_put(writer, i == 0 ? ", \"left\": " : ", \"right\": ");
        else if (i > 0)
            ejki_put(writer, ", ");
        put_mask(writer, mask->parts[i]);
    }
    if (heads) ejki_put(writer, "]");
}

static void put_mask(ejki_writer *writer, const ejk_splash_mask *mask) {
    ejki_put(writer, "{\"type\": \"");
    ejki_put(writer, ejk_splash_mask_kind_name(mask->kind));
    ejki_put(writer, "\"");
    if (mask->part_count > 0) {
        put_parts(writer, mask);
    } else if (mask->elements != NULL) {
        put_elements(writer, mask);
    } else {
        put_member(writer, ", \"shape\": [", mask->q);
        put_member(writer, ", ", mask->kv);
        ejki_put(writer, "]");
        if (ejki_mask_is_interval(mask)) ejki_put_numbers(writer, mask);
        if (mask->q_sequence != NULL) {
            ejk_tensor order = ejk_tensor_1d(mask->q_sequence, EJK_DTYPE_I32, mask->q);
            ejki_put(writer, ", \"q_sequence\": ");
            ejki_put_tensor(writer, &order);
        }
    }
    ejki_put(writer, "}");
}

ejk_status ejk_splash_mask_to_json(const ejk_splash_mask *mask, ejk_splash_write_fn write,
                                   void *user) {
    if (mask == NULL || write == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_splash_mask_to_json: mask or write is NULL");
    EJKI_TRY(check_words(mask));
    ejki_writer writer = {.write = write, .user = user};
    put_mask(&writer, mask);
    return ejki_put_end(&writer);
}

/* ---- MaskInfo -------------------------------------------------------------------------------------- */

void ejki_put_info(ejki_writer *writer, const ejk_splash_mask_info *info) {
    ejki_put(writer, "{\"data_next\": ");
    ejki_put_tensor(writer, &info->data_next);
    ejki_put(writer, ", \"mask_next\": ");
    ejki_put_tensor(writer, &info->mask_next);
    ejki_put(writer, ", \"block_mask\": ");
    ejki_put_tensor(writer, &info->block_mask);
    ejki_put(writer, ", \"partial_mask_blocks\": ");
    ejki_put_tensor(writer, &info->partial_mask_blocks);
    ejki_put(writer, ", \"q_sequence\": ");
    ejki_put_tensor(writer, &info->q_sequence);
    ejki_put(writer, ", \"is_dynamic_mask\": ");
    ejki_put(writer, info->is_dynamic_mask ? "true" : "false");
    ejki_put(writer, ", \"mask_function\": ");
    if (info->mask_function != NULL) {
        ejki_put(writer, "{\"type\": \"");
        ejki_put(writer, ejk_splash_mask_kind_name(info->mask_function->kind));
        ejki_put(writer, "\"");
        ejki_put_numbers(writer, info->mask_function);
        ejki_put(writer, "}");
    } else {
        ejki_put(writer, "null");
    }
    ejki_put(writer, "}");
}

ejk_status ejk_splash_mask_info_to_json(const ejk_splash_mask_info *info, bool base64,
                                        ejk_splash_write_fn write, void *user) {
    if (info == NULL || write == NULL)
        return REFUSE(INVALID_ARGUMENT, INVALID_ARGUMENT,
                      "ejk_splash_mask_info_to_json: info or write is NULL");
    if (info->mask_function != NULL) EJKI_TRY(check_words(info->mask_function));
    ejki_writer writer = {.write = write, .user = user, .base64 = base64};
    ejki_put_info(&writer, info);
    return ejki_put_end(&writer);
}
