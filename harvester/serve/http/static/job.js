// The page of one job, at #/jobs/ID: facts, results to take along, and its rows, those that failed first

import { $, ENDED, ask, duration, hasKey, make, plural, quoted, reach, refusal, say, sql, whole } from "./base.js";
import { clock, doneRows, jobs, may, onRemoval, timeLeft, took, verbButtons } from "./jobs.js";
import { offer } from "./query.js";
import { dataTable } from "./tables.js";

const PAGE_ROWS = 25;
const TECHNICAL = ["finish_reason", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "attempts", "requests", "parts", "latency_ms", "truncated", "completed_at"];
const AGAIN_MS = 3000; // between two readings of a job that the list lacks

const opened = { id: null, from: 0, view: null, hasEnded: false, isGone: false, readAt: 0, isReading: false, reading: new AbortController() };

function facts(view) {
  const tokens = `${whole(view.prompt_tokens)} of prompts, ${whole(view.output_tokens)} of answers`;
  const done = `${whole(doneRows(view))} of ${plural(view.rows_total, "row")}, ${plural(view.rows_error, "error")}`;
  return {
    State: [view.state, view.message, view.standing].filter(Boolean).join(". "),
    Rows: done,
    Tokens: tokens + (view.offline_tokens_per_s === null ? "" : `, ${whole(view.offline_tokens_per_s)} a second`),
    Started: view.started_at_s === null ? "not yet" : clock(view.started_at_s),
    Took: view.started_at_s === null ? "" : duration(took(view)),
    Ended: view.ended_at_s === null ? "" : clock(view.ended_at_s),
    "Time left": timeLeft(view),
    Deadline: view.deadline_at_s ? clock(view.deadline_at_s) : "",
    Task: view.task,
    Model: view.model,
    Source: view.source,
    Owner: view.owner ?? "",
    Notes: (view.notes ?? []).join(". "),
  };
}

function describe() {
  const { view } = opened;
  const known = Object.entries(facts(view)).filter(([, value]) => value);
  const list = $("job-facts");
  const names = known.map(([name]) => name).join();
  if (list.dataset.names !== names) {
    list.dataset.names = names;
    list.replaceChildren(...known.map(([name]) => make("div", {}, make("dt", { textContent: name }), make("dd"))));
  }
  known.forEach(([, value], at) => say(list.children[at].lastChild, value));
  $("job-progress").value = doneRows(view) / Math.max(1, view.rows_total);
  for (const button of $("job-acts").children) {
    const isHidden = !may(button.dataset.verb, view);
    if (isHidden && document.activeElement === button) $("job-title").focus();
    button.hidden = isHidden;
  }
  const hasEnded = ENDED.includes(view.state);
  if (hasEnded && !opened.hasEnded) readRows();
  opened.hasEnded = hasEnded;
}

// Called where the address names a job; null: it names none.
export function openJob(id) {
  $("job").hidden = id === null;
  opened.reading.abort();
  Object.assign(opened, { id, from: 0, view: null, hasEnded: false, isGone: false, isReading: false });
  if (id === null) return;
  say($("job-title"), id);
  $("job-facts").replaceChildren();
  delete $("job-facts").dataset.names;
  $("job-acts").replaceChildren(...verbButtons(id, ["pause", "resume", "retry", "cancel", "remove"]));
  say($("job-command"), `harvester results ${id} -o ${id}.parquet`);
  $("rows-table").hidden = true;
  $("job-title").focus();
  readJob();
}

async function readJob() {
  const { id } = opened;
  opened.readAt = performance.now();
  try {
    const view = await ask("GET", `/api/jobs/${encodeURIComponent(id)}`);
    if (opened.id === id) take(view);
  } catch (error) {
    if (opened.id === id) lack(error);
  }
}

function take(view) {
  const isFirst = opened.view === null;
  opened.view = { ...opened.view, ...view };
  if (isFirst) opened.hasEnded = ENDED.includes(view.state);
  describe();
  if (isFirst) readRows();
}

// The job could not be read. What is shown of it stays, until it is removed.
function lack(error) {
  opened.isGone = error.status === 404;
  if (opened.view === null) {
    for (const button of $("job-acts").children) button.hidden = true;
    say($("rows-note"), "");
    say($("rows-fault"), error.message);
  } else if (opened.isGone) take({ state: "removed", message: null, standing: null });
}

// Called at each look of the server, and with the view of a job that the reader has changed. The list lacks old jobs, and all
// but the first where there are many: such a job is read on its own, until it has ended.
export function refresh(changed) {
  if (opened.id === null || opened.isGone) return;
  const view = jobs.get(opened.id)?.view ?? (changed?.id === opened.id ? changed : null);
  const isOver = opened.view !== null && ENDED.includes(opened.view.state);
  if (opened.view !== null && view !== null) take(view);
  else if (!isOver && performance.now() - opened.readAt > AGAIN_MS) readJob();
}

