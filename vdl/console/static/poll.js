// Repeated requests. A hidden tab makes none, a slow server gets fewer, and a failing one fewer yet.

const BUSY_SHARE = 5; // a request that takes a second is repeated every five seconds
const FAILURE_SECONDS_MAX = 60;

// Return the pause before the next request.
// `took`: seconds of the last one; `failures`: failed requests in a row.
export function pause(every, took, failures) {
  const slow = Math.max(every, took * BUSY_SHARE);
  return failures ? Math.max(slow, Math.min(every * 2 ** failures, FAILURE_SECONDS_MAX)) : slow;
}

// Calls `load(signal)` now and again until `stop`. `load` must not raise: it returns true if it
// succeeded.
export class Poll {
  #load;
  #every;
  #failures = 0;
  #timer = 0;
  #request = null;
  #wasCalled = false;
  #isStopped = false;

  constructor(load, everySeconds) {
    this.#load = load;
    this.#every = everySeconds;
    document.addEventListener("visibilitychange", this.#changed);
    if (!document.hidden) this.now();
  }

  // Ask at once, in place of a request that is under way.
  async now() {
    if (this.#isStopped) return;
    this.#wasCalled = true;
    clearTimeout(this.#timer);
    this.#request?.abort();
    const request = (this.#request = new AbortController());
    const began = performance.now();
    const succeeded = await this.#load(request.signal);
    if (this.#isStopped || this.#request !== request) return;
    this.#request = null;
    this.#failures = succeeded ? 0 : this.#failures + 1;
    if (document.hidden || !this.#every) return;
    const took = (performance.now() - began) / 1000;
    const seconds = pause(this.#every, took, this.#failures);
    this.#timer = setTimeout(() => this.now(), seconds * 1000);
  }

  stop() {
    this.#isStopped = true;
    clearTimeout(this.#timer);
    this.#request?.abort();
    document.removeEventListener("visibilitychange", this.#changed);
  }

  #changed = () => {
    if (document.hidden) clearTimeout(this.#timer);
    else if (!this.#request && (this.#every || !this.#wasCalled)) this.now();
  };
}
