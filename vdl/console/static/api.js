// Questions to the server that sent this page, and its errors in words.

const TIMEOUT_MS = 20_000; // the server gives up after 15 s
const BASE = new URL("api/", document.baseURI);

// An error with a `message` for people. `kind` is of API.md, or "network" or "timeout".
export class ApiError extends Error {
  constructor(kind, message, retryAfter = null) {
    super(message);
    this.kind = kind;
    this.retryAfter = retryAfter;
  }
}

let onLoginRequired = () => {};

// Call `handler` when the session has ended.
export function whenLoginRequired(handler) {
  onLoginRequired = handler;
}

// Return the answer to a question. Raises ApiError; an aborted `signal` raises kind "aborted".
export function get(name, params = {}, signal = undefined) {
  const url = new URL(name, BASE);
  for (const [key, value] of Object.entries(params)) {
    if (value !== null && value !== undefined && value !== "") url.searchParams.set(key, value);
  }
  return ask(url, { method: "GET" }, signal);
}

const files = new Map();

// Return a JSON file that belongs to the pages. Raises ApiError.
export async function file(name) {
  if (!files.has(name)) files.set(name, await ask(new URL(name, document.baseURI), { method: "GET" }));
  return files.get(name);
}

// Send a change and return the answer. Raises ApiError.
export function post(name, body) {
  const headers = { "Content-Type": "application/json" };
  return ask(new URL(name, BASE), { method: "POST", headers, body: JSON.stringify(body) });
}

async function ask(url, options, signal) {
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  let response;
  let answer;
  try {
    response = await fetch(url, {
      ...options,
      headers: { ...options.headers, "X-VDL-Console": "1" },
      credentials: "same-origin",
      cache: "no-store",
      redirect: "error",
      signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
    });
    answer = await response.json();
  } catch {
    if (signal?.aborted) throw new ApiError("aborted", "The question was withdrawn.");
    if (timeout.aborted) throw new ApiError("timeout", "The server did not answer in time.");
    if (response) throw new ApiError("failed", "The answer of the server cannot be read.");
    throw new ApiError("network", "The server does not answer.");
  }
  if (response.ok) return answer;
  const { kind = "failed", message = "", retry_after: retryAfter = null } = answer?.error ?? {};
  if (kind === "login_required") onLoginRequired();
  throw new ApiError(kind, inWords(kind, message), retryAfter);
}

const MEANINGS = {
  login_required: "The session has ended.",
  forbidden: "This user may not see it.",
  read_only: "Changes are switched off on this server.",
  too_many: "There were too many requests.",
  unreachable: "A server that is needed does not answer.",
  busy: "The console has too much to do.",
  deadline: "It took more than 15 seconds.",
  failed: "The server failed to answer; its log has the reason.",
};

function inWords(kind, message) {
  const meaning = MEANINGS[kind] ?? "";
  const details = String(message).trim();
  if (!details) return meaning || "The server refused the question.";
  const sentence = details[0].toUpperCase() + details.slice(1);
  return /[.!?]$/.test(sentence) ? sentence : `${sentence}.`;
}
