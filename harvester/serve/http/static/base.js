// What the parts of the page share. Everything shown is set as text, never as markup: rows hold text of any origin.

export const $ = (id) => document.getElementById(id);
export const ENDED = ["completed", "cancelled", "failed", "expired"];

export function make(tag, fields = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(fields)) {
    if (name in node) node[name] = value;
    else node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

export function say(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

export function announce(text) {
  $("news").textContent = text;
}

// Numbers as a person reads them

export const whole = (value) => Math.round(value).toLocaleString("en");
export const percent = (share) => (share === null ? null : `${Math.round(share * 100)}`);
export const plural = (count, noun) => `${whole(count)} ${noun}${count === 1 ? "" : "s"}`;

export function milliseconds(ms) {
  if (ms === null) return null;
  return ms >= 10000 ? [(ms / 1000).toFixed(1), "s"] : [ms >= 100 ? whole(ms) : ms.toPrecision(ms >= 10 ? 3 : 2), "ms"];
}

export function duration(seconds) {
  const s = Math.round(seconds);
  if (s < 120) return `${s} s`;
  const minutes = Math.round(seconds / 60);
  if (minutes < 120) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${String(minutes % 60).padStart(2, "0")} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

// The clock of the server, from which the reader's may differ. Between two looks it goes on by the reader's.

let look = null; // {now_s, at_ms}: what the server said last, and when by performance.now()

export function setClock(now_s) {
  look = { now_s, at_ms: performance.now() };
}

export const serverNow = () => (look === null ? Date.now() / 1000 : look.now_s + (performance.now() - look.at_ms) / 1000);

// The key, where the server asks for one: kept by this tab until it is closed

const KEY = "harvester-api-key";

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

export function askForKey(fault) {
  if ($("unlock").open) return;
  say($("unlock-fault"), fault ?? (hasKey() ? "The server does not know this key." : ""));
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
let unlocked = () => {};
export function onUnlocked(then) {
  unlocked = then;
}
$("unlock").onclose = () => unlocked();

// Asking the server

export async function reach(path, request) {
  const key = sessionStorage.getItem(KEY);
  const headers = { ...request.headers, ...(key === null ? {} : { authorization: `Bearer ${key}` }) };
  const answer = await fetch(path, { ...request, headers, cache: "no-store" }).catch(() => {
    throw new Error("The server does not answer; try again later.");
  });
  if (answer.status === 401) askForKey();
  return answer;
}

// The reason that the server gives for its refusal, its status, and after how many seconds to try again (0: not said).
export async function refusal(answer) {
  const told = (await answer.json().catch(() => null))?.error;
  const fault = new Error(told?.message ?? `The server answered ${answer.status}; try again.`);
  return Object.assign(fault, { status: answer.status, wait_s: Number(answer.headers.get("retry-after")) || 0 });
}

export async function ask(method, path, body, parse = JSON.parse, signal) {
  const request = { method, headers: { accept: "application/json" }, signal };
  if (body !== undefined) {
    request.body = JSON.stringify(body);
    request.headers["content-type"] = "application/json";
  }
  const answer = await reach(path, request);
  if (!answer.ok) throw await refusal(answer);
  try {
    return parse(await answer.text());
  } catch {
    throw new Error("The answer of the server broke off; try again.");
  }
}

// JSON whose integers keep their digits above 2^53: as raw JSON or, in a browser without it, as text.

const LITERAL = /"[^"\\]*(?:\\.[^"\\]*)*"|-?\d[\d.eE+-]*/g;
const isInexact = (source) => /^-?\d+$/.test(source) && !Number.isSafeInteger(Number(source));

function exact(text) {
  if (!JSON.rawJSON) return JSON.parse(text.replace(LITERAL, (literal) => (isInexact(literal) ? `"${literal}"` : literal)));
  return JSON.parse(text, (key, value, { source }) => (isInexact(source) ? JSON.rawJSON(source) : value));
}

export const sql = (query, limit, signal) => ask("POST", "/api/sql", { query, limit }, exact, signal);
export const quoted = (text) => `'${text.replaceAll("'", "''")}'`;
