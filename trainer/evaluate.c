#include "run.h"

#include <math.h>
#include <stdlib.h>

#include "common/clock.h"
#include "libcomm/comm.h"

enum st_status train_run_evaluate(struct train_run *run)
{
	const struct train_dataset_info *info = train_dataset_info(run->dataset);
	uint64_t batches = run->validation_batches, most = (batches + run->size - 1) / run->size;
	uint64_t first = batches * run->rank / run->size, end = batches * (run->rank + 1) / run->size;
	uint64_t sequences = train_dataset_sequences(run->dataset, TRAIN_SPLIT_VALIDATION, run->context);
	double *all = calloc((size_t)most * run->size, sizeof *all), *mine = all ? all + most * run->rank : NULL, sum = 0;
	struct comm_request *request;

	if (!all)
		return train_run_give_up(run, st_fail(ST_ERR_NOMEM, "no memory for the losses of %llu batches", (unsigned long long)batches));
	for (uint64_t batch = first; batch < end; batch++) {
		enum st_status status = ST_OK;
		for (size_t row = 0; row < run->micro && status == ST_OK; row++) {
			/* Spread over the whole split, so that a few batches stand for all of it. */
			uint64_t index = (uint64_t)((__uint128_t)(batch * run->micro + row) * sequences / (batches * run->micro));
			status = train_dataset_read(run->dataset, TRAIN_SPLIT_VALIDATION, run->context, index, run->inputs + row * run->context,
						    run->targets + row * run->context);
		}
		if (status == ST_OK)
			status = train_model_forward(run->model, run->inputs, run->targets, run->micro, run->context, &mine[batch - first]);
		if (status != ST_OK) {
			free(all);
			return train_run_give_up(run, status);
		}
	}
	enum st_status status = comm_all_gather(run->comm, mine, all, (size_t)most * sizeof *all, COMM_U8, &request);
	if (status == ST_OK)
		status = comm_wait(run->comm, &request);
	run->met_ns = st_now_ns();
	for (uint32_t rank = 0; rank < run->size && status == ST_OK; rank++)
		for (uint64_t i = 0; i < batches * (rank + 1) / run->size - batches * rank / run->size; i++)
			sum += all[most * rank + i];
	free(all);
	ST_TRY(status);
	double loss = sum / (double)batches;
	const char *unit = info->vocabulary == 256 ? "byte" : "token";
	if (isfinite(info->bigram_entropy))
		train_journal_say(&run->journal, "validation loss %.4f nats/%s at step %llu | text's bigram entropy %.4f", loss, unit,
				  (unsigned long long)run->progress.step, info->bigram_entropy);
	else
		train_journal_say(&run->journal, "validation loss %.4f nats/%s at step %llu", loss, unit, (unsigned long long)run->progress.step);
	train_journal_validation(&run->journal, run->progress.step, loss);
	return ST_OK;
}
