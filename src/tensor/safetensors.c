/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads safetensors: 8 bytes with the header's length, a JSON object, then the elements of all tensors
 * back to back. The whole header is checked at the opening, so that a view never leaves the file; only
 * what this library cannot represent (another element type, too many axes) waits until someone asks for it.
 */
#include <ejkernel/tensor.h>

#include "base/base.h"
#include "tensor/file.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

/* The format's own limit on the header. */
enum { HEADER_MAX = 100000000, LENGTH_SIZE = 8 };

typedef struct entry {
    const char *name;      /* lives in the JSON header */
    const char *type_name; /* a name of the table below */
    ejk_dtype dtype;       /* unset if this library has no such type */
    int32_t rank;          /* -1 if above EJK_MAX_RANK */
    int64_t shape[EJK_MAX_RANK];
    int64_t begin, end; /* bytes, relative to the data */
    int64_t position;   /* in the header */
} entry;

struct ejk_safetensors {
    json_t *header;
    entry *entries;        /* in the order of their data */
    const entry **by_name; /* sorted */
    int64_t count;
    const unsigned char *data;
    ejki_mapping mapping; /* none if the memory is the caller's */
};

static const struct type {
    const char *name;
    int64_t bits;
    ejk_dtype dtype;
} types[] = {
    {"F64", 64, EJK_DTYPE_F64},
    {"F32", 32, EJK_DTYPE_F32},
    {"BF16", 16, EJK_DTYPE_BF16},
    {"F16", 16, EJK_DTYPE_F16},
    {"I64", 64, EJK_DTYPE_I64},
    {"I32", 32, EJK_DTYPE_I32},
    {"I16", 16, EJK_DTYPE_I16},
    {"I8", 8, EJK_DTYPE_I8},
    {"U8", 8, EJK_DTYPE_U8},
    {"BOOL", 8, EJK_DTYPE_BOOL},
    {"U64", 64, EJK_DTYPE_UNSET},
    {"U32", 32, EJK_DTYPE_U32},
    {"U16", 16, EJK_DTYPE_UNSET},
    {"C64", 64, EJK_DTYPE_UNSET},
    {"F8_E4M3", 8, EJK_DTYPE_F8E4M3},
    {"F8_E5M2", 8, EJK_DTYPE_F8E5M2},
    {"F8_E8M0", 8, EJK_DTYPE_F8E8M0},
    {"F8_E4M3FNUZ", 8, EJK_DTYPE_UNSET},
    {"F8_E5M2FNUZ", 8, EJK_DTYPE_UNSET},
    {"F6_E2M3", 6, EJK_DTYPE_UNSET},
    {"F6_E3M2", 6, EJK_DTYPE_UNSET},
    {"F4", 4, EJK_DTYPE_UNSET},
};

static ejk_status malformed(const char *name, const char *what) {
    return ejki_fail(EJK_STATUS_MALFORMED, "tensor '%.200s' of the header: %s", name, what);
}

static const struct type *find_type(const char *name) {
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++) {
        if (strcmp(name, types[i].name) == 0) return &types[i];
    }
    return NULL;
}

/* Fills rank and shape, and counts the elements. */
static ejk_status read_shape(json_t *shape, entry *into, int64_t *count) {
    size_t rank = json_array_size(shape), axis;
    into->rank = rank <= EJK_MAX_RANK ? (int32_t)rank : -1;
    json_t *item;
    bool empty = false;
    *count = 1;
    json_array_foreach(shape, axis, item) {
        json_int_t length = json_integer_value(item);
        if (!json_is_integer(item) || length < 0) {
            return malformed(into->name, "'shape' holds something that is no length");
        }
        empty = empty || length == 0;
        if (!ejki_mul(*count, ejki_max(length, 1), count)) {
            return ejki_fail(EJK_STATUS_OVERFLOW,
                             "tensor '%.200s' of the header has more elements than 63 bits count",
                             into->name);
        }
        if (into->rank >= 0) into->shape[axis] = length;
    }
    if (empty) *count = 0;
    return EJK_OK;
}

