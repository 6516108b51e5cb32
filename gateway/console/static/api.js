// Requests to the console's API, and the errors that it returns.

const TIMEOUT_MS = 15000;
const KEY = "tallybook-token";

export class Failed extends Error {
  constructor(status, error) {
    super(error.message);
    this.status = status;
    this.type = error.type;
    this.outcome = error.outcome;
  }
}

export function useToken(token) {
  if (token) sessionStorage.setItem(KEY, token);
  else sessionStorage.removeItem(KEY);
}

export function hasToken() {
  return sessionStorage.getItem(KEY) !== null;
}

export async function get(path) {
  return ask("GET", path);
}

export async function post(path) {
  return ask("POST", path, {});
}

export async function remove(path, body) {
  return ask("DELETE", path, body);
}

async function ask(method, path, body) {
  const headers = body === undefined ? {} : { "content-type": "application/json" };
  const token = sessionStorage.getItem(KEY);
  if (token) headers.authorization = `Bearer ${token}`;
  let answer;
  try {
    answer = await fetch(`/api/v1/${path}`, {
      method, headers, body: body === undefined ? undefined : JSON.stringify(body), signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch (error) {
    const why = error.name === "TimeoutError" ? "the console does not answer in time" : "the console does not answer";
    throw new Failed(0, { message: why, type: "Unreachable", outcome: method === "GET" ? "not done" : "unknown" });
  }
  const reply = await answer.json().catch(() => ({}));
  if (!answer.ok) throw new Failed(answer.status, reply.error ?? { message: `the console answered ${answer.status}` });
  return reply;
}
