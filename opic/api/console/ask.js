// The console's requests to the service, and the handling of errors and timeouts.

const TOKEN = "opic-token";
const ANSWER_SECONDS = 30;

export const token = {
  get: () => sessionStorage.getItem(TOKEN),
  set: (text) => sessionStorage.setItem(TOKEN, text),
  forget: () => sessionStorage.removeItem(TOKEN),
};

// kind: "away": no answer, or not now; "token": none, a wrong one, or one that may not read here, as `message` says then;
// "missing": this service has no such call;
// "refused": the call was, and `message` says why.
export class Trouble extends Error {
  constructor(kind, message, retrySeconds = 0) {
    super(message);
    this.kind = kind;
    this.retrySeconds = retrySeconds;
  }
}

// JSON in which a whole number that a double can't hold is a BigInt. A string is matched as a whole, so that nothing in
// it is taken for a number.
const TOKENS = /"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?/g;
const BIG = "\u0000big";

export function parse(text) {
  const marked = text.replace(TOKENS, (found) => (/^-?\d{16,}$/.test(found) ? `{"\\u0000big":"${found}"}` : found));
  return JSON.parse(marked, (_, value) =>
    value !== null && typeof value === "object" && BIG in value ? BigInt(value[BIG]) : value);
}

// The crawl that the page is about, by the address; "" for that of the service's own calls.
export const crawl = new URLSearchParams(location.search).get("crawl") ?? "";
export const CRAWLS = "v1/crawls";
const ofCrawl = (path) => (crawl && path !== CRAWLS ? path.replace(/^v1/, `${CRAWLS}/${encodeURIComponent(crawl)}`) : path);

// Returns the answer with `age`: how old the state that it shows was when it came, in seconds.
export async function ask(path, parameters = {}) {
  const query = new URLSearchParams(parameters).toString();
  const given = token.get();
  let response, text;
  try {
    response = await fetch(ofCrawl(path) + (query && `?${query}`), {
      headers: { Accept: "application/json", ...(given ? { Authorization: `Bearer ${given}` } : {}) },
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
      signal: AbortSignal.timeout(ANSWER_SECONDS * 1000),
    });
    text = await response.text();
  } catch (error) {
    const late = error.name === "TimeoutError";
    throw new Trouble("away", late ? `The service did not answer within ${ANSWER_SECONDS} s.` : "The service does not answer.");
  }
  let body;
  try {
    body = parse(text);
  } catch {
    body = null; // A proxy's page, say.
  }
  if (response.ok && body !== null) {
    const now = Date.parse(response.headers.get("Date")) / 1000;
    return { ...body, age: Math.max(0, now - body.as_of) || 0 };
  }
  const why = body?.detail ?? `It answered ${response.status}.`;
  const kind = body?.type ?? "";
  if (response.status === 401) throw new Trouble("token", "");
  if (kind === "urn:opic:problem:not-allowed") throw new Trouble("token", why);
  if (response.status === 405 || response.status === 501) throw new Trouble("missing", why);
  if (response.status === 404 && kind !== "urn:opic:problem:unknown-page") throw new Trouble("missing", why);
  if (response.status >= 400 && response.status < 500) throw new Trouble("refused", why);
  throw new Trouble("away", `The service can’t answer now: ${why}`, Number(response.headers.get("Retry-After")) || 0);
}
