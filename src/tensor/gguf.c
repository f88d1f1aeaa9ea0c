/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads GGUF, versions 2 and 3, little-endian: "GGUF", version, numbers of tensors and of metadata entries; these
 * entries; for each tensor its name, lengths (innermost first), type and offset; and from a multiple of the
 * alignment on the tensors. All of it is checked at the opening, so that a view never leaves the file. Of the
 * metadata only the alignment is read.
 */
#include <ejkernel/gguf.h>

#include "base/base.h"
#include "tensor/file.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum {
    TENSOR_MIN = 8 + 4 + 4 + 8, /* bytes of a tensor's entry without name and lengths */
    ENTRY_MIN = 8 + 4 + 1,      /* bytes of a metadata entry without its key */
    NAME_MAX_LENGTH = 65535,
    NESTING_MAX = 4, /* of arrays in metadata */
    RANK_MAX = 4,    /* the format's own */
    DEFAULT_ALIGNMENT = 32,
};

/* Types of tensors by the format's numbers: elements of a block, and its bytes. Plain types have one element. */
static const struct type {
    uint32_t number;
    ejk_dtype dtype; /* of a view */
    int64_t block, bytes;
    const char *name;
} types[] = {
    {0, EJK_DTYPE_F32, 1, 4, "f32"},      {1, EJK_DTYPE_F16, 1, 2, "f16"},
    {2, EJK_DTYPE_U8, 32, 18, "q4_0"},    {3, EJK_DTYPE_U8, 32, 20, "q4_1"},
    {6, EJK_DTYPE_U8, 32, 22, "q5_0"},    {7, EJK_DTYPE_U8, 32, 24, "q5_1"},
    {8, EJK_DTYPE_U8, 32, 34, "q8_0"},    {9, EJK_DTYPE_U8, 32, 36, "q8_1"},
    {10, EJK_DTYPE_U8, 256, 84, "q2_k"},  {11, EJK_DTYPE_U8, 256, 110, "q3_k"},
    {12, EJK_DTYPE_U8, 256, 144, "q4_k"}, {13, EJK_DTYPE_U8, 256, 176, "q5_k"},
    {14, EJK_DTYPE_U8, 256, 210, "q6_k"}, {15, EJK_DTYPE_U8, 256, 292, "q8_k"},
    {20, EJK_DTYPE_U8, 32, 18, "iq4_nl"}, {23, EJK_DTYPE_U8, 256, 136, "iq4_xs"},
    {24, EJK_DTYPE_I8, 1, 1, "i8"},       {25, EJK_DTYPE_I16, 1, 2, "i16"},
    {26, EJK_DTYPE_I32, 1, 4, "i32"},     {27, EJK_DTYPE_I64, 1, 8, "i64"},
    {28, EJK_DTYPE_F64, 1, 8, "f64"},     {30, EJK_DTYPE_BF16, 1, 2, "bf16"},
    {39, EJK_DTYPE_U8, 32, 17, "mxfp4"},
};

typedef struct entry {
    const char *name;        /* in the file's names */
    const struct type *type; /* NULL if the table has not its number */
    uint32_t number;
    int32_t rank;
    int64_t shape[RANK_MAX]; /* of the elements, outermost first */
    uint64_t offset;         /* in the data */
} entry;

struct ejk_gguf {
    entry *entries;        /* in the file's order */
    const entry **by_name; /* sorted */
    char *names;
    int64_t count;
    const unsigned char *data;
    ejki_mapping mapping; /* none if the memory is the caller's */
};

/* What is left to read. */
typedef struct reader {
    const unsigned char *at, *end;
} reader;

static ejk_status truncated(const char *what) {
    return ejki_fail(EJK_STATUS_MALFORMED, "the file ends within %s", what);
}

static ejk_status skip(reader *from, uint64_t bytes, const char *what) {
    if (bytes > (uint64_t)(from->end - from->at)) return truncated(what);
    from->at += bytes;
    return EJK_OK;
}

static ejk_status number(reader *from, int bytes, const char *what, uint64_t *out) {
    const unsigned char *at = from->at;
    EJKI_TRY(skip(from, (uint64_t)bytes, what));
    *out = 0;
    for (int i = 0; i < bytes; i++) *out |= (uint64_t)at[i] << (8 * i);
    return EJK_OK;
}

