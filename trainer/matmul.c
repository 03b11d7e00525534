#include "trainer/matmul.h"

#include <dlfcn.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdatomic.h>

#include "trainer/threads.h"

struct tiles {
	const struct train_matmul *product;
	size_t rows, columns;   /* of a tile */
	size_t across;          /* tiles side by side */
	_Atomic int failed;     /* dnnl_status_t of a tile that failed */
};

/*
 * oneDNN would start an OpenMP team of its own in each of our threads.  The setting belongs to the thread, and is reached
 * by name: a build without -fopenmp still loads libgomp with oneDNN.
 */
static void one_openmp_thread(void)
{
	static _Thread_local bool done;
	if (done)
		return;
	void (*set_threads)(int);
	*(void **)&set_threads = dlsym(RTLD_DEFAULT, "omp_set_num_threads");
	if (set_threads)
		set_threads(1);
	done = true;
}

static dnnl_status_t sgemm(const struct train_matmul *p, size_t row, size_t rows, size_t column, size_t columns)
{
	one_openmp_thread();
	return dnnl_sgemm(p->a_transposed ? 'T' : 'N', p->b_transposed ? 'T' : 'N', (dnnl_dim_t)rows, (dnnl_dim_t)columns, (dnnl_dim_t)p->k, p->alpha,
			  p->a + (p->a_transposed ? row : row * p->lda), (dnnl_dim_t)p->lda,
			  p->b + (p->b_transposed ? column * p->ldb : column), (dnnl_dim_t)p->ldb, p->beta,
			  p->c + row * p->ldc + column, (dnnl_dim_t)p->ldc);
}

static enum st_status failure(int status, const struct train_matmul *p)
{
	return st_fail(status == dnnl_out_of_memory ? ST_ERR_NOMEM : ST_ERR_INTERNAL, "matrix product (%zu, %zu) x (%zu, %zu): oneDNN returned status %d",
		       p->m, p->k, p->k, p->n, status);
}

static size_t at_most(size_t a, size_t b)
{
	return a < b ? a : b;
}

static void tile(void *context, size_t index, unsigned thread)
{
	(void)thread;
	struct tiles *tiles = context;
	const struct train_matmul *p = tiles->product;
	size_t row = index / tiles->across * tiles->rows, column = index % tiles->across * tiles->columns;
	size_t rows = at_most(tiles->rows, p->m - row), columns = at_most(tiles->columns, p->n - column);
	dnnl_status_t status = sgemm(p, row, rows, column, columns);
	if (status != dnnl_success)
		atomic_store_explicit(&tiles->failed, (int)status, memory_order_relaxed);
	else if (p->finish)
		p->finish(p, row, rows, column, columns);
}

enum st_status train_matmul_run(const struct train_matmul *product)
{
	/*
	 * sgemm copies its operands into a packed form for every call, so large tiles are better; small enough that a product of a
	 * small model still has a few for each thread.  Never smaller than 64 x 64, where a call costs more than its arithmetic.
	 */
	struct tiles tiles = {.product = product, .rows = 256, .columns = 512};
	size_t count;
	for (;;) {
		tiles.across = (product->n + tiles.columns - 1) / tiles.columns;
		count = (product->m + tiles.rows - 1) / tiles.rows * tiles.across;
		if (count >= 16 || (tiles.rows == 64 && tiles.columns == 64))
			break;
		if (tiles.rows > 64)
			tiles.rows /= 2;
		else
			tiles.columns /= 2;
	}
	train_parallel(TRAIN_THREADS_MAX, count, tile, &tiles);
	int failed = atomic_load_explicit(&tiles.failed, memory_order_relaxed);
	return failed ? failure(failed, product) : ST_OK;
}

enum st_status train_matmul_small(const struct train_matmul *product)
{
	dnnl_status_t status = sgemm(product, 0, product->m, 0, product->n);
	return status == dnnl_success ? ST_OK : failure((int)status, product);
}