static ejk_status read_offsets(json_t *offsets, entry *into) {
    json_t *begin = json_array_get(offsets, 0), *end = json_array_get(offsets, 1);
    if (json_array_size(offsets) != 2 || !json_is_integer(begin) || !json_is_integer(end)) {
        return malformed(into->name, "'data_offsets' is missing or not two whole numbers");
    }
    into->begin = json_integer_value(begin);
    into->end = json_integer_value(end);
    if (into->begin < 0 || into->end < into->begin) {
        return malformed(into->name, "'data_offsets' are negative or descend");
    }
    return EJK_OK;
}

static ejk_status read_entry(const char *name, json_t *value, entry *into) {
    *into = (entry){.name = name};
    const char *type_name = json_string_value(json_object_get(value, "dtype"));
    if (type_name == NULL) return malformed(name, "'dtype' is missing or no string");
    const struct type *type = find_type(type_name);
    if (type == NULL) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "tensor '%.200s' of the header: '%.40s' is no dtype of the format", name,
                         type_name);
    }
    into->type_name = type->name;
    into->dtype = type->dtype;
    json_t *shape = json_object_get(value, "shape");
    if (!json_is_array(shape)) return malformed(name, "'shape' is missing or no array");
    int64_t count = 0, bits;
    EJKI_TRY(read_shape(shape, into, &count));
    EJKI_TRY(read_offsets(json_object_get(value, "data_offsets"), into));
    if (!ejki_mul(count, type->bits, &bits)) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "tensor '%.200s' of the header has more bits than 63 bits count", name);
    }
    if (bits % 8 != 0 || into->end - into->begin != bits / 8) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "tensor '%.200s' of the header: 'data_offsets' hold %" PRId64
                         " bytes, expected %" PRId64 " bits for its shape and dtype",
                         name, into->end - into->begin, bits);
    }
    return EJK_OK;
}

static int compare(int64_t a, int64_t b) {
    return (a > b) - (a < b);
}

/* Empty tensors share their offset with a neighbour: they come first, in the header's order. */
static int compare_places(const void *left, const void *right) {
    const entry *a = left, *b = right;
    int order = compare(a->begin, b->begin);
    if (order == 0) order = compare(a->end, b->end);
    return order != 0 ? order : compare(a->position, b->position);
}

static ejk_status check_places(const ejk_safetensors *file, size_t data_size) {
    int64_t end = 0;
    for (int64_t i = 0; i < file->count; i++) {
        const entry *next = &file->entries[i];
        if (next->begin != end) {
            return ejki_fail(EJK_STATUS_MALFORMED,
                             "tensor '%.200s' of the header begins at byte %" PRId64
                             " of the data, expected %" PRId64 ": no holes, no overlaps",
                             next->name, next->begin, end);
        }
        end = next->end;
    }
    if ((uint64_t)end != data_size) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "the tensors end at byte %" PRId64 " of the data, which has %zu", end,
                         data_size);
    }
    return EJK_OK;
}

static ejk_status read_entries(ejk_safetensors *file, size_t data_size) {
    size_t room = json_object_size(file->header) + 1;
    file->entries = calloc(room, sizeof *file->entries);
    file->by_name = calloc(room, sizeof(const entry *));
    if (file->entries == NULL || file->by_name == NULL) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a list of %zu tensors", room);
    }
    const char *name;
    json_t *value;
    json_object_foreach(file->header, name, value) {
        if (strcmp(name, "__metadata__") == 0) continue;
        entry *next = &file->entries[file->count];
        EJKI_TRY(read_entry(name, value, next));
        next->position = file->count++;
    }
    qsort(file->entries, (size_t)file->count, sizeof *file->entries, compare_places);
    for (int64_t i = 0; i < file->count; i++) file->by_name[i] = &file->entries[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, ejki_compare_entries);
    return check_places(file, data_size);
}

