-- Statements by name, for SQLite and PostgreSQL alike. Types are DuckDB's, in which users' SQL sees the tables; `jobs.ledger.store.statements`
-- gives each store its own names for them.

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
    rows_cut_off BIGINT NOT NULL DEFAULT 0,
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
    rows_cut_off BIGINT NOT NULL DEFAULT 0,
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

-- What jobs took of the devices, by day (UTC), job and key, and what that would have cost at the price of the day.
CREATE TABLE IF NOT EXISTS harvested (
    day VARCHAR NOT NULL,
    job_id VARCHAR NOT NULL,
    owner VARCHAR,
    model VARCHAR NOT NULL,
    rows BIGINT NOT NULL,
    prompt_tokens BIGINT NOT NULL,
    output_tokens BIGINT NOT NULL,
    gpu_hours DOUBLE NOT NULL,
    cost DOUBLE,
    currency VARCHAR
);

-- name: own_schema
-- One row: who decides (each owner raises the epoch), and how many changes were made.
CREATE TABLE IF NOT EXISTS ledger (
    schema_version INTEGER NOT NULL,
    epoch BIGINT NOT NULL,
    commits BIGINT NOT NULL,
    owner VARCHAR
);

-- The last telling of usage by each replica, so that one that is said again counts once.
CREATE TABLE IF NOT EXISTS told (
    teller VARCHAR NOT NULL,
    number BIGINT NOT NULL,
    at_s DOUBLE NOT NULL
);
CREATE UNIQUE INDEX IF NOT EXISTS told_by_teller ON told (teller);
CREATE UNIQUE INDEX IF NOT EXISTS job_by_id ON jobs (id);
CREATE UNIQUE INDEX IF NOT EXISTS slice_by_id ON leases (job_id, slice_id);
CREATE INDEX IF NOT EXISTS slice_pending ON leases (job_id, slice_id) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS slice_leased ON leases (job_id, slice_id) WHERE state = 'leased';
CREATE UNIQUE INDEX IF NOT EXISTS harvest_by_hour ON harvest (model, hour_s);
CREATE INDEX IF NOT EXISTS lengths_by_task ON lengths (task_key);
CREATE UNIQUE INDEX IF NOT EXISTS harvested_by_day ON harvested (day, job_id, coalesce(currency, ''));
CREATE UNIQUE INDEX IF NOT EXISTS usage_by_hour ON usage (kind, hour_s, coalesce(owner, ''));

-- name: first_epoch
INSERT INTO ledger (schema_version, epoch, commits) SELECT ?, 0, 0 WHERE NOT EXISTS (SELECT 1 FROM ledger);

-- name: owned
SELECT schema_version, epoch, commits, owner FROM ledger;

-- name: own
UPDATE ledger SET epoch = epoch + 1, owner = ?;

-- name: take_over_commits
UPDATE ledger SET commits = ?;

-- name: count_commit
-- First in every change. It fails (the epoch may not be NULL) where another owner has raised the epoch since, or the store was put back.
UPDATE ledger SET commits = commits + 1, epoch = CASE WHEN epoch = ? AND commits = ? THEN epoch END;

-- name: add_harvested
INSERT INTO harvested (day, job_id, owner, model, rows, prompt_tokens, output_tokens, gpu_hours, cost, currency)
VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)
ON CONFLICT (day, job_id, coalesce(currency, '')) DO UPDATE SET rows = harvested.rows + excluded.rows,
    prompt_tokens = harvested.prompt_tokens + excluded.prompt_tokens, output_tokens = harvested.output_tokens + excluded.output_tokens,
    gpu_hours = harvested.gpu_hours + excluded.gpu_hours, cost = harvested.cost + excluded.cost;

-- name: add_usage
INSERT INTO usage (owner, kind, hour_s, requests, prompt_tokens, output_tokens) VALUES (?, ?, ?, ?, ?, ?)
ON CONFLICT (kind, hour_s, coalesce(owner, '')) DO UPDATE SET requests = usage.requests + excluded.requests,
    prompt_tokens = usage.prompt_tokens + excluded.prompt_tokens, output_tokens = usage.output_tokens + excluded.output_tokens;

-- name: note_told
-- Gives a row where the telling is new.
INSERT INTO told (teller, number, at_s) VALUES (?, ?, ?)
ON CONFLICT (teller) DO UPDATE SET number = excluded.number, at_s = excluded.at_s WHERE told.number < excluded.number
RETURNING number;

