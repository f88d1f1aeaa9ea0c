/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads .npy files. Files are read, not mapped: the elements come out aligned and may be written to, and a
 * file that shrinks meanwhile is an error, not a signal. Nothing is allocated by what a header claims before
 * the bytes behind it are known to exist.
 */
#include "tensor/npy.h"

#include "base/base.h"
#include "tensor/file.h"
#include "tensor/view.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "files hold little-endian elements");

/* Where an array comes from: memory, or a descriptor if `bytes` is NULL. */
typedef struct source {
    const char *name;
    const unsigned char *bytes;
    int descriptor;
    size_t size;
} source;

/* Copies [offset, offset + count), which lies within the source's size. */
static ejk_status fetch(const source *from, size_t offset, void *into, size_t count) {
    if (from->bytes != NULL) {
        if (count > 0) memcpy(into, from->bytes + offset, count);
        return EJK_OK;
    }
    for (size_t done = 0; done < count;) {
        ssize_t got =
            pread(from->descriptor, (char *)into + done, count - done, (off_t)(offset + done));
        if (got > 0) {
            done += (size_t)got;
        } else if (got == 0 || errno != EINTR) {
            return ejki_fail(EJK_STATUS_IO, "%s: reading at byte %zu: %s", from->name,
                             offset + done, got == 0 ? "the file ends" : strerror(errno));
        }
    }
    return EJK_OK;
}

/* Finds the header's bytes: [*start, *start + *length). */
static ejk_status find_header(const source *from, size_t *start, size_t *length) {
    unsigned char head[EJKI_NPY_PREAMBLE_MAX] = {0};
    EJKI_TRY(fetch(from, 0, head, from->size < sizeof head ? from->size : sizeof head));
    if (memcmp(head, EJKI_NPY_MAGIC, EJKI_NPY_MAGIC_SIZE) != 0) {
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: does not begin with the bytes of a .npy file",
                         from->name);
    }
    int major = head[6], minor = head[7];
    if (major < 1 || major > 3 || minor != 0) {
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: format version %d.%d, expected 1.0, 2.0 or 3.0",
                         from->name, major, minor);
    }
    *start = major == 1 ? 10 : 12;
    *length = (size_t)head[8] | (size_t)head[9] << 8;
    if (major > 1) *length |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    if (from->size < *start || *length > from->size - *start) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "%s: ends within its header (%zu bytes in all, the header has %zu)",
                         from->name, from->size, *length);
    }
    /* What version 1 can say is far more than the types read here need. */
    if (*length > UINT16_MAX) {
        return ejki_fail(EJK_STATUS_MALFORMED, "%s: a header of %zu bytes, expected at most %d",
                         from->name, *length, UINT16_MAX);
    }
    return EJK_OK;
}

static ejk_status read_header(const source *from, ejki_npy_header *out, size_t *data_start) {
    size_t start = 0, length = 0;
    EJKI_TRY(find_header(from, &start, &length));
    char *text = malloc(length + 1);
    if (text == NULL) {
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "no memory for a header of %zu bytes", length);
    }
    ejk_status status = fetch(from, start, text, length);
    if (status == EJK_OK) status = ejki_npy_parse_header(from->name, text, length, out);
    free(text);
    *data_start = start + length;
    return status;
}

static void swap_bytes(void *data, size_t size, int64_t count) {
    if (size == 2) {
        uint16_t *values = data;
        for (int64_t i = 0; i < count; i++) values[i] = __builtin_bswap16(values[i]);
    } else if (size == 4) {
        uint32_t *values = data;
        for (int64_t i = 0; i < count; i++) values[i] = __builtin_bswap32(values[i]);
    } else if (size == 8) {
        uint64_t *values = data;
        for (int64_t i = 0; i < count; i++) values[i] = __builtin_bswap64(values[i]);
    }
}

/* Fortran order is the same memory with the axes the other way round. */
static void reverse_axes(ejk_tensor *tensor) {
    for (int32_t a = 0, b = tensor->rank - 1; a < b; a++, b--) {
        *tensor = ejk_tensor_transpose(*tensor, a, b);
    }
}

static ejk_status load(const source *from, ejk_owned_tensor *out) {
    ejki_npy_header header = {0};
    size_t start = 0;
    EJKI_TRY(read_header(from, &header, &start));

    ejk_tensor stored = ejk_tensor_contiguous(NULL, header.dtype, header.rank, header.shape);
    if (header.fortran_order) {
        int64_t shape[EJK_MAX_RANK];
        for (int32_t i = 0; i < header.rank; i++) shape[i] = header.shape[header.rank - 1 - i];
        stored = ejk_tensor_contiguous(NULL, header.dtype, header.rank, shape);
    }
    int64_t low, bytes;
    EJKI_TRY(ejki_tensor_extent(&stored, from->name, &low, &bytes));
    if ((uint64_t)bytes != from->size - start) {
        return ejki_fail(EJK_STATUS_MALFORMED,
                         "%s: %zu bytes after the header, expected %" PRId64
                         " for its shape and type",
                         from->name, from->size - start, bytes);
    }

    ejk_owned_tensor owned = {0};
    EJKI_TRY(ejk_owned_tensor_create(stored.dtype, stored.rank, stored.shape, &owned));
    ejk_status status = fetch(from, start, owned.tensor.data, (size_t)bytes);
    if (status != EJK_OK) {
        ejk_owned_tensor_close(&owned);
        return status;
    }
    if (header.big_endian) {
        swap_bytes(owned.tensor.data, ejk_dtype_size(header.dtype),
                   ejk_tensor_count(&owned.tensor));
    }
    if (header.fortran_order) reverse_axes(&owned.tensor);
    *out = owned;
    return EJK_OK;
}

ejk_status ejk_npy_parse(const void *bytes, size_t size, ejk_owned_tensor *out) {
    if (bytes == NULL || out == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL",
                         bytes == NULL ? "bytes" : "out");
    }
    return load(&(source){.name = "bytes", .bytes = bytes, .size = size}, out);
}

ejk_status ejk_npy_read(const char *path, ejk_owned_tensor *out) {
    if (path == NULL || out == NULL) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", path == NULL ? "path" : "out");
    }
    int descriptor = -1;
    size_t size = 0;
    EJKI_TRY(ejki_file_open(path, &descriptor, &size));
    ejk_status status = load(&(source){.name = path, .descriptor = descriptor, .size = size}, out);
    close(descriptor);
    return status;
}
