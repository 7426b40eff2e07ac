// The page of a harvester server. Everything shown is set as text, never as markup: rows hold text of any origin.

const $ = (id) => document.getElementById(id);
const SVG_POINTS = 120;
const PAGE_ROWS = 25;
const SILENT_MS = 15000;
const ENDED = ["completed", "cancelled", "failed", "expired"];
const TECHNICAL = ["finish_reason", "prompt_tokens", "cached_tokens", "output_tokens", "preemptions", "attempts", "requests", "parts", "latency_ms", "truncated", "completed_at"];

function make(tag, fields = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

function announce(text) {
  $("news").textContent = text;
}

// Numbers as a person reads them

const whole = (value) => Math.round(value).toLocaleString("en");
const percent = (share) => (share === null ? null : `${Math.round(share * 100)}`);
const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

function milliseconds(ms) {
  if (ms === null) return null;
  return ms >= 10000 ? [(ms / 1000).toFixed(1), "s"] : [ms >= 100 ? whole(ms) : ms.toPrecision(ms >= 10 ? 3 : 2), "ms"];
}

function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// The key, where the server asks for one: kept by this tab until it is closed

const KEY = "harvester-api-key";

function askForKey() {
  if ($("unlock").open) return;
  say($("unlock-fault"), sessionStorage.getItem(KEY) === null ? "" : "The server does not know this key.");
  $("unlock").showModal();
}

$("unlock-form").onsubmit = (event) => {
  const key = $("key").value.trim();
  if (!/^[!-~]+$/.test(key)) {
    event.preventDefault();
    return say($("unlock-fault"), key ? "A key has no spaces and no accents." : "Key is missing.");
  }
  sessionStorage.setItem(KEY, key);
  $("key").value = "";
};
$("unlock").onclose = () => connect();

// Asking the server

async function reach(path, request) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...request.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { ...request, headers, cache: "no-store" });
  if (answer.status === 401) askForKey();
  return answer;
}

async function ask(method, path, body) {
  const request = { method, headers: { accept: "application/json" } };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["content-type"] = "application/json";
  }
  let answer;
  try {
    answer = await reach(path, request);
  } catch {
    throw new Error("The server does not answer; try again later.");
  }
  const told = await answer.json().catch(() => null);
  if (!answer.ok) throw new Error(told?.error?.message ?? `The server answered ${answer.status}; try again.`);
  return told;
}

const sql = (query, limit) => ask("POST", "/api/sql", { query, limit });
const quoted = (text) => `'${text.replaceAll("'", "''")}'`;

// Replicas

const replicas = new Map(); // id -> {node, past}

function big(tile, parts) {
  const node = tile.querySelector(".big");
  if (parts === null) return node.replaceChildren(make("span", { className: "unit", textContent: "none yet" }));
  node.replaceChildren(parts[0], make("span", { className: "unit", textContent: parts[1] }));
}

function drawLine(tile, values, top, slo) {
  const known = values.map((value, at) => [at, value]).filter(([, value]) => value !== null);
  const y = (value) => (27 - 26 * Math.min(1, value / top)).toFixed(1);
  const x = (at) => (120 - (values.length - 1 - at) * (120 / (SVG_POINTS - 1))).toFixed(1);
  const points = known.map(([at, value]) => `${x(at)},${y(value)}`);
  tile.querySelector("polyline").setAttribute("points", points.join(" "));
  const area = tile.querySelector("polygon");
  if (area) area.setAttribute("points", points.length ? `${x(known[0][0])},28 ${points.join(" ")} ${x(known.at(-1)[0])},28` : "");
  const line = tile.querySelector(".slo");
  if (!line) return;
  line.setAttribute("visibility", slo !== null && slo <= top ? "visible" : "hidden");
  line.setAttribute("y1", y(slo));
  line.setAttribute("y2", y(slo));
}

function drawLatency(tile, latency, past) {
  big(tile, milliseconds(latency.p50));
  const small = tile.querySelector(".small");
  const slo = milliseconds(latency.slo)?.join(" ");
  const alone = latency.slowdown === null ? "" : `, ${latency.slowdown} times as long as without jobs`;
  if (latency.p99 === null) {
    say(small, slo ? `P50. No chat in the last minute; the SLO is ${slo}.` : "P50. No chat in the last minute.");
  } else if (slo) {
    const isOver = latency.p99 > latency.slo;
    const tail = `${milliseconds(latency.p99).join(" ")}, ${isOver ? "above" : "within"}`;
    small.replaceChildren("P50. P99 ", make("span", { className: isOver ? "over" : "", textContent: tail }), ` ${slo}${alone}`);
  } else {
    say(small, `P50. P99 ${milliseconds(latency.p99).join(" ")}${alone}`);
  }
  past.push(latency.p50);
  if (past.length > SVG_POINTS) past.shift();
  const most = Math.max(...past.filter((value) => value !== null), 0);
  drawLine(tile, past, Math.max(most * 1.15, 1), latency.slo);
}

