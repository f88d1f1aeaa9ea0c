/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Dense masks in one pass: each element is read once, row after row as it lies in memory, and gives its share
 * to the state of its block and to the block's hash. Strips of rows are the tasks; what they find is added up
 * in any order, so that block rows of any height are spread evenly over the threads.
 */
#include "base/bits.h"
#include "mask/process.h"

/* Blocks whose sums are kept at hand, and words of a block that are compared with those of its neighbour. */
enum { GROUP = 256, NEAR = 64 };
/* What was seen of a block: in it a true element, a false one, a difference from its left neighbour. */
enum { ONES = 1, ZEROS = 2, APART = 4 };

struct sum {
    uint64_t hash, some, none, apart;
};

static inline void add_word(struct sum *sum, uint64_t bits, uint64_t all, uint64_t share,
                            uint64_t *left) {
    sum->some |= bits;
    sum->none |= bits ^ all;
    sum->apart |= bits ^ *left;
    sum->hash += share;
    *left = bits;
}

/* One row of `count` blocks from number `first` on. */
static void scan_row(const ejki_mask_call *call, const uint8_t *row, int64_t first, int64_t count,
                     uint64_t secret, uint64_t key, struct sum *sums) {
    uint64_t left[NEAR] = {0};
    int64_t words = call->bkv / 64, rest = call->bkv % 64;
    for (int64_t j = 0; j < count; j++) {
        struct sum sum = sums[j];
        int64_t at = (first + j) * call->bkv;
        for (int64_t w = 0; w < words; w++) {
            ejki_prefetch_bytes(row + at + 64 * w);
            uint64_t bits = ejki_pack_word(row + at + 64 * w);
            add_word(&sum, bits, ~UINT64_C(0), ejki_word_share(secret, key, w, bits),
                     &left[w % NEAR]);
        }
        if (rest > 0) {
            uint64_t bits = ejki_pack_part(row, call->kv, at + 64 * words, rest);
            add_word(&sum, bits, (UINT64_C(1) << rest) - 1,
                     ejki_word_share(secret, key, words, bits), &left[words % NEAR]);
        }
        sums[j] = sum;
    }
}

int64_t ejki_dense_strips(const ejki_mask_call *call) {
    enum { TASKS = 256, LEAST_ROWS = 16 };
    return ejki_min(ejki_cdiv(TASKS, call->rows), ejki_cdiv(call->bq, LEAST_ROWS));
}

void ejki_dense_scan(const ejki_mask_call *call, const ejk_splash_mask *mask, int64_t block_row,
                     int64_t strip, uint64_t secret, uint8_t *seen, uint64_t *hashes) {
    int64_t rows = ejki_cdiv(call->bq, ejki_dense_strips(call));
    int64_t start = strip * rows, end = ejki_min(start + rows, call->bq);
    bool near = ejki_cdiv(call->bkv, 64) <= NEAR;
    for (int64_t first = 0; first < call->columns && start < end; first += GROUP) {
        int64_t count = ejki_min(call->columns - first, GROUP);
        struct sum sums[GROUP];
        for (int64_t j = 0; j < count; j++) sums[j] = (struct sum){.apart = j == 0 || !near};
        for (int64_t i = start; i < end; i++)
            scan_row(call, mask->elements + (block_row * call->bq + i) * mask->row_stride, first,
                     count, secret, ejki_line_key(secret, i), sums);
        for (int64_t j = 0; j < count; j++) {
            int flags = (sums[j].some != 0 ? ONES : 0) | (sums[j].none != 0 ? ZEROS : 0) |
                        (sums[j].apart != 0 ? APART : 0);
            __atomic_fetch_or(&seen[first + j], (uint8_t)flags, __ATOMIC_RELAXED);
            __atomic_fetch_add(&hashes[first + j], sums[j].hash, __ATOMIC_RELAXED);
        }
    }
}

void ejki_dense_resolve(int64_t count, uint8_t *states, uint64_t *hashes) {
    for (int64_t i = 0; i < count; i++) {
        uint8_t seen = states[i];
        states[i] = (uint8_t)((seen & ONES) == 0 ? EMPTY : (seen & ZEROS) == 0 ? FULL : PARTIAL);
        hashes[i] = (seen & APART) != 0 ? ejki_hash_done(hashes[i]) : 0;
    }
}

uint64_t ejki_block_hash(const ejki_mask_call *call, const ejk_splash_mask *mask, int64_t cell,
                         uint64_t secret) {
    enum { PIECE = 1024 };
    uint8_t piece[PIECE];
    uint64_t hash = 0;
    int64_t row = cell / call->columns * call->bq, column = cell % call->columns * call->bkv;
    for (int64_t i = 0; i < call->bq; i++) {
        uint64_t key = ejki_line_key(secret, i);
        for (int64_t done = 0; done < call->bkv; done += PIECE) {
            int64_t count = ejki_min(call->bkv - done, PIECE);
            ejki_mask_row(mask, row + i, column + done, count, piece);
            for (int64_t at = 0; at < count; at += 64) {
                uint64_t bits = ejki_pack_part(piece, count, at, ejki_min(count - at, 64));
                hash += ejki_word_share(secret, key, (done + at) / 64, bits);
            }
        }
    }
    return ejki_hash_done(hash);
}
