/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file record.h
 * Records: descriptions of structs, from which JSON, equality, hashes, flags and help texts are derived.
 *
 * A record describes a plain struct: its fields with kind, offset, default, unit and one line of documentation.
 * JSON in both directions, equality, hashing, merging, the list of fields that are set, command-line flags, the
 * keys of plans and help texts are derived from it. The library describes the arguments and configurations of its
 * operations in this way; describe yours the same way:
 *
 * @code
 * #define MY_CONFIG(F, R)                                                                   \
 *     F(OPT_INT, rows,   EJK_OPTIONAL, "unset", "rows", "rows a tile computes at once")     \
 *     F(BOOL,    pinned, EJK_OPTIONAL, "false", "",     "keep the tile in cache")
 * EJK_RECORD_STRUCT(my_config, MY_CONFIG);            // typedef struct my_config { … } my_config;
 * EJK_RECORD_DEFINE(my_config_record, my_config, MY_CONFIG); // static const ejk_record …
 * @endcode
 *
 * The list is a macro that takes two others: F describes a field, R a nested record:
 *
 *     F(kind, name, role, fallback, unit, doc)      R(type, name, record, doc)
 *
 * `kind` is one of #EJK_FIELD_LIST; `role` one of #ejk_field_role; `fallback` says in words what a field
 * that is not set means; `unit` is the unit, or for a tensor its shape and element type, as
 * "[B,T,Hq,D] float". In a shape, a word is a symbol bound by the first tensor that has it, `a|b` allows
 * either (`Hq|1` = may be broadcast), a number is itself; up to 8 alternatives are separated by " or "
 * ("[n] or [Hq,n] float32"). A length may be an expression of symbols, integer fields of the record that are
 * set, and numbers, with + - * / ( ) ceil( ) floor( ), as `N+1`, `2*Hkv`, `K*bits/8`, `ceil(K/32)`; "/" has to
 * come out even. It is solved for a symbol that no other tensor binds where just one length of that fits.
 * The element type is `float` (f64, f32, bf16, f16), `int` (i32, i64), `index` (i8, i16, i32, i64), `bool`
 * (bool, u8), `float8` (e4m3, e5m2), `element` (float, i8, float8), a dtype's name, or the name of another tensor
 * field whose type it shares.
 *
 * The unit of a list of tensors is that of each member: symbols agree among them too. A symbol with "#" behind it
 * is a member's own: the members 0 and 1 of "[n#,D] float" bind n0 and n1, and share D.
 *
 * Behind the element type may stand what the values are (#ejk_domain), with bounds like lengths, or -1:
 * "[N+1] int ascending from 0 to T", "[B,P] int in [-1,pages)", "[E] int sum <= M".
 *
 * In a zeroed struct, no field is set and every default applies. Structs are plain data: they own no memory, and
 * texts are stored inside, so they may be copied by assignment or memcpy.
 *
 * Thread-safety: descriptions are constant, all functions may be called from any thread at once.
 *
 * @since 0.1
 */
#ifndef EJKERNEL_RECORD_H
#define EJKERNEL_RECORD_H

#include <ejkernel/status.h>
#include <ejkernel/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/** An integer that may be unset. Zero-initialised = unset. */
typedef struct ejk_opt_int {
    int64_t value;
    bool set;
} ejk_opt_int;

/** A number that may be unset. Zero-initialised = unset. */
typedef struct ejk_opt_float {
    double value;
    bool set;
} ejk_opt_float;

/** A truth value that may be unset. */
typedef enum ejk_opt_bool { EJK_UNSET = 0, EJK_TRUE = 1, EJK_FALSE = 2 } ejk_opt_bool;

/** A window of keys around a query: how many to each side, inclusive; an unset side has no limit. */
typedef struct ejk_window {
    ejk_opt_int left;
    ejk_opt_int right;
} ejk_window;

/** The most numbers of a list. */
#define EJK_MAX_INTS 16

/** A list of whole numbers; without any it is unset. What is behind `count` does not matter. */
typedef struct ejk_ints {
    int64_t value[EJK_MAX_INTS];
    int32_t count;
} ejk_ints;

/** The most tensors of a list. */
#define EJK_MAX_TENSORS 8

/**
 * A list of tensors, an input of an operation; without any it is unset. What is behind `count` does not matter.
 * The views lie in the struct, so that copies of it have lists of their own.
 *
 * @since 0.1
 */
typedef struct ejk_tensors {
    ejk_tensor value[EJK_MAX_TENSORS];
    int32_t count;
} ejk_tensors;

/** Values for the fields above. */
EJK_API ejk_opt_int ejk_int(int64_t value);
EJK_API ejk_opt_float ejk_float(double value);
EJK_API ejk_window ejk_window_of(int64_t left, int64_t right);

/** Room of a text field, with its closing zero. */
#define EJK_NAME_SIZE 48

/** Kinds of fields: name, C type. NAME is a text of fewer than #EJK_NAME_SIZE bytes; "" = unset. */
#define EJK_FIELD_LIST(X)                                                                          \
    X(BOOL, bool)                                                                                  \
    X(INT, int64_t)                                                                                \
    X(FLOAT, double)                                                                               \
    X(OPT_BOOL, ejk_opt_bool)                                                                      \
    X(OPT_INT, ejk_opt_int)                                                                        \
    X(OPT_FLOAT, ejk_opt_float)                                                                    \
    X(WINDOW, ejk_window)                                                                          \
    X(NAME, char[EJK_NAME_SIZE])                                                                   \
    X(DTYPE, ejk_dtype)                                                                            \
    X(INTS, ejk_ints)                                                                              \
    X(TENSOR, ejk_tensor)                                                                          \
    X(TENSORS, ejk_tensors)                                                                        \
    X(RECORD, struct)

/** The kind of a field. */
typedef enum ejk_field_kind {
#define EJK_FIELD_ENUM(name, type) EJK_FIELD_##name,
    EJK_FIELD_LIST(EJK_FIELD_ENUM)
#undef EJK_FIELD_ENUM
} ejk_field_kind;

/** What a field is in a call. */
typedef enum ejk_field_role {
    EJK_OPTIONAL = 0,        /**< input that may be left out */
    EJK_REQUIRED = 1,        /**< input that has to be given */
    EJK_OUTPUT = 2,          /**< result, written if its tensor is given */
    EJK_REQUIRED_OUTPUT = 3, /**< result that has to be given */
    EJK_INOUT = 4, /**< read and updated in place, if its tensor is given: a state, a cache */
    EJK_REQUIRED_INOUT = 5, /**< the same, has to be given */
} ejk_field_role;

struct ejk_record;

/** Description of one field. */
typedef struct ejk_field {
    const char *name;
    ejk_field_kind kind;
    ejk_field_role role;
    size_t offset;                   /**< in the struct, in bytes */
    const char *fallback;            /**< what "not set" means, in words */
    const char *unit;                /**< unit; of a tensor, shape and element type */
    const char *doc;                 /**< one line */
    const struct ejk_record *record; /**< of a nested record, else NULL */
} ejk_field;

/** Description of a struct. */
typedef struct ejk_record {
    const char *name;
    size_t size; /**< of the struct, in bytes */
    const ejk_field *fields;
    int32_t count;
    /**
     * Symbols of the units in the order in which texts have them, with the lengths that those have which are
     * not given: "B=1,Hq,Hkv=Hq,T,S=T". Others come after them. NULL: none. "B=1!N": where N is given, tensors of
     * a text take shapes without B, as those of packed sequences do.
     */
    const char *symbols;
    /**
     * Orders in which axes may lie in memory, for `layout=` of texts: "bthd|bhtd b=B t=T|S h=Hq|Hkv d=D|Dv"
     * names two, by letters, and the symbols that each letter stands for. The first is that of the units. It
     * is about tensors of just these axes. NULL: only that of the units.
     */
    const char *orders;
} ejk_record;

/* How the two macros below spell a member of each kind. */
#define EJK_MEMBER_BOOL(name)      bool name
#define EJK_MEMBER_INT(name)       int64_t name
#define EJK_MEMBER_FLOAT(name)     double name
#define EJK_MEMBER_OPT_BOOL(name)  ejk_opt_bool name
#define EJK_MEMBER_OPT_INT(name)   ejk_opt_int name
#define EJK_MEMBER_OPT_FLOAT(name) ejk_opt_float name
#define EJK_MEMBER_WINDOW(name)    ejk_window name
#define EJK_MEMBER_NAME(name)      char name[EJK_NAME_SIZE]
#define EJK_MEMBER_DTYPE(name)     ejk_dtype name
#define EJK_MEMBER_INTS(name)      ejk_ints name
#define EJK_MEMBER_TENSOR(name)    ejk_tensor name
#define EJK_MEMBER_TENSORS(name)   ejk_tensors name

#define EJK_RECORD_MEMBER(kind, name, role, fallback, unit, doc) EJK_MEMBER_##kind(name);
#define EJK_RECORD_NESTED(type, name, record, doc)               type name;

/** Declares `typedef struct type { … } type` from a list. */
#define EJK_RECORD_STRUCT(type, list)                                                              \
    typedef struct type {                                                                          \
        list(EJK_RECORD_MEMBER, EJK_RECORD_NESTED)                                                 \
    } type

#define EJK_RECORD_FIELD(kind, name, role, fallback, unit, doc)                                    \
    {#name, EJK_FIELD_##kind, role, offsetof(EJK_RECORD_SELF, name), fallback, unit, doc, NULL},
#define EJK_RECORD_SUB(type, name, sub, doc)                                                       \
    {#name, EJK_FIELD_RECORD, EJK_OPTIONAL, offsetof(EJK_RECORD_SELF, name), "unset", "", doc,     \
     &(sub)},

/**
 * Defines `const ejk_record variable` for a struct. Before it, `#define EJK_RECORD_SELF type`; after it,
 * `#undef` it: the preprocessor cannot pass the type through the list.
 */
#define EJK_RECORD_DEFINE(variable, type, list)                                                    \
    EJK_RECORD_DEFINE_WITH(variable, type, list, NULL, NULL)

/** The same with ejk_record.symbols and ejk_record.orders. */
#define EJK_RECORD_DEFINE_WITH(variable, type, list, symbols, orders)                              \
    static const ejk_field variable##_fields[] = {list(EJK_RECORD_FIELD, EJK_RECORD_SUB)};         \
    const ejk_record variable = {#type,                                                            \
                                 sizeof(type),                                                     \
                                 variable##_fields,                                                \
                                 (int32_t)(sizeof variable##_fields / sizeof *variable##_fields),  \
                                 symbols,                                                          \
                                 orders}

/**
 * Checks a description: names, offsets inside the struct, no overlap, a readable tensor unit. Statuses:
 * INVALID_ARGUMENT with the field and what is wrong. Called for every kernel that is registered.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_check(const ejk_record *record);

/** The field of a name, also of a nested one by "outer.inner"; NULL if there is none. */
EJK_API const ejk_field *ejk_record_find(const ejk_record *record, const char *path,
                                         size_t *offset_out);

/** Bytes of a field's member in its struct; 0 for NULL or a kind that does not exist. */
EJK_API size_t ejk_field_size(const ejk_field *field);

/**
 * The tensors that a field has in a struct, one after the other: one, those of a list, or NULL and 0 for NULL and
 * other kinds. A list's count that is out of bounds counts as the nearest bound. `count` may be NULL.
 *
 * @since 0.1
 */
EJK_API ejk_tensor *ejk_field_tensors(const ejk_field *field, const void *object, int32_t *count);

/**
 * What a field's role says; false for NULL. A field that is updated in place is an input and an output: its
 * tensor is one, so it may not overlap any other of the call, and elements of its own may not share memory.
 * It is never poisoned; where a call is run more than once (tuning, benchmarks) it is put back in between.
 * Gradients take it as an input.
 */
EJK_API bool ejk_field_is_input(const ejk_field *field);
EJK_API bool ejk_field_is_output(const ejk_field *field);
EJK_API bool ejk_field_is_required(const ejk_field *field);

/** True if a field has a value: not unset, not zero, not "", not absent; a nested record: any of its own. */
EJK_API bool ejk_record_is_set(const ejk_field *field, const void *object);

/** How ejk_record_to_json() writes. */
typedef enum ejk_json_flags {
    EJK_JSON_SET_ONLY =
        1, /**< leave out fields that are not set, instead of writing null or a default */
    EJK_JSON_INDENT = 2, /**< over several lines; default is compact, keys sorted */
} ejk_json_flags;

/**
 * A record's JSON: an object of its fields; unset values are null, tensors
 * {"dtype":"float32","shape":[…]}, windows [left, right], lists arrays, nested records objects. Keys are sorted,
 * non-ASCII is escaped: equal records give equal texts. Infinite and NaN numbers are refused.
 * `*out` is a text to be freed with ejk_free(). Statuses: OUT_OF_MEMORY, INVALID_ARGUMENT.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_to_json(const ejk_record *record, const void *object,
                                                    int flags, char **out);

/**
 * Fills a struct from JSON: fields not mentioned, or null, are unset. Unknown keys, wrong types and
 * numbers out of range are errors that name the path. Tensors get dtype, shape and row-major strides, no
 * data. Statuses: MALFORMED, OUT_OF_MEMORY; `object` is untouched on failure.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_from_json(const ejk_record *record, const char *json,
                                                      void *object);

/**
 * Sets one field from a command line's text: "true"/"false" (or "" for a flag alone), numbers, "127,0"
 * for a window ("127" = both sides, "127," or ",0" = one side), "1,2,3" for a list, a dtype's or any other
 * name, JSON for a nested record. Tensors and lists of them are refused: load them. `path` as in
 * ejk_record_find(), "-" reads as "_".
 * Statuses: UNKNOWN_NAME, MALFORMED (names field, text and what was expected).
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_set_text(const ejk_record *record, void *object,
                                                     const char *path, const char *text);

/**
 * Equality field by field: tensors by data, dtype, shape, strides and device; unset equals unset whatever
 * its value member holds; numbers by value (0.0 equals -0.0, NaN equals NaN).
 */
EJK_API bool ejk_record_equal(const ejk_record *record, const void *a, const void *b);

/** A hash in step with ejk_record_equal(): equal structs have equal hashes. Not stable between versions. */
EJK_API uint64_t ejk_record_hash(const ejk_record *record, const void *object);

/**
 * Equality and hash of a call's signature: as above, but a tensor counts without its data pointer. Two
 * calls with the same signature can share a plan.
 */
EJK_API bool ejk_record_same_signature(const ejk_record *record, const void *a, const void *b);
EJK_API uint64_t ejk_record_signature(const ejk_record *record, const void *object);

/**
 * Each field of `out` = that of `override` if set there, else that of `base`; either may be NULL (as if
 * nothing were set). Nested records merge field by field. `out` may be one of the two.
 */
EJK_API void ejk_record_merge(const ejk_record *record, const void *base, const void *override,
                              void *out);

/**
 * A reader's text about a record: one line a field with flag, type, default, unit and doc, as
 * `ejk info --op` prints it. Freed with ejk_free(). Status: OUT_OF_MEMORY.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_help(const ejk_record *record, char **out);

/* ---- What values are -------------------------------------------------------------------------------- */

/** Kinds of domains. */
typedef enum ejk_domain_kind {
    EJK_DOMAIN_NONE = 0,  /**< any value of its type */
    EJK_DOMAIN_RANGE = 1, /**< "in [low,high)": each value by itself; "[" includes, "(" excludes */
    EJK_DOMAIN_ASCENDING =
        2,              /**< "ascending from low to high [by step]": the first value along the last
                                   axis is low, none is below the one before it, nor more than step above,
                                   none is above high */
    EJK_DOMAIN_SUM = 3, /**< "sum <= high": none is negative, and along the last axis they add up to
                                   at most high */
} ejk_domain_kind;

/** Room of a bound's text, with its closing zero. */
#define EJK_BOUND_SIZE 64

/** What the values of a tensor field are. Bounds are texts as in the unit, "" where there is none. */
typedef struct ejk_domain {
    ejk_domain_kind kind;
    bool low_excluded, high_excluded; /**< of a range */
    char low[EJK_BOUND_SIZE], high[EJK_BOUND_SIZE], step[EJK_BOUND_SIZE];
} ejk_domain;

/** The bounds of a domain as numbers that are allowed themselves; where there is none, the type's own. */
typedef struct ejk_domain_bounds {
    int64_t low, high, step;
} ejk_domain_bounds;

struct ejk_axes;

/** The domain that a tensor field's unit says. INVALID_ARGUMENT: NULL, a unit that cannot be read. */
EJK_API EJK_NODISCARD ejk_status ejk_field_domain(const ejk_field *field, ejk_domain *out);

/**
 * The same with its bounds under the symbols of a call, as ejk_record_check_tensors() binds them. A range
 * of floating-point numbers keeps its bounds, whether they are excluded or not. INVALID_ARGUMENT: NULL, a
 * bound whose symbol is not bound or that has no value; the sentence names it.
 */
EJK_API EJK_NODISCARD ejk_status ejk_field_domain_bounds(const ejk_field *field,
                                                         const struct ejk_axes *axes,
                                                         ejk_domain_bounds *out);

/* ---- Shapes as symbols ---------------------------------------------------------------------------- */

/** Room of a symbol's name, with its closing zero. */
#define EJK_SYMBOL_SIZE 24

/** Lengths bound to the symbols of tensor units, as B=1, T=1024. */
typedef struct ejk_axes {
    struct {
        char name[EJK_SYMBOL_SIZE];
        int64_t length;
    } axis[32];
    int32_t count;
} ejk_axes;

/** Binds or overwrites a symbol. INVALID_ARGUMENT: too many symbols, too long a name, a negative length. */
EJK_API EJK_NODISCARD ejk_status ejk_axes_set(ejk_axes *axes, const char *name, int64_t length);

/** The length of a symbol; -1 if unbound. */
EJK_API int64_t ejk_axes_get(const ejk_axes *axes, const char *name);

/** Reads "B=1,Hq=8,T=1024". MALFORMED with the place that cannot be read. */
EJK_API EJK_NODISCARD ejk_status ejk_axes_parse(const char *text, ejk_axes *axes);

/**
 * Gives symbols that are not bound the lengths that the record says they have then (ejk_record.symbols), in
 * its order, as far as these follow from what is bound. INVALID_ARGUMENT: NULL, more than 32 symbols.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_complete(const ejk_record *record, ejk_axes *axes);

/**
 * Checks all tensors of a call against their units and binds the symbols: required tensors present, each
 * a valid view (ejk_tensor_check()) with contiguous last axis, on the CPU, rank and lengths consistent,
 * element types as stated. One sentence names the field, the axis, both lengths and the symbol. Symbols
 * bound before the call are kept and must agree; integer fields that units name and that are set are bound
 * like symbols. Statuses: INVALID_ARGUMENT (missing), INVALID_SHAPE,
 * INVALID_DTYPE, INVALID_LAYOUT, OVERFLOW, UNAVAILABLE (device).
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_check_tensors(const ejk_record *record,
                                                          const void *object, ejk_axes *axes);

/**
 * The same of a call that is still being put together: tensors that are missing, required ones too, are
 * passed over. What binds the symbols that the shapes of the others follow from.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_bind_axes(const ejk_record *record, const void *object,
                                                      ejk_axes *axes);

/**
 * The symbols in the units of a record's tensors, nested ones included, each once, in their order, all of
 * length 0. With an object only those of tensors that it has. INVALID_ARGUMENT: NULL, more than 32.
 */
EJK_API EJK_NODISCARD ejk_status ejk_record_symbols(const ejk_record *record, const void *object,
                                                    ejk_axes *out);

/**
 * The element type that a tensor field's unit asks for: a type by its name, that of another tensor if
 * `object` has it (else what that one's unit asks for), `number` for any float, int32 for any int, bool for
 * a mask. `record` is the one that the field belongs to. INVALID_ARGUMENT: NULL, a field that is no tensor
 * of it.
 */
EJK_API EJK_NODISCARD ejk_status ejk_field_dtype(const ejk_record *record, const ejk_field *field,
                                                 const void *object, ejk_dtype number,
                                                 ejk_dtype *out);

/**
 * The shape a tensor field has under bound symbols, taking the first alternative whose symbols are all
 * bound, and the first of `a|b`. INVALID_ARGUMENT: a symbol is unbound; the sentence names it.
 */
EJK_API EJK_NODISCARD ejk_status ejk_field_shape(const ejk_field *field, const ejk_axes *axes,
                                                 int32_t *rank, int64_t shape[EJK_MAX_RANK]);

#ifdef __cplusplus
}
#endif
#endif
