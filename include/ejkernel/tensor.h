/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file tensor.h
 * Tensor views: address, element type, shape and strides.
 *
 * An #ejk_tensor is a small plain struct that is passed and copied by value. It owns nothing: `data` points to
 * memory of the caller, which must stay valid during every call that uses the view. All zeros means "no tensor"
 * (`dtype` is #EJK_DTYPE_UNSET); optional arguments are left out in this way.
 *
 * Shapes and strides are int64 and count elements. Strides may have any value, also negative; operations only
 * require a contiguous last axis (stride 1, or at most one element). An axis may have length zero, and then `data`
 * may be NULL.
 *
 * Conversions between element types round to nearest, ties to even; NaN stays NaN, subnormals are kept.
 *
 * Thread-safety: every function may be called from any thread at once; views are plain data.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_TENSOR_H
#define EJKERNEL_TENSOR_H

#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The most axes a tensor may have. */
#define EJK_MAX_RANK 8

/** Element types: name, number (pinned), size in bytes (0: less than one), name in files and JSON. */
#define EJK_DTYPE_LIST(X)                                                                          \
    X(F64, 1, 8, "float64")                                                                        \
    X(F32, 2, 4, "float32")                                                                        \
    X(BF16, 3, 2, "bfloat16")                                                                      \
    X(F16, 4, 2, "float16")                                                                        \
    X(I64, 5, 8, "int64")                                                                          \
    X(I32, 6, 4, "int32")                                                                          \
    X(I16, 7, 2, "int16")                                                                          \
    X(I8, 8, 1, "int8")                                                                            \
    X(U8, 9, 1, "uint8")                                                                           \
    X(BOOL, 10, 1, "bool")                                                                         \
    X(F8E4M3, 11, 1, "float8_e4m3fn")                                                              \
    X(F8E5M2, 12, 1, "float8_e5m2")                                                                \
    X(F8E8M0, 13, 1, "float8_e8m0fnu")                                                             \
    X(U32, 14, 4, "uint32")                                                                        \
    X(I4, 15, 0, "int4")                                                                           \
    X(U4, 16, 0, "uint4")

/**
 * An element type. bool is one byte, 0 or 1; any other byte counts as true. float8_e4m3fn has values up to
 * 448 and no infinity, float8_e5m2 up to 57344, float8_e8m0fnu the powers of two from 2^-127 to 2^127, without
 * sign and zero: the scales of the OCP's microscaling formats.
 *
 * int4 and uint4 lie two in a byte, the first in its low half. Lengths and strides count elements as always,
 * but rows begin at bytes: the last axis has stride 1, all others (of more than one) an even one. So a
 * contiguous view of rows of odd length has half a byte between them, which nobody reads or writes.
 */
typedef enum ejk_dtype {
    EJK_DTYPE_UNSET = 0,
#define EJK_DTYPE_ENUM(name, number, size, text) EJK_DTYPE_##name = number,
    EJK_DTYPE_LIST(EJK_DTYPE_ENUM)
#undef EJK_DTYPE_ENUM
} ejk_dtype;

/** Kinds of memory, with the numbers of DLPack. */
typedef enum ejk_device_type {
    EJK_DEVICE_CPU = 0, /**< zero means the CPU; DLPack's own number for it is 1 */
    EJK_DEVICE_CUDA = 2,
} ejk_device_type;

/** A view of a tensor's memory. Zero-initialised = no tensor. */
typedef struct ejk_tensor {
    void *data;                    /**< address of element (0, …, 0) */
    ejk_dtype dtype;               /**< element type; unset = no tensor */
    int32_t rank;                  /**< number of axes, 0 … #EJK_MAX_RANK; 0 = one number */
    int64_t shape[EJK_MAX_RANK];   /**< length of each axis, ≥ 0 */
    int64_t strides[EJK_MAX_RANK]; /**< step of each axis, in elements */
    int32_t device_type;           /**< an #ejk_device_type */
    int32_t device_index;          /**< which device of that type */
} ejk_tensor;

/** Size of one element in bytes; 0 for an unset or unknown type, and for one of less than a byte. */
EJK_API size_t ejk_dtype_size(ejk_dtype dtype);

/** Bits of one element; 0 for an unset or unknown type. */
EJK_API size_t ejk_dtype_bits(ejk_dtype dtype);

/**
 * Bytes that `count` elements in a row take, the last one whole; -1 if they do not fit in 63 bits, the type is
 * unknown or the count negative.
 */
EJK_API int64_t ejk_dtype_bytes(ejk_dtype dtype, int64_t count);

/** Name of an element type, as "float32"; "unset" for none. Static text. */
EJK_API const char *ejk_dtype_name(ejk_dtype dtype);

/**
 * Reads the name of an element type: the long form ("float32") or the short one ("f32", "bf16", "i64",
 * "u8"). Statuses: UNKNOWN_NAME, INVALID_ARGUMENT (NULL).
 */
EJK_API EJK_NODISCARD ejk_status ejk_dtype_from_name(const char *name, ejk_dtype *out);

/**
 * A contiguous (row-major) view over `data`. An invalid rank or a negative length gives a view that
 * ejk_tensor_check() refuses; nothing fails here, so that calls nest.
 */
EJK_API ejk_tensor ejk_tensor_contiguous(void *data, ejk_dtype dtype, int32_t rank,
                                         const int64_t *shape);

/** The same with the shape as arguments: `ejk_tensor_4d(q, EJK_DTYPE_F32, B, T, H, D)`. */
EJK_API ejk_tensor ejk_tensor_4d(void *data, ejk_dtype dtype, int64_t n0, int64_t n1, int64_t n2,
                                 int64_t n3);
EJK_API ejk_tensor ejk_tensor_3d(void *data, ejk_dtype dtype, int64_t n0, int64_t n1, int64_t n2);
EJK_API ejk_tensor ejk_tensor_2d(void *data, ejk_dtype dtype, int64_t n0, int64_t n1);
EJK_API ejk_tensor ejk_tensor_1d(void *data, ejk_dtype dtype, int64_t n0);

/** True if the view is a tensor (its dtype is set). */
EJK_API bool ejk_tensor_present(const ejk_tensor *tensor);

/**
 * Checks a view: the dtype is known, rank and lengths are valid, the number of elements (empty axes counted as
 * one) and the byte span fit in 63 bits, no element's address wraps around, and data is not NULL unless the tensor
 * is empty. Data need not be aligned. `name` is the argument's name in the sentence.
 * Statuses: INVALID_DTYPE, INVALID_SHAPE, OVERFLOW, INVALID_ARGUMENT (NULL data).
 */
EJK_API EJK_NODISCARD ejk_status ejk_tensor_check(const ejk_tensor *tensor, const char *name);

/** Number of elements; 0 if any axis is empty. Undefined for a view that ejk_tensor_check() refuses. */
EJK_API int64_t ejk_tensor_count(const ejk_tensor *tensor);

/** True if the elements lie one after the other in row-major order. */
EJK_API bool ejk_tensor_is_contiguous(const ejk_tensor *tensor);

/**
 * The bytes that a checked view touches: [*low, *high) relative to `data`; both 0 if empty.
 */
EJK_API void ejk_tensor_span(const ejk_tensor *tensor, int64_t *low, int64_t *high);

/**
 * A view with two axes exchanged. An axis out of range (negative axes count from the end) gives a view
 * that ejk_tensor_check() refuses.
 */
EJK_API ejk_tensor ejk_tensor_transpose(ejk_tensor tensor, int32_t axis_a, int32_t axis_b);

/** A view of `length` elements from `start` of one axis; out of range: as above. */
EJK_API ejk_tensor ejk_tensor_slice(ejk_tensor tensor, int32_t axis, int64_t start, int64_t length);

/**
 * Copies `source` into `target`: equal shapes, any strides, converting element types as this header's
 * head says. To an integer, values truncate towards zero and saturate, NaN gives 0; to bool, anything
 * but zero is true; to an 8-bit float, values saturate. The bytes that the two views span must not overlap.
 * Statuses: those of ejk_tensor_check(), INVALID_SHAPE, INVALID_LAYOUT (overlap; elements of `target` that
 * overlap or interleave), UNAVAILABLE (a device other than the CPU).
 */
EJK_API EJK_NODISCARD ejk_status ejk_tensor_copy(const ejk_tensor *source,
                                                 const ejk_tensor *target);

/** Single conversions, exact where the type allows. */
EJK_API float ejk_bf16_to_f32(uint16_t bits);
EJK_API uint16_t ejk_f32_to_bf16(float value);
EJK_API float ejk_f16_to_f32(uint16_t bits);
EJK_API uint16_t ejk_f32_to_f16(float value);

/**
 * 8-bit floats, by their codes. To them, values round to nearest, ties to even codes, and saturate: what is
 * beyond the greatest number, infinity too, becomes that. NaN stays NaN (0x7f with its sign; 0xff of e8m0).
 * float8_e8m0fnu takes zero and all below 2^-127 as 2^-127, and a number below zero as NaN.
 */
EJK_API float ejk_e4m3_to_f32(uint8_t code);
EJK_API uint8_t ejk_f32_to_e4m3(float value);
EJK_API float ejk_e5m2_to_f32(uint8_t code);
EJK_API uint8_t ejk_f32_to_e5m2(float value);
EJK_API float ejk_e8m0_to_f32(uint8_t code);
EJK_API uint8_t ejk_f32_to_e8m0(float value);

/**
 * Contiguous runs of `count` elements, vectorised. bf16 and f16 are given by their bits; f64 is rounded
 * once. Source and target must not overlap.
 */
EJK_API void ejk_convert_bf16_to_f32(const uint16_t *source, float *target, int64_t count);
EJK_API void ejk_convert_f32_to_bf16(const float *source, uint16_t *target, int64_t count);
EJK_API void ejk_convert_f16_to_f32(const uint16_t *source, float *target, int64_t count);
EJK_API void ejk_convert_f32_to_f16(const float *source, uint16_t *target, int64_t count);

/* ---- DLPack: tensors to and from other libraries, without copying -------------------------------- */

struct DLManagedTensor;
struct DLManagedTensorVersioned;

/**
 * A view of a DLPack tensor. The view borrows: keep the DLPack tensor until it is no longer used, then
 * call its deleter yourself. NULL strides mean row-major; `byte_offset` is honoured.
 * Statuses: INVALID_ARGUMENT (NULL), INVALID_DTYPE (a type with lanes, or one not in #EJK_DTYPE_LIST),
 * INVALID_SHAPE (rank above #EJK_MAX_RANK), UNAVAILABLE (a device that is neither CPU nor CUDA; a major
 * version other than the one known), and those of ejk_tensor_check().
 */
EJK_API EJK_NODISCARD ejk_status ejk_tensor_from_dlpack(const struct DLManagedTensor *managed,
                                                        ejk_tensor *out);
EJK_API EJK_NODISCARD ejk_status
ejk_tensor_from_dlpack_versioned(const struct DLManagedTensorVersioned *managed, ejk_tensor *out);

/**
 * Wraps a view for another library. The result is owned by the receiver, who calls its deleter; that
 * frees the wrapper and then calls `release(user)` if given, once the memory is no longer used.
 * On failure nothing is taken over and `release` is not called.
 * Statuses: those of ejk_tensor_check(), OUT_OF_MEMORY, UNAVAILABLE (a device that is neither CPU nor
 * CUDA).
 */
EJK_API EJK_NODISCARD ejk_status ejk_tensor_to_dlpack(const ejk_tensor *tensor,
                                                      void (*release)(void *user), void *user,
                                                      struct DLManagedTensor **out);
/** The same for DLPack ≥ 1.0; `read_only` sets its flag. */
EJK_API EJK_NODISCARD ejk_status ejk_tensor_to_dlpack_versioned(
    const ejk_tensor *tensor, bool read_only, void (*release)(void *user), void *user,
    struct DLManagedTensorVersioned **out);

/* ---- Files ---------------------------------------------------------------------------------------- */

/**
 * A tensor whose memory the library owns: one read from a file. Release with ejk_owned_tensor_close().
 * Several tensors may share one mapping of a file.
 */
typedef struct ejk_owned_tensor {
    ejk_tensor tensor; /**< the view; memory-mapped files are read-only */
    void *owner;       /**< private */
} ejk_owned_tensor;

/**
 * Allocates a contiguous tensor of zeros, aligned to 64 bytes. Statuses: those of ejk_tensor_check(),
 * OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_owned_tensor_create(ejk_dtype dtype, int32_t rank,
                                                         const int64_t *shape,
                                                         ejk_owned_tensor *out);

/** Releases the memory and zeroes the struct. A zeroed struct is allowed. */
EJK_API void ejk_owned_tensor_close(ejk_owned_tensor *owned);

/**
 * Reads a .npy file: format versions 1 to 3, both byte orders (big-endian data is swapped), Fortran
 * order as strides, every type of #EJK_DTYPE_LIST; bfloat16 as the ecosystem stores it ('<V2', what
 * ml_dtypes writes, or a descr of 'bfloat16'). Bytes after the elements are an error.
 * Statuses: IO, MALFORMED (with what is wrong and where), INVALID_DTYPE, INVALID_SHAPE, OVERFLOW,
 * OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_npy_read(const char *path, ejk_owned_tensor *out);

/** The same from memory; the bytes are copied. What files and fuzzers share. */
EJK_API EJK_NODISCARD ejk_status ejk_npy_parse(const void *bytes, size_t size,
                                               ejk_owned_tensor *out);

/**
 * Writes a view of any strides as .npy, version 1.0, C order, little-endian; bfloat16 as '<V2'. The
 * file appears under its name only when complete (written beside it, then renamed).
 * Statuses: those of ejk_tensor_check(), IO, OUT_OF_MEMORY, UNAVAILABLE (a device other than the CPU).
 */
EJK_API EJK_NODISCARD ejk_status ejk_npy_write(const char *path, const ejk_tensor *tensor);

/** A safetensors file, memory-mapped. */
typedef struct ejk_safetensors ejk_safetensors;

/**
 * Opens a safetensors file: maps it and checks its whole header (JSON, offsets in range, without
 * holes or overlaps, sizes equal to shape × type). Statuses: IO, MALFORMED, OVERFLOW, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_safetensors_open(const char *path, ejk_safetensors **out);

/** The same over memory that the caller keeps until the close. */
EJK_API EJK_NODISCARD ejk_status ejk_safetensors_parse(const void *bytes, size_t size,
                                                       ejk_safetensors **out);

/** Unmaps. Views of its tensors end with it. NULL is allowed. */
EJK_API void ejk_safetensors_close(ejk_safetensors *file);

/** Number of tensors, and the name of one, in the order of their data. NULL if out of range. */
EJK_API int64_t ejk_safetensors_count(const ejk_safetensors *file);
EJK_API const char *ejk_safetensors_name(const ejk_safetensors *file, int64_t index);

/**
 * A read-only view of a tensor by name. Statuses: UNKNOWN_NAME (the sentence lists names that exist),
 * INVALID_DTYPE (a type of the format that the library has not, as F8_E4M3), INVALID_SHAPE (rank).
 */
EJK_API EJK_NODISCARD ejk_status ejk_safetensors_tensor(const ejk_safetensors *file,
                                                        const char *name, ejk_tensor *out);

/**
 * Loads what a command line names: `path.npy`, or `path.safetensors:name`. Statuses: those of the
 * readers above, INVALID_ARGUMENT (neither form).
 */
EJK_API EJK_NODISCARD ejk_status ejk_tensor_load(const char *spec, ejk_owned_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
