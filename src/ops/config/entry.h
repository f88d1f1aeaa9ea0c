/* SPDX-License-Identifier: Apache-2.0 */
/* What both caches do with keys and entries: check, compare, hash, copy. */
#ifndef EJKI_OPS_CONFIG_ENTRY_H
#define EJKI_OPS_CONFIG_ENTRY_H

#include "base/base.h"

#include <ejkernel/config.h>
#include <string.h>

/* 64-bit FNV-1a, piece by piece: for finding entries, and for noticing that a row's bits have changed. */
#define EJKI_HASH_START UINT64_C(0xcbf29ce484222325)
static inline uint64_t ejki_hash_bytes(uint64_t hash, const void *bytes, size_t size) {
    const unsigned char *byte = bytes;
    for (size_t i = 0; i < size; i++) hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}
/* With the closing zero, so that neighbouring texts cannot run into each other. */
static inline uint64_t ejki_hash_text(uint64_t hash, const char *text) {
    return ejki_hash_bytes(hash, text, strlen(text) + 1);
}
/* Lowest byte first, on every machine. */
static inline uint64_t ejki_hash_number(uint64_t hash, uint64_t number) {
    unsigned char bytes[8];
    for (int i = 0; i < 8; i++) bytes[i] = (unsigned char)(number >> (8 * i));
    return ejki_hash_bytes(hash, bytes, sizeof bytes);
}

/* INVALID_ARGUMENT with what no key can be. *out: the same key with "" for NULL. */
ejk_status ejki_config_key_check(const ejk_config_key *key, ejk_config_key *out);

/* Needs keys without NULL, as the above hands out. */
bool ejki_config_key_equal(const ejk_config_key *a, const ejk_config_key *b);
uint64_t ejki_config_key_hash(const ejk_config_key *key);

/* INVALID_ARGUMENT or MALFORMED with what no entry can be. */
ejk_status ejki_config_entry_check(const ejk_config_entry *entry);

/* A copy with a text of its own. */
ejk_status ejki_config_entry_copy(const ejk_config_entry *entry, ejk_config_entry *out);

#endif