static ejk_status text(reader *from, const char *what, const char **out, uint64_t *length) {
    EJKI_TRY(number(from, 8, what, length));
    *out = (const char *)from->at;
    return skip(from, *length, what);
}

/* ---- Metadata ---------------------------------------------------------------------------------------- */

enum value_type { VALUE_U32 = 4, VALUE_STRING = 8, VALUE_ARRAY = 9, VALUE_TYPES = 13 };

static ejk_status skip_value(reader *from, uint64_t type, int depth) {
    static const unsigned char sizes[VALUE_TYPES] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
    const char *ignored;
    uint64_t count, inner, bytes;
    if (type >= VALUE_TYPES)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "a metadata value is of type %" PRIu64 ", expected 0 to %d", type,
                         VALUE_TYPES - 1);
    if (type == VALUE_STRING) return text(from, "a text of the metadata", &ignored, &count);
    if (type != VALUE_ARRAY) return skip(from, sizes[type], "a number of the metadata");
    if (depth == NESTING_MAX)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "arrays of the metadata are nested more than %d deep", NESTING_MAX);
    EJKI_TRY(number(from, 4, "an array of the metadata", &inner));
    EJKI_TRY(number(from, 8, "an array of the metadata", &count));
    if (inner < VALUE_TYPES && sizes[inner] > 0) {
        if (__builtin_mul_overflow(count, (uint64_t)sizes[inner], &bytes))
            return truncated("an array of the metadata");
        return skip(from, bytes, "an array of the metadata");
    }
    for (uint64_t i = 0; i < count; i++) EJKI_TRY(skip_value(from, inner, depth + 1));
    return EJK_OK;
}

static ejk_status read_alignment(reader *from, uint64_t type, uint64_t *alignment) {
    if (type != VALUE_U32) return ejki_fail(EJK_STATUS_MALFORMED, "general.alignment is no uint32");
    EJKI_TRY(number(from, 4, "general.alignment", alignment));
    if (*alignment == 0 || (*alignment & (*alignment - 1)) != 0)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "general.alignment is %" PRIu64 ", expected a power of two", *alignment);
    return EJK_OK;
}

static ejk_status read_metadata(reader *from, uint64_t entries, uint64_t *alignment) {
    static const char key_of_alignment[] = "general.alignment";
    *alignment = DEFAULT_ALIGNMENT;
    if (entries > (uint64_t)(from->end - from->at) / ENTRY_MIN) return truncated("its metadata");
    for (uint64_t i = 0; i < entries; i++) {
        const char *key;
        uint64_t length, type;
        EJKI_TRY(text(from, "a key of the metadata", &key, &length));
        EJKI_TRY(number(from, 4, "a type of the metadata", &type));
        if (length == sizeof key_of_alignment - 1 && memcmp(key, key_of_alignment, length) == 0)
            EJKI_TRY(read_alignment(from, type, alignment));
        else
            EJKI_TRY(skip_value(from, type, 0));
    }
    return EJK_OK;
}

/* ---- Tensors ----------------------------------------------------------------------------------------- */

static ejk_status read_shape(reader *from, entry *into) {
    uint64_t rank, length;
    EJKI_TRY(number(from, 4, "a tensor's rank", &rank));
    if (rank > RANK_MAX)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "tensor '%.200s' has %" PRIu64 " axes, expected at most %d", into->name,
                         rank, RANK_MAX);
    into->rank = (int32_t)rank;
    for (int32_t i = into->rank - 1; i >= 0; i--) {
        EJKI_TRY(number(from, 8, "a tensor's lengths", &length));
        if (length > INT64_MAX)
            return ejki_fail(EJK_STATUS_OVERFLOW, "tensor '%.200s' has a length of %" PRIu64,
                             into->name, length);
        into->shape[i] = (int64_t)length;
    }
    return EJK_OK;
}

/* Names are copied, to end in a zero. */
static ejk_status read_entry(reader *from, char **names, entry *into) {
    const char *name;
    uint64_t length, type;
    EJKI_TRY(text(from, "a tensor's name", &name, &length));
    if (length > NAME_MAX_LENGTH || memchr(name, 0, length) != NULL)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "a tensor's name has %" PRIu64
                         " bytes or a zero among them, expected %d at most",
                         length, NAME_MAX_LENGTH);
    into->name = memcpy(*names, name, length);
    *names += length + 1;
    EJKI_TRY(read_shape(from, into));
    EJKI_TRY(number(from, 4, "a tensor's type", &type));
    into->number = (uint32_t)type;
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        if (types[i].number == type) into->type = &types[i];
    return number(from, 8, "a tensor's offset", &into->offset);
}