static ejk_status read_header(ejk_safetensors *file, const unsigned char *bytes, size_t size) {
    if (size < LENGTH_SIZE) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "%zu bytes, expected at least the %d of the header's length", size,
                         LENGTH_SIZE);
    }
    uint64_t length = 0;
    for (int i = 0; i < LENGTH_SIZE; i++) length |= (uint64_t)bytes[i] << (8 * i);
    if (length > HEADER_MAX || length > size - LENGTH_SIZE) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "a header of %" PRIu64
                         " bytes, expected at most %d and the %zu that follow",
                         length, HEADER_MAX, size - LENGTH_SIZE);
    }
    const char *text = (const char *)bytes + LENGTH_SIZE;
    if (length == 0 || text[0] != '{') {
        return ejki_fail(EJK_STATUS_MALFORMED, "the header does not begin with '{'");
    }
    json_error_t error;
    file->header = json_loadb(text, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (file->header == NULL) {
        bool memory = json_error_code(&error) == json_error_out_of_memory;
        return ejki_fail(memory ? EJK_STATUS_OUT_OF_MEMORY : EJK_STATUS_MALFORMED,
                         "the header is no JSON object with distinct keys: %s (byte %d)",
                         error.text, error.position);
    }
    file->data = bytes + LENGTH_SIZE + length;
    return read_entries(file, size - LENGTH_SIZE - (size_t)length);
}

ejk_status ejk_safetensors_parse(const void *bytes, size_t size, ejk_safetensors **out) {
    if (bytes == NULL || out == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         bytes == NULL ? "bytes" : "out");
    }
    ejk_safetensors *file = calloc(1, sizeof *file);
    if (file == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a file's header");
    ejk_status status = read_header(file, bytes, size);
    if (status != EJK_OK) {
        ejk_safetensors_close(file);
        return status;
    }
    *out = file;
    return EJK_OK;
}

static ejk_status parse(const void *bytes, size_t size, void *out) {
    return ejk_safetensors_parse(bytes, size, out);
}

ejk_status ejk_safetensors_open(const char *path, ejk_safetensors **out) {
    ejki_mapping mapping;
    EJKI_TRY(ejki_file_parse(path, parse, out, &mapping));
    (*out)->mapping = mapping;
    return EJK_OK;
}

void ejk_safetensors_close(ejk_safetensors *file) {
    if (file == NULL) return;
    ejki_mapping_close(&file->mapping);
    json_decref(file->header);
    free(file->entries);
    free(file->by_name);
    free(file);
}

int64_t ejk_safetensors_count(const ejk_safetensors *file) {
    return file == NULL ? 0 : file->count;
}

const char *ejk_safetensors_name(const ejk_safetensors *file, int64_t index) {
    if (index < 0 || index >= ejk_safetensors_count(file)) return NULL;
    return file->entries[index].name;
}

static const char *name_at(const void *file, int64_t index) {
    return ejk_safetensors_name(file, index);
}

ejk_status ejk_safetensors_tensor(const ejk_safetensors *file, const char *name, ejk_tensor *out) {
    if (file == NULL || name == NULL || out == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         file == NULL   ? "file"
                         : name == NULL ? "name"
                                        : "out");
    }
    const entry *tensor = ejki_find_entry(name, file->by_name, file->count, file, name_at);
    if (tensor == NULL) return EJK_STATUS_UNKNOWN_NAME;
    if (tensor->dtype == EJK_DTYPE_UNSET) {
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "tensor '%.200s' holds %s, a type this library has not", name,
                         tensor->type_name);
    }
    if (tensor->rank < 0) {
        return ejki_fail(EJK_STATUS_INVALID_SHAPE, "tensor '%.200s' has more than %d axes", name,
                         EJK_MAX_RANK);
    }
    /* The view is documented as read-only; its type has no const to say so. */
    void *data = (void *)(uintptr_t)(file->data + tensor->begin);
    *out = ejk_tensor_contiguous(data, tensor->dtype, tensor->rank, tensor->shape);
    return EJK_OK;
}
