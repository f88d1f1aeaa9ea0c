/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file identity.h
 * Deterministic texts of calls, configurations and devices, their hashes, and the keys of tuned configurations.
 *
 * All hashes here are of stable JSON: keys sorted, "," and ":" without blanks, everything but printable ASCII
 * escaped as \\uxxxx in lower case, numbers as Python's json module writes them (1.0, 1e-05, 1e+16: the shortest
 * digits that read back as the same number). So programs in C and Python compute the same keys.
 *
 * @code
 * char key[EJK_SHORT_HASH_SIZE];
 * ejk_call_key(&ejk_flash_attention_kernel, &args, NULL, NULL, key); // "393008f2d99bc9e8"
 * @endcode
 *
 * Texts returned through `char **out` are zero-terminated and freed with ejk_free(). The hashes have 64 bits and
 * are not safe against deliberately constructed collisions.
 *
 * Thread-safety: all functions may be called from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_IDENTITY_H
#define EJKERNEL_IDENTITY_H

#include <ejkernel/device.h>
#include <ejkernel/kernel.h>
#include <ejkernel/record.h>
#include <ejkernel/status.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Stable JSON ----------------------------------------------------------------------------------- */

/** Two encodings of what JSON has no word for. */
typedef enum ejk_json_style {
    /** Records as objects, tensors as {"dtype":"float32","shape":[…]}. What all keys are made of. */
    EJK_JSON_PLAIN = 0,
    /**
     * Records as {"_type":"dataclass","class":name,"data":{…}}, tensors as
     * {"_type":"array","dtype":…,"shape":[…]}, with or without data. A record within a record is a plain
     * object in its "data".
     */
    EJK_JSON_TAGGED = 1,
} ejk_json_style;

/**
 * A record as stable JSON: every field, null where unset; windows [left, right]; element types by name;
 * infinite and undefined numbers as Infinity, -Infinity and NaN. Records that are equal by
 * ejk_record_equal(), data pointers and strides aside, have equal texts: -0.0 is written 0.0.
 *
 * The class of the tagged style is record->name; for another, give a copy of the record with that name.
 *
 * Statuses: INVALID_ARGUMENT (NULL, a style that is none, a text without end or not UTF-8, an element
 * type that is none), INVALID_SHAPE (a tensor's rank or a negative length), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_stable_json(const ejk_record *record, const void *object,
                                                 ejk_json_style style, char **out);

/** The same of a tensor alone; null of none. */
EJK_API EJK_NODISCARD ejk_status ejk_stable_json_tensor(const ejk_tensor *tensor,
                                                        ejk_json_style style, char **out);

/**
 * Any JSON text as stable JSON. Numbers with a point or an exponent stay numbers with one (1.0 is not 1,
 * -0.0 stays). Refused, although Python reads them: integers beyond 64 bits, numbers beyond double,
 * NaN and the infinities, keys given twice or with \\u0000 in them, half surrogate pairs, more than 2000
 * levels.
 * Statuses: INVALID_ARGUMENT (NULL), MALFORMED (with line and column), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_stable_json_text(const char *json, char **out);

/**
 * A configuration as a text for files, and back: stable JSON in plain style, without NaN and the
 * infinities, which JSON readers refuse. ejk_from_json() is ejk_record_from_json(): what was written is
 * read back equal, to the last bit of every number.
 * Statuses: those of ejk_stable_json(), INVALID_ARGUMENT (a number that is not finite).
 */
EJK_API EJK_NODISCARD ejk_status ejk_to_json(const ejk_record *record, const void *object,
                                             char **out);
/** Statuses: those of ejk_record_from_json(); `object` is untouched on failure. */
EJK_API EJK_NODISCARD ejk_status ejk_from_json(const ejk_record *record, const char *json,
                                               void *object);

/* ---- Hashes ---------------------------------------------------------------------------------------- */

/** Room of a short hash: 16 lower-case hex digits and a closing zero. */
#define EJK_SHORT_HASH_SIZE 17

/** The first 16 hex digits of the SHA-256 of a text. Statuses: INVALID_ARGUMENT (NULL), UNAVAILABLE. */
EJK_API EJK_NODISCARD ejk_status ejk_short_hash_text(const char *text,
                                                     char out[EJK_SHORT_HASH_SIZE]);

/** The same of a record's stable JSON. Statuses: those of ejk_stable_json() and of the above. */
EJK_API EJK_NODISCARD ejk_status ejk_short_hash(const ejk_record *record, const void *object,
                                                ejk_json_style style,
                                                char out[EJK_SHORT_HASH_SIZE]);