function drawReplica(entry, now) {
  const tile = (name) => entry.node.querySelector(`[data-tile="${name}"]`);
  const wrong = entry.node.querySelector(".wrong");
  wrong.hidden = !now.wrong.length;
  say(wrong, now.wrong.join(". "));
  drawLatency(tile("ttft"), now.ttft, entry.past.ttft);
  drawLatency(tile("tpot"), now.tpot, entry.past.tpot);
  const share = now.harvested_time;
  const harvest = tile("harvest");
  big(harvest, share === null ? null : [percent(share), "%"]);
  const idle = share === null ? null : Math.max(0, 1 - now.busy_time);
  const tokens = now.harvested_tokens === null ? "" : `${percent(now.harvested_tokens)}% of tokens. `;
  say(harvest.querySelector(".small"), share === null ? "" : `${tokens}With chat ${percent(Math.max(0, now.busy_time - share))}%, idle ${percent(idle)}%`);
  entry.past.harvest.push(share);
  if (entry.past.harvest.length > SVG_POINTS) entry.past.harvest.shift();
  drawLine(harvest, entry.past.harvest, 1, null);
  const kv = tile("kv");
  big(kv, [percent(now.kv_used), "%"]);
  say(kv.querySelector(".small"), `${plural(now.ended_steps, "step")} ended early for a chat`);
  kv.querySelector("meter").value = now.kv_used;
  for (const work of ["online", "offline"]) {
    const cells = entry.node.querySelectorAll(`[data-work="${work}"] td`);
    const { running, waiting, tokens_per_s: rate } = now[work];
    [running, waiting, rate ?? 0].forEach((value, at) => say(cells[at], whole(value)));
  }
}

function showReplicas(list) {
  const box = $("replicas");
  for (const [id, entry] of replicas) {
    if (!list.some((now) => now.id === id)) {
      entry.node.remove();
      replicas.delete(id);
    }
  }
  if (!list.length) return box.replaceChildren(make("p", { className: "empty", textContent: "No replica runs yet." }));
  box.querySelector(".empty")?.remove();
  list.forEach((now, at) => {
    let entry = replicas.get(now.id);
    if (!entry) {
      entry = { node: $("replica-template").content.firstElementChild.cloneNode(true), past: { ttft: [], tpot: [], harvest: [] } };
      replicas.set(now.id, entry);
      box.append(entry.node);
    }
    say(entry.node.querySelector("h3"), list.length === 1 ? `Replica ${now.id}` : `Replica ${at + 1}, ${now.id}`);
    drawReplica(entry, now);
  });
}

// Jobs

const jobs = new Map(); // id -> {row, view, said}
const VERBS = {
  pause: { label: "Pause", text: "Finished rows are kept. Rows in flight are computed again after resume.", from: ["queued", "running"] },
  resume: { label: "Resume", text: "Computes the remaining rows. A deadline that has passed is dropped.", from: ["paused", "cancelled", "failed", "expired"] },
  retry: { label: "Retry", text: "Computes the failed rows again; the others stay as they are. A deadline that has passed is dropped.", from: ENDED },
  cancel: { label: "Cancel", text: "Finished rows stay in its results; resume computes the others.", from: ["queued", "running", "paused"], isGrave: true },
};

const doneRows = (view) => Math.min(view.rows_total, view.rows_ok + view.rows_error + view.rows_running);
const may = (verb, view) => VERBS[verb].from.includes(view.state) && (verb !== "retry" || view.rows_error > 0);

