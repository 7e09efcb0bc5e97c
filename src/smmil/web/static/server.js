// Requests to the server, and error messages when they fail.
import { field } from "./dom_helpers.js";

/** Something the reader should know, in one line. */
export class Problem extends Error {}

/** The server was restarted: its numbers may mean other cases now, so nothing of this page can be trusted. */
export class Outdated extends Problem {
  constructor(words = "this page belongs to an earlier start of smmil view; reload it") {
    super(words);
  }
}

const GONE = "The server does not answer. Is `smmil view` still running? Start it again, then try again.";
const NO_TOKEN = "This address needs its token: open the link that `smmil view` printed.";
let again = null;
let study = null; // what this start of the server calls itself
let outdated = false;

export function belongTo(start) {
  study = start ?? null;
}

/** The address with the start of the server it is meant for; the server refuses it after another start. */
export function addressed(url) {
  return study === null ? url : `${url}${url.includes("?") ? "&" : "?"}study=${encodeURIComponent(study)}`;
}

async function answerTo(url) {
  let answer;
  try {
    answer = await fetch(addressed(url), { credentials: "same-origin", redirect: "error" });
  } catch {
    throw new Problem(GONE);
  }
  if (answer.status === 401) throw new Problem(NO_TOKEN);
  if (answer.status === 409) throw new Outdated(await reasonOf(answer));
  if (!answer.ok) throw new Problem(await reasonOf(answer));
  return answer;
}

async function reasonOf(answer) {
  const content = await answer.json().catch(() => null);
  return typeof content?.error === "string" ? content.error : `The server could not answer (status ${answer.status}).`;
}

export async function askJson(url) {
  const answer = await answerTo(url);
  try {
    return await answer.json();
  } catch {
    throw new Problem("The server's answer broke off. Try again.");
  }
}

/** Numbers as the server stores them: a typed array of the given kind, `count` of them. */
export async function askNumbers(url, Kind, count) {
  const bytes = await (await answerTo(url)).arrayBuffer().catch(() => new ArrayBuffer(0));
  if (bytes.byteLength !== count * Kind.BYTES_PER_ELEMENT) throw new Problem("The server's answer broke off. Try again.");
  return new Kind(bytes);
}

/** A file and the name the server gives it. */
export async function askFile(url, name) {
  const answer = await answerTo(url);
  const disposition = answer.headers.get("Content-Disposition") ?? "";
  const wide = /filename\*=UTF-8''([^;]+)/i.exec(disposition);
  const plain = /filename="([^"]+)"/i.exec(disposition);
  return { blob: await answer.blob(), name: wide ? decodeURIComponent(wide[1]) : plain ? plain[1] : name };
}

/** Show what went wrong, calmly; `retry` is what "Try again" does. */
export function report(problem, retry = null) {
  if (!(problem instanceof Problem)) throw problem; // our own mistake: never hide it
  if (outdated) return;
  if (problem instanceof Outdated) return leave(problem);
  again = retry;
  field("trouble-text").textContent = problem.message;
  field("try-again").hidden = retry === null;
  field("trouble").hidden = false;
}

/** Take every case from the screen; only reloading goes on from here. */
function leave(problem) {
  outdated = true;
  again = () => location.reload();
  field("trouble-text").textContent = problem.message;
  field("try-again").textContent = "Reload";
  field("dismiss").hidden = field("columns").hidden = field("notice").hidden = true;
  field("try-again").hidden = field("trouble").hidden = false;
  document.title = "smmil view";
}

export function clearProblem() {
  if (!outdated) field("trouble").hidden = true;
}

field("dismiss").addEventListener("click", clearProblem);
field("try-again").addEventListener("click", () => {
  clearProblem();
  again?.();
});
