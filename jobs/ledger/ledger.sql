-- name: schema
CREATE TABLE IF NOT EXISTS jobs (
    id VARCHAR NOT NULL,
    key VARCHAR NOT NULL,
    state VARCHAR NOT NULL,
    task VARCHAR NOT NULL,
    source VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    rows_total BIGINT NOT NULL,
    rows_ok BIGINT NOT NULL DEFAULT 0,
    rows_error BIGINT NOT NULL DEFAULT 0,
    rows_truncated BIGINT NOT NULL DEFAULT 0,
    rows_recomputed BIGINT NOT NULL DEFAULT 0,
    prompt_tokens BIGINT NOT NULL DEFAULT 0,
    cached_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    preemptions BIGINT NOT NULL DEFAULT 0,
    generation INTEGER NOT NULL DEFAULT 0,
    created_at_s DOUBLE NOT NULL,
    started_at_s DOUBLE,
    ended_at_s DOUBLE,
    message VARCHAR,
    notes VARCHAR NOT NULL,
    spec VARCHAR NOT NULL,
    rows_judged BIGINT NOT NULL DEFAULT 0,
    errors_judged BIGINT NOT NULL DEFAULT 0,
    owner VARCHAR
);
ALTER TABLE jobs ADD COLUMN IF NOT EXISTS owner VARCHAR;

-- Every slice of every job, and its lease where it has one. Users' SQL goes by the name.
CREATE TABLE IF NOT EXISTS leases (
    job_id VARCHAR NOT NULL,
    slice_id BIGINT NOT NULL,
    state VARCHAR NOT NULL,
    group_index BIGINT NOT NULL,
    group_offset BIGINT NOT NULL,
    row_start BIGINT NOT NULL,
    row_count BIGINT NOT NULL,
    generation INTEGER NOT NULL DEFAULT 0,
    attempt INTEGER NOT NULL DEFAULT 0,
    lease_id VARCHAR,
    holder VARCHAR,
    expires_at_s DOUBLE,
    rows_ok BIGINT NOT NULL DEFAULT 0,
    rows_error BIGINT NOT NULL DEFAULT 0,
    rows_truncated BIGINT NOT NULL DEFAULT 0,
    rows_recomputed BIGINT NOT NULL DEFAULT 0,
    prompt_tokens BIGINT NOT NULL DEFAULT 0,
    cached_tokens BIGINT NOT NULL DEFAULT 0,
    output_tokens BIGINT NOT NULL DEFAULT 0,
    preemptions BIGINT NOT NULL DEFAULT 0
);

-- What was done in an hour, by model: the rate that estimates of new jobs take.
CREATE TABLE IF NOT EXISTS harvest (
    model VARCHAR NOT NULL,
    hour_s DOUBLE NOT NULL,
    rows BIGINT NOT NULL,
    tokens BIGINT NOT NULL,
    busy_s DOUBLE NOT NULL
);

-- Response lengths of a task, by bands of prompt tokens; `counts` is the whole state, in each row of the task.
CREATE TABLE IF NOT EXISTS lengths (
    task_key VARCHAR NOT NULL,
    task VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    prompt_tokens_from BIGINT NOT NULL,
    prompt_tokens_to BIGINT NOT NULL,
    rows BIGINT NOT NULL,
    p50_tokens BIGINT NOT NULL,
    p90_tokens BIGINT NOT NULL,
    p50_coverage DOUBLE,
    p90_coverage DOUBLE,
    counts VARCHAR NOT NULL
);

-- What each API key used in an hour: `kind` chat counts requests, batch counts rows. No owner: a server without keys.
CREATE TABLE IF NOT EXISTS usage (
    owner VARCHAR,
    kind VARCHAR NOT NULL,
    hour_s DOUBLE NOT NULL,
    requests BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL
);

-- name: commit_schema
CREATE TABLE IF NOT EXISTS commits (count BIGINT NOT NULL);

-- name: commit_count
SELECT coalesce(max(count), 0) FROM commits;

-- name: first_commit
INSERT INTO commits SELECT 0 WHERE NOT EXISTS (FROM commits);

-- name: count_commit
UPDATE commits SET count = ?;

-- name: usage_hour
SELECT 1 FROM usage WHERE owner IS NOT DISTINCT FROM ? AND kind = ? AND hour_s = ?;

-- name: insert_usage
INSERT INTO usage (requests, prompt_tokens, output_tokens, owner, kind, hour_s) VALUES (?, ?, ?, ?, ?, ?);

-- name: add_usage
UPDATE usage SET requests = requests + ?, prompt_tokens = prompt_tokens + ?, output_tokens = output_tokens + ?
WHERE owner IS NOT DISTINCT FROM ? AND kind = ? AND hour_s = ?;

-- name: forget_usage
DELETE FROM usage WHERE hour_s < ?;

-- name: harvest_rows
SELECT model, hour_s, tokens, busy_s FROM harvest;

-- name: harvest_hour
SELECT 1 FROM harvest WHERE model = ? AND hour_s = ?;

-- name: insert_harvest
INSERT INTO harvest (model, hour_s, rows, tokens, busy_s) VALUES (?, ?, ?, ?, ?);

-- name: add_harvest
UPDATE harvest SET rows = rows + ?, tokens = tokens + ?, busy_s = busy_s + ? WHERE model = ? AND hour_s = ?;

-- name: forget_harvest
DELETE FROM harvest WHERE hour_s < ?;

