/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file gguf.h
 * Reads tensors from GGUF files, the format of llama.cpp's models.
 *
 * A file is mapped, and its tensors are views of the mapping. Metadata is checked and passed by: what a model's numbers
 * are is not read here. Quantised tensors are blocks of bytes; ejk_import_weights() makes codes and scales of them
 * (import_weights.h).
 *
 * Thread-safety: an open file may be read from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_GGUF_H
#define EJKERNEL_GGUF_H

#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** A GGUF file, memory-mapped. */
typedef struct ejk_gguf ejk_gguf;

/**
 * Opens a GGUF file, version 2 or 3, little-endian: maps it and checks its metadata and its list of tensors
 * (distinct names, offsets that are aligned and in range). Statuses: IO, MALFORMED, OVERFLOW, OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_gguf_open(const char *path, ejk_gguf **out);

/** The same over memory that the caller keeps until the close. */
EJK_API EJK_NODISCARD ejk_status ejk_gguf_parse(const void *bytes, size_t size, ejk_gguf **out);

/** Unmaps. Views of its tensors end with it. NULL is allowed. */
EJK_API void ejk_gguf_close(ejk_gguf *file);

/** Number of tensors, and the name of one, in the order of the file. NULL if out of range. */
EJK_API int64_t ejk_gguf_count(const ejk_gguf *file);
EJK_API const char *ejk_gguf_name(const ejk_gguf *file, int64_t index);

/**
 * The type of a tensor by name, in the format's words in small letters: "f32", "bf16", "q4_0", "q6_k". Static text.
 * Statuses: UNKNOWN_NAME (the sentence lists names that exist), INVALID_DTYPE (a type that is not known here).
 */
EJK_API EJK_NODISCARD ejk_status ejk_gguf_type(const ejk_gguf *file, const char *name,
                                               const char **out);

/**
 * A read-only view of a tensor by name, outermost axis first. Numbers have their type; of quantised types the view
 * has the bytes of the blocks, uint8 with a last axis of a row's bytes, which ejk_import_weights() takes.
 * Statuses: those of ejk_gguf_type().
 */
EJK_API EJK_NODISCARD ejk_status ejk_gguf_tensor(const ejk_gguf *file, const char *name,
                                                 ejk_tensor *out);

#ifdef __cplusplus
}
#endif
#endif
