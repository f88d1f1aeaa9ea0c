/* SPDX-License-Identifier: Apache-2.0 */
/* The documented rules for parameters of GPU kernels. They decide nothing here; programs that launch their
 * own kernels ask them. */
#include <ejkernel/numeric.h>

#include "base/base.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

static ejk_status fail_below(const char *name, int64_t value, int64_t least) {
    return ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is %" PRId64 ", expected at least %" PRId64,
                     name, value, least);
}

static ejk_status check_tile(int64_t q_block, int64_t kv_block, int64_t head_dim, int64_t least) {
    if (q_block < least) return fail_below("q_block", q_block, least);
    if (kv_block < least) return fail_below("kv_block", kv_block, least);
    if (head_dim < least) return fail_below("head_dim", head_dim, least);
    return EJK_OK;
}

static ejk_status item_size(ejk_dtype dtype, int64_t *size) {
    *size = (int64_t)ejk_dtype_size(dtype == EJK_DTYPE_UNSET ? EJK_DTYPE_F16 : dtype);
    if (*size > 0) return EJK_OK;
    return ejki_fail(EJK_STATUS_INVALID_DTYPE, "dtype is %d, expected an element type", (int)dtype);
}

static ejk_status require_out(const void *out, const char *name) {
    return out ? EJK_OK : ejki_fail(EJK_STATUS_INVALID_ARGUMENT, "%s is NULL", name);
}

ejk_status ejk_select_num_warps(int64_t q_block, int64_t kv_block, int64_t head_dim,
                                ejk_dtype dtype, int32_t *out) {
    int64_t size;
    EJKI_TRY(require_out(out, "out"));
    EJKI_TRY(check_tile(q_block, kv_block, head_dim, 1));
    EJKI_TRY(item_size(dtype, &size));
    /* The head dimension is in both the operations and the bytes, and cancels out. */
    double elements = (double)q_block * (double)kv_block;
    double intensity = 2 * elements / (((double)q_block + (double)kv_block) * (double)size);
    int32_t warps = intensity > 10 ? 8 : intensity > 5 ? 4 : 2;
    if (elements < 1024 && warps > 4) warps = 4;
    if (elements > 16384) warps = 8;
    *out = warps;
    return EJK_OK;
}

/* A whole text of digits, at least 1 and within 63 bits. */
static bool read_bytes(const char *text, int64_t *bytes) {
    if (!text || *text < '0' || *text > '9') return false;
    char *end;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (errno != 0 || *end != '\0' || value < 1) return false;
    *bytes = value;
    return true;
}

int64_t ejk_get_shared_memory_limit(const char *device_name) {
    static const struct {
        const char *name;
        int64_t kib;
    } devices[] = {{"A100", 164}, {"V100", 96}, {"T4", 64}};
    int64_t bytes;
    if (read_bytes(getenv("EJKERNEL_TRITON_SMEM_LIMIT"), &bytes)) return bytes;
    for (size_t i = 0; device_name && i < sizeof devices / sizeof devices[0]; i++) {
        if (strstr(device_name, devices[i].name)) return devices[i].kib * 1024;
    }
    return 48 * 1024;
}

ejk_status ejk_select_num_stages(int64_t smem_bytes, int32_t *out) {
    EJKI_TRY(require_out(out, "out"));
    if (smem_bytes < 0) return fail_below("smem_bytes", smem_bytes, 0);
    int64_t left = ejk_get_shared_memory_limit(NULL) - smem_bytes;
    if (left <= smem_bytes) {
        *out = 1;
    } else {
        /* More than twice as much is left, without the product, which may not fit. */
        *out = left - smem_bytes > smem_bytes ? 3 : 2;
    }
    return EJK_OK;
}

ejk_status ejk_estimate_shared_memory_bytes(int64_t q_block, int64_t kv_block, int64_t head_dim,
                                            ejk_dtype dtype, bool softmax_stats, int64_t *out) {
    int64_t size, rows, bytes, stats = 0;
    EJKI_TRY(require_out(out, "out"));
    EJKI_TRY(check_tile(q_block, kv_block, head_dim, 0));
    EJKI_TRY(item_size(dtype, &size));
    bool fits = ejki_mul(kv_block, 2, &rows) && ejki_add(rows, q_block, &rows) &&
                ejki_mul(rows, head_dim, &bytes) && ejki_mul(bytes, size, &bytes) &&
                (!softmax_stats || ejki_mul(q_block, 8, &stats)) &&
                ejki_add(bytes, stats, &bytes) && bytes <= INT64_MAX - 127;
    if (!fits) {
        return ejki_fail(EJK_STATUS_OVERFLOW,
                         "a tile with q_block %" PRId64 ", kv_block %" PRId64 ", head_dim %" PRId64
                         " takes more bytes than 63 bits count",
                         q_block, kv_block, head_dim);
    }
    *out = ejki_round_up(bytes, 128);
    return EJK_OK;
}

ejk_status ejk_calculate_blocksize_and_wraps(int64_t n, int64_t *block_size_out,
                                             int32_t *num_warps_out) {
    EJKI_TRY(require_out(block_size_out, "block_size_out"));
    EJKI_TRY(require_out(num_warps_out, "num_warps_out"));
    if (n < 0 || n > 65536) {
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "n is %" PRId64 ", expected 0 to 65536, the largest block", n);
    }
    int64_t block;
    EJKI_TRY(ejk_next_power_of_2(n, &block));
    *block_size_out = block;
    *num_warps_out = block >= 32768 ? 32 : block >= 8192 ? 16 : block >= 2048 ? 8 : 4;
    return EJK_OK;
}