-- name: task_lengths
SELECT counts FROM lengths WHERE task_key = ? LIMIT 1;

-- name: forget_lengths
DELETE FROM lengths WHERE task_key = ?;

-- name: insert_lengths
INSERT INTO lengths VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: set_spec
UPDATE jobs SET spec = ? WHERE id = ?;

-- name: insert_job
INSERT INTO jobs (id, key, state, task, source, model, rows_total, created_at_s, owner, notes, spec)
VALUES (?, ?, 'queued', ?, ?, ?, ?, ?, ?, ?, ?);

-- name: insert_slices
INSERT INTO leases (job_id, slice_id, state, group_index, group_offset, row_start, row_count)
SELECT ?, slice_id, 'pending', group_index, group_offset, row_start, row_count FROM new_slices;

-- name: job_rows
SELECT * EXCLUDE (key) FROM jobs ORDER BY created_at_s DESC, id DESC;

-- name: job_row
SELECT * EXCLUDE (key) FROM jobs WHERE id = ?;

-- name: find_key
SELECT id FROM jobs WHERE key = ? AND owner IS NOT DISTINCT FROM ? AND state NOT IN ('cancelling', 'cancelled', 'failed') ORDER BY created_at_s DESC LIMIT 1;

-- name: newest_ids
SELECT id FROM jobs ORDER BY created_at_s DESC, id DESC LIMIT 5;

-- name: set_state
UPDATE jobs SET state = ?, started_at_s = ?, ended_at_s = ?, message = ? WHERE id = ?;

-- name: set_judged
UPDATE jobs SET rows_judged = ?, errors_judged = ? WHERE id = ?;

-- name: set_message
UPDATE jobs SET message = ? WHERE id = ?;

-- name: pending_slice
SELECT slice_id, group_index, group_offset, row_start, row_count, generation, attempt, rows_ok + rows_error, rows_error
FROM leases WHERE job_id = ? AND state = 'pending' ORDER BY slice_id LIMIT 1;

-- name: lease_slice
UPDATE leases SET state = 'leased', attempt = attempt + 1, lease_id = ?, holder = ?, expires_at_s = ?
WHERE job_id = ? AND slice_id = ?;

-- name: free_slice
UPDATE leases SET state = 'pending', lease_id = NULL, holder = NULL, expires_at_s = NULL
WHERE job_id = ? AND slice_id = ? AND state = 'leased';

-- name: leased_slices
SELECT job_id, slice_id, lease_id, holder FROM leases WHERE state = 'leased';

-- name: free_all
UPDATE leases SET state = 'pending', lease_id = NULL, holder = NULL, expires_at_s = NULL WHERE state = 'leased';

-- name: slice_stats
SELECT state, generation, rows_ok, rows_error, rows_truncated, rows_recomputed, prompt_tokens, cached_tokens, output_tokens, preemptions
FROM leases WHERE job_id = ? AND slice_id = ?;

-- name: finish_slice
UPDATE leases SET state = 'done', lease_id = NULL, expires_at_s = NULL WHERE job_id = ? AND slice_id = ?;

-- name: count_slice
UPDATE leases SET rows_ok = ?, rows_error = ?, rows_truncated = ?, rows_recomputed = ?, prompt_tokens = ?, cached_tokens = ?,
    output_tokens = ?, preemptions = ?
WHERE job_id = ? AND slice_id = ?;

-- name: add_counts
UPDATE jobs SET rows_ok = rows_ok + ?, rows_error = rows_error + ?, rows_truncated = rows_truncated + ?,
    rows_recomputed = rows_recomputed + ?, prompt_tokens = prompt_tokens + ?, cached_tokens = cached_tokens + ?,
    output_tokens = output_tokens + ?, preemptions = preemptions + ?
WHERE id = ?;

-- name: slice_sums
SELECT coalesce(sum(rows_ok), 0), coalesce(sum(rows_error), 0), coalesce(sum(rows_truncated), 0), coalesce(sum(rows_recomputed), 0),
    coalesce(sum(prompt_tokens), 0), coalesce(sum(cached_tokens), 0), coalesce(sum(output_tokens), 0), coalesce(sum(preemptions), 0)
FROM leases WHERE job_id = ?;

-- name: open_slices
SELECT count(*) FROM leases WHERE job_id = ? AND state <> 'done';

-- name: retry_slices
UPDATE leases SET state = 'pending', generation = ?, attempt = 0 WHERE job_id = ? AND state = 'done' AND rows_error > 0;

-- name: job_slices
SELECT slice_id, group_index, group_offset AS "offset", row_start, row_count FROM leases WHERE job_id = ? ORDER BY slice_id;

-- name: slice_rows
SELECT slice_id, state, generation, rows_ok, rows_error, rows_truncated, rows_recomputed, prompt_tokens, cached_tokens, output_tokens,
    preemptions
FROM leases WHERE job_id = ? ORDER BY slice_id;

-- name: restore_slice
UPDATE leases SET state = ?, generation = ?, lease_id = NULL, holder = NULL, expires_at_s = NULL WHERE job_id = ? AND slice_id = ?;

-- name: set_counts
UPDATE jobs SET rows_ok = ?, rows_error = ?, rows_truncated = ?, rows_recomputed = ?, prompt_tokens = ?, cached_tokens = ?,
    output_tokens = ?, preemptions = ?
WHERE id = ?;

-- name: set_generation
UPDATE jobs SET generation = ? WHERE id = ?;
