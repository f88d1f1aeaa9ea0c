/* SPDX-License-Identifier: Apache-2.0 */
/* The header of a .npy file: a Python dict literal that says how to read the bytes after it. */
#ifndef EJKI_TENSOR_NPY_H
#define EJKI_TENSOR_NPY_H

#include <ejkernel/tensor.h>

/* "\x93NUMPY", two bytes of version, then the header's length in 2 bytes (version 1) or 4 (2 and 3). */
#define EJKI_NPY_MAGIC "\x93NUMPY"
enum { EJKI_NPY_MAGIC_SIZE = 6, EJKI_NPY_PREAMBLE_MAX = 12 };

typedef struct ejki_npy_header {
    ejk_dtype dtype;
    bool big_endian;
    bool fortran_order;
    int32_t rank;
    int64_t shape[EJK_MAX_RANK];
} ejki_npy_header;

/* `file` is the name that sentences begin with; `text` need not end in NUL. */
ejk_status ejki_npy_parse_header(const char *file, const char *text, size_t length,
                                 ejki_npy_header *out);

/* The descr of an element type in little-endian order, as "<f4". */
const char *ejki_npy_descr(ejk_dtype dtype);

#endif