-- name: forget_told
DELETE FROM told WHERE at_s < ?;

-- name: forget_usage
DELETE FROM usage WHERE hour_s < ?;

-- name: harvest_rows
SELECT model, hour_s, tokens, busy_s FROM harvest;

-- name: add_harvest
INSERT INTO harvest (model, hour_s, rows, tokens, busy_s) VALUES (?, ?, ?, ?, ?)
ON CONFLICT (model, hour_s) DO UPDATE SET rows = harvest.rows + excluded.rows, tokens = harvest.tokens + excluded.tokens,
    busy_s = harvest.busy_s + excluded.busy_s;

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
INSERT INTO leases (job_id, slice_id, state, group_index, group_offset, row_start, row_count) VALUES (?, ?, 'pending', ?, ?, ?, ?);

-- name: forget_job
DELETE FROM jobs WHERE id = ?;

-- name: forget_slices
DELETE FROM leases WHERE job_id = ?;

-- name: job_rows
SELECT * FROM jobs ORDER BY created_at_s DESC, id DESC;

-- name: job_row
SELECT * FROM jobs WHERE id = ?;

-- name: find_key
SELECT id FROM jobs WHERE key = ? AND coalesce(owner, '') = coalesce(?, '') AND state NOT IN ('cancelling', 'cancelled', 'failed') ORDER BY created_at_s DESC LIMIT 1;

-- name: newest_ids
SELECT id FROM jobs ORDER BY created_at_s DESC, id DESC LIMIT 5;

-- name: set_state
UPDATE jobs SET state = ?, started_at_s = ?, ended_at_s = ?, message = ? WHERE id = ?;

-- name: set_judged
UPDATE jobs SET rows_judged = ?, errors_judged = ? WHERE id = ?;

-- name: set_message
UPDATE jobs SET message = ? WHERE id = ?;

-- name: take_slice
UPDATE leases SET state = 'leased', attempt = attempt + 1, lease_id = ?, holder = ?, expires_at_s = ?
WHERE job_id = ? AND slice_id = (SELECT min(slice_id) FROM leases WHERE job_id = ? AND state = 'pending')
RETURNING slice_id, group_index, group_offset, row_start, row_count, generation, attempt,
    rows_ok, rows_error, rows_truncated, rows_recomputed, rows_cut_off, prompt_tokens, cached_tokens, output_tokens, preemptions;

-- name: free_slice
UPDATE leases SET state = 'pending', lease_id = NULL, holder = NULL, expires_at_s = NULL
WHERE job_id = ? AND slice_id = ? AND state = 'leased';

-- name: leased_slices
SELECT job_id, slice_id, lease_id, holder, generation, row_count, attempt,
    rows_ok, rows_error, rows_truncated, rows_recomputed, rows_cut_off, prompt_tokens, cached_tokens, output_tokens, preemptions
FROM leases WHERE state = 'leased' ORDER BY job_id, slice_id;

-- name: free_all
UPDATE leases SET state = 'pending', lease_id = NULL, holder = NULL, expires_at_s = NULL WHERE state = 'leased';

-- name: slice_stats
SELECT state, generation, lease_id, rows_ok, rows_error, rows_truncated, rows_recomputed, rows_cut_off, prompt_tokens, cached_tokens, output_tokens,
    preemptions
FROM leases WHERE job_id = ? AND slice_id = ?;

-- name: next_slice
SELECT max(slice_id) + 1 FROM leases WHERE job_id = ?;

-- name: split_slice
INSERT INTO leases (job_id, slice_id, state, group_index, group_offset, row_start, row_count, generation)
SELECT job_id, ?, 'pending', group_index, group_offset + ?, row_start + ?, ?, generation FROM leases WHERE job_id = ? AND slice_id = ?;

-- name: shrink_slice
UPDATE leases SET row_count = ? WHERE job_id = ? AND slice_id = ?;

-- name: finish_slice
-- The lease stays named: its holder may say the same again.
UPDATE leases SET state = 'done', expires_at_s = NULL, rows_ok = ?, rows_error = ?, rows_truncated = ?,
    rows_recomputed = ?, rows_cut_off = ?, prompt_tokens = ?, cached_tokens = ?, output_tokens = ?, preemptions = ?