/* Bytes of a row of blocks, and with the other axes of all. */
static ejk_status bytes_of(const entry *tensor, int64_t *row, int64_t *all) {
    const struct type *type = tensor->type;
    const int64_t columns = tensor->rank ? tensor->shape[tensor->rank - 1] : 1;
    if (columns % type->block != 0)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "tensor '%.200s' has rows of %" PRId64
                         " elements, expected whole blocks of %" PRId64,
                         tensor->name, columns, type->block);
    bool fits = ejki_mul(columns / type->block, type->bytes, row), empty = columns == 0;
    *all = *row;
    for (int32_t i = 0; i + 1 < tensor->rank; i++) {
        empty = empty || tensor->shape[i] == 0;
        fits = fits && ejki_mul(*all, ejki_max(1, tensor->shape[i]), all);
    }
    if (empty) *all = 0;
    if (!fits)
        return ejki_fail(EJK_STATUS_OVERFLOW, "tensor '%.200s' has more bytes than 63 bits count",
                         tensor->name);
    return EJK_OK;
}

static ejk_status check_place(const entry *tensor, uint64_t alignment, uint64_t data_size) {
    int64_t row, all;
    if (tensor->offset % alignment != 0)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "tensor '%.200s' begins at byte %" PRIu64
                         " of the data, expected a multiple of %" PRIu64,
                         tensor->name, tensor->offset, alignment);
    if (tensor->type == NULL) return EJK_OK;
    EJKI_TRY(bytes_of(tensor, &row, &all));
    if (tensor->offset > data_size || (uint64_t)all > data_size - tensor->offset)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "tensor '%.200s' has %" PRId64 " bytes from byte %" PRIu64
                         " on, the data %" PRIu64,
                         tensor->name, all, tensor->offset, data_size);
    return EJK_OK;
}

static ejk_status index_names(ejk_gguf *file) {
    for (int64_t i = 0; i < file->count; i++) file->by_name[i] = &file->entries[i];
    qsort(file->by_name, (size_t)file->count, sizeof *file->by_name, ejki_compare_entries);
    for (int64_t i = 1; i < file->count; i++)
        if (strcmp(file->by_name[i - 1]->name, file->by_name[i]->name) == 0)
            return ejki_fail(EJK_STATUS_MALFORMED, "two tensors have the name '%.200s'",
                             file->by_name[i]->name);
    return EJK_OK;
}

/* Bytes of all names, each with its zero. */
static ejk_status measure_names(reader from, uint64_t count, uint64_t *total) {
    *total = 0;
    for (uint64_t i = 0; i < count; i++) {
        const char *name;
        uint64_t length, rank;
        EJKI_TRY(text(&from, "a tensor's name", &name, &length));
        EJKI_TRY(number(&from, 4, "a tensor's rank", &rank));
        EJKI_TRY(skip(&from, rank * 8 + 4 + 8, "a tensor's entry"));
        *total += length + 1;
    }
    return EJK_OK;
}

static ejk_status read_tensors(ejk_gguf *file, reader *from, uint64_t count) {
    uint64_t names_size;
    if (count > (uint64_t)(from->end - from->at) / TENSOR_MIN)
        return truncated("its list of tensors");
    EJKI_TRY(measure_names(*from, count, &names_size));
    file->entries = calloc((size_t)count + 1, sizeof *file->entries);
    file->by_name = calloc((size_t)count + 1, sizeof *file->by_name);
    file->names = calloc((size_t)names_size + 1, 1);
    if (file->entries == NULL || file->by_name == NULL || file->names == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a list of %" PRIu64 " tensors",
                         count);
    char *names = file->names;
    for (file->count = 0; file->count < (int64_t)count; file->count++)
        EJKI_TRY(read_entry(from, &names, &file->entries[file->count]));
    return index_names(file);
}

