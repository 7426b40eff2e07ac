// Jobs: the list, its order, and what changes one

import { $, ENDED, announce, ask, duration, make, plural, say, serverNow, whole } from "./base.js";

export const jobs = new Map(); // id -> {row, view, said}
export const VERBS = {
  pause: { label: "Pause", text: "Finished rows are kept. Rows in flight are computed again after resume.", from: ["queued", "running"] },
  resume: { label: "Resume", text: "Computes the remaining rows. A deadline that has passed is dropped.", from: ["paused", "cancelled", "failed", "expired"] },
  retry: { label: "Retry", text: "Computes the failed rows again; the others stay as they are. A deadline that has passed is dropped.", from: ENDED },
  cancel: { label: "Cancel", text: "Finished rows stay in its results; resume computes the others.", from: ["queued", "running", "paused"], isGrave: true },
  remove: { label: "Remove", text: "Its results and inputs are deleted. This cannot be undone.", from: ENDED, isGrave: true },
};

export const doneRows = (view) => Math.min(view.rows_total, view.rows_ok + view.rows_error - view.rows_to_retry + view.rows_running);
export const may = (verb, view) => VERBS[verb].from.includes(view.state) && (verb !== "retry" || view.rows_error > 0) && (verb !== "remove" || !view.id.startsWith("batch_"));

function newRow(id) {
  const row = make("tr", { role: "row" });
  const open = make("a", { href: `#/jobs/${encodeURIComponent(id)}`, textContent: id });
  row.append(
    make("th", { scope: "row", role: "rowheader", className: "about" }, open, make("div", { className: "hint" })),
    make("td", { role: "cell", className: "state" }),
    make("td", { role: "cell", className: "bar" }, make("progress", { max: 1, "aria-label": `Progress of ${id}` }), make("span", { className: "hint" })),
    make("td", { role: "cell", className: "n", "data-label": "Errors" }),
    make("td", { role: "cell", className: "n", "data-label": "Tokens/s" }),
    make("td", { role: "cell", "data-label": "Started" }),
    make("td", { role: "cell", className: "n", "data-label": "Took" }),
    make("td", { role: "cell", "data-label": "Time left" }),
    make("td", { role: "cell", className: "change" }, make("div", { className: "acts" })),
  );
  row.querySelector(".acts").append(...verbButtons(id, ["pause", "resume", "retry", "cancel"]));
  return row;
}

export function verbButtons(id, verbs) {
  return verbs.map((verb) => {
    const { label } = VERBS[verb];
    return make("button", { type: "button", textContent: label, "aria-label": `${label} ${id}`, "data-verb": verb, onclick: () => askToChange(verb, id) });
  });
}

// Seconds from start to end, or until now.
export function took(view) {
  return view.started_at_s === null ? null : Math.max(0, (view.ended_at_s ?? serverNow()) - view.started_at_s);
}

export function clock(at_s) {
  const at = new Date(at_s * 1000);
  const isToday = at.toDateString() === new Date(serverNow() * 1000).toDateString();
  return at.toLocaleString("en-GB", isToday ? { timeStyle: "medium" } : { dateStyle: "medium", timeStyle: "short" });
}

export function timeLeft(view) {
  if (ENDED.includes(view.state) || view.eta_s === null) return "";
  const spread = view.eta_low_s === null ? "" : ` (${duration(view.eta_low_s)} to ${duration(view.eta_high_s)})`;
  return duration(view.eta_s) + spread;
}

function drawJob({ row, view }) {
  const [about, state, bar, errors, rate, started, lasted, left] = row.children;
  const done = doneRows(view);
  row.dataset.state = view.state;
  say(about.querySelector(".hint"), [`${view.task}, ${view.source}`, view.message, view.standing].filter(Boolean).join(". "));
  say(state, view.state);
  bar.querySelector("progress").value = done / Math.max(1, view.rows_total);
  say(bar.querySelector("span"), `${whole(done)} of ${plural(view.rows_total, "row")}, ${Math.floor((100 * done) / Math.max(1, view.rows_total))}%`);
  say(errors, whole(view.rows_error));
  errors.classList.toggle("has-errors", view.rows_error > 0);
  say(rate, view.offline_tokens_per_s === null ? "" : whole(view.offline_tokens_per_s));
  say(started, view.started_at_s === null ? "" : clock(view.started_at_s));
  say(lasted, view.started_at_s === null ? "" : duration(took(view)));
  say(left, timeLeft(view));
  for (const button of row.querySelectorAll("[data-verb]")) {
    const isHidden = !may(button.dataset.verb, view);
    if (isHidden && document.activeElement === button) about.querySelector("a").focus();
    button.hidden = isHidden;
  }
}

// Each change of state and each quarter of the way: a reader that speaks is told no more.
function tell(entry) {
  const { view } = entry;
  const quarter = Math.floor((4 * doneRows(view)) / Math.max(1, view.rows_total));
  const news = `${view.state} ${ENDED.includes(view.state) ? "" : quarter}`;
  if (entry.said !== undefined && entry.said !== news) announce(`Job ${view.id} is ${view.state}: ${whole(doneRows(view))} of ${plural(view.rows_total, "row")}, ${plural(view.rows_error, "error")}.`);
  entry.said = news;
}

