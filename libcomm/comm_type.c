/* Element types and operations: sizes and names. */
#include "comm.h"

static const struct {
	const char *name;
	size_t bytes;
} types[COMM_TYPES] = {
	[COMM_U8] = {"u8", 1},   [COMM_F32] = {"f32", 4}, [COMM_F64] = {"f64", 8}, [COMM_F16] = {"f16", 2},
	[COMM_BF16] = {"bf16", 2}, [COMM_I32] = {"i32", 4}, [COMM_I64] = {"i64", 8},
};

size_t comm_type_bytes(enum comm_type type)
{
	return (unsigned)type < COMM_TYPES ? types[type].bytes : 0;
}

const char *comm_type_name(enum comm_type type)
{
	return (unsigned)type < COMM_TYPES ? types[type].name : "unknown type";
}

const char *comm_op_name(enum comm_op op)
{
	static const char *const names[COMM_OPS] = {"sum", "avg", "min", "max"};
	return (unsigned)op < COMM_OPS ? names[op] : "unknown operation";
}
