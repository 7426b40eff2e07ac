// The page of a harvester server: which part is shown, and the stream of events behind all of them

import { $, askForKey, onUnlocked, reach, say, setClock } from "./base.js";
import { loadTasks } from "./form.js";
import { openJob, refresh } from "./job.js";
import { onJobs, showJobs } from "./jobs.js";
import { readHistory } from "./picture.js";
import { showReplicas } from "./replicas.js";

// The address: #/jobs/ID is a job's page, all else the overview

const JOB = "#/jobs/";

function route() {
  const id = location.hash.startsWith(JOB) ? decodeURIComponent(location.hash.slice(JOB.length)) : null;
  $("overview").hidden = id !== null;
  document.title = id === null ? "harvester" : `${id} - harvester`;
  say($("skip"), id === null ? "Skip to jobs" : "Skip to the job");
  openJob(id);
  if (id === null && location.hash.length > 1) document.querySelector(location.hash)?.scrollIntoView();
  else scrollTo(0, 0);
}

addEventListener("hashchange", route);
$("skip").onclick = (event) => {
  if ($("job").hidden) return; // else its address would leave the job's page
  event.preventDefault();
  $("job-title").focus();
};
onJobs(refresh);
onUnlocked(() => {
  connect();
  route(); // a job's page could not be read before
});

// The stream of events. Not by EventSource, which can send no key

const SILENT_MS = 15000;
const SHOW = { server: showServer, replicas: showReplicas, jobs: showJobs, trouble: showTrouble, look: showLook };
let stream = null; // what ends the connection that there is
let heardAt = 0; // by performance.now(), as no one can set it
let tickedAt = 0; // by Date.now(), which goes on while the device sleeps

function showLink(kind, text) {
  $("link").dataset.link = kind;
  say($("link"), text);
  document.body.classList.toggle("is-stale", kind !== "live");
}

function showTrouble(text) {
  $("trouble").hidden = text === null;
  say($("trouble"), text ?? "");
}

function showLook(now_s) {
  setClock(now_s);
  readHistory();
  refresh();
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
  if (name !== undefined) heardAt = performance.now();
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

// What is shown of a refusal. A key that may not see jobs is asked for again, since another one may.
async function refused(answer) {
  if (answer.status === 401) return "Not connected; a key is needed";
  const told = (await answer.json().catch(() => null))?.error;
  if (told?.code === "insufficient_role") {
    askForKey(told.message);
    return "Not connected; this key may not see jobs";
  }
  return told?.message ? `Not connected: ${told.message}` : "Not connected; trying again";
}

async function connect() {
  stream?.abort();
  const own = (stream = new AbortController());
  heardAt = performance.now();
  tickedAt = Date.now();
  let lost = "Not connected; trying again";
  try {
    const answer = await reach("/api/events", { headers: { accept: "text/event-stream" }, signal: own.signal });
    if (answer.ok) {
      showLink("live", "Live");
      loadTasks().catch((error) => say($("submit-fault"), error.message));
      await read(answer.body);
    } else lost = await refused(answer);
  } catch {
    // It ended, or nobody answers: said below.
  }
  if (stream !== own) return; // another one has taken its place
  stream = null;
  showLink("lost", lost);
}

// A connection may die without a word, and does so where the device has slept.
setInterval(() => {
  const hasSlept = Math.abs(Date.now() - tickedAt) > SILENT_MS;
  tickedAt = Date.now();
  if (document.hidden || $("unlock").open || (stream !== null && !hasSlept && performance.now() - heardAt < SILENT_MS)) return;
  connect();
}, 3000);

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) return connect();
  stream?.abort();
  stream = null;
});

if (!document.hidden) connect(); // a browser has few connections to one server, and each open page holds one
route();