static ejk_status read_all(ejk_gguf *file, const unsigned char *bytes, size_t size) {
    reader from = {bytes, bytes + size};
    uint64_t version, count, entries, alignment;
    if (size < 4 || memcmp(bytes, "GGUF", 4) != 0)
        return ejki_fail(EJK_STATUS_MALFORMED, "the file does not begin with 'GGUF'");
    from.at += 4;
    EJKI_TRY(number(&from, 4, "its head", &version));
    if (version != 2 && version != 3)
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "version %" PRIu64 ", expected 2 or 3, little-endian", version);
    EJKI_TRY(number(&from, 8, "its head", &count));
    EJKI_TRY(number(&from, 8, "its head", &entries));
    EJKI_TRY(read_metadata(&from, entries, &alignment));
    EJKI_TRY(read_tensors(file, &from, count));
    const uint64_t used = (uint64_t)(from.at - bytes),
                   gap = (alignment - used % alignment) % alignment;
    const uint64_t start = gap > size - used ? size : used + gap;
    file->data = bytes + start;
    for (int64_t i = 0; i < file->count; i++)
        EJKI_TRY(check_place(&file->entries[i], alignment, size - start));
    return EJK_OK;
}

ejk_status ejk_gguf_parse(const void *bytes, size_t size, ejk_gguf **out) {
    if (bytes == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         bytes == NULL ? "bytes" : "out");
    ejk_gguf *file = calloc(1, sizeof *file);
    if (file == NULL) return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a file's list");
    ejk_status status = read_all(file, bytes, size);
    if (status != EJK_OK) {
        ejk_gguf_close(file);
        return status;
    }
    *out = file;
    return EJK_OK;
}

static ejk_status parse(const void *bytes, size_t size, void *out) {
    return ejk_gguf_parse(bytes, size, out);
}

ejk_status ejk_gguf_open(const char *path, ejk_gguf **out) {
    ejki_mapping mapping;
    EJKI_TRY(ejki_file_parse(path, parse, out, &mapping));
    (*out)->mapping = mapping;
    return EJK_OK;
}

void ejk_gguf_close(ejk_gguf *file) {
    if (file == NULL) return;
    ejki_mapping_close(&file->mapping);
    free(file->entries);
    free(file->by_name);
    free(file->names);
    free(file);
}

int64_t ejk_gguf_count(const ejk_gguf *file) {
    return file == NULL ? 0 : file->count;
}

const char *ejk_gguf_name(const ejk_gguf *file, int64_t index) {
    if (index < 0 || index >= ejk_gguf_count(file)) return NULL;
    return file->entries[index].name;
}

static const char *name_at(const void *file, int64_t index) {
    return ejk_gguf_name(file, index);
}

static ejk_status find(const ejk_gguf *file, const char *name, const entry **out) {
    *out = ejki_find_entry(name, file->by_name, file->count, file, name_at);
    if (*out == NULL) return EJK_STATUS_UNKNOWN_NAME;
    if ((*out)->type == NULL)
        return ejki_fail(EJK_STATUS_INVALID_DTYPE,
                         "tensor '%.200s' is of type %" PRIu32 ", which this library has not", name,
                         (*out)->number);
    return EJK_OK;
}

ejk_status ejk_gguf_type(const ejk_gguf *file, const char *name, const char **out) {
    const entry *tensor;
    if (file == NULL || name == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         file == NULL   ? "file"
                         : name == NULL ? "name"
                                        : "out");
    EJKI_TRY(find(file, name, &tensor));
    *out = tensor->type->name;
    return EJK_OK;
}

ejk_status ejk_gguf_tensor(const ejk_gguf *file, const char *name, ejk_tensor *out) {
    const entry *tensor;
    int64_t row = 0, all = 0, shape[RANK_MAX];
    if (file == NULL || name == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         file == NULL   ? "file"
                         : name == NULL ? "name"
                                        : "out");
    EJKI_TRY(find(file, name, &tensor));
    EJKI_TRY(bytes_of(tensor, &row, &all));
    memcpy(shape, tensor->shape, sizeof shape);
    if (tensor->type->block > 1 && tensor->rank > 0) shape[tensor->rank - 1] = row;
    /* The view is documented as read-only; its type has no const to say so. */
    void *data = all > 0 ? (void *)(uintptr_t)(file->data + tensor->offset) : NULL;
    *out = ejk_tensor_contiguous(data, tensor->type->dtype, tensor->rank, shape);
    return EJK_OK;
}
