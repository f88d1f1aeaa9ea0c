/* SPDX-License-Identifier: Apache-2.0 */
/* Digests of texts: short hashes, big numbers, and the documented hash of parameters. */
#include "ops/identity/write.h"
#include "record/tensors.h"

#include <inttypes.h>
#include <math.h>
#include <openssl/bn.h>
#include <openssl/err.h>
#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

/* What Python's hashlib calls otherwise than libcrypto. */
static const char *const aliases[][2] = {
    {"sha3_224", "SHA3-224"},     {"sha3_256", "SHA3-256"},   {"sha3_384", "SHA3-384"},
    {"sha3_512", "SHA3-512"},     {"blake2b", "BLAKE2B-512"}, {"blake2s", "BLAKE2S-256"},
    {"shake_128", "SHAKE-128"},   {"shake_256", "SHAKE-256"}, {"sha512_224", "SHA512-224"},
    {"sha512_256", "SHA512-256"},
};

static const char *own_name(const char *algorithm) {
    for (size_t i = 0; i < sizeof aliases / sizeof *aliases; i++)
        if (strcmp(algorithm, aliases[i][0]) == 0) return aliases[i][1];
    return algorithm;
}

/* Looks an algorithm up without leaving anything in the caller's queue of OpenSSL errors. */
static EVP_MD *fetch(const char *algorithm) {
    ERR_set_mark();
    EVP_MD *digest = EVP_MD_fetch(NULL, own_name(algorithm), NULL);
    ERR_pop_to_mark();
    return digest;
}

static ejk_status digest_text(const char *text, const char *algorithm,
                              unsigned char bytes[EVP_MAX_MD_SIZE], unsigned *size) {
    EVP_MD *digest = fetch(algorithm);
    if (digest == NULL)
        return ejki_fail(EJK_STATUS_UNKNOWN_NAME,
                         "algorithm '%.60s' given, expected a digest of libcrypto, as md5 or "
                         "sha256",
                         algorithm);
    ejk_status status = EJK_OK;
    if ((EVP_MD_get_flags(digest) & EVP_MD_FLAG_XOF) || EVP_MD_get_size(digest) <= 0)
        status = ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                           "algorithm '%.60s' given, whose digest has no length of its own, "
                           "expected one as md5 or sha256",
                           algorithm);
    else if (EVP_Digest(text, strlen(text), bytes, size, digest, NULL) != 1)
        status =
            ejki_fail(EJK_STATUS_UNAVAILABLE, "libcrypto does not compute %.60s here", algorithm);
    EVP_MD_free(digest);
    return status;
}

ejk_status ejk_short_hash_text(const char *text, char out[EJK_SHORT_HASH_SIZE]) {
    if (text == NULL || out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_short_hash_text: text or out is NULL");
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size;
    EJKI_TRY(digest_text(text, "sha256", bytes, &size));
    for (int i = 0; i < (EJK_SHORT_HASH_SIZE - 1) / 2; i++)
        snprintf(out + 2 * i, 3, "%02x", bytes[i]);
    return EJK_OK;
}

ejk_status ejk_short_hash(const ejk_record *record, const void *object, ejk_json_style style,
                          char out[EJK_SHORT_HASH_SIZE]) {
    if (out == NULL) return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "ejk_short_hash: out is NULL");
    char *json = NULL;
    EJKI_TRY(ejk_stable_json(record, object, style, &json));
    ejk_status status = ejk_short_hash_text(json, out);
    free(json);
    return status;
}

/* Through memory of our own: libcrypto's allocator may be the application's, ejk_free() is free(). */
static char *decimal_of(const unsigned char *bytes, unsigned size) {
    BIGNUM *number = BN_bin2bn(bytes, (int)size, NULL);
    char *decimal = number ? BN_bn2dec(number) : NULL;
    char *copy = decimal ? strdup(decimal) : NULL;
    OPENSSL_free(decimal);
    BN_free(number);
    return copy;
}