/**
 * A text's digest as one number, highest byte first, in decimal. `algorithm` is a name of Python's
 * hashlib ("md5", "sha256", "sha3_256", "blake2b") or of OpenSSL; NULL = "md5".
 * Statuses: UNKNOWN_NAME (no such algorithm in this machine's libcrypto), INVALID_ARGUMENT (NULL; one
 * whose digest has no length of its own, as "shake_128"), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_get_safe_hash_int(const char *text, const char *algorithm,
                                                       char **decimal_out);

/**
 * The documented hash of parameters: ejk_get_safe_hash_int(), md5, of the values' texts one after the
 * other in the record's order, without names and separators. Values count as Python's str() writes
 * them: numbers, True and False; a window as the list [left, right] with None for an unset side; a
 * record that has anything set as the dict of its values, as {'q_blocksize': 128}. Optional fields that
 * are unset, texts, element types and tensors are skipped; fields that cannot be unset always count.
 *
 * It collides by design: {q_blocksize: 12, kv_blocksize: 8} and {q_blocksize: 1, kv_blocksize: 28} have
 * one hash. ejk_record_hash() and ejk_short_hash() tell them apart.
 * Statuses: INVALID_ARGUMENT (NULL), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_hash_fn(const ejk_record *record, const void *object,
                                             char **decimal_out);

/* ---- Abstract values and devices ------------------------------------------------------------------- */

/**
 * A copy whose tensors, also those of nested records, keep shape and element type only: row-major
 * strides, no data, no device. `out` is a struct of record->size bytes and may be `object`.
 * Statuses: INVALID_ARGUMENT (NULL), INVALID_SHAPE and OVERFLOW (a tensor whose shape cannot be kept).
 */
EJK_API EJK_NODISCARD ejk_status ejk_abstractify(const ejk_record *record, const void *object,
                                                 void *out);

/**
 * The kind of hardware behind a device type of #ejk_tensor: "cpu" or "gpu" (CUDA, and ROCm by its
 * number in DLPack), "unknown" for any other. No device type stands for a TPU. Static text.
 */
EJK_API const char *ejk_device_kind(int32_t device_type);

/** The same by its other documented name: "gpu", "tpu", "cpu" or "unknown". */
EJK_API const char *ejk_get_device_platform(int32_t device_type);

/**
 * The documented technology of a device: "triton" for a GPU, "xla" for anything else. Names only: what
 * can run here is answered by the registry.
 */
EJK_API const char *ejk_get_device_platform_ex(int32_t device_type);

/**
 * The text of a tensor's sharding: `sharding` itself, or NULL if there is no tensor or the text is NULL
 * or "". A view has no room for a sharding, so it travels beside the tensor, as an opaque text.
 */
EJK_API const char *ejk_sharding_fingerprint(const ejk_tensor *tensor, const char *sharding);

/* ---- Keys ------------------------------------------------------------------------------------------ */

/** "name@vversion" of a kernel, as "flash_attention@v0". Statuses: INVALID_ARGUMENT, OUT_OF_MEMORY. */
EJK_API EJK_NODISCARD ejk_status ejk_versioned_op_id(const ejk_kernel *kernel, char **out);

/**
 * What a call is, as stable JSON:
 *
 *     {"args_spec":[…],"batch_axes":…,"kwargs_spec":{…},"method":…}
 *
 * args_spec: the required input tensors in the record's order (null for one that is missing);
 * kwargs_spec: every other input that is set, by name, of nested records the fields that are set.
 * Results and the explicit configuration (kernel->config_field) are no part of it. Tensors count by
 * element type and shape, everything else by value.
 *
 * `method` is NULL or "shard_map"; `batch_axes` is any JSON, NULL = null.
 * Statuses: those of ejk_stable_json(), UNKNOWN_NAME (method), MALFORMED (batch_axes).
 */
EJK_API EJK_NODISCARD ejk_status ejk_call_spec(const ejk_kernel *kernel, const void *args,
                                               const char *method, const char *batch_axes,
                                               char **out);

/** The call's key: the short hash of ejk_call_spec(). Statuses: as there. */
EJK_API EJK_NODISCARD ejk_status ejk_call_key(const ejk_kernel *kernel, const void *args,
                                              const char *method, const char *batch_axes,
                                              char out[EJK_SHORT_HASH_SIZE]);

/**
 * A key that knows how the tensors are spread over devices: the short hash of args_spec, batch_axes and
 * kwargs_spec as above, without method, and "sharding":{"args":[…],"kwargs":{…}} with a text or null for
 * each of them. `shardings[i]` belongs to field i of kernel->args, as for ejk_sharding_fingerprint();
 * NULL = none is sharded. Statuses: those of ejk_call_spec(), INVALID_ARGUMENT (a text not UTF-8).
 */
EJK_API EJK_NODISCARD ejk_status ejk_default_key_builder_with_sharding(
    const ejk_kernel *kernel, const void *args, const char *const *shardings,
    const char *batch_axes, char out[EJK_SHORT_HASH_SIZE]);

/**
 * A key of the memory layout of a call's tensors, results included: the short hash of one class for each tensor
 * that is present. The class has the order of the axes, from the largest stride to the smallest; which strides are
 * negative; which are 0; and whether the elements are stored without gaps. Axes of length 1 are ignored, and a
 * tensor without elements has the class of no axes. The exact strides are ignored: padding is a gap of any size.
 * Statuses: INVALID_ARGUMENT (NULL), INVALID_SHAPE (a rank that is none), OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_layout_key(const ejk_record *args_record, const void *args,
                                                char out[EJK_SHORT_HASH_SIZE]);

#ifdef __cplusplus
}
#endif
#endif
