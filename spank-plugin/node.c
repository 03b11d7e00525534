/* slurmstepd, as root. Everything read here comes from the user; nothing here opens a file. */
#include <stdio.h>

#include "plugin.h"

bool node_settings(spank_t spank, const struct opt_site *site, const char *site_error, struct opt_job *job, const char **refusal)
{
	static char text[OPT_CARRIER_BYTES + 1], line[OPT_ERROR_BYTES + 128];
	char error[OPT_ERROR_BYTES], het[16];
	uint32_t step = UINT32_MAX;

	*refusal = NULL;
	if (spank_get_item(spank, S_JOB_STEPID, &step) != ESPANK_SUCCESS || step >= STEP_SPECIAL)
		return false;
	spank_err_t found = spank_getenv(spank, OPT_CARRIER, text, sizeof text);
	if (found == ESPANK_ENV_NOEXIST)
		return false;
	if (site_error) {
		snprintf(line, sizeof line, "synctrain: switched off on this node: %s: this step runs without synctrain", site_error);
		*refusal = line;
		return false;
	}
	if (found != ESPANK_SUCCESS || !opt_carrier_parse(text, job, error)) {
		snprintf(line, sizeof line, "synctrain: %s: %s: this step runs without synctrain", OPT_CARRIER,
			 found != ESPANK_SUCCESS ? "too long" : error);
		*refusal = line;
		return false;
	}
	if (spank_getenv(spank, "SLURM_HET_SIZE", het, sizeof het) != ESPANK_ENV_NOEXIST) {
		*refusal = "synctrain: heterogeneous jobs and steps are not supported: this step runs without synctrain";
		return false;
	}
	opt_apply_locks(site, job);
	return true;
}