// A link sends no key. Without one the browser writes the results to the disk as they come, once the server has said that it can
// send them; with a key the page collects them, up to a size.
const MOST_MB = 512;

function save(href, name) {
  make("a", { href, download: name }).click();
}

async function collected(answer, id) {
  const pieces = [];
  const reader = answer.body.getReader();
  for (let bytes = 0; ; ) {
    const mb = bytes / 1e6;
    if (mb > MOST_MB) throw new Error(`The results have more than ${MOST_MB} MB; write them to a file with: harvester results ${id} -o ${id}.parquet`);
    say($("download-note"), `${mb.toFixed(1)} MB so far`);
    const { value, done } = await reader.read().catch(() => {
      throw new Error(`The results broke off after ${mb.toFixed(1)} MB; try again.`);
    });
    if (done) return new Blob(pieces, { type: answer.headers.get("content-type") });
    pieces.push(value);
    bytes += value.length;
  }
}

async function download(id, format) {
  const path = `/api/jobs/${encodeURIComponent(id)}/results?format=${format}`;
  const stop = new AbortController();
  try {
    const answer = await reach(path, { headers: {}, signal: stop.signal });
    if (!answer.ok) throw await refusal(answer);
    if (!hasKey()) return save(path, `${id}.${format}`);
    const href = URL.createObjectURL(await collected(answer, id));
    save(href, `${id}.${format}`);
    setTimeout(() => URL.revokeObjectURL(href), 60000);
  } finally {
    stop.abort();
  }
}

for (const button of document.querySelectorAll("[data-format]")) {
  button.onclick = async () => {
    const { id } = opened;
    button.disabled = true;
    say($("rows-fault"), "");
    try {
      await download(id, button.dataset.format);
    } catch (error) {
      if (opened.id === id) say($("rows-fault"), error.message);
    } finally {
      button.disabled = false;
      say($("download-note"), "");
    }
  };
}

// Columns with nothing in them go; what failed and what came out stand first.
function arranged({ columns, rows }) {
  const place = ({ name }) => {
    const at = ["row_id", "status", "error_code", "error_message", "output"].indexOf(name);
    return at >= 0 ? at : TECHNICAL.includes(name) ? 100 + TECHNICAL.indexOf(name) : 50;
  };
  const kept = columns.map((column, at) => ({ ...column, at, place: place(column) })).filter(({ at }) => rows.some((row) => row[at] !== null));
  kept.sort((one, other) => one.place - other.place || one.at - other.at);
  return { columns: kept, rows: rows.map((row) => kept.map(({ at }) => row[at])) };
}

async function readRows() {
  const { id, from } = opened;
  if (id === null) return;
  const query = `select substr(columns(*)::varchar, 1, 600) from (select * from results(${quoted(id)}) order by status = 'error' desc, row_id limit ${PAGE_ROWS + 1} offset ${from})`;
  opened.reading.abort();
  opened.reading = new AbortController();
  opened.isReading = true;
  const { signal } = opened.reading;
  say($("rows-fault"), "");
  say($("rows-note"), "Reading");
  try {
    const answer = await sql(query, PAGE_ROWS + 1, signal);
    if (signal.aborted) return;
    const hasMore = answer.rows.length > PAGE_ROWS;
    const told = arranged({ columns: answer.columns, rows: answer.rows.slice(0, PAGE_ROWS) });
    const table = dataTable(told, `Rows of ${id}, errors first, from row ${from + 1}`);
    const at = told.columns.findIndex(({ name }) => name === "status");
    told.rows.forEach((row, place) => table.tBodies[0].rows[place].classList.toggle("is-error", row[at] === "error"));
    $("rows-table").replaceChildren(table);
    $("rows-table").hidden = !told.rows.length;
    $("rows-back").disabled = from === 0;
    $("rows-next").disabled = !hasMore;
    say($("rows-note"), told.rows.length ? `${whole(from + 1)} to ${whole(from + told.rows.length)}` : "No row is published yet");
  } catch (error) {
    if (signal.aborted) return;
    say($("rows-note"), "");
    say($("rows-fault"), error.message);
  }
  opened.isReading = false;
}

// Rows that are still being read when their job is removed would be refused by the server.
onRemoval((id) => {
  if (opened.id !== id || !opened.isReading) return () => {};
  opened.reading.abort();
  return () => opened.id === id && readRows();
});

function turn(by) {
  opened.from = Math.max(0, opened.from + by);
  readRows();
}

$("rows-back").onclick = () => turn(-PAGE_ROWS);
$("rows-next").onclick = () => turn(PAGE_ROWS);
$("rows-again").onclick = () => readRows();
$("rows-ask").onclick = () => {
  const query = `select *\nfrom results(${quoted(opened.id)})\nlimit 100`;
  location.hash = "#sql";
  setTimeout(() => offer(query)); // once the section is shown
};