// What the reader filters and sorts by: a figure of each job, and whether the greatest stands first. Jobs without the figure stand last.

const SORTS = {
  made: { figure: (view) => view.created_at_s, isFalling: true }, // of no column: how the list begins
  job: { figure: (view) => view.id, isFalling: false },
  state: { figure: (view) => view.state, isFalling: false },
  done: { figure: (view) => doneRows(view) / Math.max(1, view.rows_total), isFalling: true },
  errors: { figure: (view) => view.rows_error, isFalling: true },
  rate: { figure: (view) => view.offline_tokens_per_s, isFalling: true },
  started: { figure: (view) => view.started_at_s, isFalling: true },
  took: { figure: took, isFalling: true },
};
const order = { by: "made", isFalling: true };

function compare({ view }, { view: other }) {
  const [a, b] = [view, other].map(SORTS[order.by].figure);
  if (a === b) return other.created_at_s - view.created_at_s;
  if (a === null || b === null) return a === null ? 1 : -1;
  return a < b === order.isFalling ? 1 : -1;
}

// Whether a view fits what the reader has written and chosen, which is read once for all jobs.
function filter() {
  const words = $("filter").value.trim().toLowerCase().split(/\s+/);
  const state = $("filter-state").value;
  return (view) => {
    const text = [view.id, view.task, view.source, view.model, view.owner ?? ""].join(" ").toLowerCase();
    return words.every((word) => text.includes(word)) && (!state || view.state === state || (state === "open" && !ENDED.includes(view.state)));
  };
}

function arrange() {
  const list = $("job-list");
  const isShown = filter();
  const shown = [...jobs.values()].filter(({ view }) => isShown(view)).sort(compare);
  for (const { row } of jobs.values()) row.hidden = true;
  shown.forEach(({ row }, at) => {
    row.hidden = false;
    if (list.children[at] !== row) list.insertBefore(row, list.children[at] ?? null);
  });
  $("none-found").hidden = shown.length > 0 || !jobs.size;
  for (const button of document.querySelectorAll("[data-sort]")) {
    const isOwn = button.dataset.sort === order.by;
    button.closest("th").setAttribute("aria-sort", isOwn ? (order.isFalling ? "descending" : "ascending") : "none");
  }
}

for (const button of document.querySelectorAll("[data-sort]")) {
  button.onclick = () => {
    const by = button.dataset.sort;
    Object.assign(order, { by, isFalling: order.by === by ? !order.isFalling : SORTS[by].isFalling });
    arrange();
  };
}
$("filter").oninput = arrange;
$("filter-state").onchange = arrange;

let listener = () => {};
export function onJobs(then) {
  listener = then;
}

export function showJobs({ jobs: views, older }) {
  const ids = new Set(views.map((view) => view.id));
  for (const [id, entry] of jobs) {
    if (ids.has(id)) continue;
    entry.row.remove();
    jobs.delete(id);
  }
  for (const view of views) {
    let entry = jobs.get(view.id);
    if (!entry) {
      jobs.set(view.id, (entry = { row: newRow(view.id) }));
      $("job-list").append(entry.row);
    }
    entry.view = view;
    drawJob(entry);
    tell(entry);
  }
  arrange();
  $("jobs-scroll").hidden = !views.length;
  $("job-filter").hidden = !views.length;
  $("no-jobs").hidden = views.length > 0;
  $("older").hidden = !older;
  say($("older"), `${plural(older, "further job")} not shown; SQL has them all in the table jobs.`);
  listener();
}

function askToChange(verb, id) {
  const { label, text, isGrave } = VERBS[verb];
  say($("confirm-title"), `${label} ${id}?`);
  say($("confirm-text"), text);
  say($("confirm-yes"), `${label} job`);
  $("confirm-yes").classList.toggle("is-grave", Boolean(isGrave));
  $("confirm-yes").onclick = () => change(verb, id);
  $("confirm").showModal();
  $("confirm-no").focus();
}

// Called before a job is removed; what it returns is called if it could not be.
let removing = () => () => {};
export function onRemoval(then) {
  removing = then;
}

async function change(verb, id) {
  const fault = $(location.hash.startsWith("#/jobs/") ? "rows-fault" : "job-fault");
  say(fault, "");
  const path = `/api/jobs/${encodeURIComponent(id)}`;
  const goOn = verb === "remove" ? removing(id) : () => {};
  try {
    const view = await (verb === "remove" ? ask("DELETE", path) : ask("POST", `${path}/${verb}`));
    const entry = jobs.get(id);
    if (verb === "remove") {
      entry?.row.remove();
      jobs.delete(id);
      location.hash = "#jobs";
    } else {
      if (entry) {
        entry.view = view;
        drawJob(entry);
        tell(entry);
      }
      listener(view);
    }
  } catch (error) {
    goOn();
    say(fault, error.message);
  }
}