function newRow(id) {
  const row = make("tr", { role: "row" });
  const open = make("button", { type: "button", textContent: id, onclick: () => openRows(id) });
  row.append(
    make("th", { scope: "row", role: "rowheader", className: "about" }, open, make("div", { className: "hint" })),
    make("td", { role: "cell", className: "state" }),
    make("td", { role: "cell", className: "bar" }, make("progress", { max: 1, "aria-label": `Progress of ${id}` }), make("span", { className: "hint" })),
    make("td", { role: "cell", className: "n", "data-label": "Errors" }),
    make("td", { role: "cell", className: "n", "data-label": "Tokens/s" }),
    make("td", { role: "cell", "data-label": "Time left" }),
    make("td", { role: "cell", className: "change" }, make("div", { className: "acts" })),
  );
  for (const [verb, { label }] of Object.entries(VERBS)) {
    row.querySelector(".acts").append(make("button", { type: "button", textContent: label, "aria-label": `${label} ${id}`, "data-verb": verb, onclick: () => askToChange(verb, id) }));
  }
  return row;
}

function timeLeft(view) {
  if (ENDED.includes(view.state) || view.eta_s === null) return "";
  const spread = view.eta_low_s === null ? "" : ` (${duration(view.eta_low_s)} to ${duration(view.eta_high_s)})`;
  return duration(view.eta_s) + spread;
}

function drawJob({ row, view }) {
  const [about, state, bar, errors, rate, left] = row.children;
  const done = doneRows(view);
  row.dataset.state = view.state;
  say(about.querySelector(".hint"), [`${view.task}, ${view.source}`, view.message, view.standing].filter(Boolean).join(". "));
  say(state, view.state);
  bar.querySelector("progress").value = done / Math.max(1, view.rows_total);
  say(bar.querySelector("span"), `${whole(done)} of ${plural(view.rows_total, "row")}, ${Math.floor((100 * done) / Math.max(1, view.rows_total))}%`);
  say(errors, whole(view.rows_error));
  errors.classList.toggle("has-errors", view.rows_error > 0);
  say(rate, view.offline_tokens_per_s === null ? "" : whole(view.offline_tokens_per_s));
  say(left, timeLeft(view));
  for (const button of row.querySelectorAll("[data-verb]")) {
    const isHidden = !may(button.dataset.verb, view);
    if (isHidden && document.activeElement === button) about.querySelector("button").focus();
    button.hidden = isHidden;
  }
}

// Each change of state and each quarter of the way: a reader that speaks is told no more.
function tell(entry) {
  const { view } = entry;
  const quarter = Math.floor((4 * doneRows(view)) / Math.max(1, view.rows_total));
  const news = `${view.state} ${ENDED.includes(view.state) ? "" : quarter}`;
  if (entry.said !== undefined && entry.said !== news) announce(`Job ${view.id} is ${view.state}: ${whole(doneRows(view))} of ${plural(view.rows_total, "row")}, ${plural(view.rows_error, "error")}.`);
  const hasEnded = entry.said !== undefined && entry.said !== news && ENDED.includes(view.state);
  entry.said = news;
  if (hasEnded && view.id === opened.id) readRows();
}

