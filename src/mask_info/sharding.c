/* SPDX-License-Identifier: Apache-2.0 */
/* How the forms of a mask lie on a mesh of devices: names and lengths, nothing else. */
#include "mask_info/info.h"

#include <inttypes.h>
#include <string.h>

static int64_t size_of(const ejk_mesh *mesh, const char *name) {
    for (int32_t i = 0; i < mesh->count; i++)
        if (strncmp(mesh->names[i], name, EJK_NAME_SIZE) == 0) return mesh->sizes[i];
    return 0;
}

static ejk_status check_mesh(const ejk_mesh *mesh) {
    NEED(mesh);
    if (mesh->count < 0 || mesh->count > EJK_AXIS_NAMES_MAX)
        return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                         "mesh has a count of %" PRId32 ", expected 0 to %d", mesh->count,
                         EJK_AXIS_NAMES_MAX);
    for (int32_t i = 0; i < mesh->count; i++) {
        if (mesh->names[i][0] == '\0' || memchr(mesh->names[i], 0, EJK_NAME_SIZE) == NULL)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "name %" PRId32 " of mesh is empty or has no end, expected a text of "
                             "1 to %d bytes",
                             i, EJK_NAME_SIZE - 1);
        if (mesh->sizes[i] < 1)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "axis %s of mesh has size %" PRId64 ", expected 1 or more",
                             mesh->names[i], mesh->sizes[i]);
    }
    return EJK_OK;
}

/* Whether an axis of this length can be spread over these. */
static bool possible(int64_t length, const ejk_axis_names *axis, const ejk_mesh *mesh) {
    int64_t product = 1;
    if (axis->count < 1 || axis->count > EJK_AXIS_NAMES_MAX) return false;
    for (int32_t i = 0; i < axis->count; i++) {
        int64_t size = size_of(mesh, axis->names[i]);
        if (size == 0 || !ejki_mul(product, size, &product)) return false;
    }
    return length % product == 0;
}

ejk_status ejk_get_corrected_partition(const int64_t *shape, int32_t rank,
                                       const ejk_partition *wish, const ejk_mesh *mesh,
                                       ejk_partition *out) {
    NEED(wish);
    NEED(out);
    if (rank < 0 || rank > EJK_MAX_RANK || wish->rank < 0 || wish->rank > EJK_MAX_RANK)
        return ejki_fail(EJK_STATUS_INVALID_SHAPE,
                         "rank is %" PRId32 " and that of wish %" PRId32 ", expected 0 to %d", rank,
                         wish->rank, EJK_MAX_RANK);
    if (rank > 0) NEED(shape);
    EJKI_TRY(check_mesh(mesh));
    ejk_partition corrected = {.present = true};
    bool spread = false;
    for (int32_t i = 0; i < rank; i++) {
        corrected.axes[i].count = -1;
        if (i >= wish->rank || !possible(shape[i], &wish->axes[i], mesh)) continue;
        corrected.axes[i] = wish->axes[i];
        spread = true;
    }
    if (spread)
        corrected.rank = rank;
    else
        memset(corrected.axes, 0, sizeof corrected.axes);
    *out = corrected;
    return EJK_OK;
}

static ejk_status check_present(const ejk_axis_names *axis, const char *field,
                                const ejk_mesh *mesh) {
    for (int32_t i = 0; i < axis->count; i++)
        if (size_of(mesh, axis->names[i]) == 0)
            return ejki_fail(EJK_STATUS_INVALID_ARGUMENT,
                             "%s names %s, expected an axis that mesh has", field, axis->names[i]);
    return EJK_OK;
}

static ejk_status correct_form(const ejk_mask_info *info, ejki_form form,
                               const ejk_axis_names *sequence, const ejk_mesh *mesh,
                               ejk_partition *out) {
    if (!info->stored[form]) return EJK_OK;
    const ejki_info_array *array =
        atomic_load_explicit(&info->slots[form][0], memory_order_acquire);
    const ejk_tensor *t = &array->owned.tensor;
    ejk_partition wish = {true, 2, {info->axes.batch_axis_name, *sequence}};
    return ejk_get_corrected_partition(t->shape, t->rank, &wish, mesh, out);
}

ejk_status ejk_mask_info_get_shardings(const ejk_mask_info *info, bool sequence_parallel,
                                       const ejk_mesh *mesh, ejk_mask_sharding *out) {
    TRACE_CALL("get_shardings");
    NEED(info);
    NEED(out);
    EJKI_TRY(check_mesh(mesh));
    const ejk_mask_axes *axes = &info->axes;
    const ejk_axis_names none = {.count = -1};
    const ejk_axis_names *sequence = sequence_parallel ? &axes->sequence_axis_name : &none;
    EJKI_TRY(check_present(&axes->batch_axis_name, "batch_axis_name", mesh));
    EJKI_TRY(check_present(&axes->qheads_axis_name, "qheads_axis_name", mesh));
    EJKI_TRY(check_present(sequence, "sequence_axis_name", mesh));
    ejk_mask_sharding sharding = {0};
    if (info->mask_stored) {
        int64_t shape[4] = {info->batch, info->heads, info->q, info->kv};
        ejk_partition wish = {
            true, 4, {axes->batch_axis_name, axes->qheads_axis_name, *sequence, *sequence}};
        EJKI_TRY(ejk_get_corrected_partition(shape, 4, &wish, mesh, &sharding.attention_mask));
    }
    EJKI_TRY(correct_form(info, FORM_Q_IDS, sequence, mesh, &sharding.q_segment_ids));
    EJKI_TRY(correct_form(info, FORM_KV_IDS, sequence, mesh, &sharding.kv_segment_ids));
    EJKI_TRY(correct_form(info, FORM_Q_POSITIONS, sequence, mesh, &sharding.q_positions));
    EJKI_TRY(correct_form(info, FORM_KV_POSITIONS, sequence, mesh, &sharding.kv_positions));
    *out = sharding;
    return EJK_OK;
}

ejk_mask_sharding ejk_mask_info_get_empty_sharding(void) {
    return (ejk_mask_sharding){0};
}