ejk_status ejk_get_safe_hash_int(const char *text, const char *algorithm, char **decimal_out) {
    if (text == NULL || decimal_out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_get_safe_hash_int: text or decimal_out is NULL");
    unsigned char bytes[EVP_MAX_MD_SIZE];
    unsigned size;
    EJKI_TRY(digest_text(text, algorithm ? algorithm : "md5", bytes, &size));
    char *decimal = decimal_of(bytes, size);
    if (decimal == NULL)
        return ejki_fail(EJK_STATUS_OUT_OF_MEMORY, "memory for a number could not be had");
    *decimal_out = decimal;
    return EJK_OK;
}

/* ---- The documented hash of parameters ------------------------------------------------------------- */

static void write_float(FILE *stream, double value) {
    char text[EJKI_FLOAT_SIZE];
    if (isfinite(value))
        ejki_float_text(value + 0.0, text);
    else
        snprintf(text, sizeof text, "%s", isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
    fputs(text, stream);
}

static void write_side(FILE *stream, const ejk_opt_int *side) {
    if (side->set)
        fprintf(stream, "%" PRId64, side->value);
    else
        fputs("None", stream);
}

static void write_list(FILE *stream, const ejki_kind *kind, const void *place) {
    ejk_opt_int each[EJKI_MOST_LISTED];
    const int32_t count = kind->list(place, each);
    for (int32_t i = 0; i < count; i++) {
        fputs(i == 0 ? "[" : ", ", stream);
        write_side(stream, &each[i]);
    }
    putc(']', stream);
}

/* Whether a field takes part: those that cannot be unset always do. */
static bool counts(const ejk_field *field, const void *object) {
    if (ejki_kind_of(field->kind)->always_set) return true;
    if (field->kind == EJK_FIELD_NAME || field->kind == EJK_FIELD_DTYPE || ejki_is_tensor(field))
        return false;
    return ejk_record_is_set(field, object);
}

/* str() of a field that takes part. */
static void write_str(FILE *stream, const ejk_field *field, const void *object) {
    const void *place = (const char *)object + field->offset;
    switch (field->kind) {
    case EJK_FIELD_BOOL: fputs(*(const bool *)place ? "True" : "False", stream); break;
    case EJK_FIELD_OPT_BOOL:
        fputs(*(const ejk_opt_bool *)place == EJK_TRUE ? "True" : "False", stream);
        break;
    case EJK_FIELD_INT: fprintf(stream, "%" PRId64, *(const int64_t *)place); break;
    case EJK_FIELD_OPT_INT: write_side(stream, place); break;
    case EJK_FIELD_FLOAT: write_float(stream, *(const double *)place); break;
    case EJK_FIELD_OPT_FLOAT: write_float(stream, ((const ejk_opt_float *)place)->value); break;
    case EJK_FIELD_RECORD: {
        const char *separator = "{";
        for (int32_t i = 0; i < field->record->count; i++) {
            const ejk_field *inner = &field->record->fields[i];
            if (!counts(inner, place)) continue;
            fprintf(stream, "%s'%s': ", separator, inner->name);
            write_str(stream, inner, place);
            separator = ", ";
        }
        fputs(*separator == '{' ? "{}" : "}", stream);
        break;
    }
    case EJK_FIELD_NAME:
    case EJK_FIELD_DTYPE:
    case EJK_FIELD_TENSOR:
    case EJK_FIELD_TENSORS: break;
    default: write_list(stream, ejki_kind_of(field->kind), place); break;
    }
}

ejk_status ejk_hash_fn(const ejk_record *record, const void *object, char **decimal_out) {
    if (record == NULL || object == NULL || decimal_out == NULL)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "ejk_hash_fn: record, object or decimal_out is NULL");
    ejki_text text;
    EJKI_TRY(ejki_text_open(&text));
    for (int32_t i = 0; i < record->count; i++)
        if (counts(&record->fields[i], object)) write_str(text.stream, &record->fields[i], object);
    char *values = NULL;
    EJKI_TRY(ejki_text_close(&text, EJK_OK, &values));
    ejk_status status = ejk_get_safe_hash_int(values, NULL, decimal_out);
    free(values);
    return status;
}