WHERE job_id = ? AND slice_id = ?;

-- name: keep_slice
UPDATE leases SET state = 'pending', lease_id = NULL, holder = NULL, expires_at_s = NULL, rows_ok = ?, rows_error = ?, rows_truncated = ?,
    rows_recomputed = ?, rows_cut_off = ?, prompt_tokens = ?, cached_tokens = ?, output_tokens = ?, preemptions = ?
WHERE job_id = ? AND slice_id = ?;

-- name: count_slice
UPDATE leases SET rows_ok = ?, rows_error = ?, rows_truncated = ?, rows_recomputed = ?, rows_cut_off = ?, prompt_tokens = ?,
    cached_tokens = ?, output_tokens = ?, preemptions = ?
WHERE job_id = ? AND slice_id = ?;

-- name: add_counts
UPDATE jobs SET rows_ok = rows_ok + ?, rows_error = rows_error + ?, rows_truncated = rows_truncated + ?,
    rows_recomputed = rows_recomputed + ?, rows_cut_off = rows_cut_off + ?, prompt_tokens = prompt_tokens + ?,
    cached_tokens = cached_tokens + ?, output_tokens = output_tokens + ?, preemptions = preemptions + ?
WHERE id = ?;

-- name: slice_sums
SELECT
    CAST(coalesce(sum(rows_ok), 0) AS BIGINT), CAST(coalesce(sum(rows_error), 0) AS BIGINT),
    CAST(coalesce(sum(rows_truncated), 0) AS BIGINT), CAST(coalesce(sum(rows_recomputed), 0) AS BIGINT),
    CAST(coalesce(sum(rows_cut_off), 0) AS BIGINT),
    CAST(coalesce(sum(prompt_tokens), 0) AS BIGINT), CAST(coalesce(sum(cached_tokens), 0) AS BIGINT),
    CAST(coalesce(sum(output_tokens), 0) AS BIGINT), CAST(coalesce(sum(preemptions), 0) AS BIGINT)
FROM leases WHERE job_id = ?;

-- name: open_slices
-- With the failed rows that a retry asks again.
SELECT count(*), CAST(coalesce(sum(CASE WHEN generation > 0 THEN rows_error END), 0) AS BIGINT)
FROM leases WHERE job_id = ? AND state <> 'done';

-- name: open_by_job
SELECT job_id, count(*), CAST(coalesce(sum(CASE WHEN generation > 0 THEN rows_error END), 0) AS BIGINT)
FROM leases WHERE state <> 'done' GROUP BY job_id;

-- name: retry_slices
-- Also slices whose part holds only some rows, and those of a retry that was stopped. Call it while none is leased.
UPDATE leases SET state = 'pending', generation = ?, attempt = 0 WHERE job_id = ? AND rows_error > 0;

-- name: job_slices
SELECT slice_id, group_index, group_offset AS "offset", row_start, row_count FROM leases WHERE job_id = ? ORDER BY slice_id;

-- name: slice_rows
SELECT slice_id, state, generation, row_start, row_count, rows_ok, rows_error, rows_truncated, rows_recomputed, rows_cut_off, prompt_tokens,
    cached_tokens, output_tokens, preemptions
FROM leases WHERE job_id = ? ORDER BY slice_id;

-- name: restore_slice
UPDATE leases SET state = ?, generation = ?, lease_id = NULL, holder = NULL, expires_at_s = NULL WHERE job_id = ? AND slice_id = ?;

-- name: set_counts
UPDATE jobs SET rows_ok = ?, rows_error = ?, rows_truncated = ?, rows_recomputed = ?, rows_cut_off = ?, prompt_tokens = ?,
    cached_tokens = ?, output_tokens = ?, preemptions = ?
WHERE id = ?;

-- name: set_generation
UPDATE jobs SET generation = ? WHERE id = ?;

-- name: copy_jobs
INSERT INTO jobs VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: copy_leases
INSERT INTO leases VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: copy_harvest
INSERT INTO harvest VALUES (?, ?, ?, ?, ?);

-- name: copy_lengths
INSERT INTO lengths VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: copy_harvested
INSERT INTO harvested VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?);

-- name: copy_usage
INSERT INTO usage VALUES (?, ?, ?, ?, ?, ?);