function showJobs({ jobs: views, older }) {
  const list = $("job-list");
  const ids = new Set(views.map((view) => view.id));
  for (const [id, entry] of jobs) {
    if (ids.has(id)) continue;
    entry.row.remove();
    jobs.delete(id);
  }
  views.forEach((view, at) => {
    let entry = jobs.get(view.id);
    if (!entry) jobs.set(view.id, (entry = { row: newRow(view.id) }));
    entry.view = view;
    if (list.children[at] !== entry.row) list.insertBefore(entry.row, list.children[at] ?? null);
    drawJob(entry);
    tell(entry);
  });
  $("jobs-scroll").hidden = !views.length;
  $("no-jobs").hidden = views.length > 0;
  $("older").hidden = !older;
  say($("older"), `${plural(older, "older job")} not shown; SQL has them all in the table jobs.`);
  if (opened.id) describeRows();
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

async function change(verb, id) {
  say($("job-fault"), "");
  try {
    const view = await ask("POST", `/api/jobs/${encodeURIComponent(id)}/${verb}`);
    const entry = jobs.get(id);
    if (!entry) return;
    entry.view = view;
    drawJob(entry);
    tell(entry);
  } catch (error) {
    say($("job-fault"), error.message);
  }
}

// Tables of an answer

function isNumeric(values) {
  const known = values.filter((value) => value !== null);
  return known.length > 0 && known.every((value) => /^-?\d+(\.\d+)?$/.test(String(value)));
}

function dataTable({ columns, rows }, caption) {
  const isNumber = columns.map(({ type }, at) => /^(u?int|float|double|decimal)/.test(type) || isNumeric(rows.map((row) => row[at])));
  const isLong = columns.map((_, at) => rows.some((row) => String(row[at] ?? "").length > 32));
  const cell = (value, at) => {
    const kind = isNumber[at] ? "n" : isLong[at] ? "text" : "";
    if (value === null) return make("td", { className: `null ${kind}`, textContent: "null" });
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return make("td", { className: kind }, make("div", { className: "clip", textContent: text }));
  };
  return make(
    "table",
    { className: "data" },
    make("caption", { className: "unseen", textContent: caption }),
    make("thead", {}, make("tr", {}, ...columns.map(({ name }, at) => make("th", { scope: "col", className: isNumber[at] ? "n" : "", textContent: name })))),
    make("tbody", {}, ...rows.map((row) => make("tr", {}, ...row.map(cell)))),
  );
}

// Rows of one job, those that failed first

const opened = { id: null, from: 0 };

function describeRows() {
  const view = jobs.get(opened.id)?.view;
  for (const [id, { row }] of jobs) row.classList.toggle("is-open", id === opened.id);
  if (view) say($("rows-job"), `${view.state}, ${whole(view.rows_ok)} ok, ${plural(view.rows_error, "error")}, ${whole(view.rows_total)} in all. Rows are read here as soon as their part is published.`);
}

function openRows(id) {
  Object.assign(opened, { id, from: 0 });
  $("rows").hidden = false;
  say($("rows-title"), `Rows of ${id}, errors first`);
  $("rows-table").hidden = true;
  describeRows();
  $("rows-title").focus();
  readRows();
}

function closeRows() {
  const entry = jobs.get(opened.id);
  opened.id = null;
  $("rows").hidden = true;
  describeRows();
  (entry?.row.querySelector("button") ?? $("jobs")).focus();
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
  const query = `select substr(columns(*)::varchar, 1, 600) from (select * from results(${quoted(id)}) order by status = 'error' desc, row_id limit ${PAGE_ROWS + 1} offset ${from})`;
  say($("rows-fault"), "");
  say($("rows-note"), "Reading");
  try {
    const answer = await sql(query, PAGE_ROWS + 1);
    if (opened.id !== id || opened.from !== from) return;
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
    say($("rows-note"), "");
    say($("rows-fault"), error.message);
  }
}

function turn(by) {
  opened.from = Math.max(0, opened.from + by);
  readRows();
}

$("rows-back").onclick = () => turn(-PAGE_ROWS);
$("rows-next").onclick = () => turn(PAGE_ROWS);
$("rows-again").onclick = () => readRows();
$("rows-close").onclick = closeRows;
$("rows-ask").onclick = () => {
  $("query").value = `select *\nfrom results(${quoted(opened.id)})\nlimit 100`;
  $("query").focus();
};

// SQL

$("sql-form").onsubmit = async (event) => {
  event.preventDefault();
  const query = $("query").value.trim();
  say($("sql-fault"), query ? "" : "Write a query first.");
  if (!query || $("run").disabled) return;
  $("run").disabled = true;
  say($("sql-note"), "Running");
  const began = performance.now();
  try {
    const answer = await sql(query, 500);
    $("answer").replaceChildren(dataTable(answer, "Answer of the query"));
    $("answer").hidden = false;
    say($("sql-note"), `${plural(answer.rows.length, "row")}${answer.is_cut ? ", there are more" : ""}, ${milliseconds(performance.now() - began).join(" ")}`);
  } catch (error) {
    $("answer").hidden = true;
    say($("sql-note"), "");
    say($("sql-fault"), error.message);
  } finally {
    $("run").disabled = false;
  }
};
$("query").onkeydown = (event) => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) $("sql-form").requestSubmit();
};

// A new job

let tasks = [];

async function loadTasks() {
  if (tasks.length) return;
  ({ tasks } = await ask("GET", "/api/tasks"));
  $("task").replaceChildren(...tasks.map(({ name }) => make("option", { value: name, textContent: name })));
  $("task").value = "summarize";
  chooseTask();
}

function chooseTask() {
  const task = tasks.find(({ name }) => name === $("task").value);
  say($("task-hint"), task.description);
  const fields = Object.entries(task.options).map(([name, { description, required }]) => {
    const id = `option-${name}`;
    const isLong = ["prompt", "schema"].includes(name);
    const box = make(isLong ? "textarea" : "input", { id, name, required, spellcheck: false, "data-option": name, "aria-describedby": `${id}-hint` });
    if (isLong) box.rows = 3;
    return make("div", { className: "field" }, make("label", { htmlFor: id, textContent: name }), box, make("p", { id: `${id}-hint`, className: "hint", textContent: description }));
  });
  $("options").replaceChildren(...fields);
}

