/* SPDX-License-Identifier: Apache-2.0 */
/* One tensor against what its unit says of values, as calls look at all of them. */
#ifndef TESTS_SUPPORT_DOMAINS_H
#define TESTS_SUPPORT_DOMAINS_H

#include "record/domain.h"

static inline ejk_status check_domain(const ejk_record *record, const ejk_field *field,
                                      const void *object, const ejk_axes *axes) {
    const ejk_tensor *tensor = ejk_field_tensors(field, object, NULL);
    ejki_domain_rule rule;
    if (!ejk_tensor_present(tensor)) return EJK_OK;
    EJKI_TRY(ejki_domain_resolve(record, field, -1, tensor->dtype, axes, &rule));
    return ejki_domain_verify(&rule, field->name, tensor);
}

#endif
