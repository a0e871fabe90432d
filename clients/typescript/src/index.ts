/**
 * Typed client of secondread's HTTP API: paths and their types are made from its OpenAPI document, requests are sent by
 * openapi-fetch.
 *
 *     const api = connect("http://127.0.0.1:8000", { apiKey });
 *     try {
 *       const prediction = await predict(api, image);
 *       const read = await take(api.POST("/v1/reads"));
 *     } catch (error) {
 *       if (!(error instanceof ApiError)) throw error; // the service does not answer
 *       console.error(error.code, error.detail);
 *     }
 */
import createFetchClient, { type Client } from "openapi-fetch";
import type { components, paths } from "./schema.ts";

export type Schemas = components["schemas"];
export type Api = Client<paths>;

const PREFIX = "urn:secondread:problem:";
/** Statuses after which nothing was stored and another try is welcome. */
const AGAIN = new Set([429, 503]);
/** Requests that may be sent again when nobody knows what became of them: a POST carries its key. */
const REPEATED = new Set(["GET", "POST"]);
const LONGEST_WAIT = 30_000;

/** The service refused a request; `code` never changes, `detail` says what to do. */
export class ApiError extends Error {
  override readonly name = "ApiError";
  readonly status: number;
  readonly code: string;
  readonly detail: string;
  readonly faults: Schemas["Fault"][];

  constructor(status: number, code: string, detail: string, faults: Schemas["Fault"][] = []) {
    const said = faults.map((fault) => `; ${fault.where.join(".")}: ${fault.what}`).join("");
    super(`${status} ${code}: ${detail}${said}`);
    this.status = status;
    this.code = code;
    this.detail = detail;
    this.faults = faults;
  }
}

export interface Options {
  /** As `secondread key add` prints it. */
  apiKey?: string;
  /** How often a request is sent at most, while the connection breaks or the service is busy. */
  tries?: number;
  /** Milliseconds before the second try; twice as many before each further one. */
  wait?: number;
  /** What sends a request, where that is not the fetch of the platform. */
  fetch?: (request: Request) => Promise<Response>;
}

/** A connection to the service at an address. */
export function connect(address: string, options: Options = {}): Api {
  return createFetchClient<paths>({ baseUrl: address, fetch: (request: Request) => send(request, options) });
}

/** Sends a request until it is answered; one that stores something carries the same Idempotency-Key each time. */
async function send(request: Request, { apiKey, tries = 4, wait = 500, fetch: deliver = fetch }: Options): Promise<Response> {
  if (apiKey !== undefined) request.headers.set("Authorization", `Bearer ${apiKey}`);
  if (request.method === "POST" && !request.headers.has("Idempotency-Key")) {
    request.headers.set("Idempotency-Key", crypto.randomUUID());
  }
  for (let attempt = 1; ; attempt += 1) {
    let pause = Math.min(wait * 2 ** (attempt - 1), LONGEST_WAIT) * (0.5 + Math.random() / 2);
    try {
      const answer = await deliver(request.clone());
      if (!AGAIN.has(answer.status) || attempt >= tries) return answer.ok ? answer : await refuse(answer);
      const asked = Number(answer.headers.get("Retry-After") ?? Number.NaN);
      if (asked >= 0) pause = Math.min(asked * 1000, LONGEST_WAIT);
    } catch (error) {
      // fetch reports a broken connection as a TypeError
      if (!(error instanceof TypeError) || !REPEATED.has(request.method) || attempt >= tries) throw error;
    }
    await new Promise((resolve) => setTimeout(resolve, pause));
  }
}

async function refuse(answer: Response): Promise<never> {
  const text = await answer.text();
  let problem: Partial<Schemas["ProblemDocument"]> = {};
  try {
    problem = JSON.parse(text) as Partial<Schemas["ProblemDocument"]>;
  } catch {
    // somebody else answered, as a proxy does
  }
  const code = (problem.type ?? "").replace(PREFIX, "");
  throw new ApiError(answer.status, code, problem.detail ?? text.slice(0, 200), problem.errors ?? []);
}

/** What was answered; undefined only where there is nothing, as of a lease when there is nothing to read. */
export async function take<T>(answer: Promise<{ data?: T }>): Promise<T | undefined> {
  return (await answer).data;
}

/** What was answered, where there is always something. */
export async function need<T>(answer: Promise<{ data?: T }>): Promise<NonNullable<T>> {
  const found = await take(answer);
  if (found === undefined || found === null) throw new Error("the service answered nothing");
  return found;
}

/** Entries of all pages: `pages((cursor) => api.GET("/v1/cases", { params: { query: { cursor } } }))`. */
export async function* pages<T>(
  ask: (cursor: string | null) => Promise<{ data?: { items: T[]; next_cursor: string | null } }>,
): AsyncGenerator<T> {
  const seen = new Set<string | null>([null]); // a cursor that comes again leads nowhere new
  let cursor: string | null = null;
  do {
    const page: { items: T[]; next_cursor: string | null } = await need(ask(cursor));
    yield* page.items;
    seen.add(cursor);
    cursor = page.next_cursor;
  } while (!seen.has(cursor));
}

function form(image: Blob, fields: Record<string, string> = {}, field?: Blob): FormData {
  const filled = new FormData();
  filled.set("image", image, "image");
  if (field) filled.set("field", field, "field");
  for (const [name, value] of Object.entries(fields)) filled.set(name, value);
  return filled;
}

/** Predicts an image without storing it. */
export function predict(api: Api, image: Blob): Promise<Schemas["PredictionOut"]> {
  return need(api.POST("/v1/predictions", { body: { image: "" }, bodySerializer: () => form(image) }));
}

/** Stores an image as a case, perhaps with the wider field around its cell. */
export function addCase(
  api: Api,
  image: Blob,
  fields: { external_id: string; patient?: string; site?: string; metadata?: string },
  idempotencyKey: string = crypto.randomUUID(),
  field?: Blob,
): Promise<Schemas["CaseOut"]> {
  return need(
    api.POST("/v1/cases", {
      params: { header: { "idempotency-key": idempotencyKey } },
      body: { image: "", ...fields },
      bodySerializer: () => form(image, { ...fields }, field),
    }),
  );
}

/** Pixels of a case as PNG. */
export function image(api: Api, caseId: string): Promise<Blob> {
  return need(api.GET("/v1/cases/{case_id}/image", { params: { path: { case_id: caseId } }, parseAs: "blob" }));
}
