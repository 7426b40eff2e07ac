// A new job: of a source that the server reads, or of a file of the reader's; or only what it would take

import { $, ask, duration, make, plural, reach, refusal, say, whole } from "./base.js";

let tasks = [];

export async function loadTasks() {
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

function jobRequest(uri) {
  const text = (id) => $(id).value.trim() || undefined;
  const number = (id) => (text(id) === undefined ? undefined : Number(text(id)));
  const options = {};
  for (const box of $("options").querySelectorAll("[data-option]")) if (box.value.trim()) options[box.name] = optionValue(box);
  return {
    source: { uri, table: text("table"), query: text("source-query") },
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

// A file of the reader's goes to the server in pieces. The server says how much of it it has, and whether it is whole: what broke
// off is sent from there, by the same address, and what the server has removed since is sent again.

const PIECE_BYTES = 8 << 20;
const TRIES = 4; // of one piece
const LONGEST_WAIT_S = 30; // between two tries
const MAY_PASS = [undefined, 429, 503]; // statuses of a refusal; undefined: no answer
const begun = new WeakMap(); // file -> path of its upload

function uploadPath({ name }) {
  const id = [...crypto.getRandomValues(new Uint8Array(16))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
  return `/api/uploads/${id}/${name.replace(/[^A-Za-z0-9._-]/g, "_").replace(/^\.+/, "").slice(-100) || "rows"}`;
}

async function upload(file) {
  const isBegun = begun.has(file);
  if (!isBegun) begun.set(file, uploadPath(file));
  const path = begun.get(file);
  try {
    let told = isBegun ? await ask("GET", path) : { bytes: 0, is_whole: false };
    while (!told.is_whole) told = await send(file, path, told.bytes);
    return told.uri;
  } catch (error) {
    if (error.status >= 400 && error.status < 500 && ![401, 429].includes(error.status)) await forget(file, path);
    throw error;
  }
}

// What is there of a file that the server refuses would only count against the key.
async function forget(file, path) {
  begun.delete(file);
  await reach(path, { method: "DELETE", headers: {} }).catch(() => {});
}

async function send(file, path, from) {
  const isLast = from + PIECE_BYTES >= file.size;
  const request = { method: "PUT", body: file.slice(from, from + PIECE_BYTES), headers: {} };
  for (let tries = 1; ; tries += 1) {
    say($("submit-note"), `Sending ${file.name}, ${Math.floor((100 * from) / Math.max(1, file.size))}%`);
    try {
      const answer = await reach(`${path}?offset=${from}&last=${isLast}`, request);
      if (!answer.ok) throw await refusal(answer);
      return await answer.json();
    } catch (error) {
      const wait_s = error.wait_s || 2 ** (tries - 1);
      if (!MAY_PASS.includes(error.status) || tries === TRIES || wait_s > LONGEST_WAIT_S) throw error;
      say($("submit-note"), `${error.message} Sending ${file.name} goes on in ${duration(wait_s)}.`);
      await new Promise((resolve) => setTimeout(resolve, 1000 * wait_s));
    }
  }
}

async function source() {
  const file = $("file").files[0];
  return file ? upload(file) : $("source").value.trim();
}

function expected(plan) {
  const answers = plan.estimated_output_tokens === null ? `at most ${whole(plan.most_output_tokens)}` : `about ${whole(plan.estimated_output_tokens)}`;
  const time = plan.estimated_s === null ? "time unknown: no job has run here yet" : `about ${duration(plan.estimated_s)} (${duration(plan.estimated_low_s)} to ${duration(plan.estimated_high_s)})`;
  const price = plan.price === null ? "" : `, ${plan.price.amount} ${plan.price.currency}`;
  const column = plan.column ? ` over column ${plan.column}` : "";
  return `${plural(plan.rows, "row")}${column}: about ${whole(plan.estimated_prompt_tokens)} tokens of prompts, ${answers} of answers, ${time}${price}. ${plan.notes.join(". ")}`;
}

async function act(button, work) {
  const gap = missing($("submit-form"));
  say($("submit-fault"), gap ?? "");
  say($("submit-note"), "");
  if (gap || button.disabled) return;
  button.disabled = true;
  try {
    say($("submit-note"), await work(jobRequest(await source())));
  } catch (error) {
    say($("submit-note"), "");
    say($("submit-fault"), error.message);
  } finally {
    button.disabled = false;
  }
}

async function submit(request) {
  const { job, created } = await ask("POST", "/api/jobs", request);
  return created ? `Job ${job.id} was made, of ${plural(job.rows_total, "row")}.` : `Job ${job.id} is the same and is ${job.state}; tick the box above to make another.`;
}

$("task").onchange = chooseTask;
$("file").onchange = () => {
  $("source").required = !$("file").files.length;
};
$("dry-run").onclick = () => act($("dry-run"), async (request) => expected(await ask("POST", "/api/plan", request)));
$("submit-form").onsubmit = (event) => {
  event.preventDefault();
  act(event.target.querySelector("button.main"), submit);
};