function optionValue(box) {
  if (box.name !== "schema") return box.value;
  try {
    return JSON.parse(box.value);
  } catch {
    box.setAttribute("aria-invalid", "true");
    box.focus();
    throw new Error("schema is not JSON; give an object with type and properties.");
  }
}

function jobRequest() {
  const text = (id) => $(id).value.trim() || undefined;
  const number = (id) => (text(id) === undefined ? undefined : Number(text(id)));
  const options = {};
  for (const box of $("options").querySelectorAll("[data-option]")) if (box.value.trim()) options[box.name] = optionValue(box);
  return {
    source: { uri: text("source"), table: text("table"), query: text("source-query") },
    task: $("task").value,
    options,
    column: text("column"),
    max_tokens: number("max-tokens"),
    on_long: $("on-long").value,
    weight: number("weight"),
    new: $("new").checked,
  };
}

function missing(form) {
  for (const box of form.querySelectorAll("[aria-invalid]")) box.removeAttribute("aria-invalid");
  const empty = [...form.querySelectorAll("[required]")].find((box) => !box.value.trim());
  if (!empty) return null;
  empty.setAttribute("aria-invalid", "true");
  empty.focus();
  return `${form.querySelector(`label[for="${empty.id}"]`).textContent} is missing.`;
}

$("task").onchange = chooseTask;
$("submit-form").onsubmit = async (event) => {
  event.preventDefault();
  const form = event.target;
  const button = form.querySelector("button.main");
  const gap = missing(form);
  say($("submit-fault"), gap ?? "");
  say($("submit-note"), "");
  if (gap || button.disabled) return;
  button.disabled = true;
  try {
    const { job, created } = await ask("POST", "/api/jobs", jobRequest());
    say($("submit-note"), created ? `Job ${job.id} was made, of ${plural(job.rows_total, "row")}.` : `Job ${job.id} is the same and is ${job.state}; tick the box above to make another.`);
  } catch (error) {
    say($("submit-fault"), error.message);
  } finally {
    button.disabled = false;
  }
};

// The stream of events. Not by EventSource, which can send no key

const SHOW = { server: showServer, replicas: showReplicas, jobs: showJobs, trouble: showTrouble };
let stream = null; // what ends the connection that there is
let heardAt = 0;

function showLink(kind, text) {
  $("link").dataset.link = kind;
  say($("link"), text);
  document.body.classList.toggle("is-stale", kind !== "live");
}

function showTrouble(text) {
  $("trouble").hidden = text === null;
  say($("trouble"), text ?? "");
}

function showServer({ model, model_note: note, version }) {
  say($("model"), model);
  say($("model-note"), note ?? "");
  $("model-note").hidden = !note;
  $("model").title = `harvester ${version}`;
}

function hear(event) {
  const fields = event.split("\n").map((line) => [line.slice(0, line.indexOf(":")), line.slice(line.indexOf(":") + 2)]);
  const name = fields.find(([field]) => field === "event")?.[1];
  const data = fields.filter(([field]) => field === "data").map(([, text]) => text);
  if (name !== undefined) heardAt = Date.now();
  if (name in SHOW) queueMicrotask(() => SHOW[name](JSON.parse(data.join("\n")))); // a fault in it does not end the stream
}

async function read(body) {
  const reader = body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  for (let { value, done } = await reader.read(); !done; { value, done } = await reader.read()) {
    const events = (text + value).split("\n\n");
    text = events.pop();
    events.forEach(hear);
  }
}

async function connect() {
  stream?.abort();
  const own = (stream = new AbortController());
  heardAt = Date.now();
  let lost = "Not connected; trying again";
  try {
    const answer = await reach("/api/events", { headers: { accept: "text/event-stream" }, signal: own.signal });
    if (answer.ok) {
      showLink("live", "Live");
      loadTasks().catch((error) => say($("submit-fault"), error.message));
      await read(answer.body);
    }
    if (answer.status === 401) lost = "Not connected; a key is needed";
  } catch {
    // It ended, or nobody answers: said below.
  }
  if (stream !== own) return; // another one has taken its place
  stream = null;
  showLink("lost", lost);
}

// A connection may die without a word.
setInterval(() => {
  if (document.hidden || $("unlock").open || (stream !== null && Date.now() - heardAt < SILENT_MS)) return;
  connect();
}, 3000);

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  stream?.abort();
  stream = null;
});

connect();
